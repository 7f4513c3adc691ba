"""One trial: both points of a drawn world record with `auto` and with each of its peers, in the same memory.

All of them go the product's way: a `SegmentPlan` for what a survey of this traffic would find, `PointRecorder`s, and
`answer_interval`. The flow-blind LDA is part of everybody's memory. A fifth peer is the true mean of all packets.

The error is the median relative error of flows with at least `LARGE` packets; a flow without an answer counts with the
error of the grand mean, so that silence is no advantage. Coverage is that of intervals that have a width; those that
have none claim to be exact, and are counted apart. What is a figure of flows is given by classes of their sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from bench.auto.worlds import World
from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.estimates import FlowDelays
from sojourn.epochs.epoch import merge_epochs
from sojourn.lab.traffic import Traffic
from sojourn.segments.answer import answer_interval
from sojourn.segments.plan import SegmentPlan, plan_segment
from sojourn.segments.planning.layout import SEGMENT, SurveyedFlows
from sojourn.segments.ranges import surveyed_range
from sojourn.segments.record import PointRecorder
from sojourn.sketches.sketch import AnySketch

AUTO, GRAND = "auto", "grand mean"
# By name: the sketch that `plan_segment` knows; all are decoded jointly where that is possible.
SKETCHES = {AUTO: "auto", "sample": "sample", "LDS joint": "lds", "COLATE joint": "colate"}
PEERS = (*list(SKETCHES)[1:], GRAND)
LARGE = 100
FLOOR = 1e-4
CLASSES = {"1–9": 1, "10–99": 10, "100–999": 100, "1,000–9,999": 1_000, "≥ 10,000": 10_000}
ROUNDING_NS = 1.0
EXACT_PACKETS = 0.01  # an estimate this near a whole number names it


class Figures(TypedDict):
    """What a method came to; ``classes`` has for each class of sizes what `_class_figures` counts."""

    error: float
    answered: float
    seconds: float
    classes: dict[str, dict[str, float]]


class Trial(TypedDict):
    """A line of a file of results; ``plan`` says what auto recorded, in bytes."""

    world: str
    seed: int
    memory: int
    large: int
    plan: dict[str, int]
    methods: dict[str, Figures]


@dataclass(frozen=True)
class Guess:
    """By which factors the flows and the loss that a plan is made for are wrong."""

    flows: float = 1.0
    loss: float = 1.0


@dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn world, and which of its flows errors are counted of."""

    traffic: Traffic
    counted: BoolArray
    grand_mean: float
    guess: Guess | None = None

    @classmethod
    def of(cls, world: World, seed: int, guess: Guess | None = None) -> Drawn:
        traffic = world.draw(seed)
        truth = traffic.truth
        return cls(traffic, (truth.sent >= LARGE) & (truth.received > 0), truth.mean_of_all_ns, guess)

    def plan(self, sketch: str, memory: int, salt: int) -> SegmentPlan:
        """As a survey of the traffic plans it, or whoever guesses flows and loss and does not know the packets."""
        truth = self.traffic.truth
        flows, packets = len(truth.flow_id), int(truth.sent.sum())
        loss = int(truth.lost.sum()) / packets
        seen: SurveyedFlows | None = self.surveyed
        if self.guess is not None:
            flows, loss, packets = max(1, round(flows * self.guess.flows)), min(0.9, loss * self.guess.loss), 0
            seen = None
        plan = plan_segment(sketch, memory, flows=flows, loss=loss, packets=packets, seen=seen, salt=salt, joint=True)
        return plan if seen is None else plan.reaching(surveyed_range(self.traffic.delay_ns[self.traffic.delivered]))

    @cached_property
    def surveyed(self) -> SurveyedFlows:
        """What a survey of the traffic tells."""
        truth, arrived = self.traffic.truth, self.traffic.delivered
        delays = self.traffic.flow[arrived], self.traffic.delay_ns[arrived]
        return SurveyedFlows(truth.sent, truth.lost).with_delays(*delays)

    def error(self, mean_ns: FloatArray) -> float:
        """The median relative error; NaN where no flow is large."""
        if not self.counted.any():
            return math.nan
        answer = np.where(np.isnan(mean_ns), self.grand_mean, mean_ns)[self.counted]
        off = np.abs(answer / self.traffic.truth.mean_ns[self.counted] - 1)
        return max(float(np.median(off)), FLOOR)


def recorded(plan: SegmentPlan, traffic: Traffic) -> tuple[AnySketch, AnySketch]:
    """What both points recorded."""
    ends = []
    for batch in (traffic.sender, traffic.receiver):
        recorder = PointRecorder("bench", SEGMENT, plan.stream)
        ends.append(merge_epochs([*recorder.record(batch), *recorder.finish()]))
    return ends[0], ends[1]


def answered(plan: SegmentPlan, traffic: Traffic) -> tuple[FlowDelays, float]:
    """The flows as the plan answers them, and the processor time that decoding took."""
    return decoded(plan, traffic, recorded(plan, traffic))


def decoded(plan: SegmentPlan, traffic: Traffic, ends: tuple[AnySketch, AnySketch]) -> tuple[FlowDelays, float]:
    """The same from what both points recorded."""
    sender, receiver = ends
    truth = traffic.truth
    start = time.process_time()
    whole = answer_interval(sender, receiver, truth.flow_id, sizes=truth.sent, joint=plan.joint, base_ns=plan.base_ns)
    assert whole.flows is not None
    return whole.flows, time.process_time() - start


def try_memory(drawn: Drawn, sketch: str, memory: int, salt: int) -> tuple[SegmentPlan, Figures]:
    """A sketch's figures in a memory."""
    plan = drawn.plan(sketch, memory, salt)
    if plan.memory_bits > 8 * memory:
        raise AssertionError(f"{sketch} takes {plan.memory_bits // 8} of {memory} bytes")
    return plan, figures_of(drawn, *answered(plan, drawn.traffic))


def figures_of(drawn: Drawn, flows: FlowDelays, seconds: float) -> Figures:
    """What answers come to in a drawn world."""
    share = float(flows.answered[drawn.counted].mean()) if drawn.counted.any() else math.nan
    classes = {name: _class_figures(flows, drawn.traffic, rows) for name, rows in class_rows(drawn.traffic)}
    return Figures(error=drawn.error(flows.mean_ns), answered=share, seconds=seconds, classes=classes)


def class_rows(traffic: Traffic) -> Iterator[tuple[str, BoolArray]]:
    """The flows of each class that has any, those that lost everything left out."""
    truth = traffic.truth
    place = np.searchsorted(list(CLASSES.values()), truth.sent, side="right") - 1
    for number, name in enumerate(CLASSES):
        rows: BoolArray = (place == number) & (truth.received > 0)
        if rows.any():
            yield name, rows


def _class_figures(flows: FlowDelays, traffic: Traffic, rows: BoolArray) -> dict[str, float]:
    """Of the flows of a class: how many have an interval with a width (``wide``) and one that holds the truth
    (``held``), their median relative width, how many have none (``sharp``) and are wrong; losses and sizes that are
    answered, exact and, where they have intervals, held by them."""
    truth = traffic.truth
    mean, low, high = truth.mean_ns[rows], flows.low_ns[rows], flows.high_ns[rows]
    known = flows.answered[rows]
    holds = (low - ROUNDING_NS <= mean) & (mean <= high + ROUNDING_NS)
    wide = known & (high > low)
    sharp = known & ~wide
    found: dict[str, float] = {
        "flows": int(rows.sum()),
        "wide": int(wide.sum()),
        "held": int((wide & holds).sum()),
        "sharp": int(sharp.sum()),
        "wrong": int((sharp & ~holds).sum()),
        "width": float(np.median((high - low)[wide] / mean[wide])) if wide.any() else 0.0,
    }
    for name, true in (("packets", truth.sent[rows]), ("lost", truth.lost[rows])):
        found |= _count_figures(flows, name, true, rows)
    return found


def _count_figures(flows: FlowDelays, name: str, true: np.ndarray[Any, Any], rows: BoolArray) -> dict[str, float]:
    """Of an estimated number of packets: how many flows have one, an exact one, one whose interval holds the truth."""
    value = getattr(flows, name)[rows]
    found: dict[str, float] = {
        f"{name}_known": int((~np.isnan(value)).sum()),
        f"{name}_exact": int((np.abs(value - true) <= EXACT_PACKETS).sum()),
    }
    low, high = getattr(flows, f"{name}_low", None), getattr(flows, f"{name}_high", None)
    if low is not None and high is not None:
        wide = high[rows] > low[rows]
        inside = (low[rows] - EXACT_PACKETS <= true) & (true <= high[rows] + EXACT_PACKETS)
        found |= {f"{name}_wide": int(wide.sum()), f"{name}_held": int((wide & inside).sum())}
    return found


@dataclass(frozen=True)
class Task:
    """A world, a seed (of its packets and of the sketches), the memories to try, and a guess to plan by."""

    world: World
    seed: int
    memories: Sequence[int]
    guess: Guess | None = None


def run(task: Task, names: Sequence[str] = tuple(SKETCHES)) -> list[Trial]:
    """A trial of `auto` and the others named in each memory, in the same traffic."""
    drawn = Drawn.of(task.world, task.seed, task.guess)
    grand = drawn.error(np.full(len(drawn.counted), np.nan))
    trials = []
    for memory in task.memories:
        tried = {
            name: try_memory(drawn, sketch, memory, task.seed) for name, sketch in SKETCHES.items() if name in names
        }
        methods = {name: figures for name, (_, figures) in tried.items()}
        methods[GRAND] = Figures(error=grand, answered=0.0, seconds=0.0, classes={})
        parts = {part: -(-parameters.memory_bits // 8) for part, parameters in tried[AUTO][0].parts.items()}
        trials.append(
            Trial(
                world=task.world.name,
                seed=task.seed,
                memory=memory,
                large=int(drawn.counted.sum()),
                plan=parts,
                methods=methods,
            )
        )
    return trials
