"""A client of collections: sends packets in batches for as long as they come, and asks for what was found.

Packets may be sent again without harm, as copies are recognised; so a batch that was not answered is sent until it is.
Memory: two batches.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from sojourn.client.query_unit import Client
from sojourn.core.errors import UsageError
from sojourn.core.keys import is_name
from sojourn.node.transports.transport import TransportError
from sojourn.tomography.reading import encode_packets
from sojourn.tomography.trace import PacketRow

LEAST_WAIT, MOST_WAIT = 0.25, 30.0
TROUBLE_SECONDS = 30.0
CBOR = {"Content-Type": "application/cbor"}
PAGE_PACKETS = 2000
STATE_FIELDS = ("node", "name", "packets", "open", "solved", "windows", "solving")


class SinkClient(Client):
    """Requests about collections, each named NODE/NAME."""

    def append(self, collection: str, rows: list[PacketRow]) -> dict[str, Any]:
        """Add packets; what became of them."""
        path, having = f"{_path(collection)}/packets", ("stored", "duplicates", "conflicts", "late", "refused")
        return self._object("POST", path, having=having, content=encode_packets(rows), headers=CBOR)

    def collections(self) -> list[dict[str, Any]]:
        """All collections."""
        return self._objects("GET", "/api/v1/collections", having=STATE_FIELDS)

    def collection(self, collection: str) -> dict[str, Any]:
        """One collection, and how far it is solved."""
        return self._object("GET", _path(collection), having=STATE_FIELDS)

    def start_closing(self, collection: str) -> dict[str, Any]:
        """Have all that has come solved; the collection now."""
        return self._object("POST", f"{_path(collection)}/close", having=STATE_FIELDS)

    def close_windows(self, collection: str, *, look_seconds: float = 0.2) -> dict[str, Any]:
        """Have all that has come solved, and wait for it; the collection then, or when trouble with it has lasted."""
        self.start_closing(collection)
        well = time.monotonic()
        while True:
            state = self.collection(collection)
            if not state.get("trouble"):
                well = time.monotonic()
            if not state["solving"] or time.monotonic() - well > TROUBLE_SECONDS:
                return state
            time.sleep(look_seconds)

    def packet(self, collection: str, origin: int, sequence: int) -> list[dict[str, Any]]:
        """The packets of a name, each with its hops, newest first."""
        return self._objects("GET", f"{_path(collection)}/packets/{origin}/{sequence}", having=["status", "hops"])

    def hops(self, collection: str, **when: int) -> Iterator[dict[str, Any]]:
        """Pages of hops of the packets generated in ``from_ns … to_ns``."""
        after: dict[str, str] = {}
        while True:
            query: dict[str, Any] = {**when, **after, "limit": PAGE_PACKETS}
            page = self._object("GET", f"{_path(collection)}/hops", having=["hops", "next"], params=query)
            yield page
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def node_table(self, collection: str, **when: int) -> dict[str, Any]:
        """How long packets generated in ``from_ns … to_ns`` stayed at each node."""
        return self._object("GET", f"{_path(collection)}/nodes", having=["nodes"], params=when)


def _path(collection: str) -> str:
    """Where a collection is.

    >>> _path("gateway/field 7")
    '/api/v1/nodes/gateway/collections/field%207'
    """
    node, _slash, name = collection.rpartition("/")
    if not (is_name(node) and is_name(name)):
        raise UsageError(f"{collection[:100]!r} is no collection", action="write NODE/NAME, such as gateway/field")
    return f"/api/v1/nodes/{quote(node, safe='')}/collections/{quote(name, safe='')}"


@dataclass
class PacketSender:
    """Sends packets as they come from a source that may pause or never end; counts what became of them.

    So many go at once (`batch`), and none is kept back longer than `every_seconds`.
    Once `stopping` is set a query unit that is away is not waited for any more; the source is to end by itself.
    """

    client: SinkClient
    collection: str
    warn: Callable[[str], None]
    batch: int = 1000
    every_seconds: float = 1.0
    give_up_seconds: float | None = None
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stopping: threading.Event = field(default_factory=threading.Event)
    _batch: list[PacketRow] = field(default_factory=list)

    def run(self, packets: Iterator[PacketRow]) -> None:
        """Send everything; returns when the source ends and the last batch is acknowledged."""
        waiting: queue.Queue[PacketRow | Exception | None] = queue.Queue(self.batch)
        threading.Thread(target=_fill, args=(packets, waiting), daemon=True).start()
        due = 0.0
        while True:
            try:
                item = waiting.get(timeout=max(due - time.monotonic(), 0.01) if self._batch else None)
            except queue.Empty:
                self._send()
                continue
            if not isinstance(item, tuple):
                self._send()
                if item is not None:
                    raise item
                return
            if not self._batch:
                due = time.monotonic() + self.every_seconds
            self._batch.append(item)
            if len(self._batch) >= self.batch:
                self._send()

    def _send(self) -> None:
        """One batch, again and again while the query unit is away; once only when it shall stop."""
        if not self._batch:
            return
        wait, since, limit = LEAST_WAIT, time.monotonic(), self.give_up_seconds
        while True:
            try:
                result = self.client.append(self.collection, self._batch)
                break
            except TransportError as error:
                if self.stopping.is_set() or (limit is not None and time.monotonic() - since + wait > limit):
                    raise
                if wait == LEAST_WAIT:
                    self.warn(f"{error}; trying again")
                self.stopping.wait(wait)
                wait = min(2 * wait, MOST_WAIT)
        if wait > LEAST_WAIT:
            self.warn("the query unit is back")
        self._batch = []
        self.refused.update(result.pop("refused"))
        self.counts.update(result)


def _fill(packets: Iterator[PacketRow], waiting: queue.Queue[PacketRow | Exception | None]) -> None:
    """Hand packets over as they come, and then how it ended."""
    try:
        for row in packets:
            waiting.put(row)
        waiting.put(None)
    except Exception as error:
        waiting.put(error)
