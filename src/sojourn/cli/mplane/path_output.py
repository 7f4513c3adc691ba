"""How paths and diagnoses are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.cli.output import Format, TableColumn, print_json, write_rows
from sojourn.core.errors import harmless
from sojourn.core.units import format_clock, format_duration

if TYPE_CHECKING:
    from sojourn.core.estimates import Estimate
    from sojourn.mplane.station.diagnosis import Diagnosis, SegmentChange
    from sojourn.mplane.station.paths import PathState, SegmentState

__all__ = ["print_diagnosis", "print_state", "print_verdict"]

_STATE_TABLE = [
    TableColumn("segment", "segment", justify="left"),
    TableColumn("weight", "traffic", "{:.0%}".format),
    TableColumn("mean_ns", "delay", format_duration),
    TableColumn("low_ns", "95 % low", format_duration),
    TableColumn("high_ns", "95 % high", format_duration),
    TableColumn("std_ns", "deviation", format_duration),
    TableColumn("loss", "loss", "{:.2%}".format),
    TableColumn("intervals", "intervals"),
    TableColumn("void", "void"),
    TableColumn("reason", "missing", justify="left"),
]


def _signed(value_ns: float) -> str:
    return f"{'-' if value_ns < 0 else '+'}{format_duration(abs(value_ns))}"


_CHANGE_TABLE = [
    TableColumn("segment", "segment", justify="left"),
    TableColumn("share", "of the change", "{:.0%}".format),
    TableColumn("change_ns", "delay", _signed),
    TableColumn("low_ns", "95 % low", _signed),
    TableColumn("high_ns", "95 % high", _signed),
    TableColumn("loss_change", "loss", "{:+.2%}".format),
    TableColumn("evidence", "evidence", justify="left"),
]


def print_state(state: PathState, how: str) -> None:
    """A line per segment, then the path's own."""
    rows = [_state_row(one, state.path.shares[one.segment]) for one in state.states]
    total = {
        "path": str(state.path),
        **_interval("mean_ns", state.mean),
        "std_ns": state.std_ns,
        "loss": state.loss.value if state.loss else None,
        "loss_low": state.loss.low if state.loss else None,
        "loss_high": state.loss.high if state.loss else None,
        "complete": not state.missing,
        "missing": list(state.missing),
        "end_to_end": _interval("mean_ns", state.end_to_end.mean) if state.end_to_end else None,
        "difference": _interval("difference_ns", state.difference) if state.difference else None,
        "consistent": state.is_consistent,
        "notes": list(state.notes),
    }
    if how == "json":
        print_json({**total, "segments": rows})
        return
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    shown = [c for c in _STATE_TABLE if any(value is not None for value in columns[c.name]) or c.name == "mean_ns"]
    write_rows([columns], Format.TABLE, name="segments", table=shown)
    for line in _state_lines(state):
        print(harmless(line))


def _state_row(state: SegmentState, weight: float) -> dict[str, object]:
    return {
        "segment": str(state.segment),
        "kind": str(state.segment.kind),
        "weight": weight,
        **_interval("mean_ns", state.mean),
        "std_ns": state.variance**0.5 if state.variance is not None else None,
        "packets": state.packets,
        "lost": state.lost,
        "loss": state.loss.value if state.loss else None,
        "loss_low": state.loss.low if state.loss else None,
        "loss_high": state.loss.high if state.loss else None,
        "intervals": state.intervals,
        "void": state.void,
        "reason": state.reason,
    }


def _interval(name: str, estimate: Estimate | None) -> dict[str, object]:
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name, "low_ns", "high_ns"), values, strict=True))


def _state_lines(state: PathState) -> list[str]:
    lines = [f"path {state.path}"]
    if state.mean is not None and state.std_ns is not None:
        deviation = f"deviation {format_duration(state.std_ns)}"
        lines.append(f"delay {_bounds(state.mean)}, {deviation} (segments taken to be independent)")
    if state.loss is not None:
        loss = state.loss
        lines.append(f"loss {loss.value:.2%} (95 %: {loss.low:.2%} to {loss.high:.2%})")
    if state.missing:
        lines.append(f"incomplete: {'; '.join(state.missing)}")
    if state.end_to_end is not None and state.end_to_end.mean is not None:
        lines.append(f"end-to-end probes {_bounds(state.end_to_end.mean)}")
    if state.difference is not None:
        word = "consistent" if state.is_consistent else "not consistent"
        low, high = _signed(state.difference.low), _signed(state.difference.high)
        lines.append(f"the sum is {_signed(state.difference.value)} off (95 %: {low} to {high}): {word}")
    return [*lines, *state.notes]


def _bounds(estimate: Estimate) -> str:
    low, high = format_duration(estimate.low), format_duration(estimate.high)
    return f"{format_duration(estimate.value)} (95 %: {low} to {high})"


def print_diagnosis(result: Diagnosis, how: str) -> None:
    """The verdict and a line per segment, those that explain most first."""
    rows = [_change_row(one) for one in result.segments]
    if how == "json":
        print_json(
            {
                "path": str(result.path),
                "change_ns": result.delay.value if result.delay else None,
                "low_ns": result.delay.low if result.delay else None,
                "high_ns": result.delay.high if result.delay else None,
                "verdict": str(result.verdict),
                "cause": str(result.cause.segment) if result.cause else None,
                "summary": result.summary,
                "baseline": {"from_ns": result.before.from_ns, "to_ns": result.before.to_ns},
                "now": {"from_ns": result.now.from_ns, "to_ns": result.now.to_ns},
                "segments": rows,
                "notes": list(result.notes),
            }
        )
        return
    print(harmless(f"{result.path}: {result.verdict}"))
    print(harmless(result.summary))
    if result.delay is not None:
        low, high = _signed(result.delay.low), _signed(result.delay.high)
        print(f"the path's delay: {_signed(result.delay.value)} (95 %: {low} to {high})")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    is_told = result.verdict == "changed"
    shown = [column for column in _CHANGE_TABLE if is_told or column.name != "share"]
    write_rows([columns], Format.TABLE, name="segments", table=shown)


def print_verdict(result: Diagnosis, how: str) -> None:
    """A line: when the intervals of now end, the path, the verdict and its reason; or all of it as JSON."""
    if how == "json":
        print_diagnosis(result, how)
        return
    clock = format_clock(result.now.to_ns)
    told = result.summary if result.summary.startswith(result.verdict) else f"{result.verdict}: {result.summary}"
    print(harmless(f"{clock}  {result.path}  {told}"))


def _change_row(change: SegmentChange) -> dict[str, object]:
    delay, loss = change.delay, change.loss
    return {
        "segment": str(change.segment),
        "kind": str(change.segment.kind),
        "share": change.share,
        "change_ns": delay.value if delay else None,
        "low_ns": delay.low if delay else None,
        "high_ns": delay.high if delay else None,
        "loss_change": loss.value if loss else None,
        "loss_low": loss.low if loss else None,
        "loss_high": loss.high if loss else None,
        "silent": change.is_silent,
        "evidence": change.evidence,
    }
