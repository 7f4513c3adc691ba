"""Marker packets: where both ends of a segment cut their epochs, so that these describe the same packets.

A packet is a marker of *level* l if a hash of its identity ends in l zero bits: of all packets one in 2ˡ is, at every
point the same ones, and those of a higher level are among those of a lower. A point cuts before each marker of its
present level, which it sets by its own traffic, to about one marker an epoch; two points that choose differently have
those of the higher level in common. A lost marker makes two epochs one, and nothing wrong.

Where packets stop to come, an epoch ends by time. After a silence this place has a name too, by the last packet before
it: whoever saw the same one last can say that nothing lies between. Only an epoch that is overdue although packets do
come ends at a place without a name.

Guarantee: an epoch is at most `LONGEST` times as long as wanted, and cuts are at most some twenty an epoch, whatever
the traffic does from one poll to the next. Cost: a hash per packet, about 1 ns.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import PacketBatch, UInt64Array
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import kernel

MARKER_FUNCTION = 1 << 26
# Nobody waits for packets longer than that: it is beyond what reordering does.
SILENCE_NS = 1_000_000_000
LONGEST = 4
# A burst is known by the batch that it comes in; from one to the next the level may lag behind by so much.
LAG = 2
MOST_LEVEL = 40
_AFTER = hashing.salt_for(MARKER_FUNCTION + 1, 0)


@kernel
def _next_marker(packet_id: UInt64Array, start: int, salt: np.uint64, mask: np.uint64) -> int:
    for i in range(start, len(packet_id)):
        if mix(packet_id[i] ^ salt) & mask == np.uint64(0):
            return i
    return -1


def after(packet_id: int) -> int:
    """The name of the place behind a packet that a silence follows."""
    return hashing.mix64(packet_id ^ _AFTER)


class MarkerCuts:
    """Finds the places at which one point's packets are cut; `share` of them can be expected at the other ends."""

    def __init__(self, epoch_ns: int, *, share: float = 1.0) -> None:
        self.epoch_ns = epoch_ns
        self._share = share
        self._salt = np.uint64(hashing.salt_for(MARKER_FUNCTION, 0))
        self._level: int | None = None
        self._window_ns = self._packets = 0
        self._last_ns = self._last_id = 0
        self._begun_ns: int | None = None

    def places(self, batch: PacketBatch) -> list[tuple[int, int]]:
        """The rows before which a batch is cut, and the names of these places."""
        if not len(batch):
            return []
        self._follow(batch)
        found: list[tuple[int, int]] = []
        mask = np.uint64((1 << (self._level or 0)) - 1)
        row = _next_marker(batch.packet_id, 0, self._salt, mask)
        while row >= 0:
            found.append((row, int(batch.packet_id[row])))
            row = _next_marker(batch.packet_id, row + 1, self._salt, mask)
        self._last_ns, self._last_id = int(batch.time_ns[-1]), int(batch.packet_id[-1])
        return found

    def _follow(self, batch: PacketBatch) -> None:
        """Set the level by what came in the last epoch's time, at once where far more comes now."""
        first, last = int(batch.time_ns[0]), int(batch.time_ns[-1])
        since = self._last_ns or first
        level = self._level_of(len(batch), max(last - since, SILENCE_NS))
        if self._level is None:
            self._level, self._window_ns = level, first
        if first < self._window_ns:  # the clock was set back
            self._window_ns, self._packets = first, 0
        self._level = max(self._level, level - LAG)
        self._packets += len(batch)
        if last - self._window_ns >= self.epoch_ns:
            self._level = self._level_of(self._packets, last - self._window_ns)
            self._window_ns, self._packets = last, 0

    def _level_of(self, packets: int, span_ns: int) -> int:
        """The level of which about one marker comes in an epoch: 0.7 to 1.4.

        After a silence of hours, or with a clock that was set ahead, packets are no rarer than they come now.
        """
        expected = packets * self.epoch_ns / min(span_ns, LONGEST * self.epoch_ns) * self._share
        return min(MOST_LEVEL, max(0, round(math.log2(max(expected, 1.0)))))

    def begin(self, time_ns: int) -> None:
        """An epoch begins with a packet of this time."""
        self._begun_ns = time_ns

    def overdue(self, now_ns: int) -> tuple[bool, int | None]:
        """Whether the epoch under way has to end now, and the name of that place if it has one."""
        if self._begun_ns is None:
            return False, None
        self._begun_ns = min(self._begun_ns, now_ns)  # later, if the clock was set back
        if now_ns - self._begun_ns < self.epoch_ns:
            return False, None
        if (silence := self.silence(now_ns)) is not None:
            return True, silence
        return now_ns - self._begun_ns >= LONGEST * self.epoch_ns, None

    def silence(self, now_ns: int) -> int | None:
        """The name of the place behind the last packet, if nothing has followed it for a while."""
        return after(self._last_id) if now_ns - self._last_ns >= SILENCE_NS else None
