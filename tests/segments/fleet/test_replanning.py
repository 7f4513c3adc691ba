"""When a plan is made again, and when it is left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.arrays import PacketBatch
from sojourn.epochs.epoch import Cut
from sojourn.epochs.wire import encode
from sojourn.segments.fleet.replanning import Seen, first_plan, is_outgrown, planned_again, replanned, sized_memory
from sojourn.segments.fleet.segment import FIRST_MEMORY
from sojourn.segments.plan import SegmentPlan, plan_point
from sojourn.segments.planning.layout import SEGMENT, _split_of, fit_auto
from sojourn.segments.planning.regret import Case, predicted_errors
from sojourn.segments.planning.search import Wish, _predict, _Worlds
from sojourn.segments.planning.world import ExpectedTraffic, pareto_sizes
from sojourn.segments.record import PointRecorder

MEMORY = 64_000


def plan_for(seen: Seen) -> SegmentPlan:
    plan = replanned(first_plan(MEMORY), seen, memory_bytes=MEMORY)
    assert plan is not None
    return plan


TRAFFIC = Seen(flows=500, packets=50_000, loss=0.01)
PLAN = plan_for(TRAFFIC)


def seen(**changes: float) -> Seen:
    return Seen(**({**vars(TRAFFIC), **changes}))  # type: ignore[arg-type]


def test_the_first_plan_is_made_again_once_traffic_is_known() -> None:
    assert PLAN.flows >= 500
    assert PLAN.packets >= 50_000
    assert PLAN.memory_bits <= 8 * MEMORY


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"flows": 900},
        {"flows": 150},
        {"loss": 0.02},
        {"loss": 0.002},
        {"packets": 150_000},
        {"packets": 5_000},
        {"common_share": 0.6},
        {"packets": 0, "flows": 0},
    ],
)
def test_traffic_within_the_band_leaves_the_plan_alone(changes: dict[str, float]) -> None:
    assert replanned(PLAN, seen(**changes), memory_bytes=MEMORY) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"flows": 2000},
        {"flows": 60},
        {"loss": 0.2},
        {"loss": 0.0},
        {"packets": 1_000_000},
        {"packets": 500},
        {"common_share": 0.1},
    ],
)
def test_traffic_that_has_outgrown_the_plan_gets_another(changes: dict[str, float]) -> None:
    following = replanned(PLAN, seen(**changes), memory_bytes=MEMORY)
    assert following is not None
    assert following.stream != PLAN.stream or following.markers != PLAN.markers
    assert following.memory_bits <= 8 * MEMORY
    assert replanned(following, seen(**changes), memory_bytes=MEMORY) is None, "once is enough"


@pytest.mark.parametrize("up", [1.5, 1.9])
def test_waves_do_not_change_the_plan_again_and_again(up: float) -> None:
    plan, changes = PLAN, 0
    for wave in range(20):
        now = seen(flows=round(500 * up) if wave % 2 else 500, packets=round(50_000 * (1 if wave % 2 else up)))
        following = replanned(plan, now, memory_bytes=MEMORY)
        if following is not None:
            plan, changes = following, changes + 1
    assert changes == 0


@pytest.mark.parametrize("loss", [0.0005, 0.01, 0.1])
@pytest.mark.parametrize("flows", [100, 1000, 10_000])
def test_a_plan_made_by_a_wrong_guess_is_right_after_one_look(flows: int, loss: float) -> None:
    """By predicted errors: half as much again, at most, as the layout that takes what was seen for certain."""
    truth = Seen(flows=flows, packets=100 * flows, loss=loss, counted=10**6)
    following = plan_for(truth)
    assert replanned(following, truth, memory_bytes=MEMORY) is None, "and stays"
    left = MEMORY - -(-following.parts[SEGMENT].memory_bits // 8)
    certain = fit_auto(left, flows=flows, loss=loss, packets=100 * flows)
    splits = [_split_of(dict(parts)) for parts in (following.parts, certain)]
    (ours,), (best,) = predicted_errors(splits, [Case(flows, loss, 100)])
    assert ours <= 1.5 * best


def test_loss_that_was_never_seen_is_planned_for() -> None:
    calm = plan_for(seen(loss=0.0))
    assert calm.loss >= 0.001


def test_the_more_was_counted_without_a_loss_the_less_is_planned_for() -> None:
    losses = [plan_for(seen(loss=0.0, counted=counted)).loss for counted in (0, 1000, 10_000, 100_000, 10**9)]
    assert losses[0] == losses[1] > losses[2] > losses[3] > losses[4] > 0
    calm = plan_for(seen(loss=0.0, counted=500_000))
    assert is_outgrown(calm, seen(loss=0.001, counted=500_000)), "loss has begun"
    assert not is_outgrown(calm, seen(loss=2 / 500_000, counted=500_000))


def test_a_night_without_traffic_does_not_leave_a_plan_for_nobody() -> None:
    quiet = plan_for(Seen(flows=1, packets=3, loss=0.0))
    assert quiet.flows >= 32
    assert quiet.packets >= 1000
    assert replanned(quiet, Seen(flows=2, packets=40, loss=0.0), memory_bytes=MEMORY) is None


def test_another_memory_keeps_what_is_known_of_the_traffic() -> None:
    larger = planned_again(PLAN, 2 * MEMORY)
    assert (larger.flows, larger.loss, larger.packets) == (PLAN.flows, PLAN.loss, PLAN.packets)
    assert larger == plan_point(2 * MEMORY, flows=PLAN.flows, loss=PLAN.loss, packets=PLAN.packets)


def test_a_smaller_error_needs_more_memory() -> None:
    few = Seen(flows=40, packets=8_000, loss=0.01)
    strict = sized_memory(few, error=0.05, confidence=0.9)
    loose = sized_memory(few, error=0.5, confidence=0.9)
    assert loose < strict


@pytest.mark.parametrize(("flows", "packets"), [(1000, 1000), (1, 1)])
def test_traffic_without_a_large_flow_is_sized_too(flows: int, packets: int) -> None:
    found = sized_memory(Seen(flows=flows, packets=packets, loss=0.0, counted=10**5), error=0.2, confidence=0.8)
    assert found < FIRST_MEMORY


def test_a_segment_without_loss_needs_a_fraction_of_the_memory_and_keeps_its_error() -> None:
    """What is found is what planning says it is, with the sample that every point has."""
    calm = Seen(flows=40, packets=8_000, loss=0.0, counted=80_000)
    lossy = Seen(flows=40, packets=8_000, loss=0.01, counted=80_000)
    few, many = (sized_memory(one, error=0.05, confidence=0.9) for one in (calm, lossy))
    assert 4 * few < many
    plan = replanned(first_plan(FIRST_MEMORY), calm, memory_bytes=few)
    assert plan is not None
    traffic = ExpectedTraffic(pareto_sizes(plan.flows, plan.packets), np.full(plan.flows, plan.loss), plan.flows)
    assert _predict(plan, _Worlds(traffic, Wish(0.05, 0.9)), to_the_end=True).share >= 0.9


def sent_bytes(plan: SegmentPlan, packets: int, flows: int) -> int:
    """Of an epoch of so many packets, as it is encoded."""
    random = np.random.default_rng(7)
    flow_id = random.integers(0, 2**64, flows, dtype=np.uint64)[np.arange(packets) % flows]
    times = np.sort(random.integers(0, 10**10, packets))
    batch = PacketBatch(flow_id, random.integers(0, 2**64, packets, dtype=np.uint64), times, np.full(packets, 64))
    recorder = PointRecorder("node", "point", plan.stream)
    (epoch,) = [*recorder.record(batch), *recorder.finish()]
    return len(encode(replace(epoch, cut=Cut(begins=1, ends=2, continues=True))))


@pytest.mark.parametrize("flows", [20, 1024])
def test_bytes_fall_with_packets_under_one_plan(flows: int) -> None:
    """Cells that are empty cost nothing; what is left is what flows and the sample take."""
    plan = plan_for(Seen(flows=1024, packets=1_000_000, loss=0.0, counted=10**7))
    sizes = [sent_bytes(plan, packets, flows) for packets in (100_000, 10_000, 1_000, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 3
