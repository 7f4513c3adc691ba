"""Answers of runs: true within their intervals, by size of flow, and the same after they were stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.segments.fleet.fleet_world import SECOND, answers, moved, record, truth_between

from sojourn.core.arrays import BoolArray
from sojourn.core.estimates import LEVELS, Estimate, FlowDelays
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.segments.answer import Interval
from sojourn.segments.fleet.answers import RunAnswer, SampledDelays, answer_run, combine
from sojourn.segments.fleet.clocks import NOT_FOLLOWED, WAS_SET, ClockAt
from sojourn.segments.fleet.stored import answer_bytes, clock_bytes, read_answer
from sojourn.segments.plan import SegmentPlan, plan_point

PLAN = plan_point(128_000, flows=200, loss=0.01)
IN_STEP = ClockAt(0.0, 0.0, 0.0, "the test")


def in_order(world: TwoPointWorld) -> TwoPointWorld:
    """The same world with one path for all, so that no packet overtakes another."""
    delay = np.where(world.delay_ns == LOST, LOST, 5_000_000 + world.delay_ns % 1000)
    arrived = delay != LOST
    arrival = np.maximum.accumulate(world.sender.time_ns + np.where(arrived, delay, 0))
    delay = np.where(arrived, arrival - world.sender.time_ns, LOST)
    received = replace(world.sender, time_ns=arrival).select(np.flatnonzero(arrived))
    return TwoPointWorld(world.sender, received, delay, world.keys, world.seed)


def combined(sent: list[RunAnswer]) -> Interval:
    return combine(sent, [IN_STEP] * len(sent))


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_packets_in_order_count_exactly(seed: int) -> None:
    world = in_order(make_two_point_world(seed=seed, flows=150, packets=60_000, duration_ns=60 * SECOND, load=0.9))
    runs, found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))
    assert len(runs) > 5
    assert world.lost > 0
    for run, answer in zip(runs, found, strict=True):
        _, delay = truth_between(world, answer.interval.first_ns, answer.interval.last_ns)
        totals = answer.interval.totals
        assert totals.sent == len(delay)
        assert totals.losses.lost == totals.losses.low == totals.losses.high == int((delay == LOST).sum())
        assert run.sent[0].recorded <= totals.sent
    whole = combined(found)
    truth, delay = truth_between(world, whole.first_ns, whole.last_ns)
    assert whole.totals.losses.lost == int((delay == LOST).sum())
    mean = whole.totals.delays.mean
    assert isinstance(mean, Estimate)
    assert mean.value == pytest.approx(delay[delay != LOST].mean(), rel=0.01)
    assert whole.flows is not None
    rows = np.searchsorted(whole.flows.flow_id, truth.flow_id)
    few = truth.sent < 1000
    exact = np.abs(whole.flows.lost[rows] - (truth.sent - truth.received)) < 0.5
    assert exact[few].mean() > 0.9


def covered(seed: int, *, in_sequence: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of flows, and whether their means are inside their intervals."""
    world = make_two_point_world(seed=seed, flows=250, packets=120_000, duration_ns=40 * SECOND, load=0.5, tail=1.1)
    world = in_order(world) if in_sequence else world
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    whole = combined(found)
    truth, _ = truth_between(world, whole.first_ns, whole.last_ns)
    assert whole.flows is not None
    rows = np.searchsorted(whole.flows.flow_id, truth.flow_id)
    known = np.isfinite(whole.flows.mean_ns[rows]) & (truth.received > 0)
    low, high = whole.flows.low_ns[rows], whole.flows.high_ns[rows]
    inside = (low - 1 <= truth.mean_ns) & (truth.mean_ns <= high + 1)
    return truth.sent[known], inside[known]


@pytest.mark.parametrize("in_sequence", [pytest.param(True, marks=pytest.mark.long), False])
def test_flows_means_are_inside_their_intervals_in_every_size_class(in_sequence: bool) -> None:
    """Three worlds of 250 flows: of a class of 100 flows, fewer than 88 % are inside in one of 1,000 runs."""
    worlds = [covered(seed, in_sequence=in_sequence) for seed in (11, 12, 13)]
    sizes, inside = (np.concatenate(part) for part in zip(*worlds, strict=True))
    for low, high in ((1, 30), (30, 300), (300, 10**9)):
        chosen = (sizes >= low) & (sizes < high)
        if chosen.sum() >= 100:
            assert inside[chosen].mean() >= 0.88, (low, high, int(chosen.sum()))
    assert inside.mean() >= 0.9


def test_losses_are_inside_their_interval_although_packets_overtake_markers() -> None:
    """Twelve answers, of one run to all, in worlds where hundreds of packets are late at every marker."""
    inside = []
    for seed in (5, 6, 7):
        world = make_two_point_world(seed=seed, flows=200, packets=200_000, duration_ns=40 * SECOND, load=0.95)
        found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
        for first, last in ((0, 1), (1, 3), (2, 6), (0, len(found))):
            part = found[first:last]
            whole = combine(part, [IN_STEP] * len(part), later=found[last] if last < len(found) else None)
            _, delay = truth_between(world, whole.first_ns, whole.last_ns)
            losses = whole.totals.losses
            inside.append(losses.low <= int((delay == LOST).sum()) <= losses.high)
    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("seed", range(3))
def test_packets_that_overtake_one_other_are_not_lost(seed: int) -> None:
    """One that is ahead of its marker may be sampled in a short run, and not in the longer one that it belongs to."""
    world = in_order(make_two_point_world(seed=seed, flows=60, packets=60_000, duration_ns=90 * SECOND, load=0.2))
    assert world.lost == 0
    order = np.arange(len(world.receiver))
    early = np.flatnonzero(np.random.default_rng(seed).random(len(order) - 1) < 0.2)
    early = early[np.append(True, np.diff(early) > 1)]
    order[early], order[early + 1] = early + 1, early
    received = replace(world.receiver.select(order), time_ns=world.receiver.time_ns)
    found = answers(record(world.sender, PLAN, world), record(received, PLAN, world, node="b"))[1]
    assert sum(answer.interval.totals.losses.extra for answer in found) > 0
    losses = combined(found).totals.losses
    assert losses.lost is not None
    assert losses.lost <= 1  # at an end one may be missing
    assert losses.low == 0
    assert losses.high <= 80


def test_where_packets_overtake_each_other_no_loss_is_called_exact() -> None:
    """Two that changed places with the last marker look like two that were lost, and losses hide what is extra."""
    world = in_order(make_two_point_world(seed=1, flows=150, packets=60_000, duration_ns=60 * SECOND, load=0.9))
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    lossy = next(answer for answer in found if answer.interval.totals.losses.lost)
    whole, losses = combined(found).totals.losses, combined([lossy]).totals.losses
    assert whole.is_exact
    assert whole.lost
    # The sample of one run alone may be too small to tell that there is none at either end.
    assert losses.lost == lossy.interval.totals.losses.lost
    assert losses.high - losses.low <= 4
    overtaken = Estimate(2.0, 0.0, 7.0, 5, "order", unit="packets")
    doubtful = combined([replace(lossy, overtaken=overtaken)]).totals.losses
    assert doubtful.low <= losses.lost - 2 < losses.lost < doubtful.high
    clean = next((answer for answer in found if not answer.interval.totals.losses.lost), None)
    # Where nothing is missing, nothing can be hidden.
    assert clean is None or combined([replace(clean, overtaken=overtaken)]).totals.losses.is_exact


def test_the_sample_tells_how_many_packets_are_late_at_a_place() -> None:
    world = jittery(make_two_point_world(seed=2, flows=50, packets=40_000, duration_ns=60 * SECOND, load=0.5))
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    late = [answer.overtaken.value for answer in found if answer.overtaken is not None]
    arrived = world.delay_ns != LOST
    sent = world.sender.time_ns[arrived]
    arrival = (sent + world.delay_ns[arrived])[np.argsort(sent, kind="stable")]
    behind = [
        int((arrival[max(0, place - 3000) : place] > arrival[place]).sum()) for place in range(0, len(arrival), 7)
    ]
    assert len(late) == len(found)
    assert np.mean(late) == pytest.approx(np.mean(behind), rel=0.3)


def test_fewer_sampled_delays_stand_for_all_and_tell_the_same_percentiles() -> None:
    world = make_two_point_world(seed=8, flows=30, packets=40_000, duration_ns=40 * SECOND, load=0.7)
    runs = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    found = max(runs, key=lambda run: len(run.sampled.row))
    few = found.sampled.thinned(100)
    assert 50 <= len(few.row) <= 100
    assert few.weight.sum() == pytest.approx(found.sampled.weight.sum())
    assert not few.is_whole
    assert found.sampled.thinned(10**6) is found.sampled
    medians = [np.median(one.delay_ns) for one in (few, found.sampled)]
    assert medians[0] == pytest.approx(medians[1], rel=0.25)  # five deviations of a median of a hundred


def test_a_run_without_bounds_leaves_the_others_theirs() -> None:
    world = in_order(make_two_point_world(seed=2, flows=20, packets=20_000, duration_ns=30 * SECOND, load=0.6))
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    mean = found[1].interval.totals.delays.mean
    assert isinstance(mean, Estimate)
    delays = replace(found[1].interval.totals.delays, mean=replace(mean, low=-np.inf, high=np.inf))
    totals = replace(found[1].interval.totals, delays=delays)
    found[1] = replace(found[1], interval=replace(found[1].interval, totals=totals))
    whole = combined(found)
    _, delay = truth_between(world, whole.first_ns, whole.last_ns)
    told = whole.totals.delays.mean
    assert isinstance(told, Estimate)
    assert np.isfinite([told.low, told.high]).all()
    assert told.low <= delay[delay != LOST].mean() <= told.high


def test_means_over_runs_are_as_exact_as_those_of_runs() -> None:
    """Delays that change tenfold within seconds, of flows whose sizes are decoded to a thousandth."""
    made = make_two_point_world(seed=4, flows=60, packets=18_000, duration_ns=12 * SECOND)
    slow = 200_000 + 20_000_000 * np.sin((made.sender.time_ns - made.sender.time_ns[0]) / 1e9) ** 2
    arrived = np.maximum.accumulate(made.sender.time_ns + slow.astype(np.int64))
    received = replace(made.sender, time_ns=arrived)
    world = TwoPointWorld(made.sender, received, arrived - made.sender.time_ns, made.keys, made.seed)
    ends = [record(batch, PLAN, world, epoch_ns=2 * SECOND) for batch in (world.sender, world.receiver)]
    whole = combined(answers(*ends)[1])
    truth, _ = truth_between(world, whole.first_ns, whole.last_ns)
    assert whole.flows is not None
    rows = np.searchsorted(whole.flows.flow_id, truth.flow_id)
    assert np.abs(whole.flows.mean_ns[rows] - truth.mean_ns).max() < 2


def test_losses_are_inside_their_interval_although_runs_are_missing() -> None:
    """Every third run is not there: what was late at each gap is not known. Of six intervals of 95 %, fewer than four
    hold the truth in one of 400 runs."""
    inside = []
    for seed in range(3):
        made = make_two_point_world(seed=seed, flows=50, packets=40_000, duration_ns=60 * SECOND, load=0.95)
        for world in (made, jittery(made)):
            found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
            kept = [number for number in range(len(found)) if number % 3 != 2]
            gaps = [place for place, number in enumerate(kept) if place and number % 3 == 0]
            parts = [found[number] for number in kept]
            assert len(gaps) >= 2
            losses = combine(parts, [IN_STEP] * len(parts), gaps=gaps).totals.losses
            spans = [(part.interval.first_ns, part.interval.last_ns) for part in parts]
            lost = sum(int((truth_between(world, *span)[1] == LOST).sum()) for span in spans)
            inside.append(losses.low <= lost <= losses.high)
    assert sum(inside) >= 4


def jittery(world: TwoPointWorld) -> TwoPointWorld:
    """The same world where three of ten packets are held up, by 20 ms on average: markers are, too."""
    random = np.random.default_rng(world.seed)
    held = np.where(random.random(len(world.delay_ns)) < 0.3, random.exponential(20e6, len(world.delay_ns)), 0.0)
    delay = np.where(random.random(len(held)) < 0.05, LOST, 5_000_000 + held.astype(np.int64))
    arrived = np.flatnonzero(delay != LOST)
    received = replace(world.sender, time_ns=world.sender.time_ns + delay).select(arrived)
    received = received.select(np.argsort(received.time_ns, kind="stable"))
    return TwoPointWorld(world.sender, received, delay, world.keys, world.seed)


def test_nothing_is_called_exact_that_packets_which_changed_places_with_a_marker_make_wrong() -> None:
    """Every packet is sampled, but for these. Of some thirty intervals of 95 %, fewer than 85 % hold the truth in one
    of 1,000 runs; means that have no width, and percentiles, are looked at by themselves."""
    plan = plan_point(1_000_000, flows=40, loss=0.05)
    held: dict[str, list[bool]] = {"lost": [], "mean": [], "flows": []}
    for seed in range(3):
        world = jittery(make_two_point_world(seed=seed, flows=40, packets=24_000, duration_ns=60 * SECOND, load=0.3))
        found = answers(record(world.sender, plan, world), record(world.receiver, plan, world, node="b"))[1]
        for run in found:
            if not sum(one.samples for one in (run.extra, run.displaced, run.ahead) if one is not None):
                continue
            alone = combined([run])
            truth, delay = truth_between(world, alone.first_ns, alone.last_ns)
            mean, losses, flows = alone.totals.delays.mean, alone.totals.losses, alone.flows
            assert isinstance(mean, Estimate)
            assert flows is not None
            held["lost"].append(losses.low <= int((delay == LOST).sum()) <= losses.high)
            held["mean"].append(mean.low <= delay[delay != LOST].mean() <= mean.high)
            rows = np.searchsorted(flows.flow_id, truth.flow_id)
            known = flows.answered[rows] & (truth.received > 0)
            low, high = flows.low_ns[rows][known], flows.high_ns[rows][known]
            assert np.all(high - low > 0)
            held["flows"] += ((low <= truth.mean_ns[known]) & (truth.mean_ns[known] <= high)).tolist()
    assert len(held["mean"]) >= 20
    assert {name: np.mean(one) >= (0.9 if name == "flows" else 0.85) for name, one in held.items()} == dict.fromkeys(
        held, True
    )


def test_a_number_of_losses_that_cannot_be_is_not_exact() -> None:
    """Copies make more packets arrive than are missing; cells prove that many are extra."""
    world = in_order(make_two_point_world(seed=3, flows=60, packets=30_000, duration_ns=40 * SECOND, load=0.2))
    random = np.random.default_rng(3)
    kept = random.random(len(world.receiver)) >= 0.002
    order = np.sort(np.concatenate([np.flatnonzero(kept), np.flatnonzero(kept & (random.random(len(kept)) < 0.02))]))
    received = world.receiver.select(order)
    plan = plan_point(8_000, flows=60, loss=0.002)
    found = answers(record(world.sender, plan, world), record(received, plan, world, node="b"))[1]
    lost = np.isin(world.sender.packet_id, received.packet_id, invert=True)
    inside = []
    for run in found:
        alone = combined([run])
        here = (world.sender.time_ns >= alone.first_ns) & (world.sender.time_ns <= alone.last_ns)
        truth, losses = int(lost[here].sum()), alone.totals.losses
        assert not losses.is_exact or losses.lost == truth
        inside.append(losses.low <= truth <= losses.high)
    assert np.mean(inside) >= 0.8


def test_packets_that_overtake_a_marker_are_not_lost() -> None:
    """Up to hundreds are missing in the run that they were sent in, and extra in the one before."""
    inside = []
    for seed in range(5):
        world = jittery(make_two_point_world(seed=seed, flows=100, packets=60_000, duration_ns=40 * SECOND))
        found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
        for part in (found, found[1:4], found[2:6], found[-3:]):
            whole = combined(part)
            _, delay = truth_between(world, whole.first_ns, whole.last_ns)
            losses = whole.totals.losses
            inside.append(losses.low <= int((delay == LOST).sum()) <= losses.high)
    assert np.mean(inside) >= 0.8  # of 20 intervals of 95 %, fewer in one of 400 runs


@pytest.mark.parametrize("offset_ns", [-3 * SECOND, 40 * SECOND, 4000 * SECOND])
def test_clocks_that_differ_change_nothing_but_the_raw_delays(offset_ns: int) -> None:
    world = in_order(make_two_point_world(seed=4, flows=40, packets=20_000, duration_ns=30 * SECOND, load=0.5))
    sent = record(world.sender, PLAN, world)
    plain = answers(sent, record(world.receiver, PLAN, world, node="b"))[1]
    shifted = answers(sent, record(moved(world.receiver, offset_ns), PLAN, world, node="b"))[1]
    offset = ClockAt(float(offset_ns), float(offset_ns), float(offset_ns), "the test")
    one, other = combined(plain), combine(shifted, [offset] * len(shifted))
    assert one.totals.losses == other.totals.losses
    means = [interval.totals.delays.mean for interval in (one, other)]
    assert all(isinstance(mean, Estimate) for mean in means)
    assert means[0].value == pytest.approx(means[1].value, abs=1000)  # type: ignore[union-attr]


def test_the_clock_s_doubt_is_part_of_every_interval() -> None:
    world = in_order(make_two_point_world(seed=4, flows=40, packets=20_000, duration_ns=30 * SECOND, load=0.5))
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    sure, unsure = combined(found), combine(found, [ClockAt(0.0, -2e6, 1e6, "the test")] * len(found))
    assert sure.flows is not None
    assert unsure.flows is not None
    assert unsure.flows.low_ns == pytest.approx(sure.flows.low_ns - 1e6)
    assert unsure.flows.high_ns == pytest.approx(sure.flows.high_ns + 2e6)
    means = [interval.totals.delays.mean for interval in (sure, unsure)]
    assert means[1].high - means[1].low == pytest.approx(means[0].high - means[0].low + 3e6)  # type: ignore[union-attr]


@pytest.mark.parametrize("why", [WAS_SET, NOT_FOLLOWED])
def test_delays_of_a_run_whose_clocks_are_not_known_are_no_part_of_the_answer(why: str) -> None:
    world = in_order(make_two_point_world(seed=4, flows=40, packets=20_000, duration_ns=30 * SECOND, load=0.5))
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    clocks = [IN_STEP] * len(found)
    clocks[1] = ClockAt(0.0, None, None, why)
    whole, others = combine(found, clocks), combined([*found[:1], *found[2:]])
    assert whole.totals.sent == combined(found).totals.sent
    assert whole.totals.delays.mean == others.totals.delays.mean


@pytest.mark.parametrize("why", ["no clock", "no sample"])
def test_percentiles_of_a_flow_are_not_exact_where_a_run_tells_none_of_its_delays(why: str) -> None:
    """All packets are sampled, so that each run alone tells its flows' percentiles exactly."""
    plan = plan_point(2_000_000, flows=10, loss=0.05)
    world = in_order(make_two_point_world(seed=4, flows=8, packets=3_000, duration_ns=30 * SECOND, load=0.5))
    found = answers(record(world.sender, plan, world), record(world.receiver, plan, world, node="b"))[1]
    assert is_exact(combined(found)).all()
    clocks = [IN_STEP] * len(found)
    if why == "no clock":
        clocks[1] = ClockAt(0.0, None, None, WAS_SET)
    else:
        found[1] = replace(found[1], sampled=SampledDelays.of(None, flows_of(found[1]).flow_id, 0))
    whole = combine(found, clocks)
    in_it = np.isin(flows_of(whole).flow_id, flows_of(found[1]).flow_id[flows_of(found[1]).packets > 0])
    assert in_it.any()
    assert not is_exact(whole)[in_it].any()
    assert is_exact(whole)[~in_it].all()


def flows_of(answer: RunAnswer | Interval) -> FlowDelays:
    interval = answer.interval if isinstance(answer, RunAnswer) else answer
    assert interval.flows is not None
    return interval.flows


def is_exact(interval: Interval) -> BoolArray:
    """Which flows' medians have an interval without a width."""
    assert interval.flows is not None
    assert interval.flows.percentiles is not None
    found: BoolArray = interval.flows.percentiles[:, 0, 1] == interval.flows.percentiles[:, 0, 2]
    return found


def test_percentiles_are_those_of_the_packets() -> None:
    """Of ten flows with thousands of sampled packets each; 95 % intervals, so at least 38 of 50 hold (1 in 10⁵)."""
    plan = plan_point(2_000_000, flows=10, loss=0.05)
    world = make_two_point_world(seed=9, flows=10, packets=60_000, duration_ns=30 * SECOND, load=0.9, tail=3.0)
    found = answers(record(world.sender, plan, world), record(world.receiver, plan, world, node="b"))[1]
    whole = combined(found)
    rows = (world.sender.time_ns >= whole.first_ns) & (world.sender.time_ns <= whole.last_ns) & (world.delay_ns != LOST)
    assert whole.flows is not None
    assert whole.flows.percentiles is not None
    inside = []
    for row, flow in enumerate(whole.flows.flow_id):
        true = np.quantile(world.delay_ns[rows & (world.sender.flow_id == flow)], list(LEVELS.values()))
        for level in range(len(LEVELS)):
            value, low, high = whole.flows.percentiles[row, level]
            if np.isfinite(value):
                inside.append(low <= true[level] <= high)
    assert len(inside) >= 30
    assert np.mean(inside) >= 0.76


def test_an_answer_is_the_same_after_it_was_stored() -> None:
    world = make_two_point_world(seed=2, flows=60, packets=30_000, duration_ns=20 * SECOND, load=0.9)
    found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))[1]
    stored = [read_answer(answer_bytes(one), clock_bytes(one)) for one in found]
    one, other = combined(found), combined(stored)
    assert one.totals.losses == other.totals.losses
    assert one.totals.delays.mean == other.totals.delays.mean
    assert one.flows is not None
    assert other.flows is not None
    for name in ("flow_id", "mean_ns", "packets", "lost", "samples"):
        np.testing.assert_array_equal(getattr(one.flows, name), getattr(other.flows, name))
    for name in ("low_ns", "high_ns"):  # deviations are stored in single precision
        np.testing.assert_allclose(getattr(one.flows, name), getattr(other.flows, name), rtol=1e-7)
    np.testing.assert_allclose(one.flows.percentiles, other.flows.percentiles, rtol=1e-6)  # type: ignore[arg-type]
    assert one.flows.reason == other.flows.reason


def test_what_nothing_arrived_of_is_lost() -> None:
    world = in_order(make_two_point_world(seed=4, flows=10, packets=5_000, duration_ns=20 * SECOND, load=0.3))
    sent = record(world.sender, PLAN, world)
    answer = answer_run(sent[1:2], [])
    assert answer.interval.totals.losses.lost == sent[1].recorded


def test_a_packet_that_changed_places_with_a_marker_is_no_loss_of_its_flow() -> None:
    """The last packet before every marker is the second after it at the receiver."""
    world = in_order(make_two_point_world(seed=4, flows=30, packets=20_000, duration_ns=30 * SECOND, load=0.3))
    assert world.lost == 0
    sent = record(world.sender, PLAN, world)
    markers = np.array([epoch.cut.begins for epoch in sent if epoch.cut is not None and epoch.cut.begins], np.uint64)
    order = np.arange(len(world.receiver))
    for place in np.flatnonzero(np.isin(world.receiver.packet_id, markers)).tolist():
        if place:
            order[[place - 1, place]] = order[[place, place - 1]]
    swapped = world.receiver.select(order)
    swapped = replace(swapped, time_ns=world.receiver.time_ns)
    whole = combined(answers(sent, record(swapped, PLAN, world, node="b"))[1])
    assert whole.flows is not None
    assert np.nanmax(whole.flows.lost) <= 1.5
    assert np.isnan(whole.flows.lost).sum() <= 1


def false_exact(world: TwoPointWorld, *, plan: SegmentPlan = PLAN) -> tuple[int, int, int]:
    """Of all runs' flows: how many losses are outside their intervals, how many of them exact, and how many there are.

    Runs are asked for one by one, as a series of intervals is.
    """
    found = answers(record(world.sender, plan, world), record(world.receiver, plan, world, node="b"))[1]
    outside = wrong = known = 0
    for place, answer in enumerate(found):
        later = found[place + 1] if place + 1 < len(found) else None
        flows = combine([answer], [IN_STEP], later=later).flows
        assert flows is not None
        assert flows.lost_low is not None
        assert flows.lost_high is not None
        truth, _ = truth_between(world, answer.interval.first_ns, answer.interval.last_ns)
        rows = np.searchsorted(flows.flow_id, truth.flow_id)
        told = ~np.isnan(flows.lost[rows])
        low, high, lost = flows.lost_low[rows][told], flows.lost_high[rows][told], truth.lost[told]
        misses = (lost < low - 0.5) | (lost > high + 0.5)
        outside, known = outside + int(misses.sum()), known + int(told.sum())
        wrong += int((misses & (low == high)).sum())
    return outside, wrong, known


def test_flows_losses_are_inside_their_intervals_although_their_packets_change_places_with_markers() -> None:
    """Flows of two paths, 7 ms apart: some packets are late at every marker, and most of them those of large flows."""
    outside, wrong, known = 0, 0, 0
    for seed in (41, 42):
        world = make_two_point_world(seed=seed, flows=40, packets=40_000, duration_ns=40 * SECOND, load=0.3, tail=1.1)
        found = false_exact(world)
        outside, wrong, known = outside + found[0], wrong + found[1], known + found[2]
    assert known > 200
    assert wrong / known < 0.005
    assert outside / known < 0.05


def test_flows_losses_are_inside_their_intervals_although_packets_arrive_twice() -> None:
    world = in_order(make_two_point_world(seed=43, flows=40, packets=30_000, duration_ns=40 * SECOND, load=0.95))
    assert world.lost > 100
    random = np.random.default_rng(43)
    twice = np.sort(np.concatenate([np.arange(len(world.receiver)), random.integers(0, len(world.receiver), 600)]))
    received = world.receiver.select(twice)
    outside, wrong, known = false_exact(replace(world, receiver=received))
    assert known > 100
    assert wrong / known < 0.02
    assert outside / known < 0.05


def test_percentiles_are_found_of_the_flows_that_are_asked_for() -> None:
    world = in_order(make_two_point_world(seed=2, flows=60, packets=30_000, duration_ns=30 * SECOND, load=0.9))
    _, found = answers(record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b"))
    clocks = [IN_STEP] * len(found)
    every = combine(found, clocks).flows
    assert every is not None
    assert every.percentiles is not None
    some = every.flow_id[np.flatnonzero(~np.isnan(every.percentiles[:, 0, 0]))[:3]]
    for wanted in (some, some[:0]):
        chosen = combine(found, clocks, percentiles_of=wanted).flows
        assert chosen is not None
        assert chosen.percentiles is not None
        is_wanted = np.isin(every.flow_id, wanted)
        np.testing.assert_array_equal(chosen.percentiles[is_wanted], every.percentiles[is_wanted])
        assert np.isnan(chosen.percentiles[~is_wanted]).all()
        np.testing.assert_array_equal(chosen.mean_ns, every.mean_ns)
