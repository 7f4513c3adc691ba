"""COLATE decoded jointly: the goals per bit, deviations, losses, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from paper_worlds import Traffic, traffic
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import Reason
from sojourn.estimation.joint.segments import estimate_colate_joint
from sojourn.estimation.published.colate import estimate_flow_means
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from worlds import MS, recorded

# One counter: a sum of µs modulo 2³⁶ and a count of 16 bits.
SUM_BITS, COUNT_BITS = 36, 16


def vectors(world: Traffic, bits_per_packet: float, per_flow: int = 4, **changes):
    counters = int(bits_per_packet * len(world.sender) / (SUM_BITS + COUNT_BITS))
    parameters = CounterVectorParameters(
        counters=counters, per_flow=per_flow, bits=SUM_BITS, count_bits=COUNT_BITS,
        resolution_ns=1000, max_delay_ns=500 * MS, salt=6, **changes,
    )  # fmt: skip
    return recorded(world, lambda: CounterVector(parameters))


def covered(flows, world: Traffic) -> np.ndarray:
    inside = (flows.low_ns <= world.mean_ns) & (world.mean_ns <= flows.high_ns)
    return inside[flows.answered & (world.received > 0)]


@pytest.mark.parametrize("delays", ["per_flow", "two_paths", "weibull"])
@pytest.mark.parametrize(("bits_per_packet", "median", "tail"), [(1, 0.01, 0.06), (4, 0.004, 0.025)])
def test_large_flows_meet_the_goal_per_bit(delays: str, bits_per_packet, median, tail) -> None:
    world = traffic(810, 12_000, delays)
    joint = estimate_colate_joint(*vectors(world, bits_per_packet), world.flow_id)
    large = world.sent >= 1000
    assert large.sum() > 25
    error = np.abs(joint.mean_ns / world.mean_ns - 1)[large]
    assert np.median(error) <= median
    assert np.quantile(error, 0.95) <= tail
    assert 0.90 <= covered(joint, world).mean() <= 0.98


def test_joint_beats_theorem_2_although_it_is_not_told_sizes() -> None:
    world = traffic(820, 8000)
    pair = vectors(world, 1, per_flow=8)
    large = np.flatnonzero(world.sent >= 300)
    theirs = estimate_flow_means(*pair, world.flow_id[large], world.sent[large])
    joint = estimate_colate_joint(*pair, world.flow_id)
    ours = np.abs(joint.mean_ns / world.mean_ns - 1)[large]
    assert np.median(ours) < 0.6 * np.median(
        [abs(a.value / m - 1) for a, m in zip(theirs, world.mean_ns[large], strict=True)]
    )


def test_losses_spoil_only_their_counters() -> None:
    world = traffic(840, 5000, loss=0.002)
    joint = estimate_colate_joint(*vectors(world, 4, per_flow=8), world.flow_id, grand_mean=world.grand_mean)
    large = joint.answered & (world.sent >= 100)
    assert large.sum() > 0.9 * (world.sent >= 100).sum()
    assert np.median(np.abs(joint.mean_ns / world.mean_ns - 1)[large]) < 0.03
    assert 0.90 <= covered(joint, world).mean() <= 0.985
    assert np.mean(np.rint(joint.lost) == world.lost) > 0.9
    assert joint.lost.sum() == pytest.approx(world.lost.sum(), rel=0.2)


def test_deviations_are_closer_than_one_for_all() -> None:
    """Twenty counters per flow know a variance to ± 32 % at best; flows here differ by far more."""
    world = traffic(850, 4000, "per_flow")
    joint = estimate_colate_joint(*vectors(world, 8, per_flow=20), world.flow_id)
    large = (world.sent >= 500) & (world.std_ns > 0)
    error = np.abs(joint.std_ns[large] / world.std_ns[large] - 1)
    together = np.sqrt(np.average(world.std_ns**2, weights=world.sent))
    assert np.median(error) < 0.4
    assert np.median(error) < 0.8 * np.median(np.abs(together / world.std_ns[large] - 1))


def test_independent_choice_is_refused() -> None:
    parameters = CounterVectorParameters(counters=50, per_flow=4, choice="random", wrap=False, count_bits=8)
    vector = CounterVector(parameters)
    with pytest.raises(MismatchError, match="independently"):
        estimate_colate_joint(vector, vector, np.array([1], np.uint64))


def test_an_incomplete_list_gives_no_answer() -> None:
    world = traffic(860, 500)
    pair = vectors(world, 8)
    joint = estimate_colate_joint(*pair, world.flow_id[::4])
    assert set(joint.reason) == {Reason.INCOMPLETE_LIST}


def test_nothing_recorded_says_so() -> None:
    vector = CounterVector(CounterVectorParameters(counters=50, per_flow=4, count_bits=8))
    assert estimate_colate_joint(vector, vector, np.array([1], np.uint64)).reason == [Reason.NOTHING_RECORDED]
