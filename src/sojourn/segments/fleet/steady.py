"""Stamps without steps: a point whose clock is set goes on counting as before until its next cut.

Packets have stamps of the machine's clock, which somebody may set at any time. The machine's own count (of the time
since it was started) nobody can set. How far the clock is ahead of the count, its **lead**, is therefore constant but
for steps: they are seen, and measured to a microsecond, where they happen. An epoch is recorded on the scale of the
lead that it began with; the new lead counts from the next cut on. So no delay has a step in it, cuts are not disturbed,
and each epoch says on which lead its stamps are: whoever follows the clocks goes from one to the other without a guess.

The packets that were polled together with a step have stamps of both leads. They come in order, so that the one place
where stamps leap by the step parts them; where that is not clear (few packets and a small step) the epoch says that the
clock was set in it.

A count is steered along with the clock by what keeps that in step, which the lead does not show. How far it is from the
machine's oscillator is read at each look, so that each epoch says how its scale ran (`SteadyStamps.slew`).

Guarantee: stamps are on the scale of `lead_ns`, or the result says that they may not be. A machine that cannot tell its
count has stamps as they are, and no lead. What neither clock nor count shows (a virtual machine that was halted) is not
a step here; nor one that is undone between two looks, if a gap among packets, or their disorder, is as long. Cost: some
five readings of clocks a batch, 4 ns a packet, and one addition a packet once the clock was set.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.hashing import HALF_MASK, hash_bytes
from sojourn.epochs.epoch import SLEW_UNIT_NS, Slew

# Two readings of the clocks are so close together, however busy the machine is, if one of several is chosen.
READINGS, NOISE_NS, CLOSE_NS = 5, 2_000, 250
UNIT_NS = 1_000
# A packet waits in the kernel's ring for less (`sources.traffic`: 60 ms at most, and a busy machine).
WAITING_NS = 200_000_000
# Packets on several processors have stamps out of order by less: 1.6 ms were seen.
DISORDER_NS = 5_000_000
# Readings of how a count was steered that are kept for an epoch; of more every second one goes.
MOST_STEERED = 256
SLEW_NOISE = 5  # in its units, of two clocks that are read one after the other
_EVER = (1 << 63) - 1


class Reading(NamedTuple):
    """By how much the clock is ahead of the machine's count, which is `count_ns` now; off by `error_ns` at most.

    The count began when the machine was started, which `boot` tells apart from other times; the kernel
    has steered it by `steered_ns` away from the oscillator.
    """

    lead_ns: int
    count_ns: int
    error_ns: int = 0
    boot: int | None = None
    steered_ns: int | None = None


@cache
def boot_of_machine() -> int | None:
    """A number of this time that the machine is up, which no other has but by chance; None where it has none."""
    try:
        return hash_bytes(Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()) & HALF_MASK
    except OSError:
        return None


def read_lead() -> Reading | None:
    """The present lead, from the closest of a few readings; None where the machine does not tell its count."""
    source, raw = (getattr(time, name, None) for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW"))
    if source is None:
        return None
    best: Reading | None = None
    for _ in range(READINGS):
        before, now = time.clock_gettime_ns(source), time.time_ns()
        steered = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.clock_gettime_ns(raw) if raw is not None else None
        after = time.clock_gettime_ns(source)
        error = (after - before + 1) // 2
        if best is None or error < best.error_ns:
            best = Reading(now - (before + after) // 2, after, error, boot_of_machine(), steered)
        if error <= CLOSE_NS:
            break
    return best


@dataclass
class _Lead:
    """A lead that stamps may have, and the counts between which the clock may have had it."""

    ns: int
    since_ns: int = -_EVER
    until_ns: int = _EVER


class SteadyStamps:
    """The stamps of one point on the scale of its epochs; used from one thread at a time."""

    def __init__(self, read: Callable[[], Reading | None] = read_lead) -> None:
        self._read = read
        self._leads: list[_Lead] = []
        self._looks: deque[int] = deque(maxlen=2)
        self._scale: int | None = None
        self._steered: list[tuple[int, int]] = []  # by the count, oldest first
        self._passed, self._every = 0, 1
        self.boot: int | None = None  # of the machine, as it tells
        self._last_ns: int | None = None  # the last stamp that was given in, as it was
        self._last_count: int | None = None  # and as it was given out, by the count
        self._was_sure = True  # whether it is known that no step was before this
        self._look()  # the first packets may wait for long: what happens meanwhile is to be seen

    @property
    def lead_ns(self) -> int | None:
        """The lead that stamps are given out on."""
        return self._scale

    def adopt(self) -> int:
        """Go over to the clock's present lead; by how much stamps are larger from now on."""
        before, self._scale = self._scale, self._leads[-1].ns if self._leads else None
        return 0 if before is None or self._scale is None else self._scale - before

    def on_scale(self, time_ns: int) -> int:
        """A time that the clock shows now on the scale of stamps."""
        return time_ns if self._scale is None else time_ns - self._leads[-1].ns + self._scale

    def steady(self, time_ns: Int64Array) -> tuple[Int64Array, bool]:
        """Stamps of packets that have just come, in the order in which they came; whether the scale of all is sure."""
        reading = self._look()
        if reading is None or self._scale is None or not len(time_ns):
            return time_ns, True
        before_ns, self._last_ns = self._last_ns, int(time_ns[-1])
        if len(self._leads) == 1:
            self._was_sure = True
            moved = _moved(time_ns, self._scale - self._leads[-1].ns)
            return moved, self._is_plausible(moved - self._scale, reading.count_ns)
        old, new = self._leads[-2:]
        # Where the step may have been in what came before, the first of these may have the new lead, too.
        before_ns = before_ns if self._was_sure else None
        place, is_sure = _place_of_step(time_ns, before_ns, (old, new), reading.count_ns)
        self._was_sure = is_sure = is_sure and len(self._leads) == 2
        if is_sure and place < len(time_ns):
            self._leads = [new]  # what comes after these has the new lead, too
        parts = _moved(time_ns[:place], self._scale - old.ns), _moved(time_ns[place:], self._scale - new.ns)
        moved = np.concatenate(parts)
        return moved, self._is_plausible(moved - self._scale, reading.count_ns) and is_sure

    def _is_plausible(self, count_ns: Int64Array, now_ns: int) -> bool:
        """Whether packets come one after the other, and none from the future, as the machine counts.

        A clock that is set twice between two looks, as by one who sets it back at once, shows in nothing else.
        """
        before_ns, self._last_count = self._last_count, int(count_ns[-1])
        gaps = np.diff(count_ns, prepend=count_ns[0] if before_ns is None else before_ns)
        return bool(gaps.min() >= -DISORDER_NS and count_ns.max() <= now_ns + DISORDER_NS)

    def slew(self, first_ns: int, last_ns: int) -> Slew | None:
        """How the count was steered between two stamps; what was before the last one is forgotten by `begin_slew`."""
        if self._scale is None or len(self._steered) < 2:
            return None
        count, steered = np.array(self._steered, np.int64).T
        ends = np.array([first_ns, last_ns]) - self._scale
        first, last = np.rint(np.interp(ends, count, steered) / SLEW_UNIT_NS).astype(np.int64).tolist()
        slew = Slew(first_ns, last_ns, first, last, 0)
        within = (count > ends[0]) & (count < ends[1])
        line = np.interp(count[within], ends, [first, last])
        off = np.abs(steered[within] / SLEW_UNIT_NS - line)
        return slew._replace(bend=max(0, math.ceil(off.max()) - SLEW_NOISE) if len(off) else 0)

    def begin_slew(self, first_ns: int) -> None:
        """Nobody asks for slews before a stamp any more."""
        if self._scale is not None:
            at = bisect_right(self._steered, (first_ns - self._scale, _EVER)) - 1
            del self._steered[: max(at, 0)]
            self._passed, self._every = 0, 1

    def _keep(self, count_ns: int, steered_ns: int) -> None:
        """Keep a reading until the next one, and every `_every`th for good."""
        if self._passed % self._every:
            self._steered.pop()
        self._passed = (self._passed + 1) % self._every
        self._steered.append((count_ns, steered_ns))
        if len(self._steered) > MOST_STEERED:
            self._steered[1:-1] = self._steered[2:-1:2]
            self._every *= 2

    def _look(self) -> Reading | None:
        reading = self._read()
        if reading is None:
            return None
        if reading.steered_ns is not None:
            self._keep(reading.count_ns, reading.steered_ns)
        self.boot = reading.boot
        if not self._leads:
            self._leads, self._scale = [_Lead(reading.lead_ns)], reading.lead_ns
        elif abs(reading.lead_ns - self._leads[-1].ns) > NOISE_NS + reading.error_ns:
            before = self._leads[-1]
            before.until_ns = reading.count_ns
            # Some counters count whole microseconds.
            by_ns = round((reading.lead_ns - before.ns) / UNIT_NS) * UNIT_NS
            self._leads.append(_Lead(before.ns + by_ns, since_ns=self._looks[-1]))
        self._looks.append(reading.count_ns)
        # What was stamped before the last look has been taken from the ring by now.
        waiting = self._looks[0] - WAITING_NS
        self._leads = [lead for lead in self._leads if lead.until_ns >= waiting]
        return reading


def _moved(time_ns: Int64Array, by_ns: int) -> Int64Array:
    return time_ns + by_ns if by_ns else time_ns


def _place_of_step(
    time_ns: Int64Array, before_ns: int | None, leads: tuple[_Lead, _Lead], now_ns: int
) -> tuple[int, bool]:
    """The first row of which the stamp has the new lead, and whether it can be no other; `before_ns` came before all.

    >>> leads = _Lead(0, until_ns=1_000_000_000), _Lead(10**9, since_ns=0)
    >>> _place_of_step(np.array([100, 200, 1_000_000_300, 1_000_000_400]), None, leads, 1_000_000_000)
    (2, True)
    """
    old, new = leads
    earliest, latest = _possible(time_ns, old, new, now_ns)
    by_ns = new.ns - old.ns
    # Before the very first packet any gap may have been, and ahead of it a step forward.
    gaps = np.diff(time_ns, prepend=time_ns[0] - max(by_ns, 0) if before_ns is None else before_ns)
    leaps = gaps >= by_ns - DISORDER_NS if by_ns > 0 else gaps < -DISORDER_NS
    rows = np.flatnonzero(leaps)
    if by_ns < 0 and not len(rows):
        # A gap among packets may hide a step back anywhere.
        return earliest, earliest == latest
    if by_ns < 0 and len(rows) > 1:
        return int(rows[0]), False
    ends = [len(time_ns)] if by_ns > 0 else []
    found = [row for row in sorted({*rows.tolist(), *ends}) if earliest <= row <= latest]
    return (found[0], len(found) == 1) if found else (earliest, False)


def _possible(time_ns: Int64Array, old: _Lead, new: _Lead, now_ns: int) -> tuple[int, int]:
    """The first and the last row before which the step may lie, by when the clock had either lead."""
    too_late = np.flatnonzero(time_ns - old.ns > old.until_ns)
    counts = time_ns - new.ns
    too_early = np.flatnonzero((counts < new.since_ns) | (counts > now_ns + DISORDER_NS))
    return int(too_early[-1]) + 1 if len(too_early) else 0, int(too_late[0]) if len(too_late) else len(time_ns)
