"""Reaching nodes through a broker: who is there, questions to them, and what they are assigned, retained.

Guarantee: what a broker retains of assignments becomes what the store has, whoever changed it and whatever happened in
between. A change is published at once; besides, every query unit sees what the broker retains, and once a minute
publishes what differs from the store: a broker that lost its memory, a query unit that was killed after a commit, or
two that published in the other order are all made good. A node without assignments has nothing retained.
Cost: 16 bytes for each node that is assigned something, and a few dozen for each that is there; one read of all
assignments a minute.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from sojourn.core.errors import SojournError
from sojourn.node.transports.broker import Outgoing
from sojourn.node.transports.mqtt import PRESENCE_SECONDS
from sojourn.node.transports.topics import NodeTopics
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.models import LiveAsked
from sojourn.server.upkeep import Periodic

SYNC_SECONDS = 60.0
LOOK_SECONDS, RETRY_SECONDS = 1.0, 5.0
MOST_NODES = 200_000
# More agents than this under one name are not kept apart: one of them has the name.
NODE_AGENTS = 4
MOST_AGENT = 64
_NOTHING = b""
_LOG = logging.getLogger("sojourn.broker")


class BrokerCarrier:
    """Carries questions to nodes that are present; notes come from the event loop, `reaches` from any thread."""

    def __init__(
        self,
        *,
        unit: str,
        post: Callable[[Outgoing], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._post, self._clock = unit, post, clock
        self._present: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._retained: dict[str, bytes] = {}
        self._changed: set[str] = set()
        self.has_changes = threading.Event()

    def reaches(self, node: str) -> bool:
        agents = self._present.get(node)
        return agents is not None and any(until > self._clock() for until in list(agents.values()))

    def carry(self, node: str, request: LiveAsked, seconds: float) -> None:
        topics = NodeTopics(node)
        self._post(
            Outgoing(
                topics.down("questions"),
                request.model_dump_json().encode(),
                response_topic=topics.up(f"answers/{self._unit}"),
                correlation=request.id.encode(),
                expires_seconds=max(1, math.ceil(seconds)),
            )
        )

    def note_presence(self, node: str, agent: str, payload: bytes) -> None:
        """An agent is there, or has gone (nothing is retained of it any more)."""
        agents = self._present.pop(node, {})
        agents.pop(agent, None)
        if payload and len(agent) <= MOST_AGENT:
            agents[agent] = self._clock() + PRESENCE_SECONDS
        while len(agents) > NODE_AGENTS:
            del agents[next(iter(agents))]
        if agents:
            self._present[node] = agents
        if len(self._present) > MOST_NODES:
            self._present.popitem(last=False)

    def note_assignments(self, node: str, payload: bytes) -> None:
        """What the broker retains for a node now."""
        if payload:
            self._retained[node] = _digest(payload)
        else:
            self._retained.pop(node, None)

    def forget_all(self) -> None:
        """The broker is away, and tells everything anew when it is back."""
        self._present.clear()
        self._retained.clear()

    def spread_assignments(self, nodes: Iterable[str]) -> None:
        self._changed.update(nodes)
        self.has_changes.set()

    def take_changed(self) -> set[str]:
        """The nodes whose assignments changed since the last time."""
        self.has_changes.clear()
        changed, self._changed = self._changed, set()
        return changed

    def retained_for(self) -> set[str]:
        """The nodes that the broker retains something for."""
        return set(self._retained)

    def retain(self, node: str, version: int, streams: Mapping[str, object]) -> bool:
        """Have the broker retain a node's assignments, unless it does; whether it had to be told."""
        payload = json.dumps({"version": version, "streams": streams}, sort_keys=True).encode() if streams else _NOTHING
        if self._retained.get(node, _NOTHING) == (_digest(payload) if payload else _NOTHING):
            return False
        self._post(Outgoing(NodeTopics(node).down("assignments"), payload, is_retained=True))
        return True


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


class AssignmentSpreader(Periodic):
    """Publishes assignments that changed as soon as they did, and whatever differs once a minute."""

    def __init__(self, assigned: AssignmentStore, carrier: BrokerCarrier) -> None:
        self._assigned, self._carrier = assigned, carrier
        self._due = float("inf")
        super().__init__("sojourn-assignments", 0.0)

    def stop(self) -> None:
        self._stopping.set()
        self._carrier.has_changes.set()
        super().stop()

    def note_broker(self, *, is_there: bool) -> None:
        """With a new connection all that is retained comes first; then what differs is published."""
        self._due = time.monotonic() + LOOK_SECONDS if is_there else float("inf")
        self._carrier.has_changes.set()

    def work(self) -> None:
        """Wait for a change, or until all is due to be compared."""
        left = self._due - time.monotonic()
        self._carrier.has_changes.wait(min(max(0.0, left), SYNC_SECONDS))
        if self._stopping.is_set():
            return
        try:
            for node in self._carrier.take_changed():
                self._carrier.retain(node, *self._assigned.of(node))
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + SYNC_SECONDS
                self._compare_all()
        except SojournError as error:
            # What is left is found by comparing everything.
            _LOG.warning("warning: assignments could not be published: %s", error)
            self._due = min(self._due, time.monotonic() + RETRY_SECONDS)

    def _compare_all(self) -> None:
        gone = self._carrier.retained_for()
        for node, version, streams in self._assigned.each():
            gone.discard(node)
            self._carrier.retain(node, version, streams)
            if self._stopping.is_set():
                return
        for node in gone:
            # What was assigned a moment ago may have been read before: the store has the last word.
            self._carrier.retain(node, *self._assigned.of(node))
