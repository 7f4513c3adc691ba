"""How a measured segment is printed: the aggregate, one row per flow, the clock, and what was ignored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sojourn.cli.options import TABLE_ROWS, Output
from sojourn.cli.output import Block, Format, TableColumn, loss_style, warn, write_rows
from sojourn.core.errors import harmless
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.core.results import Result
    from sojourn.segments.result import SegmentResult


def _port(port: object) -> str:
    return str(port) if port else ""


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "—"


def _time(value: float | None) -> str:
    return "—" if value is None else format_duration(value)


FLOW_COLUMNS = [
    TableColumn("src_ip", "source", justify="left"),
    TableColumn("src_port", "port", _port),
    TableColumn("dest_ip", "destination", justify="left"),
    TableColumn("dest_port", "port", _port),
    TableColumn("protocol", "proto", justify="left", rank=5),
]
COLUMNS = [
    TableColumn("start_ns", "from (s)", lambda ns: f"{ns / 1e9:.3f}"),
    *FLOW_COLUMNS,
    TableColumn("packets", "packets", _number),
    TableColumn("lost", "lost", _number, style=loss_style),
    TableColumn("mean_ns", "mean", _time),
    TableColumn("low_ns", "from", rank=1),
    TableColumn("high_ns", "to (95 %)", rank=1),
    TableColumn("std_ns", "deviation", _time, rank=3),
    TableColumn("jitter_ns", "jitter", _time, rank=2),
    TableColumn("true_mean_ns", "true mean", _time),
    TableColumn("true_lost", "true lost", _number),
    TableColumn("reason", "no answer because", lambda reason: reason or "", justify="left", rank=4),
]


def print_result(result: Result, output: Output, columns: Sequence[TableColumn] = COLUMNS) -> None:
    """Write the answer: the summary and a table of flows, or what the format says."""
    if output.how is not Format.TABLE:
        output.write(result, columns)
        return
    print("\n".join(map(harmless, result.summary.split("\n"))), flush=True)
    if not len(result):
        return
    shown = result.select(output.sort, (TABLE_ROWS if output.limit is None else output.limit) or None)
    blocks = list(map(_with_bounds, shown.blocks()))
    table = [column for column in columns if column.name in blocks[0]]
    view = replace(output.view, sort="", limit=None)
    write_rows(blocks, output.how, path=output.output, table=table, view=view)


def print_segment(result: SegmentResult, output: Output, *, verbose: bool = False) -> None:
    """The same with what a segment's answer has beside it on stderr: warnings before any number, notes after them."""
    warn(result.warnings)
    print_result(result, output)
    for note in result.notes:
        print(harmless(note), file=sys.stderr)
    for text, count in result.ignored.items() if verbose else ():
        print(f"ignored: {count:,} × {text}", file=sys.stderr)


def _with_bounds(block: Block) -> Block:
    """The block with its intervals in words: `exact` where the delay of every delivered packet is known."""
    if "low_ns" not in block:
        return block
    from sojourn.segments.result import bounds_text, is_exact

    names = ("low_ns", "high_ns", "samples", "packets", "lost")
    shown = []
    for values in zip(*(block[name] for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        # Where losses are not known, what was delivered is at most what was sent.
        delivered = (row["packets"] or 0) - (row["lost"] or 0)
        shown.append(("exact", "exact") if is_exact(row, delivered) else bounds_text(row["low_ns"], row["high_ns"]))
    return {**block, "low_ns": [low for low, _ in shown], "high_ns": [high for _, high in shown]}
