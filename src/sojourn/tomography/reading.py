"""A sink's packets from files, from the wire and from a trace that is still being written.

Files are CSV, JSON lines (both also gzipped) and Parquet, from a disk, a pipe or stdin. A format is recognised by the
name's ending; without a known one by the first bytes. A row that cannot be read is counted by reason and left out; a
damaged file is read up to the damage. Text is read once, from beginning to end, so it may come from a pipe. Memory: one
line, or one batch of Parquet.

Parquet compresses equal values to next to nothing, and gzip the rest: a few MB may expand to many GB. So a file from a
pipe or of gzip is copied to disk up to a limit; the rows and bytes that the file's own metadata announces are checked
before any is decoded; texts stay in dictionaries, and lists are measured before they become Python objects.

A trace has the columns origin, seq, path (`3-7-1`, or a list), t0_s, t_sink_s and sum_of_delays_s (may be missing);
other columns are not looked at. A row of a packet that was not delivered (no time at the sink) is left out. A sum that
is no time is not used, but the packet is. A file without a usable row is an error with the reasons. A truth has one row
for each hop: origin, seq, hop_index, node and t_arrival_s. Cost: about 5 µs for a row. Rows and their size are bounded.

On the wire packets are a CBOR sequence (RFC 8742), small enough for a sink to encode by hand::

    packet = [origin, sequence, [node, …], t0_ns, sink_ns, sum_ms]

Times are whole ns; ``sum_ms`` is S as the two bytes of its node, null or 65 535 where it is not known. Decoding is as
strict as that of epochs; a packet of the wrong shape is counted by reason, bytes that are not CBOR end it.
Cost: about 3 µs for a packet.

Lines that are being written are CSV or JSON, recognised by the first one. A line counts when its end has arrived.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import cbor2
import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import InputError
from sojourn.core.files import input_bytes, shown_name
from sojourn.epochs.wire import load_item
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, UNREADABLE, CollectionTrace, PacketRow, make_trace

BATCH_ROWS = 256
LONGEST_VALUE = 1 << 16  # characters of a text, values of a list
MOST_FILE_BYTES = 1 << 30  # of a file that has to be decompressed first, or comes from a pipe
MOST_GROUP_BYTES = 1 << 30  # of one row group, uncompressed
_PIECE = 1 << 20


class ParquetError(Exception):
    """Why nothing more of a file can be read."""


class ExcessError(Exception):
    """What a file has too much of."""


def read_parquet_rows(
    source: Any, columns: tuple[str, ...], faults: Counter[str], *, most_rows: int
) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """The names of all columns, and the rows of those asked for; `ImportError` without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    try:
        raw = _on_disk(source)
        file = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=_PIECE)
        names = file.schema_arrow.names
        wanted = [name for name in columns if name in names]
        _check_announced(file.metadata, most_rows)
        texts = [f.name for f in file.schema_arrow if f.name in wanted and _is_text(f.type)]
        raw.seek(0)
        file = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=_PIECE, read_dictionary=texts)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _fault(error) from None
    return names, _parquet_batches(file, wanted, faults)


def _parquet_batches(file: Any, wanted: list[str], faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            kept = _without_long_values(batch)
            if len(kept) < len(batch):
                faults[f"row with a value of more than {LONGEST_VALUE:,} characters or numbers"] += len(batch) - len(
                    kept
                )
            yield from kept.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _fault(error) from None


def _fault(error: Exception) -> ParquetError:
    return ParquetError(str(error).splitlines()[0].rstrip("."))


def _on_disk(source: Any) -> Any:
    """The file where it can be read in any order, up to `MOST_FILE_BYTES` where that takes a copy."""
    if source.seekable() and not isinstance(source, gzip.GzipFile):
        return source
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - Arrow reads it for as long as rows are asked for
    while piece := source.read(_PIECE):
        if copy.tell() + len(piece) > MOST_FILE_BYTES:
            raise ExcessError(f"more than {MOST_FILE_BYTES >> 20} MiB of Parquet, once decompressed")
        copy.write(piece)
    copy.seek(0)
    return copy


def _check_announced(metadata: Any, most_rows: int) -> None:
    """Refuse what, by its own metadata, would take too much.

    Row groups are asked as a whole: of a damaged file, pyarrow's description of a column ends the process.
    """
    if metadata.num_rows > most_rows:
        raise ExcessError(f"{metadata.num_rows:,} rows, more than {most_rows:,}")
    if any(metadata.row_group(i).total_byte_size > MOST_GROUP_BYTES for i in range(metadata.num_row_groups)):
        raise ExcessError(f"a row group of more than {MOST_GROUP_BYTES >> 20} MiB")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _without_long_values(batch: Any) -> Any:
    """The rows whose texts and lists are no longer than a line of text may be."""
    from pyarrow import compute, types

    for column in batch.columns:
        if types.is_dictionary(column.type):
            length = compute.take(compute.binary_length(column.dictionary), column.indices)
        elif types.is_list(column.type) or types.is_large_list(column.type):
            length = compute.list_value_length(column)
        else:
            continue
        if (compute.max(length).as_py() or 0) > LONGEST_VALUE:
            is_short = compute.fill_null(compute.less_equal(length, LONGEST_VALUE), True)
            return _without_long_values(batch.filter(is_short))
    return batch


MOST_ROWS = 10_000_000
MOST_LINES = 2 * MOST_ROWS  # with those that are no rows
LONGEST_LINE = 1 << 16
MOST_SKIPPED = 1 << 26  # characters of a longer line, to find its end
ABSENT: Any = object()  # what a CSV row that ends early has in its last columns
DAMAGED = "end of the file, which is damaged"
_NO_TEXT = "\ufffd"  # the replacement for bytes that are not UTF-8
_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
}
_BOM = b"\xef\xbb\xbf"


def read_rows(
    path: Path, columns: tuple[str, ...], faults: Counter[str], *, also: tuple[str, ...] = ()
) -> Iterator[Mapping[str, Any]]:
    """Every row of a file (``-`` is stdin) as a mapping, up to where it is damaged; missing columns are an error.

    Of Parquet only the columns, and `also` those that may be missing, are read.
    """
    number = 0
    try:
        with _opened(path) as source:
            for fields in _rows(path, source, columns, faults, also):
                number += 1
                if number > MOST_ROWS:
                    raise InputError(f"more than {MOST_ROWS:,} rows", where=shown_name(path), action="split the trace")
                yield fields
    except (EOFError, gzip.BadGzipFile, zlib.error, csv.Error, ParquetError) as error:
        if not number:
            raise InputError(f"cannot be read: {error}", where=shown_name(path), action="check the file") from None
        faults[DAMAGED] += 1
    except ExcessError as error:
        raise InputError(str(error), where=shown_name(path), action="give a trace, or split it") from None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file's bytes, uncompressed, with a `peek`."""
    with input_bytes(path) as opened:
        raw: Any = opened
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
        yield gzip.GzipFile(fileobj=raw) if is_gzip else raw


def _rows(
    path: Path, source: Any, columns: tuple[str, ...], faults: Counter[str], also: tuple[str, ...]
) -> Iterator[Mapping[str, Any]]:
    start = source.peek(4)
    kind = _ENDINGS.get(Path(path.name.removesuffix(".gz")).suffix) or _kind(start)
    if kind == "parquet":
        return _parquet_rows(path, source, (*columns, *also), len(columns), faults)
    if not start:
        raise InputError(
            "it is empty", where=shown_name(path), action=f"give a file with the columns {', '.join(columns)}"
        )
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="replace", newline="")
    first = text.readline(LONGEST_LINE)
    lines = _lines(first, text, faults)
    if kind == "json":
        return _json_rows(lines, faults)
    if _NO_TEXT in first:
        what = "it is no text, or its first line is damaged"
        raise InputError(what, where=shown_name(path), action="give CSV, JSON lines or Parquet")
    return _csv_rows(path, _whole_lines(lines, faults), columns, faults)


def _kind(start: bytes) -> str:
    """The format of a file that begins so.

    >>> _kind(b'  {"origin": 1}'), _kind(b"PAR1"), _kind(b"origin,seq")
    ('json', 'parquet', 'csv')
    """
    if start.startswith(b"PAR1"):
        return "parquet"
    return "json" if start.removeprefix(_BOM).lstrip()[:1] in (b"{", b"[") else "csv"


def _lines(line: str, file: io.TextIOWrapper, faults: Counter[str]) -> Iterator[str]:
    """The first line given and those that follow, but for lines too long, or damaged; not without end."""
    for _number in range(MOST_LINES):
        if not line:
            return
        if len(line) >= LONGEST_LINE and not line.endswith("\n"):
            faults[f"line of more than {LONGEST_LINE:,} characters"] += 1
            _skip_line(file)
        elif _NO_TEXT in line:
            faults["line that is no UTF-8 text"] += 1
        else:
            yield line
        line = file.readline(LONGEST_LINE)
    raise ExcessError(f"more than {MOST_LINES:,} lines")


def _skip_line(file: io.TextIOWrapper) -> None:
    """Read up to the end of a line; one that never ends is no line."""
    for _part in range(MOST_SKIPPED // LONGEST_LINE):
        part = file.readline(LONGEST_LINE)
        if not part or part.endswith("\n"):
            return
    raise ExcessError(f"a line of more than {MOST_SKIPPED:,} characters")


def _csv_rows(
    path: Path, lines: Iterator[str], columns: tuple[str, ...], faults: Counter[str]
) -> Iterator[Mapping[str, Any]]:
    reader = csv.DictReader(lines, restkey="", restval=ABSENT)
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
        raise InputError(f"column {', '.join(repeated)} more than once", where=shown_name(path), action=action)
    if missing := [column for column in columns if column not in names]:
        sign = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), "")
        if sign:
            raise InputError(
                f"the columns are separated by {sign!r}", where=shown_name(path), action="separate them by commas"
            )
        raise InputError(f"no column {', '.join(missing)}", where=shown_name(path), action=action)


def _json_rows(lines: Iterator[str], faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
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


def _parquet_rows(
    path: Path, source: Any, columns: tuple[str, ...], needed: int, faults: Counter[str]
) -> Iterator[Mapping[str, Any]]:
    try:
        names, rows = read_parquet_rows(source, columns, faults, most_rows=MOST_ROWS)
    except ImportError:
        raise InputError("reading Parquet needs the pyarrow package", action="install sojourn[parquet]") from None
    if missing := [column for column in columns[:needed] if column not in names]:
        raise InputError(f"no column {', '.join(missing)}", where=shown_name(path), action="name the columns so")
    return rows


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


FIELDS = 6
NS_PER_MS = 1_000_000
LARGEST = 1 << 62


def encode_packets(rows: Iterable[PacketRow]) -> bytes:
    """Rows as bytes, one after the other."""
    return b"".join(
        cbor2.dumps([origin, sequence, path, t0, at_sink, None if total < 0 else round(total / NS_PER_MS)])
        for origin, sequence, path, t0, at_sink, total in rows
    )


def decode_packets(data: bytes, faults: Counter[str]) -> Iterator[PacketRow]:
    """The rows in `data`; those that are none are counted by reason."""
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        item = load_item(stream, f"packet at byte {stream.tell()}", depth=2, what="a packet")
        row = _row(item)
        if row is None:
            faults["packet that is not six fields of whole numbers"] += 1
        else:
            yield row


def _row(item: object) -> PacketRow | None:
    if not isinstance(item, list) or len(item) != FIELDS or not isinstance(item[2], list):
        return None
    origin, sequence, path, t0, at_sink, sum_ms = item
    total = MISSING if sum_ms is None else sum_ms
    if not all(type(number) is int and abs(number) < LARGEST for number in (origin, sequence, t0, at_sink, total)):
        return None
    if not all(type(node) is int and abs(node) < LARGEST for node in path):
        return None
    return origin, sequence, path, t0, at_sink, MISSING if total < 0 else min(total * NS_PER_MS, SUM_LIMIT_NS)


LOOK_SECONDS = 0.2


def growing_lines(file: IO[bytes], is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Lines of a file and those that are added to it, until `is_over`; a last line without an end is not given."""
    partial = b""
    while not is_over():
        part = file.readline(LONGEST_LINE)
        if not part:
            time.sleep(LOOK_SECONDS)
            continue
        partial += part
        if partial.endswith(b"\n") or len(partial) >= LONGEST_LINE:
            yield partial
            partial = b""


def packets_of_lines(lines: Iterator[bytes], faults: Counter[str], *, where: str) -> Iterator[PacketRow]:
    """The packets in the lines; the first line has the columns' names, unless it is a JSON object."""
    names: list[str] | None = None
    is_first = True
    for line in lines:
        text = line.decode("utf-8-sig", "replace").strip()
        if not text:
            continue
        if is_first and not text.startswith("{"):
            names = _names(text, where)
        else:
            fields = _json_fields(text, faults) if names is None else dict(zip(names, _cells(text), strict=False))
            if fields is not None and (row := packet_row(fields, faults)) is not None:
                yield row
        is_first = False


def _names(text: str, where: str) -> list[str]:
    names = _cells(text)
    if missing := [column for column in TRACE_COLUMNS if column not in names]:
        raise InputError(
            f"no column {', '.join(missing)}"[:200],
            where=where,
            action=f"name the columns {', '.join(TRACE_COLUMNS)}, or send JSON lines",
        )
    return names


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _json_fields(text: str, faults: Counter[str]) -> dict[str, object] | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return fields
    faults["line that is no JSON object"] += 1
    return None
