"""Intake: what a node hands over or asks for, the same whether it comes over HTTP or MQTT.

Guarantee: the two ways differ in how a node proves its name (a token, or the topic that a broker lets it publish on)
and in nothing else. Epochs of a message are stored all or none, copies are recognised by node, stream and sequence, and
nothing is taken under a name that the sender may not use. What is refused raises an `HTTPException`, whose status is
the reason's number on either way, a `TakenError` or a `SojournError`; `explained` makes a number and a line of each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError

from sojourn.core.errors import SojournError
from sojourn.epochs.wire import EncodedEpoch
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.inventory import InventoryStore
from sojourn.server.control.models import ReportedStates
from sojourn.server.control.owners import OwnerStore, TakenError
from sojourn.server.control.quotas import Quotas
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.access import checked_name
from sojourn.server.door.allowances import Allowances
from sojourn.server.door.gate import MOST_DETAIL, explain_faults, status_of
from sojourn.server.door.limits import IngestDesk, Limits, checked_epochs
from sojourn.server.models import Assignments, EpochResults, Stream, StreamInfo, StreamStates
from sojourn.server.queries.live import LiveDesk
from sojourn.server.telemetry import Telemetry
from sojourn.store.arrivals import Status
from sojourn.store.epochs import EpochStore, StreamRecord

MayWrite = Callable[[str], object]


@dataclass(frozen=True)
class Intake:
    """The parts of a query unit that nodes' messages reach; the asynchronous methods belong to its event loop."""

    store: EpochStore
    owners: OwnerStore
    states: StreamStateStore
    inventory: InventoryStore
    quotas: Quotas
    assigned: AssignmentStore
    live: LiveDesk
    desk: IngestDesk
    limits: Limits
    allowances: Allowances
    telemetry: Telemetry

    async def require_bytes(self, node: str) -> None:
        """Refuse epochs of a node that has sent what it may, before they are read."""
        await self.desk.run(self.quotas.require_bytes, node)

    async def add_epochs(self, body: bytes, *, caller: str, may_write: MayWrite, instance: str | None) -> EpochResults:
        """Store one or more epochs; `may_write` raises for a node that the caller may not send as."""
        # All of it in one thread, and at once: handing on what one thread found to another costs as much as finding it.
        async with self.desk.turn(caller):
            epochs, statuses = await self.desk.run(self._take, body, may_write, instance)
        for status, count in Counter(statuses).items():
            self.telemetry.epochs.labels(status.value).inc(count)
        return EpochResults.model_validate(
            {
                "results": [
                    {"node": epoch.node, "stream": epoch.stream, "sequence": epoch.sequence, "status": str(status)}
                    for epoch, status in zip(epochs, statuses, strict=True)
                ]
            }
        )

    def _take(self, body: bytes, may_write: MayWrite, instance: str | None) -> tuple[list[EncodedEpoch], list[Status]]:
        """The epochs of a body, and what became of each."""
        epochs = checked_epochs(body, self.limits)
        if not epochs:
            raise HTTPException(400, "the body holds no epoch")
        by_node: dict[str, list[EncodedEpoch]] = {}
        for epoch in epochs:
            by_node.setdefault(epoch.node, []).append(epoch)
        streams = {node: {epoch.stream for epoch in its} for node, its in by_node.items()}
        for node, names in streams.items():
            may_write(checked_name(node))
            for name in names:
                checked_name(name)
        for node, its in by_node.items():
            self.quotas.take(node, its)
            self.owners.claim(node, streams[node], instance)
        return epochs, self.store.add_encoded(epochs)

    async def answer(self, node: str, request_id: str, body: bytes, *, more: bool) -> None:
        """Hand a node's answer, or a part of it, to whoever waits for it; parts keep the order in which they came."""
        if not self.live.is_asked(node, request_id):
            raise HTTPException(404, "nobody waits for that answer")
        if self.live.is_of_ledger(request_id):
            if not self.live.answer_of_ledger(node, request_id, body):
                raise HTTPException(404, "nobody waits for that answer")
            return
        async with self.desk.turn(f"live {node}"):
            epochs = await self.desk.run(checked_epochs, body, self.limits)
            if any(epoch.node != node for epoch in epochs):
                raise HTTPException(400, "a snapshot of another node")
            if not self.live.answer(node, request_id, epochs, size_bytes=len(body), more=more):
                raise HTTPException(404, "nobody waits for that answer")

    def announce(self, node: str, stream: str, body: Stream, instance: str | None) -> StreamInfo:
        """Remember what a stream measures; the answer tells the number that its epochs go on from."""
        record = StreamRecord(checked_name(node), checked_name(stream), **body.model_dump())
        self.quotas.require_streams(node, [stream])
        floor = self.owners.claim(node, [stream], instance)[stream]
        self.store.announce(record)
        known = [number for number in (self.store.last_sequence(node, stream), floor) if number is not None]
        return StreamInfo(**body.model_dump(), node=node, name=stream, last_sequence=max(known, default=None))

    def set_states(self, node: str, body: ReportedStates, instance: str | None) -> StreamStates:
        """Take down how all streams of a node fare, and its agent; streams left out are no longer recorded."""
        self.owners.require_owner(checked_name(node), instance)
        for stream in body.streams:
            checked_name(stream)
        self.states.replace(node, body.streams)
        if body.agent is not None:
            self.inventory.take_report(node, body.agent, now_ns=time.time_ns())
        return StreamStates(streams=body.streams)

    def assignments(self, node: str, instance: str | None) -> Assignments:
        """What a node shall record."""
        self.owners.require_owner(checked_name(node), instance)
        # An agent that has nothing to record yet is a node, too: somebody has to see it to assign it something.
        self.store.meet(node)
        version, streams = self.assigned.of(node)
        return Assignments.model_validate({"version": version, "streams": streams})


def explained(error: Exception) -> tuple[int, str]:
    """The number and the line of a refusal; raises what is none."""
    match error:
        case HTTPException():
            return error.status_code, str(error.detail)
        case TakenError():
            return 409, str(error)
        case RequestValidationError():
            return 422, explain_faults(error.errors())
        case SojournError():
            return status_of(error), str(error)[:MOST_DETAIL]
    raise error
