"""Traces and truths from files: CSV, JSON lines (both also gzipped) and Parquet.

A trace has the columns origin, seq, path (`3-7-1`, or a list), t0_s, t_sink_s and sum_of_delays_s (may be missing);
other columns are not looked at. A row that cannot be read is counted by reason and left out, as is one of a packet that
was not delivered (no time at the sink). A sum that is no time is not used, but the packet is. A damaged file is read up
to the damage; one without a usable row is an error that says why. A truth has one row for each hop: origin, seq,
hop_index, node and t_arrival_s.
Cost: about 5 µs for a row. Rows and their size are bounded.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import InputError
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, UNREADABLE, CollectionTrace, PacketRow, make_trace

__all__ = ["TRACE_COLUMNS", "packet_row", "read_packets", "read_trace", "read_truth"]

MOST_ROWS = 50_000_000
LONGEST_LINE = 1 << 16
LATEST_S = 1e10
TRACE_COLUMNS = ("origin", "seq", "path", "t0_s", "t_sink_s")
_TRUTH_COLUMNS = ("origin", "seq", "hop_index", "node", "t_arrival_s")
_NO_TEXT = "\ufffd"  # what stands for bytes that are no UTF-8
_ABSENT: Any = object()  # what a CSV row that ends early has in its last columns


class _RowError(Exception):
    """Why one row cannot be read."""


class _DamageError(Exception):
    """Why nothing more of a file can be read."""


def read_trace(path: Path) -> CollectionTrace:
    """The trace in a file; its kind is known by the name's ending."""
    faults: Counter[str] = Counter()
    rows = list(read_packets(path, faults))
    action = f"give a trace with the columns {', '.join(TRACE_COLUMNS)}"
    if not (rows or faults):
        what = "it has no row" if path.stat().st_size else "it is empty"
        raise InputError(what, where=str(path), action=action)
    try:
        return make_trace(rows, faults)
    except InputError as error:
        raise InputError(error.what, where=str(path), action=action) from None


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
        except (_RowError, KeyError):
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
    """Every row as a mapping, up to where the file is damaged; one without the columns or any row is an error."""
    name = path.name.removesuffix(".gz")
    number = 0
    try:
        if name.endswith((".parquet", ".pq")):
            source = _parquet_rows(path, columns)
        elif name.endswith((".jsonl", ".ndjson", ".json")):
            source = _json_rows(path, faults)
        else:
            source = _csv_rows(path, columns, faults)
        for fields in source:
            number += 1
            if number > MOST_ROWS:
                raise InputError(f"more than {MOST_ROWS:,} rows", where=str(path), action="split the trace")
            yield fields
    except (EOFError, gzip.BadGzipFile, zlib.error, csv.Error, _DamageError) as error:
        if not number:
            raise InputError(f"cannot be read: {error}", where=str(path), action="check the file") from None
        faults["end of the file, which is damaged"] += 1


def _open_text(path: Path) -> TextIO:
    raw = path.open("rb")
    is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
    source = gzip.GzipFile(fileobj=raw) if is_gzip else raw
    return io.TextIOWrapper(source, encoding="utf-8-sig", errors="replace", newline="")


def _lines(file: TextIO, faults: Counter[str]) -> Iterator[str]:
    """The lines, but for those too long to hold, or damaged."""
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith("\n"):
            if _NO_TEXT in line:
                faults["line that is no UTF-8 text"] += 1
            else:
                yield line
            continue
        faults[f"line of more than {LONGEST_LINE:,} characters"] += 1
        while line and not line.endswith("\n"):
            line = file.readline(LONGEST_LINE)


def _csv_rows(path: Path, columns: tuple[str, ...], faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    with _open_text(path) as file:
        if _NO_TEXT in file.readline(LONGEST_LINE):
            what = "it is no text, or its first line is damaged"
            raise InputError(what, where=str(path), action="give CSV, JSON lines or Parquet")
    with _open_text(path) as file:
        reader = csv.DictReader(_whole_lines(_lines(file, faults), faults), restkey="", restval=_ABSENT)
        names = list(reader.fieldnames or ())
        if names:
            _check_header(path, names, columns)
        for fields in reader:
            if fields.get("") and "" not in names:
                faults["row with more columns than the header"] += 1
            else:
                yield fields


def _whole_lines(lines: Iterator[str], faults: Counter[str]) -> Iterator[str]:
    """Lines whose quotes are closed: an open one would swallow the rest of the file."""
    for line in lines:
        if line.count('"') % 2:
            faults["line with an open quote"] += 1
        else:
            yield line


def _check_header(path: Path, names: list[str], columns: tuple[str, ...]) -> None:
    action = f"name the columns {', '.join(columns)}"
    if repeated := [name for name, count in Counter(names).items() if count > 1 and name in columns]:
        raise InputError(f"column {', '.join(repeated)} more than once", where=str(path), action=action)
    if missing := [column for column in columns if column not in names]:
        sign = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), "")
        if sign:
            raise InputError(
                f"the columns are separated by {sign!r}", where=str(path), action="separate them by commas"
            )
        raise InputError(f"no column {', '.join(missing)}", where=str(path), action=action)


def _json_rows(path: Path, faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    with _open_text(path) as file:
        for line in _lines(file, faults):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
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
    with path.open("rb") as raw:  # so that a file that cannot be opened is said as everywhere
        try:
            with parquet.ParquetFile(raw) as file:
                names = file.schema_arrow.names
                if missing := [column for column in columns if column not in names]:
                    raise InputError(f"no column {', '.join(missing)}", where=str(path), action="name the columns so")
                wanted = [name for name in (*columns, "sum_of_delays_s") if name in names]
                for batch in file.iter_batches(columns=wanted):
                    yield from batch.to_pylist()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise _DamageError(reason) from None


def packet_row(fields: Mapping[str, Any], faults: Counter[str]) -> PacketRow | None:
    """A row from its fields by the columns' names; None, and counted by reason, if it cannot be read."""
    try:
        if any(fields.get(name) is _ABSENT for name in TRACE_COLUMNS):
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
    if value in (None, "") or value is _ABSENT:
        return MISSING
    try:
        time = _time(value, "sum_of_delays_s")
    except _RowError:
        return UNREADABLE
    return UNREADABLE if time < 0 else min((time + 500_000) // 1_000_000 * 1_000_000, SUM_LIMIT_NS)
