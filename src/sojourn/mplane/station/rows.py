"""Paths and diagnoses as plain values, for JSON and tables: the same on the command line and in the query unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sojourn.core.estimates import Estimate
    from sojourn.mplane.station.diagnosis import Change, Diagnosis, SegmentChange
    from sojourn.mplane.station.paths import PathState, SegmentState


def path_dict(state: PathState) -> dict[str, Any]:
    """A path's delay and loss, and those of its segments."""
    return {
        "path": str(state.path),
        **_interval("mean_ns", state.mean),
        "std_ns": state.std_ns,
        **_interval("loss", state.loss, "loss_low", "loss_high"),
        "complete": not state.missing,
        "missing": list(state.missing),
        "end_to_end": _interval("mean_ns", state.end_to_end.mean) if state.end_to_end else None,
        "difference": _interval("difference_ns", state.difference) if state.difference else None,
        "consistent": state.is_consistent,
        "notes": list(state.notes),
        "segments": [state_row(one, state.path.shares[one.segment]) for one in state.states],
    }


def state_row(state: SegmentState, weight: float = 1.0) -> dict[str, Any]:
    """One segment's delay and loss; `weight` is the share of traffic that crosses it."""
    return {
        "segment": str(state.segment),
        "kind": str(state.segment.kind),
        "weight": weight,
        **_interval("mean_ns", state.mean),
        "std_ns": state.variance**0.5 if state.variance is not None else None,
        "packets": state.packets,
        "lost": state.lost,
        **_interval("loss", state.loss, "loss_low", "loss_high"),
        "intervals": state.intervals,
        "void": state.void,
        "reason": state.reason,
    }


def diagnosis_dict(result: Diagnosis) -> dict[str, Any]:
    """The verdict of a diagnosis, and its segments, those that explain most first."""
    return {
        "path": str(result.path),
        **_interval("change_ns", result.delay),
        "verdict": str(result.verdict),
        "cause": str(result.cause.segment) if result.cause else None,
        "summary": result.summary,
        "baseline": {"from_ns": result.before.from_ns, "to_ns": result.before.to_ns},
        "now": {"from_ns": result.now.from_ns, "to_ns": result.now.to_ns},
        "segments": [change_row(one) for one in result.segments],
        "notes": list(result.notes),
    }


def change_row(change: SegmentChange) -> dict[str, Any]:
    """How one segment changed."""
    return {
        "segment": str(change.segment),
        "kind": str(change.segment.kind),
        "share": change.share,
        **_interval("change_ns", change.delay),
        **_interval("loss_change", change.loss, "loss_low", "loss_high"),
        "silent": change.is_silent,
        "evidence": change.evidence,
    }


def _interval(
    name: str, estimate: Estimate | Change | None, low: str = "low_ns", high: str = "high_ns"
) -> dict[str, Any]:
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name, low, high), values, strict=True))
