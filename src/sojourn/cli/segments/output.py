"""How a measured segment is printed: the aggregate, one row per flow, the clock, and what was ignored."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, Format, TableColumn, write_rows
from sojourn.core.errors import InputError, harmless
from sojourn.core.estimates import Unanswered
from sojourn.core.units import durations_apart, format_bytes, format_duration

if TYPE_CHECKING:
    from sojourn.capture.flows.table import FlowTable
    from sojourn.core.arrays import FloatArray
    from sojourn.core.keys import TrafficKey
    from sojourn.estimation.columns import FlowDelays
    from sojourn.estimation.differences import Losses
    from sojourn.matching.exact import ExactMatch
    from sojourn.segments.measurement import Interval, SegmentPlan

__all__ = [
    "SegmentReport",
    "exact_report",
    "exact_totals",
    "interval_rows",
    "joint_notes",
    "key_columns",
    "key_lookup",
    "loss_warnings",
    "print_report",
    "rounded",
    "row_limit",
    "sketch_json",
    "totals_json",
    "truth_summary",
]

TABLE_ROWS = 20
LARGE_FLOW = 100
# Sums of integers divided and rounded: what is known to so many nanoseconds is known exactly.
EXACT_WITHIN_NS = 2
_LEFT_OUT = {
    "duplicate": "are copies of other packets (made in the network, or by a mirror port)",
    "not seen sent": "were not seen at the sender (its capture missed them, or they took another way)",
}
_FLOW_NAMES = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")


@dataclass
class SegmentReport:
    """Everything that is printed; ``rows`` are blocks of flow columns.

    ``direction`` names the two points and how many packets travel the other way; ``warnings`` say what is doubtful and
    are printed before any number.
    """

    aggregate: dict[str, object]
    rows: list[Block]
    sketch: dict[str, object]
    clock: dict[str, object] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    intervals: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    truth: dict[str, object] | None = None
    direction: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def rounded(value: float | None) -> int | None:
    """Whole nanoseconds; None where there is no number."""
    return None if value is None or not math.isfinite(value) else round(value)


def totals_json(interval: Interval) -> dict[str, object]:
    """The aggregate of an interval, as in the exact answer."""
    totals = interval.totals
    mean, deviation = totals.delays.mean, totals.delays.deviation
    numbers = [getattr(mean, name, None) for name in ("value", "low", "high")]
    value, low, high = (rounded(number) for number in numbers)
    return {
        "sent": totals.sent,
        "received": totals.received,
        **losses_json(totals.losses),
        "mean_ns": value,
        "std_ns": rounded(getattr(deviation, "value", None)),
        "low_ns": low,
        "high_ns": high,
        "samples": getattr(mean, "samples", 0),
        "method": getattr(mean, "method", None),
        **({"reason": str(mean.reason)} if isinstance(mean, Unanswered) else {}),
    }


def losses_json(losses: Losses) -> dict[str, object]:
    """The packets lost, and where that is not exact, its bounds and the extra packets that are the reason."""
    if losses.is_exact:
        return {"lost": losses.lost}
    return {"lost": losses.lost, "lost_low": losses.low, "lost_high": losses.high, "extra": losses.extra}


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


def exact_report(
    match: ExactMatch,
    key_of: Callable[[int], TrafficKey],
    *,
    limit: int | None,
    resegmented: Collection[int] = (),
) -> SegmentReport:
    """The answer of exact matching; of `resegmented` flows the losses are not known."""
    rows = [_exact_rows(match, key_of, limit, frozenset(resegmented))]
    return SegmentReport(exact_totals(match, resegmented), rows, {"name": "exact", "parameters": {}})


def exact_totals(match: ExactMatch, resegmented: Collection[int] = ()) -> dict[str, object]:
    """The aggregate of an exact answer."""
    from sojourn.estimation.differences import Losses

    total = match.aggregate
    mean = rounded(total.mean_ns)
    losses = Losses(total.lost, total.lost, total.lost)
    if len(resegmented):
        known = sum(
            lost
            for flow_id, lost in zip(match.flows.flow_id.tolist(), match.flows.lost.tolist(), strict=True)
            if flow_id not in resegmented
        )
        losses = Losses(None, known, total.sent)
    return {
        "sent": total.sent,
        "received": total.received,
        **losses_json(losses),
        "mean_ns": mean,
        "std_ns": rounded(total.std_ns),
        "low_ns": mean,
        "high_ns": mean,
        "samples": total.received,
        "method": "exact",
        "reordered": total.reordered,
    }


def loss_warnings(report: SegmentReport, resegmented: Sized = ()) -> list[str]:
    """What makes the losses doubtful, or left packets out of them, and what to do."""
    from sojourn.matching.crossing import OFFLOAD_ACTION

    warnings = []
    for what, why in _LEFT_OUT.items():
        counts = [(point, report.ignored.get(f"{what} at {point}", 0)) for point in ("sender", "receiver")]
        if len(resegmented) and what == "not seen sent":
            continue  # the packets that offloading made
        if any(count for _, count in counts):
            where = " and ".join(f"{count:,} at the {point}" for point, count in counts if count)
            warnings.append(f"{where} {why}; they are left out")
    if len(resegmented):
        warnings.append(
            f"the two points show different packets of {len(resegmented):,} flow(s), put together or taken apart by "
            f"offloading: their losses are not known; {OFFLOAD_ACTION}"
        )
    elif report.aggregate.get("lost") is None:
        warnings.append(
            f"{_count(report.aggregate.get('extra')):,} or more packets arrived that were not sent, or arrived twice, "
            "so that losses are known by their bounds only: copies made in the network, offloading "
            f"({OFFLOAD_ACTION}), or recordings of different times; measure two captures to tell them apart"
        )
    elif report.aggregate.get("extra"):
        warnings.append(
            f"{_count(report.aggregate['extra']):,} or more packets arrived that were not sent, or arrived twice; "
            "losses are estimated from a sample of packets"
        )
    return warnings


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
    from sojourn.segments.measurement import MOST_JOINT_FLOWS

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


def _exact_rows(
    match: ExactMatch, key_of: Callable[[int], TrafficKey], limit: int | None, resegmented: frozenset[int]
) -> Block:
    """One row per flow of an exact answer: the contract's names, and what only matching can tell."""
    flows = match.flows
    order = sorted(range(len(flows)), key=lambda row: (not flows.received[row], -int(flows.packets[row]), row))[:limit]
    means = [rounded(float(flows.mean_ns[row])) for row in order]
    counts = {
        name: getattr(flows, column)[order].tolist()
        for name, column in (("packets", "packets"), ("lost", "lost"), ("samples", "received"))
    }
    ids = flows.flow_id[order].tolist()
    counts["lost"] = [
        None if flow_id in resegmented else lost for flow_id, lost in zip(ids, counts["lost"], strict=True)
    ]
    return {
        **key_columns([key_of(flow_id) for flow_id in ids]),
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
    if report.direction:
        fields = {"direction": report.direction, **fields}
    if report.warnings:
        fields = {"warnings": report.warnings, **fields}
    for warning in report.warnings:
        print(harmless(f"sojourn: warning: {warning}"), file=sys.stderr, flush=True)
    if how is Format.TABLE:
        _print_summary(report)
    if how is not Format.TABLE or any(len(next(iter(block.values()), [])) for block in report.rows):
        rows = [_for_table(block) for block in report.rows] if how is Format.TABLE else report.rows
        write_rows(rows, how, path=path, fields=fields, table=_columns(report))
    for note in report.notes:
        print(harmless(note), file=sys.stderr)
    if verbose:
        for text, count in report.ignored.items():
            print(f"ignored: {count:,} × {text}", file=sys.stderr)


def _print_summary(report: SegmentReport) -> None:
    """What stands above the table."""
    if report.direction:
        print(_direction(report.direction), flush=True)
    a = report.aggregate
    print(f"{_count(a['sent']):,} packets sent, {_count(a['received']):,} received, {_lost_words(a)}")
    if a["mean_ns"] is not None:
        bounds = "exact" if _is_exact(a, _count(a["received"])) else f"95 % {' … '.join(_bounds(a))}"
        print(f"mean delay {_shown(a['mean_ns'])}, {bounds}, standard deviation {_shown(a['std_ns'])}")
    elif "reason" in a:
        print(f"mean delay unknown: {a['reason']}")
    if report.truth is not None:
        print(f"truth: mean {_shown(report.truth['mean_ns'])}, deviation {_shown(report.truth['std_ns'])}")
        _print_errors(report.truth)
    if "memory_bytes" in report.sketch:
        memory = format_bytes(_count(report.sketch["memory_bytes"]))
        print(f"{report.sketch['name']}: {memory} per point, {report.sketch['bits_per_packet']:.2f} bits per packet")


def _direction(direction: Mapping[str, object]) -> str:
    other_way = _count(direction.get("other_way"))
    rest = f"; {other_way:,} packets travel the other way and are not measured" if other_way else ""
    return f"{direction['sender']} → {direction['receiver']}{rest}"


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


def _lost_words(a: Mapping[str, object]) -> str:
    """The losses as far as they are known."""
    sent, low = _count(a["sent"]), _count(a.get("lost_low"))

    def share(lost: int) -> str:
        return f"{lost / sent:.2%}" if sent else "—"

    if a["lost"] is None:
        known = f"at least {low:,} lost ({share(low)})" if low else "lost unknown"
        return f"{known}: {_count(a.get('extra')):,} or more arrived beyond those sent" if a.get("extra") else known
    lost = _count(a["lost"])
    if "lost_low" in a:
        return f"about {lost:,} lost ({share(lost)}, 95 % {low:,} … {_count(a['lost_high']):,})"
    return f"{lost:,} lost ({share(lost)})" if sent else f"{lost:,} lost"


def _is_exact(row: Mapping[str, object], delivered: int | None) -> bool:
    """Whether the delay of every delivered packet is known: nothing is estimated."""
    low, high, samples = row["low_ns"], row["high_ns"], row["samples"]
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(samples, int)) or not delivered:
        return False
    return samples >= delivered and high - low <= EXACT_WITHIN_NS


def _bounds(row: Mapping[str, object]) -> tuple[str, str]:
    """The interval's ends, with as many digits as tell them apart."""
    low, high = row["low_ns"], row["high_ns"]
    if not (isinstance(low, int) and isinstance(high, int)) or low == high:
        return _shown(low), _shown(high)
    return durations_apart(low, high)


def _for_table(block: Block) -> Block:
    """The block with its intervals in words: `exact` where the delay of every delivered packet is known."""
    names = ("low_ns", "high_ns", "samples", "packets", "lost")
    shown = []
    for low, high, samples, packets, lost in zip(*(block[name] for name in names), strict=True):
        row = {"low_ns": low, "high_ns": high, "samples": samples}
        # Where losses are not known, what was delivered is at most what was sent.
        delivered = _count(packets) - _count(lost)
        shown.append(("exact", "exact") if _is_exact(row, delivered) else _bounds(row))
    return {**block, "low_ns": [low for low, _ in shown], "high_ns": [high for _, high in shown]}


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
        TableColumn("low_ns", "from"),
        TableColumn("high_ns", "to (95 %)"),
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
