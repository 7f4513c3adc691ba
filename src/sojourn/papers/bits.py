"""Accuracy per bit: every method's error against the memory it is given, at four loss rates.

Flows are Pareto, a point's memory is B bits for each packet sent, all of it counted (also the flow-blind LDA beside a
flow sketch). The error is the median relative error of flows of at least 100 packets (of at least 1000 in the second
figure); a flow without an answer counts with the error of the grand mean, so that silence is no advantage. All methods
are given the list of flows; COLATE as published is also given every flow's size, which no other is, so it is kept out
of the *envelope*: the least error of all others, LDA's and the true grand mean among them.

A *ledger* takes the bits that it needs, and no others: a point for each loss rate, of all that a point's epoch takes
when it is sent. Its error is 0 wherever every flow's losses are named.

Claims: auto's error beside the envelope's (``literal``) and the grand mean's (``baseline``); it is borne out where auto
is within a tenth of the envelope, with a hundredth of a per cent for what is exact.
Time: about four minutes at scale small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.epochs.epoch import merge_epochs
from sojourn.estimation.lda import estimate_lda
from sojourn.estimation.ledgers.answer import read_receipts
from sojourn.lab.traffic import Traffic, make_traffic
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.segments.answer import estimate_streams
from sojourn.segments.plan import SegmentPlan, plan_ledger, plan_segment
from sojourn.segments.planning.layout import RECEIPT, SEGMENT, SurveyedFlows
from sojourn.segments.record import PointRecorder
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.sketch import AnySketch
from sojourn.sketches.stack import Stack

TITLE = "Accuracy per bit"
LOSSES = (0.0, 0.001, 0.01, 0.15)
BITS = (0.1, 0.4, 1.0, 3.0, 8.0, 16.0)
HELD_OUT_BITS = (1.0, 8.0)
FLOWS = {Scale.SMALL: 6000, Scale.PAPER: 30_000}
LARGE, LARGER = 100, 1000
LEAST_SHOWN = 1e-3
TOLERANCE, EXACT = 1.1, 0.01
SIZES_GIVEN = "COLATE literal (sizes given)"
AUTO, GRAND, LEDGER = "auto", "grand mean", "ledger"


# By name: a sketch as `plan_segment` names it, whether it is decoded jointly, and the kind of its line.
METHODS: dict[str, tuple[str, bool, Kind]] = {
    "LDS literal": ("lds", False, "literal"),
    "LDS joint": ("lds", True, "joint"),
    SIZES_GIVEN: ("colate", False, "literal"),
    "COLATE joint": ("colate", True, "joint"),
    "LDA": ("lda", False, "baseline"),
    "sample": ("sample", False, "baseline"),
    AUTO: ("auto", True, "joint"),
}


class Bench:
    """A world to run methods in: both ends of a segment, and the truth."""

    def __init__(self, traffic: Traffic, *, loss: float) -> None:
        self.traffic, self.loss = traffic, loss
        truth = traffic.truth
        arrived = truth.received > 0
        self.rows = np.flatnonzero((truth.sent >= LARGE) & arrived)
        self.larger: BoolArray = truth.sent[self.rows] >= LARGER
        self.grand = float(traffic.delay_ns[traffic.delivered].mean())

    @property
    def packets(self) -> int:
        return len(self.traffic.sender)

    def error(self, mean_ns: FloatArray) -> FloatArray:
        """The relative error of each large flow, in per cent."""
        answers = mean_ns[self.rows]
        filled = np.where(np.isnan(answers), self.grand, answers)
        off: FloatArray = 100 * np.abs(filled / self.traffic.truth.mean_ns[self.rows] - 1)
        return off

    def covered(self, flows: FlowDelays) -> BoolArray:
        """Of the answered flows, whose interval holds the truth."""
        mean = self.traffic.truth.mean_ns
        known = flows.answered & (self.traffic.truth.received > 0)
        inside: BoolArray = ((flows.low_ns - 1 <= mean) & (mean <= flows.high_ns + 1))[known]
        return inside

    def run(self, name: str, bits: float, *, salt: int = 0) -> tuple[FloatArray, FlowDelays | None]:
        """A method's mean for every flow at `bits` per packet."""
        (kind, joint, _), truth = METHODS[name], self.traffic.truth
        flows = len(truth.flow_id)
        memory = int(bits * self.packets / 8)
        # As a survey of the captures would plan it, which has counted every flow and seen their delays.
        arrived = self.traffic.delivered
        matched = self.traffic.flow[arrived], self.traffic.delay_ns[arrived]
        seen = SurveyedFlows(truth.sent, truth.lost).with_delays(*matched)
        expected: dict[str, Any] = {"flows": flows, "loss": self.loss, "packets": self.packets, "seen": seen}
        plan = plan_segment(kind, memory, **expected, salt=salt, joint=joint)
        ends = [_parts(sketch, plan) for sketch in self._recorded(plan)]
        delays = estimate_lda(ends[0][SEGMENT], ends[1][SEGMENT])  # type: ignore[arg-type]
        answer = estimate_streams(ends[0], ends[1], truth.flow_id, sizes=truth.sent, delays=delays, joint=plan.joint)
        if answer is not None:
            return answer.mean_ns, answer
        blind = delays.mean.value if isinstance(delays.mean, Estimate) else np.nan
        return np.full(flows, blind), None

    def by_ledger(self, *, salt: int = 0) -> tuple[float, FloatArray]:
        """The bits of a packet that ledgers need here, and a mean for every flow (NaN where it is not exact)."""
        flow_id = self.traffic.truth.flow_id
        plan = plan_ledger(self.packets, flows=len(flow_id), loss=self.loss, salt=salt)
        ledger = Ledger(plan.ledger)
        ledger.append(self.traffic.sender)
        sketches = self._recorded(plan)
        sent, received = (_parts(sketch, plan)[RECEIPT] for sketch in sketches)
        found = read_receipts(sent, received, flow_id, ledger)  # type: ignore[arg-type]
        return found.sized(*sketches).bits_per_packet(self.packets) or 0.0, found.flows.mean_ns

    def _recorded(self, plan: SegmentPlan) -> list[AnySketch]:
        ends = []
        for batch in (self.traffic.sender, self.traffic.receiver):
            # A counter that an elephant fills ends an epoch, and the next one goes on.
            recorder = PointRecorder("bits", SEGMENT, plan.stream)
            ends.append(merge_epochs([*recorder.record(batch), *recorder.finish()]))
        return ends


def _parts(sketch: AnySketch, plan: SegmentPlan) -> dict[str, AnySketch]:
    return dict(sketch.parts) if isinstance(sketch, Stack) else dict.fromkeys(plan.parts, sketch)


@dataclass(frozen=True, eq=False)
class _Case:
    """What every method reached at one budget: median errors by name, of large and of larger flows, and coverage."""

    bits: float
    large: dict[str, float]
    larger: dict[str, float]
    coverage: float

    def best(self, errors: dict[str, float]) -> tuple[str, float]:
        rivals = {name: error for name, error in errors.items() if name not in (AUTO, SIZES_GIVEN)}
        name = min(rivals, key=lambda rival: rivals[rival])
        return name, rivals[name]


def compare(worlds: Iterable[Bench], bits: float) -> _Case:
    """All methods in all worlds; flows of the worlds are pooled."""
    errors: dict[str, list[FloatArray]] = {name: [] for name in (*METHODS, GRAND)}
    larger, inside = [], []
    for salt, world in enumerate(worlds):
        larger.append(world.larger)
        errors[GRAND].append(world.error(np.full(len(world.traffic.truth.flow_id), world.grand)))
        for name in METHODS:
            mean, flows = world.run(name, bits, salt=salt)
            errors[name].append(world.error(mean))
            if name == AUTO and flows is not None:
                inside.append(world.covered(flows))
    large = {name: float(np.median(np.concatenate(parts))) for name, parts in errors.items()}
    chosen = np.concatenate(larger)
    few = {name: float(np.median(np.concatenate(parts)[chosen])) for name, parts in errors.items()}
    return _Case(bits, large, few, float(np.mean(np.concatenate(inside))))


@dataclass(frozen=True)
class Ledgered:
    """What ledgers reached in worlds of one loss rate: bits a packet, and median errors as in `_Case`."""

    bits: float
    large: float
    larger: float

    @classmethod
    def of(cls, worlds: Iterable[Bench]) -> Ledgered:
        bits, errors, larger = [], [], []
        for salt, world in enumerate(worlds):
            needed, mean = world.by_ledger(salt=salt)
            bits.append(needed)
            errors.append(world.error(mean))
            larger.append(world.larger)
        every, chosen = np.concatenate(errors), np.concatenate(larger)
        return cls(float(np.mean(bits)), float(np.median(every)), float(np.median(every[chosen])))

    def claim(self, where: str) -> Claim:
        quantity = f"{self.bits:.3g} bits/packet: median error of flows ≥ {LARGE} by ledgers"
        return Claim(where, "%", quantity, joint=self.large, reproduced=self.large <= EXACT)

    def line(self, error: float) -> Line:
        return Line(LEDGER, [self.bits], [max(error, LEAST_SHOWN)], "joint")


def _worlds(scale: Scale, loss: float, *, delays: str = "per-flow", burst: float = 0.0, seeds: int = 2) -> list[Bench]:
    return [
        Bench(
            make_traffic(seed=40 + seed, flows=FLOWS[scale], delays=delays, loss=loss, burst=burst if loss else 0.0),
            loss=loss,
        )
        for seed in range(seeds)
    ]


def _claims(where: str, case: _Case) -> list[Claim]:
    budget = f"{case.bits:g} bits/packet"
    claims = []
    for errors, least in ((case.large, LARGE), (case.larger, LARGER)):
        name, best = case.best(errors)
        quantity = f"{budget}: median error of flows ≥ {least}, auto beside the best ({name})"
        near = errors[AUTO] <= TOLERANCE * best + EXACT
        claims.append(Claim(where, "%", quantity, best, errors[AUTO], errors[GRAND], reproduced=near))
    quantity = f"{budget}: auto's 95 % intervals that hold the truth"
    return [*claims, Claim(where, "share", quantity, joint=case.coverage, reproduced=case.coverage >= 0.9)]


def _name(loss: float) -> str:
    return f"{loss:.1%} loss" if 0 < loss < 0.01 else f"{loss:.0%} loss"


def _lines(cases: list[_Case], errors_of: Callable[[_Case], dict[str, float]]) -> list[Line]:
    lines = []
    for name in (*METHODS, GRAND):
        kind = METHODS[name][2] if name in METHODS else "paper"
        shown = [max(errors_of(case)[name], LEAST_SHOWN) for case in cases]
        lines.append(Line(name, [case.bits for case in cases], shown, kind))
    return lines


def error_against_bits(scale: Scale) -> Outcome:
    """Flows that differ (log-normal means), losses independent."""
    panels: dict[str, list[_Case]] = {}
    ledgers: dict[str, Ledgered] = {}
    for loss in LOSSES:
        worlds = _worlds(scale, loss)
        panels[_name(loss)] = [compare(worlds, bits) for bits in BITS]
        ledgers[_name(loss)] = Ledgered.of(worlds)
    claims = [claim for where, cases in panels.items() for case in cases for claim in _claims(where, case)]
    claims += [ledgered.claim(where) for where, ledgered in ledgers.items()]
    figures = []
    for least, errors_of in ((LARGE, lambda case: case.large), (LARGER, lambda case: case.larger)):
        lines = {name: _lines(cases, errors_of) for name, cases in panels.items()}
        for name, ledgered in ledgers.items():
            lines[name].append(ledgered.line(ledgered.large if least == LARGE else ledgered.larger))
        label = f"median error of flows ≥ {least} packets (%)"
        figures.append(Figure(f"error-against-bits-{least}", "bits per packet", label, lines, log="xy"))
    return Outcome(claims, figures)


def held_out_worlds(scale: Scale) -> Outcome:
    """A fast and a slow path; losses in bursts of ten. Nothing was chosen by these."""
    claims: list[Claim] = []
    for delays, burst, title in (("bimodal", 0.0, "bimodal delays"), ("per-flow", 10.0, "losses in bursts")):
        for loss in LOSSES[1:]:
            worlds = _worlds(scale, loss, delays=delays, burst=burst, seeds=1)
            for bits in HELD_OUT_BITS:
                claims += _claims(f"{title}, {_name(loss)}", compare(worlds, bits))
    return Outcome(claims)


EXPERIMENTS = (error_against_bits, held_out_worlds)
