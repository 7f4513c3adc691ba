"""The memory that a wanted error needs, found by trying plans in simulated worlds.

The promise: of the flows with `least_packets` or more, a share `confidence` has its mean within a share `error` of
the truth; a flow without an answer counts as a miss. No formula says what a joint decoder reaches with a given memory,
so plans are tried with the very code that measures: drawn traffic is recorded at both points and decoded. A plan is
good when the share of simulated flows within the error, less what chance may have given it (`DOUBT` deviations, by
Wilson's bound), is at least the confidence in every kind of delays that the traffic may have.

Larger traffic is simulated as a part of its flows with the same part of the memory: what counts is cells per flow.

Cost: a trial of a memory takes 0.1 to 1.5 s, a search about seven of them; the same request gives the same plan.

A survey knows what planning otherwise assumes: how many flows there are, how large each is, what it loses and how its
delays vary (from a sample in long captures). `plan_surveyed` tries worlds drawn from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, rows_of
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import FlowDelays
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_bytes
from sojourn.epochs.epoch import merge_epochs
from sojourn.segments.answer import answer_interval
from sojourn.segments.plan import SegmentPlan, plan_point, plan_segment
from sojourn.segments.planning.layout import SEGMENT
from sojourn.segments.planning.world import Delays, ExpectedTraffic, World, draw_world, surveyed_delays
from sojourn.segments.ranges import IN_RANGE_NS
from sojourn.segments.record import PointRecorder
from sojourn.segments.survey import Survey
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters

DOUBT = 1.28
LEAST_MEMORY = 1 << 11
FIRST_STEP = 2.0
FIRST_BYTES_PER_FLOW = 40
LAST_STEP = 1.15
MOST_WORLDS, MOST_SMALL_WORLDS = 24, 200
BYTES_PER_PACKET, BYTES_PER_FLOW = 32, 4096


@dataclass(frozen=True)
class Wish:
    """What is wanted, for flows of `least_packets` or more."""

    error: float
    confidence: float = 0.95
    least_packets: int = 100

    def __post_init__(self) -> None:
        if self.least_packets < 1:
            raise ParameterError(f"flows of {self.least_packets} packets", where="plan", action="use 1 or more")

    @property
    def flows_to_try(self) -> int:
        """How many simulated flows can prove the confidence with some misses among them."""
        return math.ceil(4 * DOUBT**2 / (1 - self.confidence))

    @property
    def fewest_flows(self) -> int:
        """How many can prove it if none misses."""
        return math.ceil(DOUBT**2 * self.confidence / (1 - self.confidence)) + 1


@dataclass(frozen=True)
class Prediction:
    """What a plan came to in the worst kind of delays: shares of the promised flows, and relative errors.

    ``share`` is within the wanted error, ``baseline`` the same for answering every flow with the mean of all packets;
    ``median`` and ``at_confidence`` are quantiles of the error (infinite where flows have no answer).
    """

    share: float
    baseline: float
    median: float
    at_confidence: float
    answered: float
    flows: int
    delays: str
    is_kept: bool

    @property
    def rank(self) -> tuple[float, float]:
        """The better prediction's is larger."""
        return self.share, -self.at_confidence


@dataclass(frozen=True)
class MemoryPlan:
    """A plan for a budget of memory per point (it fills a little less), and what it is expected to reach."""

    plan: SegmentPlan
    prediction: Prediction
    budget_bytes: int

    @property
    def memory_bytes(self) -> int:
        return -(-self.plan.memory_bits // 8)


def plan_memory(
    name: str,
    traffic: ExpectedTraffic,
    wish: Wish,
    *,
    joint: bool = True,
    point: bool = False,
    advance: Advance = silent,
) -> MemoryPlan:
    """The smallest plan that keeps the wish, or (`is_kept` false) the best that memory can buy.

    `plan`, `measure --error` and the control unit (which plans a fleet's `point`) all find their memory here.
    Memory is stepped up or down until the wish is just kept, then halved to within a seventh.
    """
    worlds = _Worlds(traffic, wish)
    most = max(1 << 20, BYTES_PER_PACKET * traffic.total_packets + BYTES_PER_FLOW * traffic.flows)
    best: MemoryPlan | None = None
    low, high, trials = 0.0, math.inf, 0
    memory = min(most, max(4 * LEAST_MEMORY, FIRST_BYTES_PER_FLOW * traffic.flows))
    while LEAST_MEMORY <= memory <= most and high > LAST_STEP * low:
        trials += 1
        advance(f"trying {format_bytes(memory)}", 1 - 0.8**trials)
        tried = _try_memory(partial(_plan, name, traffic=traffic, joint=joint, point=point), memory, worlds)
        kept = tried is not None and tried.prediction.is_kept
        if tried is not None and (
            kept or best is None or (not best.prediction.is_kept and tried.prediction.rank > best.prediction.rank)
        ):
            best = tried
        low, high = (low, memory) if kept else (memory, high)
        memory = _next_memory(low, high, most)
    if best is None:
        raise ParameterError("no memory can be planned for", where=f"plan {name}", action="ask for fewer flows")
    return best


def _next_memory(low: float, high: float, most: float) -> float:
    """Between the largest that failed and the smallest that did not; further up or down while there is no such pair."""
    if math.isinf(high):
        return min(low * FIRST_STEP, most) if low < most else math.inf
    return math.sqrt(low * high) if low else high / FIRST_STEP


def predict_error(name: str, memory_bytes: int, traffic: ExpectedTraffic, wish: Wish) -> MemoryPlan:
    """What a given memory buys; the wish names the flows and the confidence."""
    plan = _plan(name, memory_bytes, traffic=traffic)
    return MemoryPlan(plan, _predict(plan, _Worlds(traffic, wish), to_the_end=True), memory_bytes)


def _plan(
    name: str, memory_bytes: int, *, traffic: ExpectedTraffic, joint: bool = True, point: bool = False
) -> SegmentPlan:
    packets = round(traffic.total_packets)
    if point:
        return plan_point(memory_bytes, flows=traffic.flows, loss=traffic.loss, packets=packets)
    return plan_segment(name, memory_bytes, flows=traffic.flows, loss=traffic.loss, packets=packets, joint=joint)


class _Worlds:
    """The worlds that plans are tried in: drawn once, the same for all of a request's plans."""

    def __init__(self, traffic: ExpectedTraffic, wish: Wish) -> None:
        self.traffic = traffic
        self.wish = wish
        self._drawn: dict[tuple[str, int], World] = {}

    def of(self, delays: Delays) -> Iterator[World]:
        """As many as hold enough promised flows, or some more where a world holds hardly any."""
        flows = 0
        for seed in range(MOST_SMALL_WORLDS):
            if seed >= MOST_WORLDS and flows >= self.wish.fewest_flows:
                return
            key = delays.name, seed
            if key not in self._drawn:
                self._drawn[key] = draw_world(
                    self.traffic, delays, least_packets=self.wish.least_packets, seed=1000 + seed
                )
            yield self._drawn[key]
            flows += int(self._drawn[key].promised.sum())
            if flows >= self.wish.flows_to_try:
                return


def _try_memory(planned: Callable[[int], SegmentPlan], memory: float, worlds: _Worlds) -> MemoryPlan | None:
    """The plan for a memory, or None where the memory is too small to plan with."""
    try:
        plan = planned(int(memory))
    except ParameterError:
        return None
    return MemoryPlan(plan, _predict(plan, worlds, to_the_end=False), int(memory))


def _predict(plan: SegmentPlan, worlds: _Worlds, *, to_the_end: bool) -> Prediction:
    """The worst prediction over all kinds of delays; the first that clearly fails unless `to_the_end`."""
    worst: Prediction | None = None
    for delays in worlds.traffic.delays:
        tried = _predict_in(plan, worlds, delays, to_the_end=to_the_end)
        if worst is None or tried.rank < worst.rank:
            worst = tried
        if not to_the_end and not tried.is_kept:
            return tried
    assert worst is not None
    return worst


def _predict_in(plan: SegmentPlan, worlds: _Worlds, delays: Delays, *, to_the_end: bool) -> Prediction:
    errors: list[FloatArray] = []
    baseline: list[FloatArray] = []
    wish = worlds.wish
    for world in worlds.of(delays):
        counted: BoolArray = world.promised & ~np.isnan(world.mean_ns)
        truth = world.mean_ns[counted]
        estimate = _decode(_part_of(plan, len(world.flow_id) / worlds.traffic.flows), world)[counted]
        errors.append(np.nan_to_num(np.abs(estimate / truth - 1), nan=np.inf))
        baseline.append(np.abs(world.grand_mean / truth - 1))
        so_far = np.concatenate(errors)
        if not to_the_end and _bound(so_far, wish.error, +2 * DOUBT) < wish.confidence:
            break
    error = np.concatenate(errors)
    if not len(error):
        return Prediction(0.0, 0.0, math.inf, math.inf, 0.0, 0, delays.name, is_kept=False)
    return Prediction(
        share=float(np.mean(error <= wish.error)),
        baseline=float(np.mean(np.concatenate(baseline) <= wish.error)),
        median=float(np.quantile(error, 0.5, method="higher")),
        at_confidence=float(np.quantile(error, wish.confidence, method="higher")),
        answered=float(np.mean(np.isfinite(error))),
        flows=len(error),
        delays=delays.name,
        is_kept=_bound(error, wish.error, -DOUBT) >= wish.confidence,
    )


def _bound(errors: FloatArray, limit: float, deviations: float) -> float:
    """Wilson's bound on the share of errors within the limit, so many deviations above (or below) what was seen."""
    count = len(errors)
    if not count:
        return 1.0 if deviations > 0 else 0.0
    share = float(np.mean(errors <= limit))
    square = deviations**2
    centre = share + square / (2 * count)
    half = deviations * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return (centre + half) / (1 + square / count)


def _decode(plan: SegmentPlan, world: World) -> FloatArray:
    """Each flow's mean as the plan answers it."""
    ends = []
    for batch in (world.sender, world.receiver):
        recorder = PointRecorder("plan", SEGMENT, plan.stream)
        ends.append(merge_epochs([*recorder.record(batch), *recorder.finish()]))
    if not len(world.receiver):
        return np.full(len(world.flow_id), np.nan)
    whole = answer_interval(
        ends[0], ends[1], world.flow_id, sizes=world.packets, joint=plan.joint, base_ns=plan.base_ns
    )
    return np.full(len(world.flow_id), np.nan) if whole.flows is None else whole.flows.mean_ns


def _part_of(plan: SegmentPlan, share: float) -> SegmentPlan:
    """The plan with this part of its cells, slots and counters; the flow-blind LDA stays."""
    if share >= 1:
        return plan
    return replace(plan, parts={name: p if name == SEGMENT else _shrunk(p, share) for name, p in plan.parts.items()})


def _shrunk(parameters: Parameters, share: float) -> Parameters:
    def part(value: int, least: int = 1) -> int:
        return max(least, round(value * share))

    if isinstance(parameters, LdsParameters):
        return replace(parameters, columns=part(parameters.columns, parameters.spread))
    if isinstance(parameters, CounterVectorParameters):
        return replace(parameters, counters=part(parameters.counters))
    if isinstance(parameters, SampleParameters):
        groups = part(parameters.groups)
        return replace(parameters, groups=groups, slots=part(parameters.slots, groups))
    raise ParameterError(f"{parameters.kind} cannot be planned for", where="plan", action="use lds, colate or sample")


SIZES_TO_PROMISE = (100, 10, 1)
LEAST_FLOWS = 5


def expect_surveyed(survey: Survey) -> ExpectedTraffic:
    """The traffic that a survey has seen: its flows' sizes, losses and delays."""
    match, table = survey.match.flows, survey.sender.flows
    rows = rows_of(table.ids, match.flow_id)
    heard = (match.received > 0) & (rows >= 0)
    if not heard.any():
        raise ParameterError("no packet was matched", where="plan", action="give --memory instead of --error")
    packets = survey.match.packets
    count = np.diff(packets.start)
    # What is beyond is taken off, or counters are widened, when it is recorded.
    delays = np.clip(packets.delay_ns[np.repeat(heard, count)], 0, IN_RANGE_NS)
    return ExpectedTraffic(
        np.maximum(table.packets[rows[heard]], 1),
        match.lost[heard] / np.maximum(match.packets[heard], 1),
        len(survey.flow_id),
        (surveyed_delays(np.append(0, np.cumsum(count[heard])), delays),),
    )


def promised_size(packets: Int64Array) -> int:
    """From which size on flows are promised an error: 100 packets, or fewer where hardly a flow has as many."""
    return next((size for size in SIZES_TO_PROMISE if np.count_nonzero(packets >= size) >= LEAST_FLOWS), 1)


def surveyed_wish(traffic: ExpectedTraffic, error: float, confidence: float) -> Wish:
    """The wish for surveyed flows: that of the largest size of which there are some."""
    return Wish(error, confidence, promised_size(traffic.packets))


def plan_surveyed(
    name: str,
    survey: Survey,
    *,
    error: float,
    confidence: float,
    joint: bool,
    advance: Advance = silent,
) -> tuple[Wish, MemoryPlan]:
    """The smallest plan that keeps the error for the survey's flows; a `ParameterError` where none does."""
    traffic = expect_surveyed(survey)
    wish = surveyed_wish(traffic, error, confidence)
    chosen = plan_memory(name, traffic, wish, joint=joint, advance=advance)
    if not chosen.prediction.is_kept:
        other = "--memory instead of --error" if name in ("auto", "sample") else "--sketch auto"
        raise ParameterError(
            f"no memory keeps {error:.3g} at {confidence:.3g}: at best {chosen.prediction.share:.0%} of the flows of "
            f"{wish.least_packets} packets or more would be within it",
            where=name,
            action=f"use {other}, or ask for a larger error",
        )
    return wish, chosen


def achieved_share(answers: FlowDelays, survey: Survey, wish: Wish) -> tuple[int, float]:
    """How many flows the promise was made for, and the share of them within the error; needs an exact survey."""
    match = survey.match.flows
    rows = rows_of(answers.flow_id, match.flow_id)
    table = rows_of(survey.sender.flows.ids, match.flow_id)
    counted = (match.received > 0) & (rows >= 0) & (survey.sender.flows.packets[table] >= wish.least_packets)
    if not counted.any():
        return 0, float("nan")
    with np.errstate(invalid="ignore"):
        error = np.abs(answers.mean_ns[rows[counted]] - match.mean_ns[counted]) / np.abs(match.mean_ns[counted])
    return int(counted.sum()), float(np.mean(error <= wish.error))
