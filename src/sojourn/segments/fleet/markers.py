"""Marker packets: where both ends of a segment cut their epochs, so that these describe the same packets.

A packet is a marker of *level* l if a hash of its identity ends in l zero bits: of all packets one in 2ˡ is, at every
point the same ones, and those of a higher level are among those of a lower. A point cuts before each marker of its
present level, which it sets by its own traffic, to about one marker an epoch; two points that choose differently have
those of the higher level in common. A lost marker makes two epochs one, and nothing wrong.

Markers come by chance, so that some gaps between them are long: every third is longer than an epoch, one in fifty than
four. Once a marker is `LATE` epochs ago a point also cuts before packets of a lower level: before the first that comes,
and then before each whose hash is less than those of all that came since (a *record*); an epoch later it begins anew.
Two points that do not begin at the same packet, because either lost a marker or had its clock set, have their records
in common from the smallest hash on that both saw, which is soon: that the times agree is not needed.

Where packets stop to come, an epoch ends by time. After a silence this place has a name too, by the last packet before
it: whoever saw the same one last can say that nothing lies between. Only an epoch that is overdue although packets do
come ends at a place without a name.

Guarantee: an epoch is at most `LONGEST` times as long as wanted (of steady traffic, and with the other end's, one in a
hundred is twice as long, one in eleven of those in which a clock is set), and cuts are at most some twenty an epoch,
whatever the traffic does from one poll to the next. Cost: a hash per packet, about 1 ns.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import kernel

MARKER_FUNCTION = 1 << 26
# Nobody waits for packets longer than that: it is beyond what reordering does.
SILENCE_NS = 1_000_000_000
LONGEST = 4
# So many epochs after a marker others are looked for, of a level lower by so much: four an epoch, two of which are
# records. Of ten such pairs (simulated: 160 runs each, loss 0 to 8 %, a clock set or not) the one with the fewest runs
# beyond two epochs for less than 1.7 cuts an epoch.
LATE, LOWER = 1.0, 2
# A burst is known by what came in the last second or so; the level may lag behind that by so much.
LAG = 2
MOST_LEVEL = 40
NO_RECORD = np.uint64(2**64 - 1)
_AFTER = hashing.salt_for(MARKER_FUNCTION + 1, 0)


@kernel
def _cuts(
    batch: tuple[UInt64Array, Int64Array],
    salt: np.uint64,
    masks: tuple[np.uint64, np.uint64],
    search: tuple[int, np.uint64],
    epoch_ns: int,
    rows: Int64Array,
) -> tuple[int, int, np.uint64]:
    """Fills the rows before which a batch is cut; how many, when another marker would be late, and the record then."""
    packet_id, time_ns = batch
    usual, low = masks
    due_ns, record = search
    late_ns = np.int64(LATE * epoch_ns)
    found = 0
    for i in range(len(packet_id)):
        now = time_ns[i]
        if due_ns - now > late_ns:  # the clock was set back
            due_ns = now + late_ns
        hashed = mix(packet_id[i] ^ salt)
        if hashed & low != np.uint64(0):
            continue
        if hashed & usual == np.uint64(0):
            due_ns, record = now + late_ns, NO_RECORD
        elif now < due_ns:
            continue
        else:
            if now - due_ns >= epoch_ns:  # anew: records have become rare
                due_ns, record = due_ns + (now - due_ns) // epoch_ns * epoch_ns, NO_RECORD
            if hashed >= record:
                continue
            record = hashed
        rows[found] = i
        found += 1
    return found, due_ns, record


def _mask(level: int) -> np.uint64:
    return np.uint64((1 << max(level, 0)) - 1)


def after(packet_id: int) -> int:
    """The name of the place behind a packet that a silence follows."""
    return hashing.mix64(packet_id ^ _AFTER)


class MarkerCuts:
    """Finds the places at which one point's packets are cut; `share` of them can be expected at the other ends."""

    def __init__(self, epoch_ns: int, *, share: float = 1.0) -> None:
        self.epoch_ns = epoch_ns
        self._share = share
        self._salt = np.uint64(hashing.salt_for(MARKER_FUNCTION, 0))
        self._level = -1  # not known yet
        self._due_ns: int | None = None
        self._record = NO_RECORD
        self._window_ns = self._packets = 0
        self._recent_ns = self._recent = 0
        self._last_ns = self._last_id = 0
        self._begun_ns: int | None = None

    def places(self, batch: PacketBatch) -> list[tuple[int, int]]:
        """The rows before which a batch is cut, and the names of these places."""
        if not len(batch):
            return []
        self._follow(batch)
        if self._due_ns is None:
            self._due_ns = int(batch.time_ns[0] + LATE * self.epoch_ns)
        columns, masks = (batch.packet_id, batch.time_ns), (_mask(self._level), _mask(self._level - LOWER))
        rows, search = np.empty(len(batch), np.int64), (self._due_ns, np.uint64(self._record))
        found, self._due_ns, self._record = _cuts(columns, self._salt, masks, search, self.epoch_ns, rows)
        self._last_ns, self._last_id = int(batch.time_ns[-1]), int(batch.packet_id[-1])
        return [(row, int(batch.packet_id[row])) for row in rows[:found].tolist()]

    def _follow(self, batch: PacketBatch) -> None:
        """Set the level by what came in the last epoch's time, at once where far more comes now."""
        first, last = int(batch.time_ns[0]), int(batch.time_ns[-1])
        since = self._last_ns or first
        if not 0 <= first - self._recent_ns < SILENCE_NS:
            self._recent_ns, self._recent = since, 0
        self._recent += len(batch)
        level = self._level_of(self._recent, max(last - self._recent_ns, SILENCE_NS))
        if self._level < 0:
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

    def shift(self, by_ns: int) -> None:
        """Stamps are larger by this from now on: so are those of what came before."""
        self._due_ns = None if self._due_ns is None else self._due_ns + by_ns
        self._begun_ns = None if self._begun_ns is None else self._begun_ns + by_ns
        self._window_ns, self._recent_ns = self._window_ns + by_ns, self._recent_ns + by_ns
        self._last_ns += by_ns

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
