"""Clocks that are set while packets overtake each other: found to the packet, or said to be unknown, never mistaken."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.matching.clock.correction import ClockEstimate, TimedPairs, estimate_clock
from sojourn.matching.clock.lines import floor_trend

MS = 1_000_000
SECOND = 1_000 * MS
START = 1_700_000_000 * SECOND
OFFSET = 100 * MS
STEPS = [20 * MS, -20 * MS, 2 * SECOND, -2 * SECOND, 3 * SECOND, -3 * SECOND]
SECONDS = {100: 30, 1_300: 12, 10_000: 8}
NOTHING = TimedPairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


class World:
    """Packets both ways at a rate, with independent delays; one clock is set after 45 % of the time."""

    def __init__(
        self, rate: int, step: int, point: str, *, least: tuple[int, int], scatter: int, seed: int | None = None
    ) -> None:
        seeds = [rate, abs(step), step > 0, point == "sender", scatter]
        rng = np.random.default_rng(seeds if seed is None else [*seeds, seed])
        self.span, self.scatter = SECONDS[rate] * SECOND, scatter
        self.at = int(0.45 * self.span)
        self.sender_step, self.receiver_step = (step, 0) if point == "sender" else (0, step)
        self.lead = self.receiver_step - self.sender_step
        self.ways = []
        for way in (0, 1):
            left = np.sort(rng.integers(0, self.span, rate * SECONDS[rate]))
            arrived = left + least[way] + rng.exponential(scatter, len(left)).astype(np.int64)
            at_sender, at_receiver = (left, arrived) if way == 0 else (arrived, left)
            self.ways.append(TimedPairs(self._sender(at_sender), self._receiver(at_receiver)))
            if way == 0:
                self.delay = arrived - left

    def _sender(self, time: np.ndarray) -> np.ndarray:
        return START + time + np.where(time >= self.at, self.sender_step, 0)

    def _receiver(self, time: np.ndarray) -> np.ndarray:
        return START + OFFSET + time + np.where(time >= self.at, self.receiver_step, 0)

    def estimate(self, directions: str) -> ClockEstimate:
        forward, backward = self.ways
        return estimate_clock(
            forward if directions != "back" else NOTHING, backward if directions != "forward" else NOTHING
        )

    def has_found(self, estimate: ClockEstimate) -> bool:
        """Whether the step is told, at its time and with its size."""
        if [step for step in estimate.steps if abs(step.jump_ns - self.lead) > step.uncertainty_ns + MS // 5]:
            return False
        times = [step.time_ns - START - self.at - min(0, self.sender_step) for step in estimate.steps]
        return len(times) == 1 and abs(times[0]) < 500 * MS + 15 * self.scatter


@pytest.mark.parametrize("point", ["sender", "receiver"])
@pytest.mark.parametrize("rate", SECONDS)
def test_a_step_is_found_although_packets_overtake_each_other(rate: int, point: str) -> None:
    for step in STEPS:
        world = World(rate, step, point, least=(2 * MS, 3 * MS), scatter=2 * MS)
        for directions in ("forward", "back"):
            alone = world.estimate(directions)
            assert world.has_found(alone), (step, directions)
            assert not alone.applied.steps
            assert abs(alone.skew_ppm) < 60
            assert "was set or the route changed" in alone.explanation.replace("\n", " ")
        both = world.estimate("both")
        assert world.has_found(both), step
        assert both.uncertainty_ns is not None
        assert abs(both.offset_ns - OFFSET) <= both.uncertainty_ns < 6 * MS
        assert abs(both.skew_ppm) < 5
        forward = world.ways[0]
        delay = both.correct(forward.received_ns, forward.sent_ns) - forward.sent_ns
        wrong = np.abs(delay - world.delay) > both.uncertainty_ns + both.steps[0].uncertainty_ns
        assert np.count_nonzero(wrong) <= 2  # packets on their way whose delay is as large as the step


@pytest.mark.parametrize("point", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("least", "scatter"),
    [
        pytest.param((30 * MS, 10 * MS), 15 * MS, marks=pytest.mark.long),
        ((30 * MS, 30 * MS), 60 * MS),
    ],
)
@pytest.mark.parametrize("rate", SECONDS)
def test_a_step_that_scatter_hides_is_never_a_wrong_certainty(
    rate: int, point: str, least: tuple[int, int], scatter: int
) -> None:
    for step in STEPS:
        world = World(rate, step, point, least=least, scatter=scatter)
        for directions in ("forward", "back", "both"):
            estimate = world.estimate(directions)
            if world.has_found(estimate):
                continue
            assert estimate.steps == ()
            assert abs(estimate.skew_ppm) < 100
            if abs(step) > SECOND:
                said = "No clock of constant rate" if directions == "both" else "not at a steady rate"
                assert said in estimate.explanation, (step, directions)
            if directions == "both" and estimate.uncertainty_ns is not None:
                leads = np.array([OFFSET, OFFSET + world.lead])
                assert np.abs(estimate.offset_ns - leads).max() <= estimate.uncertainty_ns, step
            elif directions == "both":
                assert "unknown" in estimate.explanation


def assert_no_wrong_certainty(world: World, directions: str) -> None:
    """The step is told, or nothing is claimed that the stated uncertainty does not leave room for."""
    estimate = world.estimate(directions)
    if world.lead and world.has_found(estimate):
        return
    assert estimate.steps == ()
    assert estimate.skew_low_ppm <= 0 <= estimate.skew_high_ppm
    if directions == "both":
        # A change that both floors show may look like a slope; it has to leave room for both of the clock's leads.
        if estimate.uncertainty_ns is not None:
            leads = np.array([OFFSET, OFFSET + world.lead])
            assert np.abs(estimate.offset_ns - leads).max() <= estimate.uncertainty_ns
    else:
        assert estimate.skew_ppm == 0
        assert "ppm" not in estimate.explanation


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("scatter", [2, 20, 60])
@pytest.mark.parametrize("step", [0, 2, 5, -5, 20, -20])
def test_a_step_below_the_scatter_is_not_taken_for_a_rate(scatter: int, step: int, seeds: range) -> None:
    for rate in (100, 1_300):
        for seed in seeds:
            world = World(rate, step * MS, "receiver", least=(30 * MS, 30 * MS), scatter=scatter * MS, seed=seed)
            for directions in ("forward", "back", "both"):
                assert_no_wrong_certainty(world, directions)


def test_two_levels_under_noise_are_no_rate_but_a_clear_slope_is() -> None:
    x = np.arange(3_200) * 10.0 * MS
    trends = 0
    for seed in range(30):
        noise = np.random.default_rng(seed).exponential(60 * MS, len(x))
        slope = floor_trend(x, 200e-6 * x + noise)
        assert slope.is_rate
        assert slope.low <= 200e-6 <= slope.high
        levels = floor_trend(x, np.where(x > x.mean(), 2 * MS, 0) + noise)
        trends += levels.significant
        assert not levels.is_rate
        assert levels.low <= 0 <= levels.high
    assert trends >= 3  # which the test of ranks alone would take for rates


def test_a_clock_that_no_line_describes_is_left_alone_and_shows_no_skew() -> None:
    """Set at the very beginning, before a floor to compare with is known: said to be unknown, not to be 500 ppm."""
    times = START + np.arange(4_000, dtype=np.int64) * 3 * MS
    theta = np.where(np.arange(4_000) >= 30, 3 * SECOND, 0)
    estimate = estimate_clock(TimedPairs(times, times + theta + MS), TimedPairs(times, times + theta - MS))
    assert estimate.uncertainty_ns is None
    assert estimate.skew_ppm == 0
    assert not estimate.corrected
    assert "unknown" in estimate.explanation
    assert "left as captured" in estimate.explanation


def test_a_slope_that_describes_nearly_everything_is_corrected_although_the_clock_wanders() -> None:
    times = START + np.arange(4_000, dtype=np.int64) * 10 * MS
    theta = np.rint((times - START) * 100e-6 + 0.2 * MS * np.sin(np.arange(4_000) / 300)).astype(np.int64)
    estimate = estimate_clock(TimedPairs(times, times + theta + 1_000), TimedPairs(times, times + theta - 1_000))
    assert estimate.uncertainty_ns is None
    assert estimate.skew_ppm == pytest.approx(100, abs=15)
    assert estimate.corrected
    assert "unknown" in estimate.explanation
