"""Clocks followed: the true offset is inside the bounds of every run, whatever the clocks do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.core.arrays import Int64Array
from sojourn.epochs.epoch import KernelClock
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.fleet.clocks import (
    BY_BOTH,
    BY_KERNELS,
    NOT_FOLLOWED,
    UNKNOWN,
    ClockAt,
    RunFrame,
    follow,
    smallest,
)

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
RUNS = 40
Theta = Callable[[Int64Array], Int64Array]


def frames(
    length_ns: int = 10 * SECOND, kernels: tuple[KernelClock | None, KernelClock | None] = (None, None)
) -> list[RunFrame]:
    return [RunFrame(START + i * length_ns, START + (i + 1) * length_ns - 1, kernels) for i in range(RUNS)]


def pairs(theta: Theta, *, back: bool, seed: int, floor_ns: int, jitter_ns: int) -> TimedPairs:
    """The smallest delays of each run, as an agent's sample has them: a hundred packets a run."""
    random = np.random.default_rng(seed)
    found = []
    for frame in frames():
        true = np.sort(random.integers(frame.first_ns, frame.last_ns, 100))
        delay = floor_ns + random.exponential(jitter_ns, 100).astype(np.int64)
        if back:  # left the receiver at `true`, by the true time, which is the sender's clock
            one = TimedPairs(true + delay, true + theta(true))
        else:
            one = TimedPairs(true, true + delay + theta(true + delay))
        found.append(smallest(one, sign=-1 if back else 1))
    return TimedPairs(*(np.concatenate([getattr(one, n) for one in found]) for n in ("sent_ns", "received_ns")))


def followed(theta: Theta, *, seed: int = 1, floors: tuple[int, int] = (3_000_000, 1_000_000)) -> list[ClockAt]:
    ahead, back = (
        pairs(theta, back=way, seed=seed + way, floor_ns=floor, jitter_ns=2_000_000)
        for way, floor in zip((False, True), floors, strict=True)
    )
    return follow(frames(), ahead, back)


def middle(frame: RunFrame) -> Int64Array:
    return np.array([frame.middle_ns])


CLOCKS: dict[str, Theta] = {
    "in step": np.zeros_like,
    "3 s behind": lambda time: np.full_like(time, -3 * SECOND),
    "50 ppm fast": lambda time: (time - START) // 20_000,
    "years ahead": lambda time: np.full_like(time, 5 * 365 * 86_400 * SECOND) + (time - START) // 50_000,
    "wandering": lambda time: (5e6 * np.sin((time - START) / SECOND / 40)).astype(np.int64),
}


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("seed", range(5))
def test_the_offset_is_inside_its_bounds_in_every_run(name: str, seed: int) -> None:
    for clock, frame in zip(followed(CLOCKS[name], seed=7 * seed), frames(), strict=True):
        true = int(CLOCKS[name](middle(frame))[0])
        assert clock.low_ns is not None
        assert clock.high_ns is not None
        assert clock.low_ns <= true <= clock.high_ns
        assert clock.uncertainty_ns is not None
        assert clock.uncertainty_ns < 12_000_000


def test_clocks_that_may_be_in_step_are_left_alone() -> None:
    assert {clock.offset_ns for clock in followed(CLOCKS["in step"])} == {0.0}


def test_a_skew_is_found() -> None:
    assert followed(CLOCKS["50 ppm fast"])[RUNS // 2].skew_ppm == pytest.approx(50, abs=15)


def test_a_step_costs_its_run_alone() -> None:
    at = START + 205 * SECOND  # in the middle of run 20
    theta = lambda time: np.where(time >= at, SECOND, 0)  # noqa: E731
    found = followed(theta)
    assert [i for i, clock in enumerate(found) if clock.was_set] == [20]
    for i, clock in enumerate(found):
        if i != 20:
            assert clock.low_ns is not None
            assert clock.high_ns is not None
            assert clock.low_ns <= (SECOND if i > 20 else 0) <= clock.high_ns


@pytest.mark.parametrize("name", ["3 s behind", "years ahead"])
def test_without_packets_back_nothing_is_known(name: str) -> None:
    ahead = pairs(CLOCKS[name], back=False, seed=1, floor_ns=3_000_000, jitter_ns=1_000_000)
    found = follow(frames(), ahead, TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert {clock.source for clock in found} == {UNKNOWN}
    assert all(clock.uncertainty_ns is None for clock in found)
    # Delays are neither negative nor years then, and what varies is not the correction.
    assert {clock.offset_ns for clock in found} == {float(ahead.raw_delay_ns.min())}


def test_runs_far_from_all_packets_back_do_not_tell_delays_beside_others() -> None:
    ahead, back = (
        pairs(CLOCKS["3 s behind"], back=way, seed=1 + way, floor_ns=3_000_000, jitter_ns=1_000_000)
        for way in (False, True)
    )
    early = back.sent_ns < START + 100 * SECOND
    found = follow(frames(), ahead, TimedPairs(back.sent_ns[early], back.received_ns[early]))
    tells = [clock.tells_delays for clock in found]
    assert tells == sorted(tells, reverse=True)
    assert 10 <= sum(tells) <= 23
    assert {clock.source for clock in found[23:]} == {NOT_FOLLOWED}
    assert all(abs(clock.offset_ns + 3 * SECOND) < SECOND for clock in found if clock.tells_delays)


def test_synchronised_kernels_bound_the_offset() -> None:
    kernels = KernelClock(True, 2_000_000), KernelClock(True, 1_000_000)
    ahead = pairs(CLOCKS["in step"], back=False, seed=1, floor_ns=10_000_000, jitter_ns=1_000_000)
    none = TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))
    found = follow(frames(kernels=kernels), ahead, none)
    assert {(clock.source, clock.low_ns, clock.high_ns) for clock in found} == {(BY_KERNELS, -3e6, 3e6)}
    back = pairs(CLOCKS["in step"], back=True, seed=2, floor_ns=500_000, jitter_ns=1_000_000)
    both = follow(frames(kernels=kernels), ahead, back)
    assert {clock.source for clock in both} == {BY_BOTH}
    assert all((clock.low_ns or 0) > -2e6 for clock in both)


def test_packets_have_the_word_where_a_kernel_is_wrong() -> None:
    kernels = KernelClock(True, 1_000), KernelClock(True, 1_000)
    ahead = pairs(CLOCKS["3 s behind"], back=False, seed=1, floor_ns=3_000_000, jitter_ns=1_000_000)
    back = pairs(CLOCKS["3 s behind"], back=True, seed=2, floor_ns=3_000_000, jitter_ns=1_000_000)
    for clock in follow(frames(kernels=kernels), ahead, back):
        assert clock.offset_ns == pytest.approx(-3 * SECOND, abs=5_000_000)


def test_one_kernel_that_is_not_synchronised_bounds_nothing() -> None:
    kernels = KernelClock(True, 1_000), KernelClock(False, 1_000)
    ahead = pairs(CLOCKS["in step"], back=False, seed=1, floor_ns=3_000_000, jitter_ns=1_000_000)
    none = TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))
    assert {clock.source for clock in follow(frames(kernels=kernels), ahead, none)} == {UNKNOWN}


def test_runs_beside_a_step_are_bounded_although_no_packet_went_back_in_them() -> None:
    """Packets back are rare: every third run has some. The runs before and after a step have to ask one side only."""
    at = START + 205 * SECOND
    theta = lambda time: np.where(time >= at, SECOND, 0)  # noqa: E731
    ahead = pairs(theta, back=False, seed=1, floor_ns=3_000_000, jitter_ns=2_000_000)
    back = pairs(theta, back=True, seed=2, floor_ns=1_000_000, jitter_ns=2_000_000)
    rare = (back.sent_ns - START) // (10 * SECOND) % 3 == 1
    found = follow(frames(), ahead, TimedPairs(back.sent_ns[rare], back.received_ns[rare]))
    for i in (17, 18, 19, 21, 22, 23):
        low, high = found[i].low_ns, found[i].high_ns
        assert low is not None
        assert high is not None
        assert low <= (SECOND if i > 20 else 0) <= high


@pytest.mark.parametrize("by_ns", [SECOND // 3, -SECOND // 3])
@pytest.mark.parametrize("seed", range(10))
def test_a_step_before_the_first_packet_back_is_no_delay(by_ns: int, seed: int) -> None:
    """One direction has packets on one side of it only: bounds of the rest are not the run's."""
    at = START + 3 * SECOND
    theta = lambda time: np.where(time >= at, by_ns, 0)  # noqa: E731
    ahead = pairs(theta, back=False, seed=seed, floor_ns=3_000_000, jitter_ns=2_000_000)
    back = pairs(theta, back=True, seed=seed + 1, floor_ns=1_000_000, jitter_ns=2_000_000)
    later = back.sent_ns >= START + 4 * SECOND
    found = follow(frames(), ahead, TimedPairs(back.sent_ns[later], back.received_ns[later]))
    assert not found[0].is_known
    assert all(clock.is_known and abs(clock.offset_ns - by_ns) < 10_000_000 for clock in found[1:])


@pytest.mark.parametrize("seed", range(10))
def test_a_quiet_start_in_one_direction_costs_nothing(seed: int) -> None:
    ahead = pairs(CLOCKS["in step"], back=False, seed=seed, floor_ns=3_000_000, jitter_ns=2_000_000)
    back = pairs(CLOCKS["in step"], back=True, seed=seed + 1, floor_ns=1_000_000, jitter_ns=2_000_000)
    later = back.sent_ns >= START + 4 * SECOND
    found = follow(frames(), ahead, TimedPairs(back.sent_ns[later], back.received_ns[later]))
    assert all(clock.is_known for clock in found)


@pytest.mark.parametrize("ppm", [20, 200])
def test_a_clock_that_drifts_is_inside_its_bounds_all_through_a_run(ppm: int) -> None:
    """A flow may have passed in the first second alone; where packets take 0.1 ms, the clocks do as much in two."""

    def theta(time: Int64Array) -> Int64Array:
        return (time - START) * ppm // 1_000_000

    ahead, back = (pairs(theta, back=way, seed=3 + way, floor_ns=50_000, jitter_ns=20_000) for way in (False, True))
    for clock, frame in zip(follow(frames(), ahead, back), frames(), strict=True):
        true = theta(np.array([frame.first_ns, frame.middle_ns, frame.last_ns]))
        assert clock.low_ns is not None
        assert clock.high_ns is not None
        assert clock.low_ns <= true.min()
        assert true.max() <= clock.high_ns
        assert clock.high_ns - clock.low_ns < 4 * 50_000 + 2 * ppm * 10_000


def test_a_clock_whose_rate_is_changed_now_and_then_is_inside_bounds_that_tell_something() -> None:
    """As what keeps a clock in step does, by 20 ppm here: no line fits for minutes between packets of 0.1 ms."""

    def theta(time: Int64Array) -> Int64Array:
        return np.abs((time - START) % (160 * SECOND) - 80 * SECOND) // 100_000

    ahead, back = (pairs(theta, back=way, seed=5 + way, floor_ns=50_000, jitter_ns=20_000) for way in (False, True))
    for clock, frame in zip(follow(frames(), ahead, back), frames(), strict=True):
        true = theta(np.array([frame.first_ns, frame.middle_ns, frame.last_ns]))
        assert clock.low_ns is not None
        assert clock.high_ns is not None
        assert clock.low_ns <= true.min()
        assert true.max() <= clock.high_ns
        assert clock.high_ns - clock.low_ns < 1_200_000
