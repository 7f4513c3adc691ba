"""What the readers of capture files share: windows in, frames out, damage as a warning or an error.

Guarantee: every whole packet before the first damaged byte is given, in the order of the file; then
either the reader ends with a warning or, if `strict`, raises a `CaptureError` that names file and byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.files.source import Source
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import CaptureError

__all__ = ["CHUNK_PACKETS", "MAX_CAPTURED", "FrameReader", "FrameRows"]

# Few enough that a chunk's columns stay in a core's cache, enough to hide Python's cost per chunk.
CHUNK_PACKETS = 1 << 15
# libpcap's own limit on the snap length is 2¹⁸; jumbo super-packets of offloads may exceed it.
MAX_CAPTURED = 1 << 24
MIN_CAPTURED_LIMIT = 1 << 18


class FrameRows:
    """Columns that an index kernel fills, one row per packet found."""

    def __init__(self, capacity: int = CHUNK_PACKETS) -> None:
        self.offset = np.empty(capacity, np.int64)
        self.captured = np.empty(capacity, np.int64)
        self.length = np.empty(capacity, np.int64)
        self.time_ns = np.empty(capacity, np.int64)
        self.link = np.empty(capacity, np.int64)

    def columns(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
        return self.offset, self.captured, self.length, self.time_ns, self.link

    def frames(self, data: UInt8Array, count: int) -> Frames:
        return Frames(data, *(column[:count] for column in self.columns()))


class FrameReader(ABC):
    """Iterates over the frames of one capture file, in chunks; may be iterated once."""

    def __init__(self, source: Source, *, strict: bool = False) -> None:
        self.source = source
        self.strict = strict
        self.packets = 0
        self.snap_length = 0
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[Frames]:
        for frames in self._chunks():
            self.packets += len(frames)
            yield frames

    @abstractmethod
    def _chunks(self) -> Iterator[Frames]: ...

    def _warn(self, text: str) -> None:
        self.warnings.append(f"{self.source.name}: {text}")

    def _damaged(self, what: str, offset: int) -> None:
        """Note damage at a byte of the (decompressed) file; the caller then ends."""
        where = f"{self.source.name}, byte {offset}"
        if self.strict:
            raise CaptureError(what, where=where, action="read without strict to get the packets before the damage")
        self.warnings.append(f"{where}: {what}; reading ends after {self.packets} packets")

    def _ended_inside(self, what: str, offset: int) -> None:
        """Note that the file ends inside something, by its own fault or its compression's."""
        self._damaged(self.source.damage or f"the file ends inside {what}", offset)

    def _ended_between(self, offset: int) -> None:
        """The file ends where a packet might; only a broken compression is damage then."""
        if self.source.damage:
            self._damaged(self.source.damage, offset)
