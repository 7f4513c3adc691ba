"""`SegmentPlan`: what each point of a segment records, from a survey or from what is expected of the traffic.

Both points record flows into what the plan says (cells, spread cells, samples) and into a small flow-blind LDA, which
gives the aggregate: flows that lose nothing keep their cells in a flow sketch, so its usable cells alone would speak
too well of the segment. All of it is one stream: a `Stack`, or the LDA alone.

How parameters fill a given memory is told by `planning.layout`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sojourn.core.errors import ParameterError, UsageError, WireError
from sojourn.segments.planning.layout import (
    ELEPHANTS,
    FLOWS,
    GROUPS_PER_FLOW,
    MOST_LOST,
    RECEIPT,
    SAMPLES,
    SEGMENT,
    SPREAD,
    SurveyedFlows,
    TooSmallError,
    fit_auto,
    fit_blind,
    fit_colate,
    fit_lda,
    fit_lds,
    fit_sample,
)
from sojourn.segments.planning.ledgers import beside_bytes, fit_receipt
from sojourn.segments.ranges import DelayRange, finer, widened
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.ledgers.ledger import MOST_LEDGER_PACKETS
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.stack import StackParameters

if TYPE_CHECKING:
    from sojourn.segments.survey import Survey

P = TypeVar("P", bound=Parameters)


def changed(parameters: P, changes: Mapping[str, str]) -> P:
    """The parameters with some set from text: numbers, words, true or false, lists with commas.

    >>> changed(fit_lda(16384), {"rows": "64", "shares": "1,0.5"}).shares
    (1.0, 0.5)
    """
    known = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    values: dict[str, object] = {}
    for name, text in changes.items():
        if name not in known:
            raise ParameterError(
                f"there is no parameter {name!r}", where=parameters.kind, action=f"use one of {', '.join(known)}"
            )
        values[name] = _value(text, known[name], f"{parameters.kind}.{name}")
    return replace(parameters, **values)


def _value(text: str, like: object, where: str) -> object:
    try:
        if isinstance(like, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(like, tuple):
            return tuple(float(part) for part in text.split(","))
        return int(text) if isinstance(like, int) else text
    except (ValueError, KeyError):
        raise ParameterError(f"{text!r} is no value for it", where=where, action=f"write it like {like}") from None


BLIND_SHARE = 8
BLIND_BYTES = 16 << 10
LEAST_BLIND_BYTES = 1 << 10
ENOUGH_BYTES = 1 << 20
SAMPLE_SHARE, LEAST_WITH_SAMPLE = 16, 16 << 10
# Of a point of a fleet: two clocks are compared by packets that both ends kept, some of which are lost or reordered.
LEAST_POINT_SLOTS = 64
# Percentiles come from the sample: one packet in 16 tells those of all, and of large flows, up to some thousand.
USUAL_POINT_SLOTS, PACKETS_PER_SLOT, MOST_BESIDE = 2048, 16, 4
# By which factor traffic may differ from a guess, and from what a point saw before (`replanning` allows as much).
DOUBT_GUESSED, DOUBT_SEEN = 10.0, 4.0
POINT_KINDS = ("auto", "ledger")
# Epochs that a point's ledger holds: as long as the other end's receipt may take to come.
HELD_EPOCHS = 4
USUAL_LEDGER_PACKETS = 1 << 22
MOST_PLAN_TEXT = 16 << 10
MOST_PLANNED_FLOWS, MOST_PLANNED_PACKETS = 10**7, 10**12


@dataclass(frozen=True)
class SegmentPlan:
    """What each point records: flows' cells, cells or counters that flows are spread over, cells that sample for
    elephants, samples (any of them or none, for plain LDA), and the flow-blind LDA; in this order, by name. A point
    with a receipt also keeps a ledger of its last ``ledger`` packets.

    ``joint`` decodes the cells for all flows together, instead of one by one as published. ``base_ns`` is taken off the
    receiver's times before they are recorded and added to the answers (`ranges`).

    What the plan is made for: ``flows``, the share of packets that is lost (``loss``) and the ``packets`` of an epoch
    (0: unknown). ``markers`` is the share of a point's packets that the other points can have in common with it.
    """

    name: str
    parts: Mapping[str, Parameters]
    joint: bool = False
    base_ns: int = 0
    flows: int = 0
    loss: float = 0.0
    packets: int = 0
    markers: float = 1.0
    ledger: int = 0

    @property
    def stream(self) -> Parameters:
        """The parameters of the one stream that a point records."""
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        return StackParameters(parts=tuple(self.parts.items()))

    @property
    def memory_bits(self) -> int:
        return sum(parameters.memory_bits for parameters in self.parts.values())

    def records_otherwise(self, other: SegmentPlan) -> bool:
        """Whether points that go over from one to the other record something else, or cut it elsewhere."""
        return (self.stream, self.markers, self.ledger) != (other.stream, other.markers, other.ledger)

    def reaching(self, delays: DelayRange) -> SegmentPlan:
        """The plan under which such delays are exact, and short ones told finely; the same where they are already."""
        parts = {part: widened(parameters, delays.spread_ns) for part, parameters in self.parts.items()}
        if self.name in ("auto", "sample", "ledger"):
            parts = {part: finer(parameters, delays.longest_ns) for part, parameters in parts.items()}
        return replace(self, parts=parts, base_ns=delays.base_ns)

    def weighted(self, policy: str) -> SegmentPlan:
        """The plan with a weight policy (its canonical text) among the parameters of its LDS."""
        flows = self.parts.get(FLOWS)
        if self.name != "lds" or not isinstance(flows, LdsParameters):
            raise UsageError(f"{self.name} has no weights", where="--weights", action="use --sketch lds")
        return replace(self, parts={**self.parts, FLOWS: replace(flows, weights=policy)})

    @property
    def parameters(self) -> dict[str, object]:
        """All parameters by their symbols, for the record."""
        return {
            f"{part} {p.kind}" if part in (SPREAD, ELEPHANTS) else p.kind: p.to_mapping()
            for part, p in self.parts.items()
        }

    def to_mapping(self) -> dict[str, object]:
        """The plan of a point as an assignment carries it."""
        return {
            "kind": self.name,
            "parts": [[name, [p.kind, p.to_mapping()]] for name, p in self.parts.items()],
            "markers": self.markers,
            "flows": self.flows,
            "loss": self.loss,
            "packets": self.packets,
            **({"ledger": self.ledger} if self.ledger else {}),
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> SegmentPlan:
        """The inverse of `to_mapping`, for content that is not trusted; nothing of its size is allocated."""
        if unknown := sorted(set(mapping) - _FIELDS - {"ledger"}):
            raise WireError(f"unknown field {unknown[0]!r:.40}", where="plan", action="upgrade this agent")
        if missing := sorted(_FIELDS - set(mapping)):
            raise WireError(f"{missing[0]} is missing", where="plan")
        if mapping["kind"] not in POINT_KINDS:
            what = f"plans of kind {str(mapping['kind'])[:40]!r} are not known here"
            raise WireError(what, where="plan", action="upgrade this agent")
        parts = mapping["parts"]
        if not isinstance(parts, list) or not all(isinstance(p, list) and len(p) == 2 for p in parts):
            raise WireError("expected parts as [name, [kind, parameters]]", where="plan")
        if len({str(name) for name, _ in parts}) < len(parts):
            raise WireError("two parts have one name", where="plan")
        stack = StackParameters.from_mapping({str(name): part for name, part in parts})
        return cls(
            str(mapping["kind"]),
            dict(stack.parts),
            joint=True,
            flows=int(_number(mapping, "flows", MOST_PLANNED_FLOWS, whole=True)),
            loss=_number(mapping, "loss", 1),
            packets=int(_number(mapping, "packets", MOST_PLANNED_PACKETS, whole=True)),
            markers=_number(mapping, "markers", 1),
            ledger=int(_number({"ledger": 0, **mapping}, "ledger", MOST_LEDGER_PACKETS, whole=True)),
        )

    def to_text(self) -> str:
        """The plan of a point as one line of JSON; equal plans have equal texts."""
        return json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> SegmentPlan:
        """The inverse of `to_text`, for content that is not trusted.

        >>> plan = plan_point(16_000, flows=100, loss=0.01)
        >>> SegmentPlan.from_text(plan.to_text()) == plan
        True
        """
        if len(text) > MOST_PLAN_TEXT:
            raise WireError(f"{len(text)} characters exceed {MOST_PLAN_TEXT}", where="plan")
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError):
            raise WireError("this is no JSON", where="plan") from None
        if not isinstance(mapping, dict):
            raise WireError("expected a JSON object", where="plan")
        return cls.from_mapping(mapping)


_FIELDS = {"kind", "parts", "markers", "flows", "loss", "packets"}


def _number(mapping: Mapping[str, object], name: str, most: int, *, whole: bool = False) -> float:
    value = mapping[name]
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not (math.isfinite(value) and 0 <= value <= most):  # type: ignore[arg-type,operator]
        raise WireError(f"{name} is {value!r:.40}, expected a number in 0 … {most}", where="plan")
    return float(value)  # type: ignore[arg-type]


def plan_survey(
    survey: Survey, name: str, memory_bytes: int, *, changes: Mapping[str, str] | None = None, joint: bool = False
) -> SegmentPlan:
    """The plan for what a survey found: its flows, its loss, and where its delays lie."""

    def planned(size: int) -> SegmentPlan:
        expected: dict[str, Any] = {"flows": len(survey.flow_id), "loss": survey.spoiling, "packets": survey.packets}
        plan = plan_segment(name, size, **expected, seen=survey.counted_flows, changes=changes, joint=joint)
        return plan.reaching(survey.delay_range)

    plan, size = planned(memory_bytes), memory_bytes
    if name == "ledger":  # receipts are as large as the packets need, whatever is beside them
        return plan
    while survey.delay_range.spread_ns and plan.memory_bits > 8 * memory_bytes:
        # Wider counters for delays that are far apart leave room for fewer of them.
        size = min(size - 1, size * 8 * memory_bytes // plan.memory_bits)
        plan = planned(size)
    return plan


def plan_segment(
    name: str,
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int = 0,
    seen: SurveyedFlows | None = None,
    salt: int = 0,
    changes: Mapping[str, str] | None = None,
    joint: bool = False,
) -> SegmentPlan:
    """Share out a point's memory among the sketches that `name` needs; `changes` set single parameters.

    `packets` are those expected of all flows together (0: unknown), `seen` those that a survey counted of each.
    """
    known: dict[str, Any] = {"flows": flows, "loss": loss, "packets": packets, "seen": seen}

    def planned(size: int) -> SegmentPlan:
        return _plan(name, size, **known, salt=salt, wanted=changes or {}, joint=joint)

    return _planned_within(memory_bytes, planned, where=name)


def plan_point(
    memory_bytes: int, *, flows: int, loss: float, packets: int = 0, markers: float = 1.0, salt: int = 0
) -> SegmentPlan:
    """The plan of a point of a fleet: what `auto` lays out, and always a coordinated sample and the flow-blind LDA.

    The sample takes a sixteenth of the memory; more, up to a quarter, for `usual_sample_bytes`; of a small one as much
    as `LEAST_POINT_SLOTS` need: the two ends' clocks are compared by packets that both have kept. ``packets`` are those
    expected in an epoch (0: unknown).

    >>> list(plan_point(128_000, flows=1000, loss=0.0).parts)
    ['flows', 'samples', 'segment']
    """

    def planned(size: int) -> SegmentPlan:
        blind, rest = _with_blind(size, packets * loss if packets else MOST_LOST, salt)
        usual = min(usual_sample_bytes(packets), rest // MOST_BESIDE)
        aside = max(rest // SAMPLE_SHARE, usual, _sample_bytes(LEAST_POINT_SLOTS))
        doubt = DOUBT_SEEN if packets else DOUBT_GUESSED
        fit = partial(fit_auto, flows=flows, loss=loss, packets=packets, salt=salt)
        fit = partial(fit, sample_bytes=aside, doubt=doubt, exact_counts=True)
        parts = fit(rest)
        if SAMPLES not in parts:
            parts = {**fit(rest - aside), SAMPLES: fit_sample(aside, flows=flows, salt=salt)}
        parts[SEGMENT] = blind
        return SegmentPlan("auto", parts, joint=True, flows=flows, loss=loss, packets=packets, markers=markers)

    return _planned_within(memory_bytes, planned, where="auto")


def usual_memory(name: str, packets: int = 1 << 20) -> str | int:
    """The memory of a point's sketches where nobody says otherwise: a megabyte, or what is needed beside receipts."""
    return beside_bytes(packets) if name == "ledger" else "1MB"


def plan_ledger(
    packets: int,
    *,
    flows: int,
    loss: float,
    memory_bytes: int | None = None,
    markers: float = 1.0,
    salt: int = 0,
    held: float = HELD_EPOCHS,
) -> SegmentPlan:
    """The plan of a point that keeps a ledger: receipts for epochs of so many packets, and what answers beside them.

    ``memory_bytes`` are those of the sample and the flow-blind LDA (by default a third of a bit for each packet); the
    ledger holds ``held`` epochs.

    >>> list(plan_ledger(100_000, flows=1000, loss=0.01).parts)
    ['receipt', 'samples', 'segment']
    """

    def planned(size: int) -> SegmentPlan:
        blind, rest = _with_blind(size, packets * loss, salt)
        parts: dict[str, Parameters] = {RECEIPT: fit_receipt(packets, flows=flows, loss=loss, salt=salt)}
        parts |= {SAMPLES: fit_sample(rest, flows=flows, salt=salt), SEGMENT: blind}
        ledger = min(MOST_LEDGER_PACKETS, max(1, round(held * packets)))
        known = {"flows": flows, "loss": loss, "packets": packets}
        return SegmentPlan("ledger", parts, joint=True, markers=markers, ledger=ledger, **known)  # type: ignore[arg-type]

    beside = beside_bytes(packets) if memory_bytes is None else memory_bytes
    return _planned_within(beside, planned, where="ledger")


def usual_sample_bytes(packets: int) -> int:
    """What the sample of a point takes that has so many packets in an epoch (0: unknown)."""
    return _sample_bytes(min(max(packets // PACKETS_PER_SLOT, LEAST_POINT_SLOTS), USUAL_POINT_SLOTS))


def _sample_bytes(slots: int) -> int:
    return -(-SampleParameters(slots=slots, groups=GROUPS_PER_FLOW).memory_bits // 8)


def _planned_within(memory_bytes: int, planned: Callable[[int], SegmentPlan], *, where: str) -> SegmentPlan:
    """The plan that fits the memory; where none does, an error says how much one needs."""
    try:
        return planned(memory_bytes)
    except TooSmallError:
        least = bisect_left(range(ENOUGH_BYTES), True, key=lambda size: _is_enough(planned, size))
        raise ParameterError(
            f"{memory_bytes} bytes are too few", where=where, action=f"give at least {least} bytes"
        ) from None


def _is_enough(planned: Callable[[int], SegmentPlan], memory_bytes: int) -> bool:
    try:
        planned(memory_bytes)
    except TooSmallError:
        return False
    return True


def _with_blind(memory_bytes: int, lost: float, salt: int) -> tuple[LdaParameters, int]:
    """The flow-blind LDA of a memory, and the bytes that it leaves to the flows."""
    blind_bytes = max(LEAST_BLIND_BYTES, min(BLIND_BYTES, memory_bytes // BLIND_SHARE))
    blind = fit_blind(blind_bytes, salt=salt, lost=lost)
    return blind, memory_bytes - max(blind_bytes, -(-blind.memory_bits // 8))


def _plan(
    name: str,
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int,
    seen: SurveyedFlows | None,
    salt: int,
    wanted: Mapping[str, str],
    joint: bool,
) -> SegmentPlan:
    lost = packets * loss if packets else MOST_LOST
    if name == "lda":
        return SegmentPlan(name, {SEGMENT: changed(fit_lda(memory_bytes, salt=salt, lost=lost), wanted)})
    if name in ("auto", "ledger") and wanted:
        raise ParameterError(
            f"{name} sets its parameters itself", action="use lds, colate or sample to set single ones"
        )
    if name == "ledger":
        # All packets of captures, or those that 1 MB of sketches may be asked about.
        held = max(packets, USUAL_LEDGER_PACKETS if not packets else 1)
        return plan_ledger(held, flows=flows, loss=loss, memory_bytes=memory_bytes, salt=salt, held=1.0)
    if name not in ("auto", "lds", "colate", "sample"):
        raise ParameterError(
            f"{name!r} is no sketch for a segment", action="use auto, lds, colate, sample, lda or ledger"
        )
    blind, rest = _with_blind(memory_bytes, lost, salt)
    if name == "auto":
        # Where nothing is known beforehand, a small sample answers if loss spoils the cells.
        aside = 0 if packets or rest < LEAST_WITH_SAMPLE else rest // SAMPLE_SHARE
        known: dict[str, Any] = {"flows": flows, "loss": loss, "packets": packets, "seen": seen}
        doubt = 1.0 if packets else DOUBT_GUESSED
        parts = fit_auto(rest - aside, salt=salt, joint=joint, doubt=doubt, **known)
        if aside and SAMPLES not in parts:
            parts[SAMPLES] = fit_sample(aside, flows=flows, salt=salt)
        return SegmentPlan(name, {**parts, SEGMENT: blind}, joint=True)
    cells: Parameters
    if name == "lds":
        cells = fit_lds(rest, flows=flows, loss=loss, salt=salt, joint=joint)
    elif name == "colate":
        cells = fit_colate(rest, flows=flows, salt=salt, joint=joint)
    else:
        cells = fit_sample(rest, flows=flows, salt=salt)
    return SegmentPlan(name, {FLOWS: changed(cells, wanted), SEGMENT: blind}, joint=joint and name != "sample")
