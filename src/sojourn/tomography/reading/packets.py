"""Packets of a sink as they arrive: on the wire as CBOR, and line by line from a trace that is still being written.

On the wire they are a CBOR sequence (RFC 8742), small enough for a sink to encode by hand::

    packet = [origin, sequence, [node, …], t0_ns, sink_ns, sum_ms]

Times are whole ns; ``sum_ms`` is S as the two bytes of its node, null or 65 535 where it is not known. Decoding is as
strict as that of epochs; a packet of the wrong shape is counted by reason, bytes that are not CBOR end it.
Cost: about 3 µs for a packet.

Lines are CSV or JSON, recognised by the first one. A line counts when its end has arrived. What cannot be read is
counted by reason and left out, as in a whole trace.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO

import cbor2

from sojourn.core.errors import InputError
from sojourn.epochs.wire import load_item
from sojourn.tomography.reading.row_files import LONGEST_LINE
from sojourn.tomography.reading.traces import TRACE_COLUMNS, packet_row
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, PacketRow

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
