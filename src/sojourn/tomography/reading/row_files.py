"""Rows of files: CSV, JSON lines (both also gzipped) and Parquet; from a disk, a pipe or stdin.

A kind is known by the name's ending; where that tells none (a pipe, stdin) by the first bytes. A row that is none is
counted by reason and left out; a damaged file is read up to the damage. Text is read once, from its beginning to its
end, so it may come from a pipe. Memory: one line, or one batch of Parquet (`parquet_rows`).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sojourn.core.errors import InputError
from sojourn.tomography.reading.parquet_rows import ExcessError, ParquetError, read_parquet_rows

__all__ = ["ABSENT", "DAMAGED", "LONGEST_LINE", "MOST_ROWS", "read_rows", "shown_name"]

MOST_ROWS = 10_000_000
LONGEST_LINE = 1 << 16
ABSENT: Any = object()  # what a CSV row that ends early has in its last columns
DAMAGED = "end of the file, which is damaged"
_NO_TEXT = "\ufffd"  # what stands for bytes that are no UTF-8
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
    """What a file that begins so holds.

    >>> _kind(b'  {"origin": 1}'), _kind(b"PAR1"), _kind(b"origin,seq")
    ('json', 'parquet', 'csv')
    """
    if start.startswith(b"PAR1"):
        return "parquet"
    return "json" if start.removeprefix(_BOM).lstrip()[:1] in (b"{", b"[") else "csv"


def _lines(line: str, file: io.TextIOWrapper, faults: Counter[str]) -> Iterator[str]:
    """The first line given and those that follow, but for lines too long to hold, or damaged."""
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
