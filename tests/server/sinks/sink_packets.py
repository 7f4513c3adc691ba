"""Packets of sinks to send, and waiting for their windows to be solved."""

from __future__ import annotations

import time
from typing import Any

import httpx

from collection_worlds import simulated
from sojourn.tomography.trace import CollectionTrace, PacketRow

FIELD = "/api/v1/nodes/alpha/collections/field"
CBOR = {"Content-Type": "application/cbor"}


def rows_of(trace: CollectionTrace) -> list[PacketRow]:
    """A trace's packets in the order in which the sink got them."""
    rows = []
    for p in range(len(trace)):
        path = trace.node[trace.start[p] : trace.start[p + 1]].tolist()
        numbers = trace.t0_ns[p], trace.sink_ns[p], trace.sum_ns[p]
        rows.append((int(trace.origin[p]), int(trace.shown_sequence[p]), path, *map(int, numbers)))
    return rows


def small_world(packets: int = 6) -> list[PacketRow]:
    """Packets of 20 nodes, one every 10 s, nothing lost."""
    return rows_of(simulated(20, 7, packets=packets)[0])


def as_json(row: PacketRow) -> dict[str, Any]:
    origin, sequence, path, t0, at_sink, total = row
    known = {} if total < 0 else {"sum_of_delays_s": total / 1e9}
    return {"origin": origin, "seq": sequence, "path": path, "t0_s": t0 / 1e9, "t_sink_s": at_sink / 1e9, **known}


def appended(response: httpx.Response) -> dict[str, Any]:
    """What became of the packets of a batch."""
    assert response.status_code == 200, response.text
    return response.json()


def settled(client: httpx.Client, where: str = FIELD, seconds: float = 120) -> dict[str, Any]:
    """The collection's state when nothing is being solved any more."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        state = client.get(where).json()
        if not state["solving"]:
            return state
        time.sleep(0.05)
    raise AssertionError(f"still solving after {seconds} s: {state}")


def closed(client: httpx.Client, where: str = FIELD) -> dict[str, Any]:
    """The collection's state when everything has been solved."""
    assert client.post(f"{where}/close").status_code == 200
    state = settled(client, where)
    assert state["open"] == 0, state
    return state
