"""Clock estimates on queues with known clocks: bounds that hold, skews found, false alarms counted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError
from sojourn.matching.clock.correction import (
    ClockEstimate,
    ClockMode,
    TimedPairs,
    estimate_clock,
    parse_clock,
    resolution_of,
)
from sojourn.matching.clock.lines import Corridor, block_minima, floor_trend, line_under, lower_hull

MS = 1_000_000
SECOND = 1_000 * MS
START = 1_700_000_000 * SECOND
NOTHING = TimedPairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


def queue(rng: np.random.Generator, packets: int, load: float) -> tuple[np.ndarray, np.ndarray]:
    """Arrival times and sojourn times of an M/M/1 queue with a mean service of 0.1 ms, by Lindley."""
    gaps = rng.exponential(0.1 * MS / load, packets)
    service = rng.exponential(0.1 * MS, packets)
    steps = np.concatenate([[0.0], service[:-1] - gaps[1:]]).cumsum()
    waits = steps - np.minimum.accumulate(steps)
    return np.cumsum(gaps).astype(np.int64), (waits + service).astype(np.int64)


@dataclass(frozen=True)
class Clock:
    """A receiver's clock: its reading when the sender's clock has run for t nanoseconds."""

    offset: int = 0
    ppm: float = 0.0
    step_at: int = 1 << 60
    step: int = 0

    def read(self, t: np.ndarray) -> np.ndarray:
        drift = np.rint(t * (self.ppm * 1e-6)).astype(np.int64)
        return START + t + self.offset + drift + np.where(t >= self.step_at, self.step, 0)

    def lead_at(self, reading: int) -> float:
        """θ where the clock shows `reading` (without steps)."""
        rate = self.ppm * 1e-6
        return self.offset + (reading - START - self.offset) * rate / (1 + rate)


def there(rng: np.random.Generator, clock: Clock, packets: int = 3_000, load: float = 0.8) -> TimedPairs:
    sent, delay = queue(rng, packets, load)
    return TimedPairs(START + sent, clock.read(sent + delay + 2 * MS))


def back(rng: np.random.Generator, clock: Clock, packets: int = 3_000, load: float = 0.5) -> TimedPairs:
    left, delay = queue(rng, packets, load)
    return TimedPairs(START + left + delay + 3 * MS, clock.read(left))


@pytest.mark.parametrize("ppm", [-200.0, -20.0, 0.0, 3.0, 200.0])
@pytest.mark.parametrize(("packets", "load"), [(100, 0.5), (3_000, 0.8), (3_000, 0.95)])
def test_both_directions_bound_offset_and_skew(ppm: float, packets: int, load: float) -> None:
    rng = np.random.default_rng(int(ppm) + 1_000 + packets)
    inside = skews = 0
    repetitions = 20
    for _ in range(repetitions):
        clock = Clock(int(rng.integers(-5 * SECOND, 5 * SECOND)), ppm)
        estimate = estimate_clock(there(rng, clock, packets, load), back(rng, clock, packets, load))
        assert estimate.both_directions
        assert estimate.uncertainty_ns is not None
        assert estimate.uncertainty_ns < 20 * MS
        inside += abs(estimate.offset_ns - clock.lead_at(estimate.reference_ns)) <= estimate.uncertainty_ns
        skews += estimate.skew_low_ppm <= ppm <= estimate.skew_high_ppm
    assert inside >= 0.95 * repetitions
    assert skews >= 0.95 * repetitions


@pytest.mark.parametrize("ppm", [-200.0, 50.0, 200.0])
def test_skew_is_found_and_removed_in_both_modes(ppm: float) -> None:
    rng = np.random.default_rng(11)
    clock = Clock(-3 * SECOND, ppm)
    forward, backward = there(rng, clock, 20_000), back(rng, clock, 20_000)
    for estimate in (estimate_clock(forward, backward), estimate_clock(forward, NOTHING)):
        assert estimate.skew_ppm == pytest.approx(ppm, abs=1)
        assert estimate.skew_low_ppm <= ppm <= estimate.skew_high_ppm
        delays = estimate.correct(forward.received_ns) - forward.sent_ns
        assert delays.min() >= -1
        x = (forward.sent_ns - START).astype(np.float64)
        assert not floor_trend(x, delays.astype(np.float64)).significant
        assert "ppm" in estimate.explanation


LONGER = [pytest.param(*load, marks=pytest.mark.long) for load in ((3_000, 0.3), (3_000, 0.95), (20_000, 0.99))]


@pytest.mark.parametrize(("packets", "load"), [(300, 0.8), *LONGER])
def test_a_clock_without_skew_is_hardly_ever_corrected(packets: int, load: float) -> None:
    """At most 1 % false alarms, one and both directions; the bound allows for 3 in 150 by chance."""
    rng = np.random.default_rng(packets)
    clock = Clock(40 * MS)
    alarms_one = alarms_both = 0
    for _ in range(150):
        forward = there(rng, clock, packets, load)
        alarms_one += estimate_clock(forward, NOTHING).corrected
        if packets <= 3_000:
            backward = back(rng, clock, packets, load)
            alarms_both += estimate_clock(forward, backward).applied.slope != 0
    assert alarms_one <= 3
    assert alarms_both <= 1


def test_synchronous_clocks_are_left_alone() -> None:
    rng = np.random.default_rng(12)
    forward, backward = there(rng, Clock()), back(rng, Clock())
    estimate = estimate_clock(forward, backward)
    assert not estimate.corrected
    assert estimate.correct(forward.received_ns) is forward.received_ns
    assert "nothing is corrected" in estimate.explanation


def test_one_direction_does_not_pretend_to_know_the_offset() -> None:
    rng = np.random.default_rng(13)
    ahead = estimate_clock(there(rng, Clock(7 * SECOND)), NOTHING)
    assert ahead.uncertainty_ns is None
    assert not ahead.corrected
    assert "cannot be told" in ahead.explanation
    forward = there(rng, Clock(-7 * SECOND))
    behind = estimate_clock(forward, NOTHING)
    assert behind.uncertainty_ns is None
    assert (behind.correct(forward.received_ns) - forward.sent_ns).min() == 0
    assert "were negative" in behind.explanation
    backward = back(rng, Clock(7 * SECOND))
    only_back = estimate_clock(NOTHING, backward)
    assert (backward.sent_ns - only_back.correct(backward.received_ns)).min() == 0


def test_a_real_rise_of_delay_is_not_taken_for_skew() -> None:
    """A queue that fills for the whole capture rises far faster than any clock drifts."""
    sent = START + np.arange(2_000, dtype=np.int64) * MS
    filling = TimedPairs(sent, sent + 5 * MS + np.arange(2_000) * 20_000)
    estimate = estimate_clock(filling, NOTHING)
    assert not estimate.corrected
    assert "more than a clock does" in estimate.explanation


@pytest.mark.parametrize("step", [50 * MS, -50 * MS, 2 * SECOND, -2 * SECOND])
@pytest.mark.parametrize("ppm", [0.0, 100.0])
def test_a_step_seen_both_ways_is_found_and_taken_out(step: int, ppm: float) -> None:
    rng = np.random.default_rng(14)
    # 20 000 packets of 0.2 ms take 4 s; the clock is set after 1.7 s.
    clock = Clock(SECOND, ppm, step_at=1_700 * MS, step=step)
    forward, backward = there(rng, clock, 20_000, 0.5), back(rng, clock, 20_000, 0.5)
    estimate = estimate_clock(forward, backward)
    assert len(estimate.steps) == 1
    assert estimate.steps[0].jump_ns == pytest.approx(step, abs=estimate.steps[0].uncertainty_ns + 1_000)
    assert estimate.steps[0].time_ns - START == pytest.approx(1_700 * MS, abs=20 * MS)
    delays = estimate.correct(forward.received_ns, forward.sent_ns) - forward.sent_ns
    assert abs(np.median(delays) - 2.2 * MS) < MS
    assert np.mean(np.abs(delays - 2.5 * MS) < 5 * MS) > 0.99
    assert "step" in estimate.explanation


def test_a_step_seen_one_way_is_reported_but_not_corrected() -> None:
    rng = np.random.default_rng(15)
    clock = Clock(SECOND, step_at=1_700 * MS, step=300 * MS)
    forward = there(rng, clock, 20_000, 0.5)
    alone = estimate_clock(forward, NOTHING)
    assert [round(s.jump_ns / MS) for s in alone.steps] == [300]
    assert not alone.corrected
    assert "route" in alone.explanation
    steady = estimate_clock(forward, back(rng, Clock(SECOND), 20_000))
    assert steady.steps == ()  # only one direction jumps: a route, not a clock


@pytest.mark.parametrize("load", [0.5, 0.95, 0.99])
def test_busy_queues_are_not_taken_for_steps(load: float) -> None:
    rng = np.random.default_rng(16)
    found = [estimate_clock(there(rng, Clock(), 5_000, load), NOTHING).steps for _ in range(40)]
    assert sum(map(len, found)) == 0


@pytest.mark.parametrize("packets", [300, 3_000])
def test_long_stalls_are_not_taken_for_steps(packets: int) -> None:
    """Heavy-tailed service: one packet in many holds up the queue for hundreds of others at once."""
    rng = np.random.default_rng(21)
    reported = 0
    for _ in range(100):
        gaps = rng.exponential(0.1 * MS / 0.7, packets)
        service = (rng.pareto(1.5, packets) + 1) * 0.1 * MS / 3
        steps = np.concatenate([[0.0], service[:-1] - gaps[1:]]).cumsum()
        sojourn = (steps - np.minimum.accumulate(steps) + service).astype(np.int64)
        sent = START + np.cumsum(gaps).astype(np.int64)
        reported += len(estimate_clock(TimedPairs(sent, sent + sojourn), NOTHING).steps) > 0
    assert reported <= 5


def test_the_skew_interval_of_one_direction_holds_the_truth() -> None:
    rng = np.random.default_rng(22)
    held = total = 0
    for packets, load in ((300, 0.8), (300, 0.95), (3_000, 0.5), (3_000, 0.95)):
        for ppm in (-200.0, 0.0, 40.0):
            for _ in range(15):
                estimate = estimate_clock(there(rng, Clock(0, ppm), packets, load), NOTHING)
                held += estimate.skew_low_ppm <= ppm <= estimate.skew_high_ppm
                total += 1
    assert held >= 0.95 * total


def test_a_clock_that_wanders_is_said_to() -> None:
    times = START + np.arange(1_000, dtype=np.int64) * MS
    wander = (50 * MS * np.sin(np.arange(1_000) / 100)).astype(np.int64)
    forward, backward = TimedPairs(times, times + wander + 1), TimedPairs(times, times + wander - 1)
    estimate = estimate_clock(forward, backward)
    assert estimate.uncertainty_ns is None
    assert "No clock of constant rate" in estimate.explanation


def test_coarse_time_stamps_are_no_offset() -> None:
    rng = np.random.default_rng(17)
    sent = START + np.sort(rng.integers(0, SECOND, 500)) // 1_000 * 1_000
    same = TimedPairs(sent, sent - 1_000)  # a delay below the resolution, rounded the wrong way
    backward = TimedPairs(sent, sent - 500_000)
    resolution = resolution_of(sent)
    assert resolution == 1_000
    assert not estimate_clock(same, backward, resolution_ns=resolution).corrected
    assert estimate_clock(same, backward, resolution_ns=1).corrected


def test_modes_are_parsed_and_obeyed() -> None:
    assert parse_clock("auto") == ClockMode()
    assert parse_clock(" None ") == ClockMode("none")
    assert parse_clock("offset=2s") == ClockMode("offset", 2 * SECOND)
    for bad in ("", "auto=1", "offset", "offset=", "offset=fast", "ntp"):
        with pytest.raises(ParameterError):
            parse_clock(bad)
    rng = np.random.default_rng(18)
    forward, backward = there(rng, Clock(SECOND)), back(rng, Clock(SECOND))
    untouched = estimate_clock(forward, backward, parse_clock("none"))
    assert not untouched.corrected
    assert abs(untouched.offset_ns - SECOND) <= (untouched.uncertainty_ns or 0)
    given_offset = estimate_clock(forward, backward, parse_clock("offset=-1s"))
    assert (given_offset.correct(forward.received_ns) - forward.received_ns == SECOND).all()


points = st.lists(st.tuples(st.integers(0, 50), st.integers(-1_000, 1_000)), min_size=1, max_size=40)


@given(points)
def test_the_hull_lies_under_all_points_and_turns_left(cloud: list[tuple[int, int]]) -> None:
    cloud = sorted(cloud)
    x, y = (np.array(column, np.float64) for column in zip(*cloud, strict=True))
    hull = lower_hull(x, y)
    assert (np.interp(x, x[hull], y[hull]) <= y + 1e-9).all()
    slopes = np.diff(y[hull]) / np.diff(x[hull])
    assert (np.diff(slopes) > 0).all()
    # The least-area line: no line through two points that stays under all leaves less room.
    best = line_under(x[hull], y[hull], float(x.mean()))
    area = float((y - best.level - best.slope * x).sum())
    assert (y - best.level - best.slope * x >= -1e-6).all()
    for i in range(len(x)):
        for j in range(i):
            if x[i] != x[j]:
                slope = (y[i] - y[j]) / (x[i] - x[j])
                room = y - y[j] - slope * (x - x[j])
                assert (room < -1e-6).any() or room.sum() >= area - 1e-6


@given(points, points, st.floats(-5, 5), st.floats(-500, 500))
def test_no_line_that_fits_lies_outside_the_corridors_bounds(
    above: list, below: list, slope: float, level: float
) -> None:
    columns = [np.array(c, np.float64).T for c in (above, below)]
    upper = columns[0][0], np.abs(columns[0][1]) + level + slope * columns[0][0]
    lower = columns[1][0], -np.abs(columns[1][1]) + level + slope * columns[1][0]
    corridor = Corridor(lower, upper, 10.0)
    assert corridor.width(corridor.best_slope) >= -1e-6
    assert corridor.slopes[0] - 1e-6 <= slope <= corridor.slopes[1] + 1e-6
    assert corridor.levels[0] - 1e-3 <= level <= corridor.levels[1] + 1e-3


@given(st.lists(st.integers(0, 5), min_size=8, max_size=50), st.integers(1, 8))
def test_block_minima_are_the_first_smallest_of_each_run(values: list[int], blocks: int) -> None:
    edges = np.linspace(0, len(values), blocks + 1).astype(int)
    wanted = [int(a + np.argmin(values[a:b])) for a, b in pairwise(edges)]
    assert block_minima(np.array(values, np.float64), blocks).tolist() == wanted


def test_correction_is_exact_to_the_nanosecond_far_from_the_reference() -> None:
    clock = Clock(123_456_789, 37.5)
    rng = np.random.default_rng(19)
    estimate: ClockEstimate = estimate_clock(there(rng, clock, 5_000), back(rng, clock, 5_000))
    far = np.array([START, START + 86_400 * SECOND], np.int64)
    moved = estimate.correct(far)
    wanted = [int(t) - (estimate.offset_ns + (int(t) - estimate.reference_ns) * estimate.applied.slope) for t in far]
    assert np.abs(moved - np.array(wanted)).max() <= 300  # float64 near 10¹⁸ resolves 128 ns
