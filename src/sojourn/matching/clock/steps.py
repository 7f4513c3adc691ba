"""Clock steps: a receiver's clock that was set in the middle of a capture.

A step lifts or lowers every delay from one packet to the next and for good. It is reported where

1. the floor (smallest delay of each run of packets) jumps by more than `CLEAR_RANGES` times the range of
   the floor on either side, after removing a steady trend; and
2. it does so at once: between two packets, the `NEIGHBOURS` delays before and after leave at least half
   of the jump free; and
3. it lasts: up to the next step the higher side never comes back to half of the jump, nor falls or rises
   faster than a clock drifts.

A queue that fills passes every level between and fails the second condition; one that a long stall filled
at once drains, and fails the third. A change of route passes all: in one direction the two cannot be told
apart, in two directions a clock moves both delays by the same amount in opposite senses and a route does not.
Simulated queues without steps showed one in at most 1.2 % of captures (heavy-tailed service, one direction).

A step smaller than the delays' own scatter is not found. Cost: O(packets).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.matching.clock.trends import block_minima, is_draining

__all__ = ["ClockStep", "confirmed_steps", "find_steps"]

MOST_BLOCKS, FEWEST_BLOCKS = 512, 16
PACKETS_PER_BLOCK = 8
WINDOW_BLOCKS = 8
TREND_BLOCKS = 32
CLEAR_RANGES = 4.0
NEIGHBOURS = 8
LEAST_JUMP_NS = 10_000.0
MOST_STEPS = 16
AGREEMENT = 0.25


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The receiver's clock jumped by ``jump_ns`` when the sender's clock read about ``time_ns``.

    ``received_ns`` is the receiver's reading at the first packet after the jump, and ``uncertainty_ns``
    how far the jump's size may be off.
    """

    time_ns: int
    received_ns: int
    jump_ns: int
    uncertainty_ns: int

    def has_happened(self, received_ns: Int64Array, sent_ns: Int64Array | None = None) -> BoolArray:
        """Whether each reading of the receiver's clock is from after the jump.

        A clock set back reads some times twice; there the packet's time at the sender decides, and
        without it the later of the two is assumed.
        """
        if self.jump_ns > 0:
            return received_ns >= self.received_ns - self.jump_ns // 2
        after: BoolArray = received_ns >= self.received_ns
        if sent_ns is not None:
            after &= (sent_ns >= self.time_ns) | (received_ns > self.received_ns - self.jump_ns)
        return after


def find_steps(sent_ns: Int64Array, delay_ns: Int64Array, *, steepest: float) -> tuple[ClockStep, ...]:
    """Steps in the floor of raw delays, in time order; packets in the order of the sender's clock."""
    blocks = min(MOST_BLOCKS, len(delay_ns) // PACKETS_PER_BLOCK)
    if blocks < FEWEST_BLOCKS:
        return ()
    x = (sent_ns - sent_ns[0]).astype(np.float64)
    y = (delay_ns - delay_ns[0]).astype(np.float64)
    rows = block_minima(y, blocks)
    y -= np.clip(_steady_slope(x[rows], y[rows]), -steepest, steepest) * x
    minima = y[rows]
    jumps, ranges = _jumps(minima)
    clear = np.abs(jumps) > np.maximum(CLEAR_RANGES * ranges, LEAST_JUMP_NS)
    sharp: dict[int, int] = {}
    while clear.any() and len(sharp) < MOST_STEPS:
        block = int(np.argmax(np.where(clear, np.abs(jumps), 0.0)))
        clear[max(0, block - WINDOW_BLOCKS // 2) : block + WINDOW_BLOCKS // 2 + 1] = False
        row = _sharp_edge(y, block, blocks, jumps[block])
        if row is not None:
            sharp[block] = row
    return tuple(
        ClockStep(
            time_ns=int(sent_ns[sharp[block]]),
            received_ns=int(sent_ns[sharp[block]] + delay_ns[sharp[block]]),
            jump_ns=round(float(jumps[block])),
            uncertainty_ns=round(float(ranges[block])),
        )
        for block in _lasting(sorted(sharp), x[rows], minima, jumps, steepest)
    )


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
    for i in range(WINDOW_BLOCKS - 1, len(minima) - WINDOW_BLOCKS):
        left = minima[i + 1 - WINDOW_BLOCKS : i + 1]
        right = minima[i + 1 : i + 1 + WINDOW_BLOCKS]
        jumps[i] = np.median(right) - np.median(left)
        ranges[i] = max(np.ptp(left), np.ptp(right))
    return jumps, ranges


def _sharp_edge(y: FloatArray, block: int, blocks: int, jump: float) -> int | None:
    """The first row after the step near the split behind `block`, if the jump is sharp."""
    sign = 1.0 if jump > 0 else -1.0
    edges = np.linspace(0, len(y), blocks + 1).astype(np.int64)
    start = max(NEIGHBOURS, int(edges[max(0, block - 1)]))
    end = min(len(y) - NEIGHBOURS, int(edges[min(blocks, block + 3)]))
    if end <= start:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(sign * y[start - NEIGHBOURS : end + NEIGHBOURS], NEIGHBOURS)
    room = windows[NEIGHBOURS:].min(axis=1) - windows[:-NEIGHBOURS].max(axis=1)
    best = int(np.argmax(room))
    return start + best if room[best] >= abs(jump) / 2 else None


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
            difference = abs(ahead.jump_ns - back.jump_ns)
            largest = max(abs(ahead.jump_ns), abs(back.jump_ns))
            if abs(ahead.time_ns - back.time_ns) <= apart_ns and difference <= AGREEMENT * largest:
                found.append((_combined(ahead, back), _combined(back, ahead)))
                break
    return tuple(ahead for ahead, _ in found), tuple(back for _, back in found)


def _combined(own: ClockStep, other: ClockStep) -> ClockStep:
    """A step as one direction meets it, with what both know of its size."""
    uncertainty = abs(own.jump_ns - other.jump_ns) // 2 + max(own.uncertainty_ns, other.uncertainty_ns)
    return ClockStep(
        time_ns=own.time_ns,
        received_ns=min(own.received_ns, other.received_ns),
        jump_ns=(own.jump_ns + other.jump_ns) // 2,
        uncertainty_ns=uncertainty,
    )
