"""The spool: epochs on disk until the query unit has acknowledged them.

Guarantee: an epoch that `put` returned for survives a crash (written aside, synchronised, renamed), unless `trouble`
says that the disk refuses it: then it is held in memory, can be sent, and is written as soon as the disk takes it.

The spool has a bound in bytes; beyond it the oldest epochs of the largest stream are merged, which loses time
resolution but no counts, and every merge is counted in `merged`. An epoch that may have reached the query unit (it was
sent, and no answer came) is never merged: it has to arrive again as it was, to be recognised as a copy.

One file per epoch: ``STREAM-SEQUENCE.epoch``, or ``.sent`` once it may have arrived. A merged epoch is first written
beside the two (``NEWER.OLDER.merge``), so that a crash leaves either both or the one. A file that cannot be read is put
aside as ``.damaged`` and reported.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import ParameterError, StoreError, WireError
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import can_merge, merged_epoch
from sojourn.epochs.wire import decode, encode

__all__ = ["LEAST_BYTES", "OPEN", "SENT", "WAITING", "Spool", "SpooledEpoch", "write_durably"]

LEAST_BYTES = 4096
WAITING, SENT, MERGE, DAMAGED = ".epoch", ".sent", ".merge", ".damaged"
# An epoch still being recorded, as the agent last wrote it down; not the spool's to send.
OPEN = ".open"


@dataclass(frozen=True)
class SpooledEpoch:
    """One waiting epoch."""

    path: Path
    epoch: Epoch
    size_bytes: int

    @property
    def in_doubt(self) -> bool:
        """Whether the query unit may already have it."""
        return self.path.suffix == SENT


def write_durably(path: Path, data: bytes) -> None:
    """Put a file in place whole or not at all, even if the power fails."""
    aside = path.with_name(path.name + ".new")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise _refused(error, path) from None


def _refused(error: OSError, path: Path) -> StoreError:
    action = "free some space, or check the directory's permissions"
    return StoreError(error.strerror or str(error), where=str(path), action=action)


class Spool:
    """The epochs of one node that wait to be acknowledged; used from one thread at a time."""

    def __init__(self, directory: Path, *, limit_bytes: int) -> None:
        if limit_bytes < LEAST_BYTES:
            raise ParameterError(
                f"{limit_bytes} bytes are too few", where="spool", action=f"give at least {LEAST_BYTES}"
            )
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.merged = 0
        self.damaged: list[str] = []
        self.trouble: StoreError | None = None
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._waiting: dict[Path, SpooledEpoch] = {}
        self._unwritten: set[Path] = set()
        self._read()

    def _read(self) -> None:
        for stale in self.directory.glob("*.new"):
            stale.unlink()
        for path in self.directory.glob(f"*{MERGE}"):
            self._finish_merge(path)
        for path in sorted(self.directory.iterdir()):
            if path.suffix in (WAITING, SENT):
                try:
                    data = path.read_bytes()
                    self._waiting[path] = SpooledEpoch(path, decode(data), len(data))
                except (WireError, OSError) as error:
                    os.replace(path, path.with_suffix(DAMAGED))
                    self.damaged.append(f"{path.name}: {error}")

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._waiting.values())

    @property
    def unwritten(self) -> int:
        """How many epochs are in memory only, because the disk refuses them."""
        return len(self._unwritten)

    def last_sequence(self, stream: str) -> int | None:
        """The highest sequence number of a stream that waits here."""
        return max(self.sequences(stream), default=None)

    def sequences(self, stream: str) -> set[int]:
        """The sequence numbers of a stream's epochs that wait here."""
        return {entry.epoch.sequence for entry in self._waiting.values() if entry.epoch.stream == stream}

    def put(self, epoch: Epoch) -> None:
        """Take an epoch; it is on disk when this returns, or there is `trouble`."""
        path = self.directory / f"{hash_bytes(epoch.stream.encode()):016x}-{epoch.sequence:020d}{WAITING}"
        self._waiting[path] = SpooledEpoch(path, epoch, len(encode(epoch)))
        self._unwritten.add(path)
        self.write_down()
        self._shrink()

    def write_down(self) -> None:
        """Write what is in memory only, as far as the disk takes it."""
        self.trouble = None
        for path in sorted(self._unwritten):
            try:
                write_durably(path, encode(self._waiting[path].epoch))
            except StoreError as error:
                self.trouble = error
                return
            self._unwritten.remove(path)

    def oldest(self, most: int, *, most_bytes: int) -> list[SpooledEpoch]:
        """What to send next: first what is in doubt, then the oldest of each stream."""
        chosen: list[SpooledEpoch] = []
        size = 0
        for entry in sorted(self._waiting.values(), key=lambda e: (not e.in_doubt, e.epoch.sequence, e.path.name)):
            if chosen and (len(chosen) == most or size + entry.size_bytes > most_bytes):
                break
            chosen.append(entry)
            size += entry.size_bytes
        return chosen

    def newest(self, streams: Collection[str], from_ns: int, to_ns: int) -> list[Epoch]:
        """What some streams measured in a range of time, the newest first."""
        epochs = (entry.epoch for entry in self._waiting.values() if entry.epoch.stream in streams)
        return sorted((e for e in epochs if e.overlaps(from_ns, to_ns)), key=lambda e: e.sequence, reverse=True)

    def mark_sent(self, entries: Iterable[SpooledEpoch]) -> list[SpooledEpoch]:
        """Note, before they go out, that these may arrive."""
        marked = []
        for entry in entries:
            path = entry.path.with_suffix(SENT)
            if not entry.in_doubt:
                self._rename(entry.path, path)
                del self._waiting[entry.path]
                self._waiting[path] = SpooledEpoch(path, entry.epoch, entry.size_bytes)
            marked.append(self._waiting[path])
        return marked

    def _rename(self, path: Path, new: Path) -> None:
        if path in self._unwritten:
            self._unwritten.remove(path)
            self._unwritten.add(new)
            return
        try:
            os.replace(path, new)
        except OSError as error:
            raise _refused(error, path) from None

    def remove(self, entries: Iterable[SpooledEpoch]) -> None:
        """Forget epochs that were acknowledged; a file that cannot be removed is sent again later, and recognised."""
        for entry in entries:
            with suppress(OSError):
                entry.path.unlink(missing_ok=True)
            self._waiting.pop(entry.path, None)
            self._unwritten.discard(entry.path)

    def _shrink(self) -> None:
        """Merge until the bound holds, or nothing is left that can be."""
        while self.size_bytes > self.limit_bytes:
            pair = self._pair_to_merge()
            if pair is None:
                return
            try:
                self._merge(*sorted(pair, key=lambda entry: entry.epoch.sequence))
            except StoreError as error:
                self.trouble = error
                return
            self.merged += 1

    def _merge(self, older: SpooledEpoch, newer: SpooledEpoch) -> None:
        both = merged_epoch(older.epoch, newer.epoch)
        data = encode(both)
        if newer.path in self._unwritten:
            self._unwritten.remove(older.path)
        else:
            beside = self.directory / f"{newer.path.stem}.{older.path.stem}{MERGE}"
            write_durably(beside, data)
            self._finish_merge(beside)
        del self._waiting[older.path]
        self._waiting[newer.path] = SpooledEpoch(newer.path, both, len(data))

    def _finish_merge(self, beside: Path) -> None:
        """The merged epoch takes the place of the two that it holds."""
        newer, _, older = beside.stem.partition(".")
        (self.directory / f"{older}{WAITING}").unlink(missing_ok=True)
        os.replace(beside, self.directory / f"{newer}{WAITING}")

    def _pair_to_merge(self) -> tuple[SpooledEpoch, SpooledEpoch] | None:
        """The two oldest epochs that can be merged, of the stream that takes the most space.

        While some are in memory only, these are: the disk that refuses them refuses what a merge would write, too.
        """
        in_memory = bool(self._unwritten)
        streams: dict[str, list[SpooledEpoch]] = {}
        for entry in self._waiting.values():
            if not entry.in_doubt and (entry.path in self._unwritten) == in_memory:
                streams.setdefault(entry.epoch.stream, []).append(entry)
        for entries in sorted(streams.values(), key=lambda es: -sum(e.size_bytes for e in es)):
            entries.sort(key=lambda e: (e.epoch.first_ns or 0, e.epoch.sequence))
            for i, older in enumerate(entries):
                for newer in entries[i + 1 :]:
                    if can_merge(older.epoch, newer.epoch):
                        return older, newer
        return None
