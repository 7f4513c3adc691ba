"""The report of passive round-trip times, and of a flow table: one capture, flow by flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.results import Columns, plain, take_rows
from sojourn.core.units import format_bytes, format_duration, plural
from sojourn.web.charts.ranking import MOST_ROWS, flow_means, top_instances
from sojourn.web.report.contents import MOST_ROWS as MOST_LISTED
from sojourn.web.report.contents import Contents, Figure, Picture, Shown, flow_names, table_of

if TYPE_CHECKING:
    from sojourn.capture.flows.result import FlowTableResult
    from sojourn.rtt.result import RttResult

_LEAST_SAMPLES = 10  # of a flow whose p99 is worth ranking
_NAMES = [
    Shown("src_ip", "Source"),
    Shown("src_port", "Port", "id"),
    Shown("dest_ip", "Destination"),
    Shown("dest_port", "Port ", "id"),
    Shown("vlan", "VLAN"),
    Shown("protocol", "Protocol"),
]
_RTT_TABLE = [
    Shown("src_ip", "Answered by"),
    Shown("src_port", "Port", "id"),
    Shown("dest_ip", "To"),
    Shown("dest_port", "Port ", "id"),
    Shown("protocol", "Protocol"),
    Shown("kind", "Read from"),
    Shown("samples", "Samples", ""),
    Shown("min_rtt", "Least", "ns"),
    Shown("mean_ns", "Mean", "ns"),
    Shown("p50_ns", "Median", "ns"),
    Shown("p95_ns", "p95", "ns"),
    Shown("p99_ns", "p99", "ns"),
    Shown("max_ns", "Longest", "ns"),
    Shown("std_ns", "Deviation", "ns"),
    Shown("delayed_acks", "Delayed ACKs", ""),
]


def round_trip_contents(result: RttResult) -> Contents:
    """What the report of round-trip times says."""
    source = result.source or "the packets"
    columns = result.columns()
    return Contents(
        title=f"Round-trip times{f', {_short(result.source)}' if result.source else ''}",
        question=f"How long did hosts take to answer, as {_short(source)} shows it?",
        answer="Times are from a packet that passed to its answer that passed, named by the host that answered.",
        warnings=result.warnings,
        figures=list(_rtt_figures(result, columns)),
        pictures=list(_rtt_pictures(columns)),
        tables=[table_of("Flows", columns, _RTT_TABLE, rows_name="flows", whole=len(result))],
        facts={
            "Capture": source,
            "Packets": f"{result.packets:,}, of which {result.ip_packets:,} of IP",
            "Memory taken": format_bytes(result.memory_bytes),
        },
        trust=[
            "Round trips are seen, not asked for: no packet was sent for them. Each holds the network beyond the place "
            "of capture and what the answering host took; the least of a flow is nearest to the network alone",
            "A percentile is of the flow's samples. Delayed ACKs, which a host holds back, are told apart and counted",
        ],
        notes=[f"{count:,} packets left out: {reason}" for reason, count in result.ignored.items() if count],
        sources=[result.source] if result.source else [],
    )


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _rtt_figures(result: RttResult, columns: Columns) -> Iterator[Figure]:
    yield Figure("Samples", f"{result.samples:,}", f"of {plural(len(result), 'flow')}")
    if not len(result):
        return
    counts, means, least, longest = (
        np.asarray(columns[name], np.float64) for name in ("samples", "mean_ns", "min_rtt", "max_ns")
    )
    mean = float(counts @ means / counts.sum())
    yield Figure("Mean", format_duration(mean), "of all samples")
    yield Figure("Least", format_duration(float(least.min())), "of all flows")
    yield Figure("Longest", format_duration(float(longest.max())), "of all flows")


def _rtt_pictures(columns: Columns) -> Iterator[Picture]:
    samples, tail = list(plain(columns["samples"])), list(plain(columns["p99_ns"]))
    for title, rows, note in (
        (
            "The slowest answers",
            sorted((k for k in range(len(tail)) if samples[k] >= _LEAST_SAMPLES), key=lambda k: -tail[k]),
            f"By p99, of flows with {_LEAST_SAMPLES} samples or more.",
        ),
        ("The flows with most samples", list(range(len(samples))), "Mean and p99 of each."),
    ):
        some = take_rows(columns, rows[:MOST_ROWS])
        if rows:
            names = [f"{name} ({kind})" for name, kind in zip(flow_names(some), plain(some["kind"]), strict=True)]
            drawn = flow_means(names, list(plain(some["mean_ns"])), [], [], p99_ns=list(plain(some["p99_ns"])))
            yield Picture(title, drawn, note)


def flow_contents(result: FlowTableResult) -> Contents:
    """What the report of a flow table says."""
    chosen = result.select("", MOST_LISTED).columns()
    count = [int(value) for value in plain(result.table.bytes[result.order])]
    largest = take_rows(chosen, list(range(min(MOST_ROWS, len(result)))))
    first, last = result.table.first_ns[result.order], result.table.last_ns[result.order]
    table = [
        *_NAMES,
        Shown("packets", "Packets", ""),
        Shown("bytes", "Bytes", "B"),
        Shown("first_ns", "First packet", "time_ns"),
        Shown("last_ns", "Last packet", "time_ns"),
    ]
    drawn = top_instances(flow_names(largest), count[:MOST_ROWS], unit="B", quantity="bytes")
    return Contents(
        title=f"Flows{f', {_short(result.source)}' if result.source else ''}",
        question="Which flows carried how much?",
        warnings=result.warnings,
        figures=[
            Figure("Flows", f"{len(result):,}"),
            Figure("Packets", f"{result.packets:,}", f"{result.ip_packets:,} of IP"),
            Figure("Bytes", format_bytes(sum(count)), "of these flows"),
        ],
        pictures=[Picture("The largest flows", drawn, "By bytes.", is_wide=True)],
        tables=[table_of("Flows", chosen, table, rows_name="flows", whole=len(result))],
        facts={"Capture": result.source, "Method": "every packet counted"},
        trust=["Every packet that could be decoded is counted: nothing here is estimated"],
        notes=[f"{count:,} × {reason}" for reason, count in {**result.ignored, **result.notes}.items() if count],
        span_ns=(int(first.min()), int(last.max())) if len(result) else None,
        sources=[result.source] if result.source else [],
    )
