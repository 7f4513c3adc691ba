"""Live requests: asking a node for the epochs that it has not sent yet, the one that it is still recording among them.

Nodes are reached the way they reach us: a node waits for requests (a long poll), or has a connection to a broker that
carries them (`Carrier`), and answers one with epochs, in one or more parts. Nothing needs a route to the node. A
request lives as long as its asker waits, which is a few seconds after the last part, and `MOST_WAITS` times as long at
most, however many parts come; an answer that nobody waits for any more is refused. Answers stay packed, and all that
wait for their askers share one limit.

A request about no stream at all has the node look at its assignments now (`wake`). A node of an earlier version answers
with nothing, and looks when it would have.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sojourn.core.errors import ServerError
from sojourn.epochs.wire import EncodedEpoch
from sojourn.server.models import LiveAsked

# A node that answers, or has been told that nobody asked, waits again within this time.
AWAY_SECONDS = 5.0
# A node with parts without end must not keep its asker, and a place among all requests, for ever.
MOST_WAITS = 4
MOST_NODES = 10_000


@dataclass
class _Node:
    waiting: int = 0
    requests: deque[LiveAsked] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class LiveReply:
    """What a node has answered so far; in the end not whole if parts of it did not come, or were too much."""

    node: str
    epochs: list[EncodedEpoch] = field(default_factory=list)
    is_whole: bool = False
    is_of_ledger: bool = False
    of_ledger: bytes | None = None
    size_bytes: int = 0
    is_closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


def epochs_of(replies: Mapping[str, LiveReply]) -> dict[tuple[str, str], list[bytes]]:
    """The packed epochs of nodes' answers, by node and stream."""
    current: dict[tuple[str, str], list[bytes]] = {}
    for node, reply in replies.items():
        for epoch in reply.epochs:
            current.setdefault((node, epoch.stream), []).append(epoch.data)
    return current


class Carrier(Protocol):
    """Another way to nodes than the requests that they wait with."""

    def reaches(self, node: str) -> bool:
        """Whether the node can be asked this way now; safe from several threads."""

    def carry(self, node: str, request: LiveAsked, seconds: float) -> None:
        """Ask the node, which has so long to answer."""

    def spread_assignments(self, nodes: Iterable[str]) -> None:
        """Let nodes have their assignments as they are now, those that are away when they come back."""


class LiveDesk:
    """Passes requests to nodes and their answers back; belongs to one event loop."""

    def __init__(
        self,
        *,
        most_pending: int,
        most_bytes: int,
        most_together: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_pending, self._most_bytes = most_pending, most_bytes
        self._most_together = most_bytes if most_together is None else most_together
        self._clock = clock
        self._nodes: dict[str, _Node] = {}
        self._heard: OrderedDict[str, float] = OrderedDict()
        self._asked: dict[str, LiveReply] = {}
        self.carrier: Carrier | None = None

    def is_listening(self, node: str) -> bool:
        """Whether the node waits for requests, or did a moment ago, or can be asked through a broker."""
        if self._is_carried(node):
            return True
        state = self._nodes.get(node)  # other threads may ask: what is there must not be looked up twice
        waits = state is not None and state.waiting > 0
        return waits or self._clock() - self._heard.get(node, -AWAY_SECONDS) < AWAY_SECONDS

    def _is_carried(self, node: str) -> bool:
        return self.carrier is not None and self.carrier.reaches(node)

    def _hear(self, node: str) -> None:
        self._heard[node] = self._clock()
        self._heard.move_to_end(node)
        if len(self._heard) > MOST_NODES:
            self._heard.popitem(last=False)

    async def next_request(self, node: str, seconds: float) -> LiveAsked | None:
        """What the node is asked next; None after waiting that long in vain."""
        state = self._nodes.setdefault(node, _Node())
        state.waiting += 1
        try:
            while not state.requests:
                state.arrived.clear()
                await asyncio.wait_for(state.arrived.wait(), seconds)
            return state.requests.popleft()
        except TimeoutError:
            return None
        finally:
            state.waiting -= 1
            self._hear(node)
            self._forget_idle(node, state)

    def _forget_idle(self, node: str, state: _Node) -> None:
        # It may have been forgotten before: what the node waits at now is another's, with requests of its own.
        if not state.waiting and not state.requests and self._nodes.get(node) is state:
            del self._nodes[node]

    async def ask(
        self, node: str, streams: tuple[str, ...], from_ns: int, to_ns: int, seconds: float
    ) -> LiveReply | None:
        """The node's epochs; None if nothing comes in time, what came if the rest does not.

        `seconds` is how long each part is waited for.
        """
        request = LiveAsked(id=secrets.token_hex(8), streams=list(streams), from_ns=from_ns, to_ns=to_ns)
        return await self._ask(node, request, seconds)

    async def ask_ledger(self, node: str, stream: str, question: str, seconds: float) -> bytes | None:
        """What the ledger of a node's stream replies (`segments.fleet.ledgers`); None if nothing comes."""
        asked = LiveAsked(id=secrets.token_hex(8), streams=[stream], from_ns=0, to_ns=0, ledger=question)
        reply = await self._ask(node, asked, seconds)
        return None if reply is None else reply.of_ledger

    async def _ask(self, node: str, request: LiveAsked, seconds: float) -> LiveReply | None:
        if len(self._asked) >= self._most_pending:
            raise ServerError("too many live queries are waiting", action="try again in a few seconds")
        asked = self._asked[request.id] = LiveReply(node, is_of_ledger=request.ledger is not None)
        state = self._nodes.setdefault(node, _Node())
        if self.carrier is not None and not state.waiting and self.carrier.reaches(node):
            self.carrier.carry(node, request, seconds)
        else:
            state.requests.append(request)
            state.arrived.set()
        try:
            async with asyncio.timeout(MOST_WAITS * seconds):
                while not asked.is_closed:
                    asked.changed.clear()
                    await asyncio.wait_for(asked.changed.wait(), seconds)
            return asked
        except TimeoutError:
            return asked if asked.epochs else None
        finally:
            del self._asked[request.id]
            if request in state.requests:
                state.requests.remove(request)
            self._forget_idle(node, state)

    async def ask_all(
        self, streams: Iterable[tuple[str, str]], from_ns: int, to_ns: int, seconds: float
    ) -> dict[str, LiveReply]:
        """What nodes hold of their streams that has not been stored; those that do not answer are left out."""
        by_node: dict[str, tuple[str, ...]] = {}
        for node, stream in streams:
            by_node[node] = (*by_node.get(node, ()), stream)
        reachable = {node: names for node, names in by_node.items() if self.is_listening(node)}
        replies = await asyncio.gather(*(self.ask(*one, from_ns, to_ns, seconds) for one in reachable.items()))
        return {node: reply for node, reply in zip(reachable, replies, strict=True) if reply is not None}

    async def wake(self, nodes: Iterable[str], seconds: float) -> None:
        """Have nodes look at their assignments at once, those that listen; the others will look by themselves."""
        changed = set(nodes)
        if self.carrier is not None:
            self.carrier.spread_assignments(changed)
        reached = [node for node in changed if self.is_listening(node) and not self._is_carried(node)]
        # Where too many are asked at once, the rest looks a little later.
        await asyncio.gather(*(self.ask(node, (), 0, 0, seconds) for node in reached), return_exceptions=True)

    def is_asked(self, node: str, request_id: str) -> bool:
        """Whether somebody waits for (more of) a node's answer."""
        asked = self._asked.get(request_id)
        return asked is not None and asked.node == node and not asked.is_closed

    def is_of_ledger(self, request_id: str) -> bool:
        """Whether the answer is a ledger's, and no epochs."""
        asked = self._asked.get(request_id)
        return asked is not None and asked.is_of_ledger

    def answer_of_ledger(self, node: str, request_id: str, reply: bytes) -> bool:
        """Hand in what a node's ledger tells; False if nobody waits for it (any more), or it is too much."""
        together = sum(one.size_bytes for one in self._asked.values()) + len(reply)
        if not self.is_asked(node, request_id) or together > self._most_together:
            return False
        self._hear(node)
        asked = self._asked[request_id]
        asked.of_ledger, asked.size_bytes = reply, len(reply)
        asked.is_whole = asked.is_closed = True
        asked.changed.set()
        return True

    def answer(self, node: str, request_id: str, epochs: list[EncodedEpoch], *, size_bytes: int, more: bool) -> bool:
        """Hand in a node's epochs, all or a part; False if nobody waits for them (any more)."""
        if not self.is_asked(node, request_id):
            return False
        self._hear(node)
        asked = self._asked[request_id]
        together = sum(one.size_bytes for one in self._asked.values()) + size_bytes
        is_too_much = asked.size_bytes + size_bytes > self._most_bytes or together > self._most_together
        if not is_too_much:
            asked.size_bytes += size_bytes
            asked.epochs += epochs
            asked.is_whole = not more
        asked.is_closed = not more or is_too_much
        asked.changed.set()
        return True
