"""`SegmentPlan`: what each point of a segment records, from a survey or from what is expected of the traffic.

Both points record flows into what the plan says (cells, spread cells, samples) and into a small flow-blind LDA, which
gives the aggregate: flows that lose nothing keep their cells in a flow sketch, so its usable cells alone would speak
too well of the segment. All of it is one stream: a `Stack`, or the LDA alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sojourn.core.errors import ParameterError, UsageError
from sojourn.segments.ranges import DelayRange, widened
from sojourn.segments.sizing import (
    MOST_LOST,
    TooSmallError,
    changed,
    fit_auto,
    fit_blind,
    fit_colate,
    fit_lda,
    fit_lds,
    fit_sample,
)
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.stack import StackParameters

if TYPE_CHECKING:
    from sojourn.segments.survey import Survey

FLOWS, SPREAD, ELEPHANTS, SAMPLES, SEGMENT = "flows", "spread", "elephants", "samples", "segment"
BLIND_SHARE = 8
BLIND_BYTES = 16 << 10
LEAST_BLIND_BYTES = 1 << 10
ENOUGH_BYTES = 1 << 20
SAMPLE_SHARE, LEAST_WITH_SAMPLE = 16, 16 << 10


@dataclass(frozen=True)
class SegmentPlan:
    """What each point records: flows' cells, cells or counters that flows are spread over, cells that sample for
    elephants, samples (any of them or none, for plain LDA), and the flow-blind LDA; in this order, by name.

    ``joint`` decodes the cells for all flows together, instead of one by one as published. ``base_ns`` is taken off the
    receiver's times before they are recorded and added to the answers (`ranges`).
    """

    name: str
    parts: Mapping[str, Parameters]
    joint: bool = False
    base_ns: int = 0

    @classmethod
    def of(cls, name: str, parts: Mapping[str, Parameters | None], *, joint: bool = False) -> SegmentPlan:
        """The plan of the parts that there are."""
        return cls(name, {part: parameters for part, parameters in parts.items() if parameters is not None}, joint)

    @property
    def stream(self) -> Parameters:
        """The parameters of the one stream that a point records."""
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        return StackParameters(parts=tuple(self.parts.items()))

    @property
    def memory_bits(self) -> int:
        return sum(parameters.memory_bits for parameters in self.parts.values())

    def reaching(self, delays: DelayRange) -> SegmentPlan:
        """The plan under which such delays are exact; the same where they are already."""
        wider = {part: widened(parameters, delays.spread_ns) for part, parameters in self.parts.items()}
        return replace(self, parts=wider, base_ns=delays.base_ns)

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


def plan_survey(
    survey: Survey, name: str, memory_bytes: int, *, changes: Mapping[str, str] | None = None, joint: bool = False
) -> SegmentPlan:
    """The plan for what a survey found: its flows, its loss, and where its delays lie."""

    def planned(size: int) -> SegmentPlan:
        flows, packets = len(survey.flow_id), survey.packets
        plan = plan_segment(name, size, flows=flows, loss=survey.loss, packets=packets, changes=changes, joint=joint)
        return plan.reaching(survey.delay_range)

    plan = planned(memory_bytes)
    # Wider counters for delays that are far apart leave room for fewer of them.
    too_large = survey.delay_range.spread_ns and plan.memory_bits > 8 * memory_bytes
    return planned(memory_bytes * 8 * memory_bytes * 99 // (100 * plan.memory_bits)) if too_large else plan


def plan_segment(
    name: str,
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int = 0,
    salt: int = 0,
    changes: Mapping[str, str] | None = None,
    joint: bool = False,
) -> SegmentPlan:
    """Share out a point's memory among the sketches that `name` needs; `changes` set single parameters.

    `packets` are those expected of all flows together (0: unknown).
    """

    def planned(size: int) -> SegmentPlan:
        return _plan(name, size, flows=flows, loss=loss, packets=packets, salt=salt, wanted=changes or {}, joint=joint)

    try:
        return planned(memory_bytes)
    except TooSmallError:
        least = bisect_left(range(ENOUGH_BYTES), True, key=lambda size: _is_enough(planned, size))
        raise ParameterError(
            f"{memory_bytes} bytes are too few", where=name, action=f"give at least {least} bytes"
        ) from None


def _is_enough(planned: Callable[[int], SegmentPlan], memory_bytes: int) -> bool:
    try:
        planned(memory_bytes)
    except TooSmallError:
        return False
    return True


def _plan(
    name: str,
    memory_bytes: int,
    *,
    flows: int,
    loss: float,
    packets: int,
    salt: int,
    wanted: Mapping[str, str],
    joint: bool,
) -> SegmentPlan:
    lost = packets * loss if packets else MOST_LOST
    if name == "lda":
        return SegmentPlan.of(name, {SEGMENT: changed(fit_lda(memory_bytes, salt=salt, lost=lost), wanted)})
    if name not in ("auto", "lds", "colate", "sample"):
        raise ParameterError(f"{name!r} is no sketch for a segment", action="use auto, lds, colate, sample or lda")
    blind_bytes = max(LEAST_BLIND_BYTES, min(BLIND_BYTES, memory_bytes // BLIND_SHARE))
    blind = fit_blind(blind_bytes, salt=salt, lost=lost)
    rest = memory_bytes - max(blind_bytes, -(-blind.memory_bits // 8))
    if name == "auto":
        parts = _auto_parts(rest, flows=flows, loss=loss, packets=packets, salt=salt, joint=joint)
        if wanted:
            raise ParameterError(
                "auto sets its parameters itself", action="use lds, colate or sample to set single ones"
            )
        return SegmentPlan.of(name, {**parts, SEGMENT: blind}, joint=True)
    cells: Parameters
    if name == "lds":
        cells = changed(fit_lds(rest, flows=flows, loss=loss, salt=salt, joint=joint), wanted)
    elif name == "colate":
        cells = changed(fit_colate(rest, flows=flows, salt=salt, joint=joint), wanted)
    else:
        cells = changed(fit_sample(rest, flows=flows, salt=salt), wanted)
    return SegmentPlan.of(name, {FLOWS: cells, SEGMENT: blind}, joint=joint and name != "sample")


def _auto_parts(
    memory_bytes: int, *, flows: int, loss: float, packets: int, salt: int, joint: bool
) -> dict[str, Parameters | None]:
    """Auto's parts but the LDA. Where nothing is known beforehand, a small sample answers if loss spoils the cells."""
    aside = 0 if packets or memory_bytes < LEAST_WITH_SAMPLE else memory_bytes // SAMPLE_SHARE
    shares = fit_auto(memory_bytes - aside, flows=flows, loss=loss, packets=packets, salt=salt, joint=joint)
    samples = shares.samples
    if aside and samples is None:
        samples = fit_sample(aside, flows=flows, salt=salt)
    return {FLOWS: shares.cells, SPREAD: shares.spread, ELEPHANTS: shares.elephants, SAMPLES: samples}
