"""Bodies of packets: JSON, JSON lines or a CBOR sequence, read within limits; what cannot be used counted by reason."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import WireError
from sojourn.server.door.admission import CBOR
from sojourn.server.models.collections import TracePacket
from sojourn.tomography.reading.packets import decode_packets
from sojourn.tomography.reading.traces import packet_row
from sojourn.tomography.trace import MISSING, PacketRow, packet_fault

__all__ = ["PACKETS_BODY", "PacketsBody", "read_body_packets"]

LINES = ("application/x-ndjson", "application/jsonl")
AHEAD_NS = 86_400 * 10**9  # a sink's clock may be that far ahead of ours

PACKETS_BODY = {
    "requestBody": {
        "required": True,
        "description": "packets with the columns of a trace",
        "content": {
            "application/json": {"schema": {"type": "array", "items": TracePacket.model_json_schema()}},
            LINES[0]: {"schema": {"type": "string", "description": "one JSON object a line"}},
            CBOR: {"schema": {"type": "string", "format": "binary", "description": "a CBOR sequence"}},
        },
    }
}


@dataclass(frozen=True)
class PacketsBody:
    """The packets that can be used, and the others by reason."""

    rows: list[PacketRow]
    refused: Counter[str]


async def read_body_packets(request: Request) -> PacketsBody:
    """The packets of a request; 400 if it cannot be read at all, 413 if it or their number is too large."""
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    async with request.app.state.parsing:
        return await run_in_threadpool(_decode, body, kind, request.app.state.limits.batch_packets)


def _decode(body: bytes, kind: str, most: int) -> PacketsBody:
    refused: Counter[str] = Counter()
    latest = time.time_ns() + AHEAD_NS
    rows: list[PacketRow] = []
    for row in _rows(body, kind, refused):
        fault = packet_fault(row) or ("time in the future" if row[4] > latest else "")
        if fault:
            refused[fault] += 1
        else:
            rows.append((*row[:5], max(row[5], MISSING)))
        if len(rows) + refused.total() > most:
            raise HTTPException(413, f"more than {most} packets in one request")
    if not rows and not refused:
        raise HTTPException(400, "the body holds no packet")
    return PacketsBody(rows, refused)


def _rows(body: bytes, kind: str, refused: Counter[str]) -> Iterator[PacketRow]:
    try:
        if kind == CBOR:
            yield from decode_packets(body, refused)
            return
        text = body.decode()
        items = (json.loads(line) for line in text.splitlines() if line.strip()) if kind in LINES else _listed(text)
        for item in items:
            if not isinstance(item, dict):
                refused["packet that is no JSON object"] += 1
            elif (row := packet_row(item, refused)) is not None:
                yield row
    except WireError as error:
        raise HTTPException(400, str(error)) from None
    except RecursionError:
        raise HTTPException(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise HTTPException(400, f"this is no JSON ({str(error)[:100]})") from None


def _listed(text: str) -> list[object]:
    """The packets of one JSON value: a list of them, or one."""
    value = json.loads(text)
    return value if isinstance(value, list) else [value]
