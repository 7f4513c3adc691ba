"""Traces and truths from the rows of files (`row_files`): what each column means, and what cannot be used.

A trace has the columns origin, seq, path (`3-7-1`, or a list), t0_s, t_sink_s and sum_of_delays_s (may be missing);
other columns are not looked at. A row that cannot be read is counted by reason and left out, as is one of a packet that
was not delivered (no time at the sink). A sum that is no time is not used, but the packet is. A damaged file is read up
to the damage; one without a usable row is an error with the reasons. A truth has one row for each hop: origin, seq,
hop_index, node and t_arrival_s.
Cost: about 5 µs for a row. Rows and their size are bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import InputError
from sojourn.tomography.reading.row_files import ABSENT, read_rows, shown_name
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, UNREADABLE, CollectionTrace, PacketRow, make_trace

LATEST_S = 1e10
TRACE_COLUMNS = ("origin", "seq", "path", "t0_s", "t_sink_s")
_TRUTH_COLUMNS = ("origin", "seq", "hop_index", "node", "t_arrival_s")


class _RowError(Exception):
    """Why one row cannot be read."""


def read_trace(path: Path) -> CollectionTrace:
    """The trace in a file; ``-`` is stdin."""
    faults: Counter[str] = Counter()
    rows = list(read_packets(path, faults))
    action = f"give a trace with the columns {', '.join(TRACE_COLUMNS)}"
    if not (rows or faults):
        raise InputError("it has no row", where=shown_name(path), action=action)
    try:
        return make_trace(rows, faults)
    except InputError as error:
        raise InputError(error.what, where=shown_name(path), action=action) from None


def read_packets(path: Path, faults: Counter[str]) -> Iterator[PacketRow]:
    """The packets in a file, one by one; rows that cannot be read are counted by reason."""
    for fields in read_rows(path, TRACE_COLUMNS, faults, also=("sum_of_delays_s",)):
        if (row := packet_row(fields, faults)) is not None:
            yield row


def read_truth(path: Path, trace: CollectionTrace) -> Int64Array:
    """The true arrival time of every place of the trace in ns; -1 where the truth has none for that node."""
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    faults: Counter[str] = Counter()
    for fields in read_rows(path, _TRUTH_COLUMNS, faults):
        try:
            origin, sequence, hop, node = (_whole(fields[name], name) for name in _TRUTH_COLUMNS[:4])
            known[(origin, sequence, hop)] = (node, _time(fields["t_arrival_s"], "t_arrival_s"))
        except (_RowError, KeyError):
            continue
    if not known:
        raise InputError("no hop can be read", where=shown_name(path), action="give a file with one row for each hop")
    lengths = np.diff(trace.start)
    keys = zip(
        np.repeat(trace.origin, lengths).tolist(),
        np.repeat(trace.shown_sequence, lengths).tolist(),
        trace.hop.tolist(),
        strict=True,
    )
    found = (known.get(key, (-1, -1)) for key in keys)
    times = np.fromiter(
        (time if node == expected else -1 for (node, time), expected in zip(found, trace.node.tolist(), strict=True)),
        np.int64,
        len(trace.node),
    )
    times[trace.start[1:] - 1] = trace.sink_ns
    return times


def packet_row(fields: Mapping[str, Any], faults: Counter[str]) -> PacketRow | None:
    """A row from its fields by the columns' names; None, and counted by reason, if it cannot be read."""
    try:
        if any(fields.get(name) is ABSENT for name in TRACE_COLUMNS):
            raise _RowError("row with fewer columns than the header")
        if fields["t_sink_s"] in (None, ""):
            raise _RowError("packet that was not delivered")
        return (
            _whole(fields["origin"], "origin"),
            _whole(fields["seq"], "seq"),
            _path(fields["path"]),
            _time(fields["t0_s"], "t0_s"),
            _time(fields["t_sink_s"], "t_sink_s"),
            _sum(fields.get("sum_of_delays_s")),
        )
    except KeyError as error:
        faults[f"row without {error.args[0]}"] += 1
    except _RowError as fault:
        faults[str(fault)] += 1
    return None


def _whole(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _RowError(f"{name} that is no whole number") from None
    is_rounded = isinstance(value, bool) or (isinstance(value, float) and value != number)
    if is_rounded or abs(number) > 1 << 53 or (isinstance(value, str) and "_" in value):
        raise _RowError(f"{name} that is no whole number")
    return number


def _path(value: Any) -> list[int]:
    if value is None or value in ("", []):
        raise _RowError("path that is empty")
    parts = value.split("-") if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _RowError("path that is neither text nor list")
    try:
        return [int(part) if isinstance(part, str) else _whole(part, "node") for part in parts]
    except (TypeError, ValueError, OverflowError, _RowError):
        raise _RowError("path that is no sequence of nodes such as 14-5-0") from None


def _time(value: Any, name: str) -> int:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _RowError(f"{name} that is no number") from None
    if isinstance(value, bool) or not math.isfinite(seconds) or (isinstance(value, str) and "_" in value):
        raise _RowError(f"{name} that is no number")
    if abs(seconds) > LATEST_S:
        raise _RowError(f"{name} out of range")
    return round(seconds * 1e9)


def _sum(value: Any) -> int:
    """S in ns, rounded to the ms that its two bytes hold; what is no time is not used."""
    if value in (None, "") or value is ABSENT:
        return MISSING
    try:
        time = _time(value, "sum_of_delays_s")
    except _RowError:
        return UNREADABLE
    return UNREADABLE if time < 0 else min((time + 500_000) // 1_000_000 * 1_000_000, SUM_LIMIT_NS)
