"""How `measure --error` tells what memory it chose, and with --truth whether the promise was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.cli.segments.output import SegmentReport
from sojourn.core.units import format_bytes

if TYPE_CHECKING:
    from sojourn.estimation.columns import FlowDelays
    from sojourn.segments.planning.search import MemoryPlan, Wish
    from sojourn.segments.survey import Survey

__all__ = ["add_planned"]


def add_planned(
    report: SegmentReport, chosen: tuple[Wish, MemoryPlan], flows: FlowDelays | None, survey: Survey
) -> None:
    """Put the wish, the memory and the expected (with the truth: the achieved) share of flows into the report."""
    wish, plan = chosen
    planned: dict[str, object] = {
        "error": wish.error,
        "confidence": wish.confidence,
        "least_packets": wish.least_packets,
        "memory_bytes": plan.memory_bytes,
        "expected_share": plan.prediction.share,
        "baseline_share": plan.prediction.baseline,
    }
    note = (
        f"planned: {format_bytes(plan.memory_bytes)} per point for an error of {100 * wish.error:.3g} % in "
        f"{100 * wish.confidence:.3g} % of the flows of {wish.least_packets} packets or more "
        f"(simulated: {plan.prediction.share:.1%})"
    )
    if report.truth is not None and flows is not None:
        from sojourn.segments.planning.survey import achieved_share

        count, share = achieved_share(flows, survey, wish)
        planned |= {"promised_flows": count, "achieved_share": share}
        note += f"; achieved: {share:.1%} of {count:,} flows"
    report.sketch["planned"] = planned
    report.notes.append(note)
