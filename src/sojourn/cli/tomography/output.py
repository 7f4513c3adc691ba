"""How tomography's answers are shown: a table of nodes, rows of hops, and a summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, TableColumn
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.core.arrays import Int64Array
    from sojourn.tomography.bounds.constraints import Bounds
    from sojourn.tomography.delays.intervals import Intervals
    from sojourn.tomography.trace import CollectionTrace

__all__ = ["hop_blocks", "node_blocks", "node_columns", "packet_columns", "print_summary"]

_BLOCK_ROWS = 1 << 14


def hop_blocks(
    trace: CollectionTrace, bounds: Bounds, arrival: Int64Array, likely: Intervals | None, packet: int | None
) -> Iterator[Block]:
    """One row for each packet and hop; of one packet only if it is given."""
    import numpy as np

    visits = np.flatnonzero(trace.is_visit)
    owner, hop, is_looping = trace.owner, trace.hop, trace.is_looping
    if packet is not None:
        visits = visits[owner[visits] == packet]
    for begin in range(0, max(len(visits), 1), _BLOCK_ROWS):
        rows = visits[begin : begin + _BLOCK_ROWS]
        # Numbers that are missing rather than None, so that a Parquet file has the same columns whatever the method.
        none = np.ma.MaskedArray(np.zeros(len(rows), np.int64), mask=True)
        yield {
            "origin": trace.origin[owner[rows]],
            "seq": trace.shown_sequence[owner[rows]],
            "hop": hop[rows],
            "node": trace.node[rows],
            "delay_ns": arrival[rows + 1] - arrival[rows],
            "low_ns": bounds.least_ns[rows],
            "high_ns": bounds.most_ns[rows],
            "likely_low_ns": none if likely is None else likely.low_ns[rows],
            "likely_high_ns": none if likely is None else likely.high_ns[rows],
            "looping": is_looping[owner[rows]],
        }


def packet_columns() -> list[TableColumn]:
    return [
        TableColumn("origin", "origin"),
        TableColumn("seq", "seq"),
        TableColumn("hop", "hop"),
        TableColumn("node", "node"),
        TableColumn("delay_ns", "delay", format_duration),
        TableColumn("low_ns", "at least", format_duration),
        TableColumn("high_ns", "at most", format_duration),
        TableColumn("likely_low_ns", "likely from", format_duration),
        TableColumn("likely_high_ns", "to", format_duration),
    ]


def node_blocks(trace: CollectionTrace, arrival: Int64Array) -> Iterator[Block]:
    """Nodes with the longest mean delay first."""
    import numpy as np

    from sojourn.tomography.delays.nodes import node_delays

    visits = np.flatnonzero(trace.is_visit)
    yield vars(node_delays(trace.node[visits], arrival[visits], arrival[visits + 1]))


def node_columns() -> list[TableColumn]:
    return [
        TableColumn("node", "node"),
        TableColumn("mean_ns", "mean delay", format_duration),
        TableColumn("p95_ns", "95 % within", format_duration),
        TableColumn("queue_share", "in queue", "{:.1%}".format),
        TableColumn("packets", "packets", "{:,}".format),
    ]


def print_summary(summary: Mapping[str, object], trace: CollectionTrace) -> None:
    """A few lines beside the table, on stderr."""
    values = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    without = int((trace.sum_ns < 0).sum())
    none = f" ({without:,} packets have none)" if without else ""
    print(
        f"{len(trace):,} packets, {values['unknowns']:,} delays to find, {trace.gaps:,} packets missing; "
        f"sums of delays taken as {summary['sums']}{none}; bounds {values['bound_width_ms']:.1f} ms wide on average; "
        f"{values['seconds']:.1f} s",
        file=sys.stderr,
    )
    if "mae_ms" in values:
        print(
            f"against the truth: mean error {values['mae_ms']:.2f} ms (MNT {values['mnt_mae_ms']:.2f} ms), "
            f"{values['share_under_4ms']:.0%} under 4 ms, {values['bounds_violated']:,} of {values['compared']:,} "
            f"outside their bounds (MNT's are {values['mnt_width_ms']:.1f} ms wide)",
            file=sys.stderr,
        )
    if "interval_coverage" in values:
        print(
            f"95 % intervals hold {values['interval_coverage']:.1%} of the delays that are not known and are "
            f"{values['interval_width_ms']:.1f} ms wide on average",
            file=sys.stderr,
        )
    if "published_mae_ms" in values:
        print(
            f"baselines: mean error as published {values['published_mae_ms']:.2f} ms; arrivals stand off by "
            f"{values['displacement']:.2f} places in their order (as published {values['published_displacement']:.2f}, "
            f"MessageTracing {values['tracing_displacement']:.2f}) at a period of {trace.period_ns / 1e9:.2g} s",
            file=sys.stderr,
        )
