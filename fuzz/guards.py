"""Bytes with forbidden pages right behind (or before) them: a read too far ends the process at once.

Compiled kernels neither check an index nor tell the fuzzer which branches they took; this shows at least the first.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from sojourn.capture.files.source import Source, Window
from sojourn.core.arrays import UInt8Array

__all__ = ["GuardedBytes", "GuardedSource"]

_PAGES = 32


class GuardedBytes:
    """Room for 128 KiB between two pages that must not be touched; holds one array at a time."""

    def __init__(self) -> None:
        size = _PAGES * mmap.PAGESIZE
        self._area = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
        whole = np.frombuffer(self._area, np.uint8)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (0, size + mmap.PAGESIZE):
            if protect(ctypes.c_void_p(whole.ctypes.data + guard), mmap.PAGESIZE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._room = whole[mmap.PAGESIZE : mmap.PAGESIZE + size]

    def place(self, data: bytes, *, at_front: bool = False) -> UInt8Array:
        """A read-only copy of `data` that touches the page behind it, or the one before."""
        start = 0 if at_front else len(self._room) - len(data)
        place = self._room[start : start + len(data)]
        place[:] = np.frombuffer(data, np.uint8)
        view = place.view()
        view.flags.writeable = False
        return view


class GuardedSource(Source):
    """A capture of given bytes, in guarded windows of at least `step` bytes."""

    def __init__(self, data: bytes, room: GuardedBytes, *, step: int, at_front: bool) -> None:
        super().__init__("input")
        self._data = data
        self._room = room
        self._step = step
        self._at_front = at_front

    def window(self, offset: int, minimum: int = 1) -> Window:
        end = offset + max(self._step, minimum)
        data = self._room.place(self._data[offset:end], at_front=self._at_front)
        return Window(data, offset, last=end >= len(self._data))

    @property
    def share_read(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing to give back."""
