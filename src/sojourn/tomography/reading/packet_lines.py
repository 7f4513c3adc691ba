"""Packets line by line, from a trace that is still being written: CSV or JSON lines, known by their first line.

A line counts when its end has come. What cannot be read is counted by reason and left out, as in a whole trace.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO

from sojourn.core.errors import InputError
from sojourn.tomography.reading.row_files import LONGEST_LINE
from sojourn.tomography.reading.traces import TRACE_COLUMNS, packet_row
from sojourn.tomography.trace import PacketRow

__all__ = ["growing_lines", "packets_of_lines"]

LOOK_SECONDS = 0.2


def growing_lines(file: IO[bytes], is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Lines of a file and those that are added to it, until `is_over`; a last line without an end is not given."""
    held = b""
    while not is_over():
        part = file.readline(LONGEST_LINE)
        if not part:
            time.sleep(LOOK_SECONDS)
            continue
        held += part
        if held.endswith(b"\n") or len(held) >= LONGEST_LINE:
            yield held
            held = b""


def packets_of_lines(lines: Iterator[bytes], faults: Counter[str], *, where: str) -> Iterator[PacketRow]:
    """The packets that the lines hold; the first line has the columns' names, unless it is a JSON object."""
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
