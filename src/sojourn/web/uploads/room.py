"""Where uploads lie: a folder of this process' own, that is gone when it ends, or when the next one starts.

Guarantee: all of it together takes no more than it may, and one owner no more than half of that: bytes are counted
before they are written. What a process that was killed left behind is removed by the next one in the same directory;
a lock that the kernel releases tells whether its owner lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO

from sojourn.core.errors import ServerError, UsageError
from sojourn.core.units import format_bytes

LOCK = "lock"
SHARE = 2  # an owner may have one part of so many


class TooFullError(UsageError):
    """There is no room for it now."""


class Room:
    """The disk that uploads of one process may take; safe from several threads."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._most = most_bytes
        self._of: Counter[str] = Counter()
        self._state = threading.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_left_behind(directory)
            self.folder = Path(tempfile.mkdtemp(prefix="of-", dir=directory))
            self._lock: IO[bytes] = open(self.folder / LOCK, "wb")  # noqa: SIM115 - as long as this process lives
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            what = error.strerror or str(error)
            raise ServerError(what, where=str(directory), action="uploads have to be written there") from None

    @property
    def most_of_one(self) -> int:
        """What one owner's uploads may take together."""
        return self._most // SHARE

    def take(self, owner: str, size: int) -> None:
        """Count bytes that are about to be written; `TooFullError` if they may not be."""
        with self._state:
            if self._of[owner] + size > self.most_of_one:
                what = f"your uploads may take {format_bytes(self.most_of_one)} together"
                raise TooFullError(what, action="remove one that is not needed, or upload less")
            if self._of.total() + size > self._most:
                what = f"all uploads together take {format_bytes(self._most)}, which is what they may"
                raise TooFullError(what, action="try again when some have been removed")
            self._of[owner] += size

    def give_back(self, owner: str, size: int) -> None:
        """These bytes have been removed."""
        with self._state:
            self._of[owner] -= size
            if self._of[owner] <= 0:
                del self._of[owner]

    def close(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _remove_left_behind(directory: Path) -> None:
    for folder in directory.glob("of-*"):
        with suppress(OSError), open(folder / LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def safe_name(name: str, *, taken: frozenset[str] = frozenset()) -> str:
    """A file's name as one that can be used here: without folders, control characters or what is taken.

    >>> safe_name("C:\\\\caps\\\\in.pcap"), safe_name("../.."), safe_name("a.pcap", taken=frozenset({"a.pcap"}))
    ('in.pcap', 'capture', '2-a.pcap')
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(letter for letter in last if letter.isprintable()).lstrip(".-").strip()
    while len(os.fsencode(kept)) > MOST_NAME_BYTES:
        kept = kept[len(kept) // 4 + 1 :]
    kept = kept or "capture"
    number = 2
    unique = kept
    while unique in taken:
        unique, number = f"{number}-{kept}", number + 1
    return unique


MOST_NAME_BYTES = 120
