"""Live requests: asking a node for the epoch that it is still recording.

Nodes are reached the way they reach us: a node waits for requests (a long poll), and answers one with snapshots of its
open epochs. Nothing needs a route to the node. A request lives at most as long as its asker waits; an answer that
nobody waits for any more is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field

from sojourn.core.errors import ServerError
from sojourn.epochs.epoch import Epoch

__all__ = ["LiveDesk", "LiveRequest"]


@dataclass(frozen=True)
class LiveRequest:
    """What a node is asked: snapshots of these streams."""

    id: str
    streams: tuple[str, ...]


@dataclass
class _Node:
    waiting: int = 0
    requests: deque[LiveRequest] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class LiveDesk:
    """Passes requests to nodes and their answers back; belongs to one event loop."""

    def __init__(self, *, most_pending: int) -> None:
        self._most_pending = most_pending
        self._nodes: dict[str, _Node] = {}
        self._answers: dict[str, tuple[str, asyncio.Future[list[Epoch]]]] = {}

    def is_listening(self, node: str) -> bool:
        """Whether the node waits for requests now."""
        return node in self._nodes and self._nodes[node].waiting > 0

    async def next_request(self, node: str, seconds: float) -> LiveRequest | None:
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
            if not state.waiting and not state.requests:
                self._nodes.pop(node, None)

    async def ask(self, node: str, streams: tuple[str, ...], seconds: float) -> list[Epoch] | None:
        """The node's snapshots; None if it does not answer in time."""
        if len(self._answers) >= self._most_pending:
            raise ServerError("too many live queries are waiting", action="try again in a few seconds")
        request = LiveRequest(secrets.token_hex(8), streams)
        future: asyncio.Future[list[Epoch]] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = (node, future)
        state = self._nodes.setdefault(node, _Node())
        state.requests.append(request)
        state.arrived.set()
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return None
        finally:
            del self._answers[request.id]
            if request in state.requests:
                state.requests.remove(request)
            if not state.waiting and not state.requests:
                self._nodes.pop(node, None)

    def answer(self, node: str, request_id: str, epochs: list[Epoch]) -> bool:
        """Hand in a node's snapshots; False if nobody waits for them any more."""
        asked, future = self._answers.get(request_id, (None, None))
        if asked != node or future is None or future.done():
            return False
        future.set_result(epochs)
        return True
