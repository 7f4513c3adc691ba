"""Looks at an open epoch at places that other points choose too: a question need not wait for the next marker.

For a short while after a question, a point looks at its open epoch before the packets with the smallest hashes. Another
point that is asked at the same time sees mostly the same packets, and so has a place in common with it; the latest of
these is where the answer ends. Nothing is cut, and what is recorded stays as it is. A packet that comes twice names no
place.

Guarantee: at most `2 · LOOKS` copies of a sketch, and none while nobody asks. Cost: while somebody does, the sorted
packets of a batch and up to `LOOKS` copies for each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import PacketBatch
from sojourn.core.hash_kernels import mix_column
from sojourn.epochs.epoch import Epoch
from sojourn.segments.fleet.markers import MARKER_FUNCTION

LOOKS = 6
# Points are asked within milliseconds of each other, and a packet is a fraction of a second under way.
WINDOW_NS = 500_000_000


@dataclass
class _Window:
    """The smallest hashes of a while, by packet, and what was seen before each."""

    begun_ns: int
    hashes: dict[int, int] = field(default_factory=dict)
    looks: dict[int, Epoch] = field(default_factory=dict)
    doubled: set[int] = field(default_factory=set)

    def keep_least(self) -> None:
        for name in sorted(self.hashes, key=self.hashes.__getitem__)[LOOKS:]:
            del self.hashes[name]
            self.looks.pop(name, None)


class Watch:
    """The looks at one point's open epochs; used from one thread at a time."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._salt = np.uint64(hashing.salt_for(MARKER_FUNCTION + 2, 0))
        # Who asks while others do shares their window, unless it is over: then the next begins.
        self._windows: deque[_Window] = deque(maxlen=2)
        self._askers = 0

    @property
    def is_on(self) -> bool:
        return self._askers > 0

    def begin(self) -> None:
        """Somebody asks."""
        self._askers += 1
        now = self._clock()
        if not self._windows or now - self._windows[-1].begun_ns >= WINDOW_NS:
            self._windows.append(_Window(now))

    def end(self) -> list[Epoch]:
        """What was seen since somebody asked, or a little before; whoever begins ends once."""
        seen = [look for window in self._windows for look in window.looks.values()]
        self._askers -= 1
        if not self._askers:
            self._windows.clear()
        return seen

    def places(self, batch: PacketBatch) -> list[tuple[int, int]]:
        """The rows of a batch before which to look, and the names of these places."""
        window = self._windows[-1]
        ids, rows, counts = np.unique(batch.packet_id, return_index=True, return_counts=True)
        for name in window.hashes.keys() & ids[np.isin(ids, list(window.hashes))].tolist():
            window.doubled.add(name)
            del window.hashes[name]
            window.looks.pop(name, None)
        once = np.flatnonzero(counts == 1)
        hashed = mix_column(ids[once] ^ self._salt)
        row_of: dict[int, int] = {}
        for place in np.argsort(hashed)[: LOOKS + len(window.doubled)].tolist():
            name = int(ids[once[place]])
            if name not in window.doubled:
                row_of[name], window.hashes[name] = int(rows[once[place]]), int(hashed[place])
        window.keep_least()
        return sorted((row, name) for name, row in row_of.items() if name in window.hashes)

    def look(self, name: int, epoch: Epoch) -> None:
        """The epoch that is open at a place."""
        self._windows[-1].looks[name] = epoch
