"""How tomography's answers are shown: a table of nodes, rows of hops, and a summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, TableColumn
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.core.arrays import Int64Array
    from sojourn.tomography.constraints import Bounds
    from sojourn.tomography.trace import CollectionTrace

__all__ = ["hop_blocks", "node_blocks", "node_columns", "packet_columns", "print_summary"]

_BLOCK_ROWS = 1 << 14


def hop_blocks(trace: CollectionTrace, bounds: Bounds, arrival: Int64Array, packet: int | None) -> Iterator[Block]:
    """One row for each packet and hop; of one packet only if it is given."""
    import numpy as np

    visits = np.flatnonzero(trace.is_visit)
    owner, hop = trace.owner, trace.hop
    if packet is not None:
        visits = visits[owner[visits] == packet]
    for begin in range(0, max(len(visits), 1), _BLOCK_ROWS):
        rows = visits[begin : begin + _BLOCK_ROWS]
        yield {
            "origin": trace.origin[owner[rows]],
            "seq": trace.shown_sequence[owner[rows]],
            "hop": hop[rows],
            "node": trace.node[rows],
            "delay_ns": arrival[rows + 1] - arrival[rows],
            "low_ns": bounds.least_ns[rows],
            "high_ns": bounds.most_ns[rows],
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
    ]


def node_blocks(trace: CollectionTrace, arrival: Int64Array) -> Iterator[Block]:
    """Nodes with the longest mean delay first.

    A packet is in the queue from its arrival until the packet ahead of it has left; the rest is sending.
    """
    import numpy as np

    visits = np.flatnonzero(trace.is_visit)
    nodes, place = np.unique(trace.node[visits], return_inverse=True)
    came, left = arrival[visits], arrival[visits + 1]
    delay = left - came
    queued = _queued(place, came, left)
    order = np.lexsort((delay, place))
    counts = np.bincount(place, minlength=len(nodes))
    starts = np.cumsum(counts) - counts
    total = np.bincount(place, delay, len(nodes))
    p95 = delay[order][starts + np.ceil(0.95 * counts).astype(np.int64) - 1]
    slowest = np.argsort(-total / counts, kind="stable")
    yield {
        "node": nodes[slowest],
        "mean_ns": np.rint(total / counts).astype(np.int64)[slowest],
        "p95_ns": p95[slowest],
        "queue_share": (np.bincount(place, queued, len(nodes)) / np.maximum(total, 1))[slowest],
        "packets": counts[slowest],
    }


def _queued(place: Int64Array, came: Int64Array, left: Int64Array) -> Int64Array:
    """How long each visit waited for the packet ahead of it at its node."""
    import numpy as np

    order = np.lexsort((came, left, place))
    ahead, behind = order[:-1], order[1:]
    waits = np.minimum(np.maximum(left[ahead] - came[behind], 0), left[behind] - came[behind])
    queued = np.zeros(len(place), np.int64)
    queued[behind] = np.where(place[ahead] == place[behind], waits, 0)
    return queued


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
    if "published_mae_ms" in values:
        print(
            f"baselines: mean error as published {values['published_mae_ms']:.2f} ms; arrivals stand off by "
            f"{values['displacement']:.2f} places in their order (as published {values['published_displacement']:.2f}, "
            f"MessageTracing {values['tracing_displacement']:.2f}) at a period of {trace.period_ns / 1e9:.2g} s",
            file=sys.stderr,
        )
