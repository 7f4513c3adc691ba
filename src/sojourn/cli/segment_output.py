"""How a measured segment is printed: the aggregate, one row per flow, the clock, and what was ignored."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, Format, TableColumn, write_rows
from sojourn.core.errors import InputError
from sojourn.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from sojourn.capture.exact_answer import ExactMatch
    from sojourn.capture.flow_table import FlowTable
    from sojourn.core.keys import TrafficKey
    from sojourn.estimation.columns import FlowDelays
    from sojourn.estimation.segment import Interval, SegmentPlan

__all__ = [
    "SegmentReport",
    "add_truth",
    "exact_report",
    "interval_rows",
    "key_lookup",
    "print_report",
    "rounded",
    "sketch_json",
    "totals_json",
]

TABLE_ROWS = 20
_FLOW_NAMES = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")
_TRUTH = ("true_mean_ns", "true_std_ns", "true_lost")


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


def exact_report(match: ExactMatch, key_of: Callable[[int], TrafficKey]) -> SegmentReport:
    """The answer of exact matching."""
    return SegmentReport(_exact_totals(match), [exact_rows(match, key_of)], {"name": "exact", "parameters": {}})


def _exact_totals(match: ExactMatch) -> dict[str, object]:
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


def add_truth(report: SegmentReport, match: ExactMatch, key_of: Callable[[int], TrafficKey]) -> None:
    """The true columns beside the whole answer, flow by flow."""
    report.truth = _exact_totals(match)
    exact = exact_rows(match, key_of)
    names = _FLOW_NAMES
    places = {place: row for row, place in enumerate(zip(*(exact[n] for n in names), strict=True))}
    for i, block in enumerate(report.rows):
        if report.intervals:
            continue
        rows = [places.get(place) for place in zip(*(block[n] for n in names), strict=True)]
        true = {
            f"true_{name}": [None if row is None else exact[name][row] for row in rows]
            for name in ("mean_ns", "std_ns", "lost")
        }
        report.rows[i] = {**block, **true}


def interval_rows(
    flows: FlowDelays, key_of: Callable[[int], TrafficKey], *, extra: Mapping[str, object] | None = None
) -> Block:
    """One row per flow, the names of the contract; `extra` fields are the same in every row."""
    ids = flows.flow_id.tolist()
    answers = {
        "packets": [rounded(v) for v in flows.packets.tolist()],
        "lost": [rounded(v) for v in flows.lost.tolist()],
        "mean_ns": [rounded(v) for v in flows.mean_ns.tolist()],
        "std_ns": [rounded(v) for v in flows.std_ns.tolist()],
        "low_ns": [rounded(v) for v in flows.low_ns.tolist()],
        "high_ns": [rounded(v) for v in flows.high_ns.tolist()],
        "samples": flows.samples.tolist(),
        "method": [None if reason else flows.method for reason in flows.reason],
        "reason": [str(reason) if reason else None for reason in flows.reason],
    }
    common = {name: [value] * len(ids) for name, value in (extra or {}).items()}
    return {**common, **_key_columns([key_of(flow_id) for flow_id in ids]), **answers}


def exact_rows(match: ExactMatch, key_of: Callable[[int], TrafficKey]) -> Block:
    """One row per flow of an exact answer: the contract's names, and what only matching can tell."""
    flows = match.flows
    means = [rounded(v) for v in flows.mean_ns.tolist()]
    return {
        **_key_columns([key_of(flow_id) for flow_id in flows.flow_id.tolist()]),
        "packets": flows.packets.tolist(),
        "lost": flows.lost.tolist(),
        "mean_ns": means,
        "std_ns": [rounded(v) for v in flows.std_ns.tolist()],
        "low_ns": means,
        "high_ns": means,
        "samples": flows.received.tolist(),
        "method": ["exact"] * len(means),
        "reason": [None if mean is not None else "every packet was lost" for mean in means],
        "jitter_ns": [rounded(v) for v in flows.jitter_ns.tolist()],
        "min_ns": flows.min_ns.tolist(),
        "max_ns": flows.max_ns.tolist(),
        "reordered": flows.reordered.tolist(),
        "duplicates": flows.duplicates.tolist(),
    }


def _key_columns(keys: Sequence[TrafficKey]) -> dict[str, list[object]]:
    from sojourn.core.keys import flow_fields

    named = [flow_fields(key) for key in keys]
    names = list(named[0]) if named else list(_FLOW_NAMES)
    return {name: [fields[name] for fields in named] for name in names}


def print_report(report: SegmentReport, how: Format, path: Path | None, *, limit: int | None, verbose: bool) -> None:
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
    rows = list(_largest(report.rows, TABLE_ROWS if limit is None and how is Format.TABLE else limit))
    if how is not Format.TABLE or any(len(next(iter(block.values()), [])) for block in rows):
        write_rows(rows, how, path=path, fields=fields, table=_columns(report))
    for note in report.notes:
        print(note, file=sys.stderr)
    if verbose:
        for text, count in report.ignored.items():
            print(f"ignored: {count:,} × {text}", file=sys.stderr)


def _largest(blocks: list[Block], limit: int | None) -> Iterator[Block]:
    """The rows with most packets, of each block."""
    for block in blocks:
        packets = list(block["packets"])
        order = sorted(range(len(packets)), key=lambda row: (-(packets[row] or 0), row))
        kept = order[:limit] if limit else order
        yield {name: [values[row] for row in kept] for name, values in block.items()}


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
    if "memory_bytes" in report.sketch:
        memory = format_bytes(_count(report.sketch["memory_bytes"]))
        print(f"{report.sketch['name']}: {memory} per point, {report.sketch['bits_per_packet']:.2f} bits per packet")


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
