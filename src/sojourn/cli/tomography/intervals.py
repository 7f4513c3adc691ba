"""What `sojourn tomography` says of its delays' intervals."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sojourn.cli.output import Advance

if TYPE_CHECKING:
    from sojourn.core.arrays import Int64Array
    from sojourn.tomography.bounds.constraints import Bounds
    from sojourn.tomography.delays.intervals import Intervals
    from sojourn.tomography.trace import CollectionTrace

__all__ = ["compare_intervals", "find_intervals"]


def find_intervals(
    trace: CollectionTrace, bounds: Bounds, arrival: Int64Array, advance: Advance
) -> tuple[Intervals, dict[str, object]]:
    """The delays' intervals, and what they took."""
    from sojourn.tomography.delays.intervals import intervals
    from sojourn.tomography.evaluation import unknown_visits

    begin = perf_counter()
    likely = intervals(trace, bounds, arrival, advance=advance)
    taken_ms = (perf_counter() - begin) * 1e3
    return likely, {"ms_per_interval": taken_ms / max(len(unknown_visits(trace)), 1)}


def compare_intervals(
    trace: CollectionTrace, bounds: Bounds, likely: Intervals | None, true_ns: Int64Array
) -> dict[str, object]:
    """How many of the delays that are not known their intervals hold, and how wide those are."""
    if likely is None:
        return {"interval_coverage": None, "interval_width_ms": None}
    from sojourn.tomography.delays.intervals import judge

    share, width_ms = judge(trace, bounds, likely, true_ns)
    return {"interval_coverage": share, "interval_width_ms": width_ms}
