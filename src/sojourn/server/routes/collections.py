"""Collections over HTTP: packets in as a sink gets them, delays at every hop out.

Packets come as JSON, JSON lines or a CBOR sequence, read within limits; what cannot be used is counted by reason.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import WireError
from sojourn.server.door.access import (
    checked_name,
    everyone_of_some,
    must_be_node,
    must_see,
    nodes,
    problems,
    readers_of_some,
    visible_nodes,
)
from sojourn.server.door.limits import CBOR
from sojourn.server.models import AppendResult, Collection, Hop, HopPage, NodeTable, NodeWaits, PacketHops, TracePacket
from sojourn.server.sinks.answers import AnsweredPacket
from sojourn.server.sinks.store import Appended, CollectionState
from sojourn.store.tokens import Token
from sojourn.tomography.reading import decode_packets, packet_row
from sojourn.tomography.trace import MISSING, PacketRow, packet_fault

LINES = ("application/x-ndjson", "application/jsonl")
AHEAD_NS = 86_400 * 10**9  # a sink's clock may be that far ahead of ours
LATEST_NS = 2**63 - 1

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


async def read_body_packets(request: Request) -> tuple[list[PacketRow], Counter[str]]:
    """The packets of a request that can be used, and the others by reason.

    400 if it cannot be read at all, 413 if it or their number is too large.
    """
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    async with request.app.state.parsing:
        return await run_in_threadpool(_decode, body, kind, request.app.state.limits.batch_packets)


def _decode(body: bytes, kind: str, most: int) -> tuple[list[PacketRow], Counter[str]]:
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
    return rows, refused


def _rows(body: bytes, kind: str, refused: Counter[str]) -> Iterator[PacketRow]:
    try:
        if kind == CBOR:
            yield from decode_packets(body, refused)
            return
        text = body.decode()
        items: Iterable[object] = (json.loads(line) for line in text.splitlines() if line.strip())
        if kind not in LINES:  # one JSON value: a list of packets, or one
            value = json.loads(text)
            items = value if isinstance(value, list) else [value]
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


router = APIRouter(prefix="/api/v1", tags=["collections"], responses=problems(400, 401, 403, 429))
_HERE = "/nodes/{node}/collections/{collection}"

Time = Annotated[int, Query(ge=0, le=LATEST_NS, description="generation time, ns")]


@router.post(_HERE + "/packets", responses=problems(413), openapi_extra=PACKETS_BODY)
async def append_packets(request: Request, node: str, collection: str, token: Annotated[Token, nodes]) -> AppendResult:
    """Add packets, single or many, in any order; a new name makes a new collection. Copies are recognised."""
    must_be_node(token, node)
    rows, refused = await read_body_packets(request)
    state, appended, total = request.app.state, Appended(), refused.total()
    if rows:
        node, collection = checked_name(node), checked_name(collection)
        number, appended = await run_in_threadpool(state.sinks.append, node, collection, rows, refused=total)
        state.worker.wake(node, number)
    for status, count in {**vars(appended), "refused": total}.items():
        state.telemetry.packets.labels(status).inc(count)
    return AppendResult(**vars(appended), refused=dict(refused))


@router.get("/collections")
def list_collections(request: Request, token: Annotated[Token, readers_of_some]) -> list[Collection]:
    """All collections, and how far each is solved."""
    seen = visible_nodes(request, token)
    found = _shown(request, request.app.state.sinks.collections)
    return [one for one in found if seen is None or one.node in seen]


@router.get(_HERE, responses=problems(404))
def get_collection(
    request: Request, node: str, collection: str, token: Annotated[Token, everyone_of_some]
) -> Collection:
    """One collection, and how far it is solved."""
    must_be_node(token, node)
    must_see(request, token, node)
    return _shown(request, lambda: [_found(request, node, collection)])[0]


@router.post(_HERE + "/close", responses=problems(404))
def close_windows(request: Request, node: str, collection: str, token: Annotated[Token, nodes]) -> Collection:
    """Solve all that has come without waiting for more; ask for the collection until nothing is open."""
    must_be_node(token, node)
    found = _found(request, node, collection)
    request.app.state.sinks.request_close(found.id)
    request.app.state.worker.wake(found.node, found.id)
    return _shown(request, lambda: [_found(request, node, collection)])[0]


@router.get(_HERE + "/packets/{origin}/{sequence}", responses=problems(404))
def get_packet(
    request: Request, node: str, collection: str, origin: int, sequence: int, token: Annotated[Token, readers_of_some]
) -> list[PacketHops]:
    """The hops of a packet; of all packets of that name, newest first, as sequence numbers wrap."""
    must_see(request, token, node)
    found = _found(request, node, collection)
    if not (0 <= origin < 2**62 and 0 <= sequence < 2**62):
        return []
    answered = []
    for packet in request.app.state.sink_answers.packets(found, origin, sequence):
        origin, sequence, _path, t0, at_sink, _sum = packet.row
        times = {"t0_ns": t0, "t_sink_ns": at_sink}
        about = {"status": packet.status, "reason": packet.reason, "hops": _hops(packet)}
        answered.append(PacketHops(origin=origin, seq=sequence, **times, **about))
    return answered


@router.get(_HERE + "/hops", responses=problems(404))
def list_hops(
    request: Request,
    node: str,
    collection: str,
    token: Annotated[Token, readers_of_some],
    from_ns: Time = 0,
    to_ns: Time = LATEST_NS,
    after: Annotated[str | None, Query(max_length=50, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="packets of a page")] = 1000,
) -> HopPage:
    """Delays at every hop of the packets generated in a stretch of time, page by page."""
    must_see(request, token, node)
    found = _found(request, node, collection)
    packets = request.app.state.sink_answers.between(found, from_ns, to_ns, after=_cursor(after), limit=limit)
    return HopPage(
        hops=[hop for packet in packets for hop in _hops(packet)],
        packets=len(packets),
        unsolved=sum(packet.status != "solved" for packet in packets),
        next=f"{packets[-1].row[3]}-{packets[-1].id}" if len(packets) == limit else None,
    )


@router.get(_HERE + "/nodes", responses=problems(404))
def list_waits(
    request: Request,
    node: str,
    collection: str,
    token: Annotated[Token, readers_of_some],
    from_ns: Time = 0,
    to_ns: Time = LATEST_NS,
) -> NodeTable:
    """How long packets generated in a stretch of time stayed at each node, slowest first."""
    must_see(request, token, node)
    found = _found(request, node, collection)
    table, packets = request.app.state.sink_answers.nodes(found, from_ns, to_ns)
    columns = {name: column.tolist() for name, column in vars(table).items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return NodeTable(nodes=[NodeWaits(**row) for row in rows], packets=packets)


def _found(request: Request, node: str, collection: str) -> CollectionState:
    found: CollectionState | None = request.app.state.sinks.find(checked_name(node), checked_name(collection))
    if found is None:
        raise HTTPException(404, "there is no such collection")
    return found


def _shown(request: Request, read: Callable[[], list[CollectionState]]) -> list[Collection]:
    worker = request.app.state.worker
    busy = worker.busy()  # before their states are read: one that is not shown as busy is shown as it ended
    states = read()
    reasons = request.app.state.sinks.reasons([state.id for state in states if state.set_aside])
    return [
        Collection(
            **{name: value for name, value in state._mapping.items() if name in Collection.model_fields},
            set_aside_reasons=reasons.get(state.id, {}),
            solving=state.id in busy,
            sums="equations" if state.may_be_exact else "upper bounds",
            solved_until_ns=state.begin_ns,
            trouble=worker.trouble(state.id),
        )
        for state in states
    ]


def _hops(packet: AnsweredPacket) -> list[Hop]:
    origin, sequence, path, t0, _at_sink, _sum = packet.row
    return [
        Hop(origin=origin, seq=sequence, hop=number, node=node, t0_ns=t0, **hop)
        for number, (node, hop) in enumerate(zip(path, packet.hops, strict=False))
    ]


def _cursor(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}-[0-9]{1,19}", text) or max(map(int, text.split("-"))) > LATEST_NS:
        raise HTTPException(400, "after is the `next` of a page")
    time_ns, number = text.split("-")
    return int(time_ns), int(number)
