"""Traces and truths from files: CSV, JSON lines (both also gzipped) and Parquet.

A trace has the columns origin, seq, path (`3-7-1`, or a list), t0_s, t_sink_s and sum_of_delays_s (may be missing);
other columns are not looked at. A row that cannot be read is counted by reason and left out, as is one of a packet that
was not delivered (no time at the sink). A truth has one row for each hop: origin, seq, hop_index, node and t_arrival_s.
Cost: about 5 µs for a row. Rows and their size are bounded.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import InputError
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, CollectionTrace, PacketRow, make_trace

__all__ = ["TRACE_COLUMNS", "packet_row", "read_packets", "read_trace", "read_truth"]

MOST_ROWS = 50_000_000
LONGEST_LINE = 1 << 16
TRACE_COLUMNS = ("origin", "seq", "path", "t0_s", "t_sink_s")
_TRUTH_COLUMNS = ("origin", "seq", "hop_index", "node", "t_arrival_s")


class _RowError(Exception):
    """Why one row cannot be read."""


def read_trace(path: Path) -> CollectionTrace:
    """The trace in a file; its kind is known by the name's ending."""
    faults: Counter[str] = Counter()
    return make_trace(list(read_packets(path, faults)), faults)


def read_packets(path: Path, faults: Counter[str]) -> Iterator[PacketRow]:
    """The packets in a file, one by one; rows that cannot be read are counted by reason."""
    for fields in _rows(path, TRACE_COLUMNS, faults):
        if (row := packet_row(fields, faults)) is not None:
            yield row


def read_truth(path: Path, trace: CollectionTrace) -> Int64Array:
    """The true arrival time of every place of the trace in ns; -1 where the truth has none for that node."""
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    faults: Counter[str] = Counter()
    for fields in _rows(path, _TRUTH_COLUMNS, faults):
        try:
            origin, sequence, hop, node = (_whole(fields[name], name) for name in _TRUTH_COLUMNS[:4])
            known[(origin, sequence, hop)] = (node, _time(fields["t_arrival_s"], "t_arrival_s"))
        except _RowError:
            continue
    if not known:
        raise InputError("no hop can be read", where=str(path), action="give a file with one row for each hop")
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


def _rows(path: Path, columns: tuple[str, ...], faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Every row as a mapping; a file without the columns is an error."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".parquet", ".pq")):
        yield from _parquet_rows(path, columns)
        return
    try:
        with _open_text(path) as file:
            source = _json_rows(file, faults) if name.endswith((".jsonl", ".ndjson", ".json")) else _csv_rows(file)
            for number, fields in enumerate(source):
                if number == 0 and (missing := [column for column in columns if column not in fields]):
                    raise InputError(
                        f"no column {', '.join(missing)}",
                        where=str(path),
                        action=f"name the columns {', '.join(columns)}",
                    )
                if number >= MOST_ROWS:
                    raise InputError(f"more than {MOST_ROWS:,} rows", where=str(path), action="split the trace")
                yield fields
    except (EOFError, gzip.BadGzipFile, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), action="check the file") from None


def _open_text(path: Path) -> TextIO:
    raw = path.open("rb")
    is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
    return io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if is_gzip else raw, encoding="utf-8-sig", newline="")


def _csv_rows(file: TextIO) -> Iterator[Mapping[str, Any]]:
    csv.field_size_limit(LONGEST_LINE)
    return iter(csv.DictReader(file))


def _json_rows(file: TextIO, faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    while line := file.readline(LONGEST_LINE):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            yield fields
        else:
            faults["line that is no JSON object"] += 1


def _parquet_rows(path: Path, columns: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("reading Parquet needs the pyarrow package", action="install sojourn[parquet]") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [column for column in columns if column not in names]:
                raise InputError(f"no column {', '.join(missing)}", where=str(path), action="name the columns so")
            if file.metadata.num_rows > MOST_ROWS:
                raise InputError(f"more than {MOST_ROWS:,} rows", where=str(path), action="split the trace")
            wanted = [name for name in (*columns, "sum_of_delays_s") if name in names]
            for batch in file.iter_batches(columns=wanted):
                yield from batch.to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"cannot be read: {error}", where=str(path), action="check the file") from None


def packet_row(fields: Mapping[str, Any], faults: Counter[str]) -> PacketRow | None:
    """A row from its fields by the columns' names; None, and counted by reason, if it cannot be read."""
    try:
        if fields.get("t_sink_s") in (None, ""):
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
    if isinstance(value, bool) or (isinstance(value, float) and value != number) or abs(number) > 1 << 53:
        raise _RowError(f"{name} that is no whole number")
    return number


def _path(value: Any) -> list[int]:
    parts = value.split("-") if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _RowError("path that is neither text nor list")
    try:
        return [int(part) for part in parts]
    except (TypeError, ValueError, OverflowError):
        raise _RowError("unknown node") from None


def _time(value: Any, name: str) -> int:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _RowError(f"{name} that is no number") from None
    if isinstance(value, bool) or not math.isfinite(seconds) or abs(seconds) > 1e10:
        raise _RowError(f"{name} that is no number")
    return round(seconds * 1e9)


def _sum(value: Any) -> int:
    """S in ns, rounded to the ms that its two bytes hold; what is no time is as good as missing."""
    if value in (None, ""):
        return MISSING
    try:
        time = _time(value, "sum_of_delays_s")
    except _RowError:
        return MISSING
    return MISSING if time < 0 else min((time + 500_000) // 1_000_000 * 1_000_000, SUM_LIMIT_NS)
