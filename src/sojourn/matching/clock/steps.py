"""Steps of clocks: what a clock that is set leaves in delays.

A clock that is set lifts or lowers every delay from one packet to the next and for good. Reported where

1. the floor (smallest delay of each run of packets) jumps by more than `CLEAR_RANGES` times the range of
   the floor on either side, after removing a steady trend; and
2. it does so at once: between two packets, the `NEIGHBOURS` delays before and after leave at least half
   of the jump free, and hardly any packet near is on the wrong side; and
3. it lasts: up to the next step the higher side never comes back to half of the jump, nor falls or rises
   faster than a clock drifts.

Packets that are on their way overtake each other, so that a jump is sharp only in the order in which they passed the
point whose clock was set; and a clock that was set back shows times twice, so that its readings are not that order.
Both floors are looked at, in the order of sendings and of arrivals, and both orders are restored by taking the jump out
of the readings of packets whose delays are on its far side.

`floor_changes` finds changes that meet the first and third condition only, in longer runs of packets. Where both
directions show one that a clock would make, it was set, but when is hidden by the scatter of delays.

A queue that fills passes every level between and fails the second condition; one that a long stall filled
at once drains, and fails the third. A change of route passes all: in one direction the two cannot be told
apart, in two directions a clock moves both delays by the same amount in opposite senses and a route does not.
Simulated queues without steps showed one in at most 1.2 % of captures (heavy-tailed service, one direction).
A step smaller than the delays' own scatter is not found.

Cost: O(packets) after sorting by either clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.matching.clock.lines import block_minima, is_draining

MOST_STEP_BLOCKS, FEWEST_STEP_BLOCKS = 512, 16
MOST_CHANGE_BLOCKS = 64  # with more packets each, whose smallest delays scatter less
PACKETS_PER_BLOCK = 8
WINDOW_BLOCKS = 8
TREND_BLOCKS = 32
CLEAR_RANGES = 4.0
NEIGHBOURS = 8
LEAST_JUMP_NS = 10_000.0
MOST_STEPS = 16
AGREEMENT = 0.25
EDGE_BLOCKS = 4
SAME_STEP_NS = 1_000_000_000
MOST_ASTRAY = 0.05  # of the packets near an edge, those on the wrong side of it: held up by half of the jump


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The lead of the receiver's clock jumped by ``jump_ns``, because it or the sender's clock was set.

    ``time_ns`` and ``received_ns`` are the earliest readings of the sender's and of the receiver's clock on packets
    after the jump, ``last_sent_ns`` and ``last_received_ns`` the latest ones on packets before it. A clock that was set
    forward leaves a gap between the two, one that was set back reads the times between them twice, and packets that
    overtook each other at the time do so on the clock of the other point. ``split_ns`` is the raw delay that parts
    packets before from packets after. ``uncertainty_ns`` is how far the jump's size may be off.
    """

    time_ns: int
    received_ns: int
    jump_ns: int
    uncertainty_ns: int
    last_sent_ns: int
    last_received_ns: int
    split_ns: int

    def has_happened(self, received_ns: Int64Array, sent_ns: Int64Array | None = None) -> BoolArray:
        """Whether packets are from after the jump, by the receiver's reading.

        Where that was shown twice the sender's reading decides, and for packets that were on their way at the time
        their raw delay. Without the sender's reading the later of the two is assumed, but after a jump forward the
        nearer: no reading was shown twice, and the packets beside the gap only may be of either side.
        """
        side = _side(received_ns, self.received_ns, self.last_received_ns)
        if sent_ns is None and self.jump_ns > 0:
            middle = (self.received_ns + self.last_received_ns) // 2
            nearer: BoolArray = (side > 0) | ((side == 0) & (received_ns >= middle))
            return nearer
        if sent_ns is None:
            return side >= 0
        unsure = np.flatnonzero(side == 0)
        side[unsure] = _side(sent_ns[unsure], self.time_ns, self.last_sent_ns)
        unsure = unsure[side[unsure] == 0]
        is_higher = received_ns[unsure] - sent_ns[unsure] >= self.split_ns
        side[unsure] = np.where(is_higher == (self.jump_ns > 0), 1, -1)
        return side > 0

    def is_like(self, other: ClockStep, apart_ns: int) -> bool:
        """Whether both are of about the same size and at about the same time."""
        jumps = self.jump_ns, other.jump_ns
        alike = abs(jumps[0] - jumps[1]) <= AGREEMENT * max(map(abs, jumps))
        return alike and abs(self.time_ns - other.time_ns) <= apart_ns

    def is_told_by_delay(self, received_ns: Int64Array, sent_ns: Int64Array) -> BoolArray:
        """Whether neither clock's reading tells if packets are from after the jump."""
        by_receiver = _side(received_ns, self.received_ns, self.last_received_ns)
        by_sender = _side(sent_ns, self.time_ns, self.last_sent_ns)
        unsure: BoolArray = (by_receiver == 0) & (by_sender == 0)
        return unsure


def _side(reading_ns: Int64Array, first_after: int, last_before: int) -> Int64Array:
    """-1 before a jump, 1 after it, 0 where readings of both occur."""
    if first_after > last_before:
        return np.where(reading_ns >= last_before + (first_after - last_before + 1) // 2, 1, -1)
    return (reading_ns > last_before).astype(np.int64) - (reading_ns < first_after).astype(np.int64)


def find_steps(
    sent_ns: Int64Array, received_ns: Int64Array, *, steepest: float, sign: int = 1
) -> tuple[ClockStep, ...]:
    """Steps in the floor of raw delays, as seen in the order of either clock, by time; packets in any order.

    `sign` is −1 for packets that travel to the sender, whose raw delays have a ceiling.
    """
    found: list[ClockStep] = []
    for clock_ns in (sent_ns, received_ns):
        order = np.argsort(clock_ns, kind="stable")
        found.extend(_InOrder(sent_ns[order], received_ns[order], clock_ns[order], sign).steps(steepest))
    kept: list[ClockStep] = []
    for step in sorted(found, key=lambda step: step.uncertainty_ns):
        if not any(step.is_like(other, SAME_STEP_NS) for other in kept):
            kept.append(step)
    return tuple(sorted(kept, key=lambda step: step.time_ns))


class _InOrder:
    """One direction's packets in the order of a clock, and the smallest delays of runs of them."""

    def __init__(self, sent_ns: Int64Array, received_ns: Int64Array, clock_ns: Int64Array, sign: int) -> None:
        self.sent_ns, self.received_ns, self.sign = sent_ns, received_ns, sign
        self.x = (clock_ns - clock_ns[0]).astype(np.float64)
        self.origin_ns = int(sign * (received_ns[0] - sent_ns[0]))
        self.y = (sign * (received_ns - sent_ns) - self.origin_ns).astype(np.float64)
        self.clock_ns, self.slope = clock_ns, 0.0
        self.blocks = min(MOST_STEP_BLOCKS, len(sent_ns) // PACKETS_PER_BLOCK)

    def steps(self, steepest: float) -> list[ClockStep]:
        if self.blocks < FEWEST_STEP_BLOCKS:
            return []
        rows = block_minima(self.y, self.blocks)
        self.slope = float(np.clip(_steady_slope(self.x[rows], self.y[rows]), -steepest, steepest))
        self.y -= self.slope * self.x
        minima = self.y[rows]
        sharp: dict[int, ClockStep] = {}
        jumps = np.zeros(len(minima))
        for split in _clear_splits(minima):
            step = self._step(split)
            if step is not None:
                block = _foot(minima, split)
                jumps[block] = split.jump
                sharp[block] = step
        return [sharp[block] for block in _lasting(sorted(sharp), self.x[rows], minima, jumps, steepest)]

    def _step(self, split: _Split) -> ClockStep | None:
        """The step at a split of the floor, if it is sharp in the order of either clock.

        Packets are on the side of the jump that their delay is on. With the jump taken out of a clock's readings that
        clock shows the order in which packets passed its point; of a clock that was set, this is the order in which
        the jump was seen, whatever overtook what on the way.
        """
        edges = np.linspace(0, len(self.x), self.blocks + 1).astype(np.int64)
        reach = EDGE_BLOCKS * float(self.x[-1]) / self.blocks + split.range
        first, last = (
            float(self.x[min(len(self.x) - 1, edges[k])]) for k in (max(0, split.block - 1), split.block + 2)
        )
        far = abs(split.jump) + 2 * reach
        rows = slice(np.searchsorted(self.x, first - far), np.searchsorted(self.x, last + far, side="right"))
        y, sent, received = self.y[rows], self.sent_ns[rows], self.received_ns[rows]
        has_jumped = (y > split.threshold) == (split.jump > 0)
        jump_ns = self.sign * round(split.jump)
        for key in (received - has_jumped * jump_ns, sent + has_jumped * jump_ns):
            order = np.argsort(key, kind="stable")
            cut = _cut((key[order] - key[order[0]]).astype(np.float64), y[order], has_jumped[order], reach, split)
            if cut is not None:
                break
        else:
            return None
        after, before = order[cut[0] :], order[: cut[1]]
        sides = zip((~has_jumped, has_jumped), split.levels, strict=True)
        spread = max(float(np.max(y[side] - level)) for side, level in sides)
        # Where the clock that orders packets was set, the drift taken out of them jumps with it.
        clock = self.clock_ns[rows]
        bias = abs(self.slope * float(clock[after].min() - clock[before].max()))
        readings = [_around(int(t[after].min()), int(t[before].max()), jump_ns, spread) for t in (sent, received)]
        return ClockStep(
            time_ns=readings[0][0],
            received_ns=readings[1][0],
            jump_ns=jump_ns,
            uncertainty_ns=round(split.range + bias),
            last_sent_ns=readings[0][1],
            last_received_ns=readings[1][1],
            split_ns=self.sign * (round(split.threshold) + self.origin_ns),
        )


def _clear_splits(minima: FloatArray) -> Iterator[_Split]:
    """Where the floor jumps by more than its range on either side, the largest jumps first."""
    jumps, ranges = _jumps(minima)
    clear = np.abs(jumps) > np.maximum(CLEAR_RANGES * ranges, LEAST_JUMP_NS)
    for _ in range(MOST_STEPS):
        if not clear.any():
            return
        block = int(np.argmax(np.where(clear, np.abs(jumps), 0.0)))
        clear[max(0, block - WINDOW_BLOCKS // 2) : block + WINDOW_BLOCKS // 2 + 1] = False
        floor = float(np.median(minima[block + 1 - WINDOW_BLOCKS : block + 1]))
        yield _Split(block, floor, float(jumps[block]), float(ranges[block]))


def floor_changes(x: FloatArray, y: FloatArray, *, steepest: float) -> list[tuple[float, float]]:
    """(time, jump) of lasting changes of the floor of points in the order of `x`, whether sharp or not."""
    blocks = min(MOST_CHANGE_BLOCKS, len(y) // PACKETS_PER_BLOCK)
    if blocks < FEWEST_STEP_BLOCKS or x[-1] <= x[0]:
        return []
    rows = block_minima(y, blocks)
    times = x[rows]
    minima = y[rows] - np.clip(_steady_slope(times, y[rows]), -steepest, steepest) * times
    jumps = np.zeros(blocks)
    for split in _clear_splits(minima):
        jumps[_foot(minima, split)] = split.jump
    lasting = _lasting(np.flatnonzero(jumps).tolist(), times, minima, jumps, steepest)
    return [(float(times[block]), float(jumps[block])) for block in lasting]


def common_change(ahead: list[tuple[float, float]], back: list[tuple[float, float]], *, apart: float) -> float:
    """The largest change that both directions' floors show at about the same time, as a clock that is set makes it:
    one up, the other down by as much. 0 where there is none."""
    common = [
        (jump - other) / 2
        for time, jump in ahead
        for at, other in back
        if abs(jump + other) <= AGREEMENT * max(abs(jump), abs(other)) and abs(time - at) <= apart + abs(jump)
    ]
    return max(common, key=abs, default=0.0)


def _foot(minima: FloatArray, split: _Split) -> int:
    """The split next to the last (or first) block near a jump that shows its lower side."""
    near = slice(max(0, split.block - WINDOW_BLOCKS + 1), split.block + WINDOW_BLOCKS + 1)
    low = near.start + np.flatnonzero(minima[near] < sum(split.levels) / 2)
    if not len(low):
        return split.block
    return int(low[-1]) if split.jump > 0 else max(0, int(low[0]) - 1)


def _lasting(blocks: list[int], times: FloatArray, minima: FloatArray, jumps: FloatArray, steepest: float) -> list[int]:
    """Of splits behind these blocks, those whose higher side stays up; dropping one lengthens the others."""
    kept = list(blocks)
    while True:
        bounds = [-1, *kept, len(minima) - 1]
        lasting = [
            block
            for before, block, after in zip(bounds, kept, bounds[2:], strict=False)
            if _stays_up(times, minima, jumps[block], before, block, after, steepest)
        ]
        if len(lasting) == len(kept):
            return kept
        kept = lasting


def _stays_up(
    times: FloatArray,
    minima: FloatArray,
    jump: float,
    before: int,
    block: int,
    after: int,
    steepest: float,
) -> bool:
    """Whether the side that a jump leaves higher, up to the next split, is a level of its own."""
    left, right = slice(before + 1, block + 1), slice(block + 1, after + 1)
    higher, lower = (right, left) if jump > 0 else (left, right)
    near = minima[lower][-WINDOW_BLOCKS:] if jump > 0 else minima[lower][:WINDOW_BLOCKS]
    if minima[higher].min() < np.median(near) + abs(jump) / 2:
        return False
    return not is_draining(times[higher], minima[higher], steepest=steepest)


def _steady_slope(x: FloatArray, y: FloatArray) -> float:
    """The floor's trend, as the median over pairs of blocks a fixed distance apart; few steps spoil few."""
    lag = min(TREND_BLOCKS, len(x) // 4)
    return float(np.median((y[lag:] - y[:-lag]) / np.maximum(x[lag:] - x[:-lag], 1.0)))


def _jumps(minima: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For a split after each block: the jump of the floor, and its larger range on the two sides."""
    jumps = np.zeros(len(minima))
    ranges = np.full(len(minima), np.inf)
    if len(minima) < 2 * WINDOW_BLOCKS:
        return jumps, ranges
    inner = slice(WINDOW_BLOCKS - 1, len(minima) - WINDOW_BLOCKS)
    medians = np.median(sliding_window_view(minima, WINDOW_BLOCKS), axis=1)
    jumps[inner] = medians[WINDOW_BLOCKS:] - medians[:-WINDOW_BLOCKS]
    # Of the two blocks beside a jump most packets may be from the other side of it.
    spans = np.ptp(sliding_window_view(minima, WINDOW_BLOCKS - 1), axis=1)
    ranges[inner] = np.maximum(spans[: -WINDOW_BLOCKS - 1], spans[WINDOW_BLOCKS + 1 :])
    return jumps, ranges


@dataclass(frozen=True, slots=True)
class _Split:
    """A jump of the floor behind a block: the floor before, the jump, and the floor's range beside it."""

    block: int
    floor: float
    jump: float
    range: float

    @property
    def levels(self) -> tuple[float, float]:
        return self.floor, self.floor + self.jump

    @property
    def threshold(self) -> float:
        """Close to the higher floor: no packet of the higher side lies below, few of the lower one above."""
        return max(self.levels) - abs(self.jump) / CLEAR_RANGES


def _around(first_after: int, last_before: int, jump_ns: int, spread: float) -> tuple[int, int]:
    """The readings around a jump, with room for packets overtaken by the spread of delays unless a gap parts them."""
    if first_after - last_before > abs(jump_ns) / 2:
        return first_after, last_before
    return min(first_after, last_before - round(spread)), max(last_before, first_after + round(spread))


def _cut(key: FloatArray, y: FloatArray, has_jumped: BoolArray, reach: float, split: _Split) -> tuple[int, int] | None:
    """Where packets in the order of `key` change sides, if they do so at once: the rows from the first that may be
    after the jump to the last that may be before it."""
    balance = np.concatenate([[0], np.cumsum(np.where(has_jumped, -1, 1))])
    cut = int(np.argmax(balance))
    if not 0 < cut < len(key):
        return None
    # By as much as the jump's size is off, readings may be out of order.
    start, end = (int(row) for row in np.searchsorted(key, [key[cut - 1] - split.range, key[cut] + split.range]))
    if start < NEIGHBOURS or len(key) - end < NEIGHBOURS:
        return None
    lower, upper = y[start - NEIGHBOURS : start], y[end : end + NEIGHBOURS]
    if split.jump < 0:
        lower, upper = upper, lower
    room = upper.min() - np.partition(lower, -2)[-2]  # one of them may have been held up
    low, high = np.searchsorted(key, [key[cut - 1] - reach, key[cut] + reach])
    astray = np.count_nonzero(has_jumped[low:cut]) + np.count_nonzero(~has_jumped[cut:high])
    is_sharp = room >= abs(split.jump) / 2 and astray <= MOST_ASTRAY * (high - low)
    return (start, end) if is_sharp else None


def confirmed_steps(
    forward: tuple[ClockStep, ...], backward: tuple[ClockStep, ...], *, apart_ns: int
) -> tuple[tuple[ClockStep, ...], tuple[ClockStep, ...]]:
    """Steps that both directions show, at most `apart_ns` apart and of about the same size.

    Each is given twice, as forward and as backward packets meet it: they are on their way at the time, so
    that the sender sees the first packet after the step before it in one direction and after it in the other.
    """
    found: list[tuple[ClockStep, ClockStep]] = []
    for ahead in forward:
        for back in backward:
            if ahead.is_like(back, apart_ns):
                found.append((_combined(ahead, back), _combined(back, ahead)))
                break
    return tuple(ahead for ahead, _ in found), tuple(back for _, back in found)


def _combined(own: ClockStep, other: ClockStep) -> ClockStep:
    """A step as one direction meets it, with what both know of its size."""
    uncertainty = abs(own.jump_ns - other.jump_ns) // 2 + max(own.uncertainty_ns, other.uncertainty_ns)
    return replace(own, jump_ns=(own.jump_ns + other.jump_ns) // 2, uncertainty_ns=uncertainty)
