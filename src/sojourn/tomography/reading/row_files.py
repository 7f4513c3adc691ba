"""Rows of files: CSV, JSON lines (both also gzipped) and Parquet; from a disk, a pipe or stdin.

A format is recognised by the name's ending; without a known one (a pipe, stdin) by the first bytes. A row that cannot
be read is counted by reason and left out; a damaged file is read up to the damage. Text is read once, from beginning to
end, so it may come from a pipe. Memory: one line, or one batch of Parquet.

Parquet compresses equal values to next to nothing, and gzip the rest: a few MB may expand to many GB. So a file from a
pipe or of gzip is copied to disk up to a limit; the rows and bytes that the file's own metadata announces are checked
before any is decoded; texts stay in dictionaries, and lists are measured before they become Python objects.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sojourn.core.errors import InputError

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
LONGEST_LINE = 1 << 16
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


def shown_name(path: Path) -> str:
    """What errors call the file."""
    return "stdin" if str(path) == "-" else str(path)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file's bytes, uncompressed, with a `peek`."""
    file: Any = nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
    with file as raw:
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
    """The first line given and those that follow, but for lines too long, or damaged."""
    while line:
        if len(line) >= LONGEST_LINE and not line.endswith("\n"):
            faults[f"line of more than {LONGEST_LINE:,} characters"] += 1
            while line and not line.endswith("\n"):
                line = file.readline(LONGEST_LINE)
        elif _NO_TEXT in line:
            faults["line that is no UTF-8 text"] += 1
        else:
            yield line
        line = file.readline(LONGEST_LINE)


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
    except ExcessError as error:
        raise InputError(str(error), where=shown_name(path), action="split the trace") from None
    if missing := [column for column in columns[:needed] if column not in names]:
        raise InputError(f"no column {', '.join(missing)}", where=shown_name(path), action="name the columns so")
    return rows
