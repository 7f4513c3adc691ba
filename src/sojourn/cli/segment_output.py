"""How a measured segment is printed: the aggregate, one row per flow, the clock, and what was ignored."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, Format, TableColumn, write_rows
from sojourn.core.errors import InputError
from sojourn.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from sojourn.capture.exact_answer import ExactMatch
    from sojourn.capture.flow_table import FlowTable
    from sojourn.core.arrays import FloatArray
    from sojourn.core.keys import TrafficKey
    from sojourn.estimation.columns import FlowDelays
    from sojourn.estimation.segment import Interval, SegmentPlan

__all__ = [
    "SegmentReport",
    "exact_report",
    "exact_totals",
    "interval_rows",
    "joint_notes",
    "key_columns",
    "key_lookup",
    "print_report",
    "rounded",
    "row_limit",
    "sketch_json",
    "totals_json",
    "truth_summary",
]

TABLE_ROWS = 20
LARGE_FLOW = 100
_FLOW_NAMES = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")


@dataclass
class SegmentReport:
    """Everything that is printed; ``rows`` are blocks of flow columns."""

    aggregate: dict[str, object]
    rows: list[Block]
    sketch: dict[str, object]
    clock: dict[str, object] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    intervals: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    truth: dict[str, object] | None = None


def rounded(value: float | None) -> int | None:
    """Whole nanoseconds; None where there is no number."""
    return None if value is None or not math.isfinite(value) else round(value)


def totals_json(interval: Interval) -> dict[str, object]:
    """The aggregate of an interval, as in the exact answer."""
    mean, deviation = interval.totals.delays.mean, interval.totals.delays.deviation
    numbers = [getattr(mean, name, None) for name in ("value", "low", "high")]
    value, low, high = (rounded(number) for number in numbers)
    return {
        "sent": interval.totals.sent,
        "received": interval.totals.received,
        "lost": interval.totals.lost,
        "mean_ns": value,
        "std_ns": rounded(getattr(deviation, "value", None)),
        "low_ns": low,
        "high_ns": high,
        "samples": getattr(mean, "samples", 0),
    }


def row_limit(limit: int | None, how: Format) -> int | None:
    """How many flows to show: what was asked for, else 20 in a table and all elsewhere; 0 is all."""
    return (TABLE_ROWS if limit is None and how is Format.TABLE else limit) or None


def key_lookup(*tables: FlowTable) -> Callable[[int], TrafficKey]:
    """A flow's key, from any of the points' flow tables."""
    rows = {flow_id: (table, row) for table in tables for row, flow_id in enumerate(table.ids.tolist())}

    def key_of(flow_id: int) -> TrafficKey:
        if flow_id not in rows:
            most = max(table.max_flows for table in tables)
            raise InputError(
                f"there are more than {most:,} flows",
                action="use a filter, or a wider --key such as host-pair",
            )
        table, row = rows[flow_id]
        return table.key(row)

    return key_of


def sketch_json(plan: SegmentPlan, whole: Interval) -> dict[str, object]:
    """What was recorded with, and what it cost."""
    return {
        "name": plan.name,
        "parameters": plan.parameters,
        "memory_bytes": -(-plan.memory_bits // 8),
        "bits_per_packet": plan.memory_bits / max(1, whole.totals.sent),
    }


def exact_report(match: ExactMatch, key_of: Callable[[int], TrafficKey], *, limit: int | None) -> SegmentReport:
    """The answer of exact matching."""
    rows = [_exact_rows(match, key_of, limit)]
    return SegmentReport(exact_totals(match), rows, {"name": "exact", "parameters": {}})


def exact_totals(match: ExactMatch) -> dict[str, object]:
    """The aggregate of an exact answer."""
    total = match.aggregate
    mean = rounded(total.mean_ns)
    return {
        "sent": total.sent,
        "received": total.received,
        "lost": total.lost,
        "mean_ns": mean,
        "std_ns": rounded(total.std_ns),
        "low_ns": mean,
        "high_ns": mean,
        "samples": total.received,
        "reordered": total.reordered,
    }


def truth_summary(flows: FlowDelays | None, match: ExactMatch) -> dict[str, object]:
    """How far flows' answers are from the truth: of flows with `LARGE_FLOW` packets or more, the median error beside
    that of answering the mean of all packets (which also counts for flows without an answer), and of all flows the
    share of intervals that hold the truth."""
    import numpy as np

    if flows is None:
        return {}
    order, at = np.argsort(match.flows.flow_id), np.argsort(flows.flow_id)
    _, rows, places = np.intersect1d(
        match.flows.flow_id[order], flows.flow_id[at], assume_unique=True, return_indices=True
    )
    rows, places = order[rows], at[places]
    true, told = match.flows.mean_ns[rows].astype(float), flows.mean_ns[places]
    large = (match.flows.packets[rows] >= LARGE_FLOW) & np.isfinite(true) & (true != 0)
    grand = float(match.aggregate.mean_ns)
    error = np.abs(np.where(np.isnan(told), grand, told) / np.where(large, true, 1.0) - 1)[large]
    baseline = np.abs(grand / true[large] - 1)
    known = np.isfinite(true) & ~np.isnan(told)
    # Means are whole nanoseconds on one side.
    inside = (flows.low_ns[places] - 1 <= true) & (true <= flows.high_ns[places] + 1)
    return {
        "large_flows": int(large.sum()),
        "large_flows_answered": int((large & ~np.isnan(told)).sum()),
        "median_error": float(np.median(error)) if len(error) else None,
        "grand_mean_error": float(np.median(baseline)) if len(error) else None,
        "coverage": float(inside[known].mean()) if known.any() else None,
    }


def joint_notes(plan: SegmentPlan, whole: Interval) -> list[str]:
    """A word where there were too many flows to decode jointly."""
    from sojourn.estimation.segment import MOST_JOINT_FLOWS

    if not plan.joint or whole.flows is None or len(whole.flows.flow_id) <= MOST_JOINT_FLOWS:
        return []
    return [f"more than {MOST_JOINT_FLOWS:,} flows are not decoded jointly but one by one; a filter makes them fewer"]


def interval_rows(
    every: FlowDelays,
    key_of: Callable[[int], TrafficKey],
    *,
    limit: int | None = None,
    start_ns: int | None = None,
    truth: ExactMatch | None = None,
) -> Block:
    """One row per flow (the `limit` largest), the names of the contract; the truth beside it if known."""
    flows = every.largest(limit)
    ids = flows.flow_id.tolist()
    start = {} if start_ns is None else {"start_ns": [start_ns] * len(ids)}
    return {
        **start,
        **key_columns([key_of(flow_id) for flow_id in ids]),
        "packets": _whole(flows.packets),
        "lost": _whole(flows.lost),
        "mean_ns": _whole(flows.mean_ns),
        "std_ns": _whole(flows.std_ns),
        "low_ns": _whole(flows.low_ns),
        "high_ns": _whole(flows.high_ns),
        "samples": flows.samples.tolist(),
        "method": [None if reason else m for m, reason in zip(flows.method_of_flow, flows.reason, strict=True)],
        "reason": [str(reason) if reason else None for reason in flows.reason],
        **({} if truth is None else _true_columns(ids, truth)),
    }


def _whole(column: FloatArray) -> list[int | None]:
    return [rounded(value) for value in column.tolist()]


def _true_columns(ids: list[int], match: ExactMatch) -> dict[str, list[int | None]]:
    rows = {flow_id: row for row, flow_id in enumerate(match.flows.flow_id.tolist())}
    columns = {
        "true_mean_ns": _whole(match.flows.mean_ns),
        "true_std_ns": _whole(match.flows.std_ns),
        "true_lost": match.flows.lost.tolist(),
    }
    return {
        name: [column[rows[flow_id]] if flow_id in rows else None for flow_id in ids]
        for name, column in columns.items()
    }


def _exact_rows(match: ExactMatch, key_of: Callable[[int], TrafficKey], limit: int | None) -> Block:
    """One row per flow of an exact answer: the contract's names, and what only matching can tell."""
    flows = match.flows
    order = sorted(range(len(flows)), key=lambda row: (-int(flows.packets[row]), row))[:limit]
    means = [rounded(float(flows.mean_ns[row])) for row in order]
    counts = {
        name: getattr(flows, column)[order].tolist()
        for name, column in (("packets", "packets"), ("lost", "lost"), ("samples", "received"))
    }
    return {
        **key_columns([key_of(int(flows.flow_id[row])) for row in order]),
        **counts,
        "mean_ns": means,
        "std_ns": _whole(flows.std_ns[order]),
        "low_ns": means,
        "high_ns": means,
        "method": ["exact"] * len(means),
        "reason": [None if mean is not None else "every packet was lost" for mean in means],
        "jitter_ns": _whole(flows.jitter_ns[order]),
        **{
            name: getattr(flows, name)[order].tolist()
            for name in ("min_ns", "max_ns", "reordered", "reorder_extent", "duplicates")
        },
    }


def key_columns(keys: Sequence[TrafficKey]) -> dict[str, list[object]]:
    """The columns that name flows, as the contract has them."""
    from sojourn.core.keys import flow_fields

    named = [flow_fields(key) for key in keys]
    names = list(named[0]) if named else list(_FLOW_NAMES)
    return {name: [fields[name] for fields in named] for name in names}


def print_report(report: SegmentReport, how: Format, path: Path | None, *, verbose: bool = False) -> None:
    """Write the answer; notes and warnings go to stderr."""
    fields = {
        "aggregate": report.aggregate,
        "sketch": report.sketch,
        "clock": report.clock,
        "ignored": dict(report.ignored),
    }
    if report.intervals:
        fields["intervals"] = report.intervals
    if report.truth is not None:
        fields["truth"] = report.truth
    if how is Format.TABLE:
        _print_summary(report)
    if how is not Format.TABLE or any(len(next(iter(block.values()), [])) for block in report.rows):
        write_rows(report.rows, how, path=path, fields=fields, table=_columns(report))
    for note in report.notes:
        print(note, file=sys.stderr)
    if verbose:
        for text, count in report.ignored.items():
            print(f"ignored: {count:,} × {text}", file=sys.stderr)


def _print_summary(report: SegmentReport) -> None:
    """What stands above the table."""
    a = report.aggregate
    sent, lost = _count(a["sent"]), _count(a["lost"])
    share = f" ({lost / sent:.2%})" if sent else ""
    print(f"{sent:,} packets sent, {_count(a['received']):,} received, {lost:,} lost{share}")
    if a["mean_ns"] is not None:
        print(f"mean delay {_shown(a['mean_ns'])}, 95 % {_interval(a)}, standard deviation {_shown(a['std_ns'])}")
    if report.truth is not None:
        print(f"truth: mean {_shown(report.truth['mean_ns'])}, deviation {_shown(report.truth['std_ns'])}")
        _print_errors(report.truth)
    if "memory_bytes" in report.sketch:
        memory = format_bytes(_count(report.sketch["memory_bytes"]))
        print(f"{report.sketch['name']}: {memory} per point, {report.sketch['bits_per_packet']:.2f} bits per packet")


def _print_errors(truth: Mapping[str, object]) -> None:
    error, baseline, coverage = (truth.get(name) for name in ("median_error", "grand_mean_error", "coverage"))
    if isinstance(error, float) and isinstance(baseline, float):
        held = f"; {coverage:.0%} of intervals hold the truth" if isinstance(coverage, float) else ""
        print(
            f"flows of {LARGE_FLOW} packets or more: median error {error:.2%}, "
            f"{baseline:.2%} for answering the grand mean{held}"
        )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(value: object) -> str:
    return format_duration(value) if isinstance(value, int | float) else "—"


def _interval(row: Mapping[str, object]) -> str:
    return f"{_shown(row['low_ns'])} … {_shown(row['high_ns'])}"


def _columns(report: SegmentReport) -> list[TableColumn]:
    names = set(report.rows[0]) if report.rows else set()
    columns = [
        TableColumn("start_ns", "from (s)", lambda ns: f"{ns / 1e9:.3f}"),
        TableColumn("src_ip", "source", justify="left"),
        TableColumn("src_port", "port", _port),
        TableColumn("dest_ip", "destination", justify="left"),
        TableColumn("dest_port", "port", _port),
        TableColumn("protocol", "proto", justify="left"),
        TableColumn("packets", "packets", _number),
        TableColumn("lost", "lost", _number),
        TableColumn("mean_ns", "mean", _shown),
        TableColumn("low_ns", "from", _shown),
        TableColumn("high_ns", "to (95 %)", _shown),
        TableColumn("std_ns", "deviation", _shown),
        TableColumn("jitter_ns", "jitter", _shown),
        TableColumn("true_mean_ns", "true mean", _shown),
        TableColumn("true_lost", "true lost", _number),
        TableColumn("reason", "no answer because", lambda reason: reason or "", justify="left"),
    ]
    return [column for column in columns if column.name in names]


def _port(port: object) -> str:
    return str(port) if port else ""


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "—"
