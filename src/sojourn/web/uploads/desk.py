"""Uploads of viewers: captures and traces that are measured, and the report that comes of it.

Guarantee: each is worked on in a process with limits on time and memory (`LimitedProcess`), at most `WORKERS` at a
time; owners take turns (`FairTurns`), so that one's work never keeps another's waiting for longer than the limits of
one. Files are removed as soon as their report is there, and the report, like an upload that was never completed, after
the time that it is kept, when its owner removes it, and with the process. An upload is shown to its owner alone.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.executors.limited import Ended, LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.core.executors.turns import FairTurns, Turn
from sojourn.core.units import plural
from sojourn.web.uploads.room import Room, safe_name
from sojourn.web.uploads.working import PROGRESS, REPORT, make_report, read_progress

Kind = Literal["measure", "rtt", "tomography"]
State = Literal["receiving", "waiting", "working", "done", "failed"]
FILES: dict[Kind, tuple[str, ...]] = {"measure": ("sender", "receiver"), "rtt": ("capture",), "tomography": ("trace",)}
WORKERS = 2
SECONDS = 600.0
MEMORY_BYTES = 1 << 30
MOST_OF_ONE, MOST_UPLOADS = 20, 500
SWEEP_SECONDS = 2.0
IDLE_TURNS = 30  # after which a process that nobody needs gives its memory back
JOIN_SECONDS = 1.0
_LOG = logging.getLogger("sojourn.uploads")


@dataclass(frozen=True, kw_only=True)
class UploadOptions:
    """What uploads may take together, how long they are kept, and where."""

    most_bytes: int
    keep_ns: int
    directory: Path


@dataclass
class Upload:
    """One upload and what became of it."""

    id: str
    number: int
    owner: str
    kind: Kind
    where: str
    reverse: bool
    folder: Path
    created_ns: int
    expires_ns: int
    names: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    report_bytes: int = 0
    state: State = "receiving"
    lines: list[str] = field(default_factory=list)
    error: str = ""
    took_ns: int = 0

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return sum(self.sizes.values()) + self.report_bytes

    @property
    def progress(self) -> tuple[str, float]:
        """What is done now, and the share of it that is done."""
        return read_progress(self.folder) if self.state == "working" else ("", float(self.state == "done"))


class NoUploadError(UsageError):
    """There is none of that id, or it is somebody else's."""


class UploadDesk:
    """All uploads of one query unit; safe from several threads."""

    def __init__(
        self, options: UploadOptions, *, clock: Callable[[], int] = time.time_ns, seconds: float = SECONDS
    ) -> None:
        self.options = options
        self._clock = clock
        self.room = Room(options.directory, options.most_bytes)
        self._uploads: dict[str, Upload] = {}
        self._state = threading.Lock()
        self._numbers = 0
        self._turns = FairTurns()
        limits = ProcessLimits(seconds=seconds, memory_bytes=MEMORY_BYTES)
        self._processes = [LimitedProcess(limits, preload=[make_report.__module__]) for _ in range(WORKERS)]
        self._running: dict[int, LimitedProcess] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(process,), name="sojourn-uploads", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End what is worked on, and remove everything."""
        self._turns.close()
        for process in self._processes:
            process.close()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self.room.close()

    def create(self, owner: str, kind: Kind, *, where: str = "", reverse: bool = False) -> Upload:
        """A new upload that waits for its files."""
        now = self._clock()
        with self._state:
            mine = sum(one.owner == owner for one in self._uploads.values())
            if mine >= MOST_OF_ONE or len(self._uploads) >= MOST_UPLOADS:
                what = f"there are {plural(mine, 'upload')} of yours, {len(self._uploads)} in all"
                raise UsageError(what, where="uploads", action="remove one that is not needed")
            self._numbers += 1
            name = secrets.token_urlsafe(12)
            folder = self.room.folder / str(self._numbers)
            folder.mkdir()
            upload = Upload(
                id=name, number=self._numbers, owner=owner, kind=kind, where=where, reverse=reverse, folder=folder,
                created_ns=now, expires_ns=now + self.options.keep_ns,
            )  # fmt: skip
            self._uploads[name] = upload
        return upload

    def find(self, name: str, owner: str) -> Upload:
        """An upload of its owner."""
        upload = self._uploads.get(name)
        if upload is None or upload.owner != owner:
            raise NoUploadError("there is no such upload; it may have been removed", action="upload it again")
        return upload

    def of(self, owner: str) -> list[Upload]:
        """An owner's uploads, the latest first."""
        with self._state:
            mine = [one for one in self._uploads.values() if one.owner == owner]
        return sorted(mine, key=lambda one: -one.number)

    @contextmanager
    def receiving(self, upload: Upload, place: str, name: str) -> Iterator[Callable[[bytes], None]]:
        """Take one of an upload's files; yields what takes its pieces. What was not taken as a whole is removed."""
        if place not in FILES[upload.kind]:
            raise UsageError(
                f"there is no {place[:40]} of {upload.kind}", action=f"name {' or '.join(FILES[upload.kind])}"
            )
        with self._state:
            if upload.state != "receiving" or place in upload.names:
                raise UsageError(f"the {place} is there already", where="upload", action="begin another upload")
            reserved = frozenset({*upload.names.values(), REPORT, PROGRESS})
            upload.names[place] = safe_name(name, taken=reserved)
            upload.sizes[place] = 0
        path = upload.folder / upload.names[place]
        try:
            with open(path, "xb") as file:
                yield lambda piece: self._write(upload, place, file, piece)
        except BaseException:
            path.unlink(missing_ok=True)
            self.room.give_back(upload.owner, upload.sizes.pop(place, 0))
            upload.names.pop(place, None)
            raise

    def _write(self, upload: Upload, place: str, file: IO[bytes], piece: bytes) -> None:
        if upload.id not in self._uploads:
            raise NoUploadError("the upload was removed", action="begin another one")
        self.room.take(upload.owner, len(piece))
        upload.sizes[place] += len(piece)
        file.write(piece)

    def start(self, upload: Upload) -> None:
        """Begin to work on an upload whose files are all there."""
        with self._state:
            missing = [place for place in FILES[upload.kind] if place not in upload.names]
            if missing or upload.state != "receiving":
                what = f"its {' and '.join(missing)} is missing" if missing else "it was begun already"
                raise UsageError(what, where="upload", action="upload what is missing, or begin another one")
            upload.state = "waiting"
        self._turns.add(upload.owner, upload.number)

    def remove(self, upload: Upload) -> None:
        """Forget an upload, and end what is done with it."""
        with self._state:
            if self._uploads.pop(upload.id, None) is None:
                return
            running = self._running.get(upload.number)
        if running is not None:
            running.stop()  # whoever waits for it removes its files
        else:
            self._clear(upload)

    def _clear(self, upload: Upload) -> None:
        shutil.rmtree(upload.folder, ignore_errors=True)
        self.room.give_back(upload.owner, upload.size_bytes)
        upload.sizes.clear()
        upload.report_bytes = 0

    def _run(self, process: LimitedProcess) -> None:
        idle = 0
        while not self._turns.is_closed:
            turn = self._turns.take(SWEEP_SECONDS)
            self._sweep()
            if turn is None:
                idle += 1
                if idle == IDLE_TURNS:
                    process.stop()
                continue
            idle = 0
            began = time.monotonic()
            try:
                self._work(turn, process)
            except Exception:
                _LOG.exception("an upload could not be worked on")
            finally:
                self._turns.done(turn, time.monotonic() - began)

    def _sweep(self) -> None:
        """Remove what has been kept for long enough."""
        now = self._clock()
        with self._state:
            old = [
                one
                for one in self._uploads.values()
                if one.expires_ns <= now and one.state not in ("waiting", "working")
            ]
        for upload in old:
            self.remove(upload)

    def _work(self, turn: Turn, process: LimitedProcess) -> None:
        with self._state:
            upload = next((one for one in self._uploads.values() if one.number == turn.item), None)
            if upload is None:
                return
            upload.state = "working"
            self._running[upload.number] = process
        names = [upload.names[place] for place in FILES[upload.kind]]
        began = time.monotonic_ns()
        lines, error = self._done(process, upload, names)
        for name in names:
            (upload.folder / name).unlink(missing_ok=True)
        report = upload.folder / REPORT
        with self._state:
            del self._running[upload.number]
            freed = sum(upload.sizes.values())
            upload.sizes = dict.fromkeys(upload.sizes, 0)
            upload.report_bytes = report.stat().st_size if not error and report.exists() else 0
            upload.lines, upload.error, upload.took_ns = lines, error, time.monotonic_ns() - began
            upload.expires_ns = self._clock() + self.options.keep_ns
            upload.state = "failed" if error else "done"
            is_removed = upload.id not in self._uploads
        self.room.give_back(upload.owner, freed)
        self._count_report(upload)
        if is_removed:
            self._clear(upload)

    def _count_report(self, upload: Upload) -> None:
        """The report takes the room that its captures had, which nearly always is more."""
        try:
            self.room.take(upload.owner, upload.report_bytes)
        except UsageError as error:
            (upload.folder / REPORT).unlink(missing_ok=True)
            upload.report_bytes, upload.state, upload.error = 0, "failed", str(error)

    def _done(self, process: LimitedProcess, upload: Upload, names: list[str]) -> tuple[list[str], str]:
        """What the work gave, or why it gave nothing."""
        asked = str(upload.folder), upload.kind, names, upload.where, upload.reverse
        try:
            return process.call(make_report, *asked), ""
        except ProcessEndedError as error:
            stopped = {Ended.TIME, Ended.MEMORY}
            action = "; upload a shorter part, or give a filter" if error.reason in stopped else "; try again"
            return [], f"the measurement {error.what}{action}"
        except SojournError as error:
            return [], str(error)
        except Exception as error:
            return [], f"a fault of ours, please report it ({type(error).__name__}: {error})"[:500]
