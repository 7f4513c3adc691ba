"""Messages of nodes that come through a broker: each is checked, handed to the intake, and answered to its node.

Guarantee: a broker vouches for the topic that a message came on, and for nothing else. A message is that of the topic's
node alone; epochs of another node are refused, answers go to topics of the same node only, whatever the message asks
for, and a topic that spells a node's name otherwise is nobody's. One node cannot stop the others: it has a rate and a
few messages at once, beyond which it is told to wait; whatever is wrong is refused to it with a reason, counted, and
logged every ten seconds at most. Messages at QoS 0, which no flow control holds back, are not taken.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial

from fastapi import HTTPException
from pydantic import BaseModel

from sojourn.node.transports.broker import Arrived, Outgoing
from sojourn.node.transports.mqtt import INSTANCE_PROPERTY, MORE_PROPERTY
from sojourn.node.transports.topics import GROUP, REQUESTS, ROOT, NodeTopics, parsed_topic
from sojourn.server.control.models import ReportedStates
from sojourn.server.door.gate import parsed
from sojourn.server.door.limits import SparingLog
from sojourn.server.ingest.intake import Intake, explained
from sojourn.server.ingest.reaching import BrokerCarrier
from sojourn.server.models import AnnouncedStream, Released, Stream

# At once, of one node: its agent sends one after the other, and asks beside that.
NODE_MESSAGES = 4
MOST_CORRELATION = 128
REPLY_SECONDS = 60
_INSTANCE = re.compile(r"[0-9a-f]{8,64}")
_LOG = logging.getLogger("sojourn.messages")

Handler = Callable[[str, bytes, str | None], Awaitable[BaseModel]]
Post = Callable[[Outgoing], object]


class Takes(Enum):
    """Which messages a process of a query unit takes."""

    ALL = auto()
    REQUESTS = auto()  # of nodes, which any process answers
    REST = auto()  # what the one process has to know that asks nodes and tells them what to record


def filters(unit: str, takes: Takes) -> list[str]:
    """What a process subscribes to: requests with all others of its group, the rest by itself."""
    shared = [f"{GROUP}/{ROOT}/+/up/{what}" for what in REQUESTS]
    own = [f"{ROOT}/+/up/answers/{unit}", f"{ROOT}/+/up/presence/+", f"{ROOT}/+/down/assignments"]
    return {Takes.ALL: shared + own, Takes.REQUESTS: shared, Takes.REST: own}[takes]


class MessageDesk:
    """Works messages off; belongs to one event loop."""

    def __init__(self, intake: Intake, carrier: BrokerCarrier, *, unit: str, post: Post) -> None:
        self._intake, self._carrier = intake, carrier
        self._unit, self._post = unit, post
        self._rates = intake.allowances.messages
        self._running: Counter[str] = Counter()
        self._log = SparingLog(_LOG)
        self._handlers: dict[str, Handler] = {
            "epochs": self._epochs,
            "announce": self._announce,
            "states": self._states,
            "assignments": self._assignments,
            "release": self._release,
        }

    async def work(self, message: Arrived) -> None:
        """One message, whatever it is."""
        place = parsed_topic(message.topic)
        if place is None:
            return self._ignore("no topic of a node", message)
        node, way, what = place
        if way == "down":
            self._carrier.note_assignments(node, message.payload)
            return None
        if message.qos == 0:
            return self._ignore("sent at QoS 0", message)
        kind, _, rest = what.partition("/")
        if kind == "presence":
            self._carrier.note_presence(node, rest, message.payload)
            return None
        if kind != "answers" and (kind not in self._handlers or rest):
            return self._ignore("no topic of a node", message)
        await self._admitted(node, kind, message)
        return None

    def _ignore(self, reason: str, message: Arrived) -> None:
        self._intake.telemetry.messages_ignored.labels(reason).inc()
        self._log.warn(f"a message on {message.topic[:200]!r} is ignored: {reason}")

    async def _admitted(self, node: str, kind: str, message: Arrived) -> None:
        """Work off a node's message within its limits, and answer it."""
        self._running[node] += 1
        try:
            self._require_room(node, kind)
            status, reply = 200, await self._handled(node, kind, message)
        except Exception as error:
            status, reply = self._refused(error)
        finally:
            self._running[node] -= 1
            if not self._running[node]:
                del self._running[node]
        self._intake.telemetry.messages.labels(kind, str(status)).inc()
        if status in (400, 403, 413, 422) or status >= 500:
            self._log.warn(f"{kind} of node {node} refused ({status}): {reply}")
        if kind != "answers":
            self._reply(node, message, status, reply)

    def _require_room(self, node: str, kind: str) -> None:
        if seconds := self._rates.wait_seconds(node):
            raise HTTPException(429, f"too many messages; come back in {seconds:.0f} s")
        # The parts of an answer come as fast as the broker takes them; their size is limited where they are asked for.
        if kind != "answers" and self._running[node] > NODE_MESSAGES:
            raise HTTPException(429, "too many messages at once of this node")

    async def _handled(self, node: str, kind: str, message: Arrived) -> BaseModel | str:
        limits = self._intake.limits
        most = limits.body_bytes if kind in ("epochs", "answers") else min(limits.json_bytes, limits.body_bytes)
        if len(message.payload) > most:
            raise HTTPException(413, f"the message exceeds {most} bytes")
        if kind == "answers":
            asked = (message.correlation or b"").decode("ascii", "replace")
            is_part = message.user.get(MORE_PROPERTY) == "true"
            await self._intake.answer(node, asked, message.payload, more=is_part)
            return ""
        instance = message.user.get(INSTANCE_PROPERTY)
        if instance is not None and not _INSTANCE.fullmatch(instance):
            raise HTTPException(422, f"{INSTANCE_PROPERTY}: 8 to 64 of the digits 0-9 and a-f")
        return await self._handlers[kind](node, message.payload, instance)

    def _refused(self, error: Exception) -> tuple[int, str]:
        try:
            return explained(error)
        except Exception:
            _LOG.error("error: a message went wrong: %r", error)
            return 500, "a fault of the query unit, which its log has"

    def _reply(self, node: str, message: Arrived, status: int, reply: BaseModel | str) -> None:
        topics = NodeTopics(node)
        to = message.response_topic
        if isinstance(reply, BaseModel):
            said = f'"body": {reply.model_dump_json()}'
        else:
            said = f'"detail": {json.dumps(reply)}'
        self._post(
            Outgoing(
                # A client of MQTT 3.1.1 cannot name a topic; it reads all replies to its node.
                to if to is not None and topics.is_reply(to) else topics.down("replies"),
                f'{{"status": {status}, "unit": {json.dumps(self._unit)}, {said}}}'.encode(),
                correlation=None if message.correlation is None else message.correlation[:MOST_CORRELATION],
                expires_seconds=REPLY_SECONDS,
            )
        )

    async def _epochs(self, node: str, payload: bytes, instance: str | None) -> BaseModel:
        may_write = partial(_must_be, node)
        await self._intake.require_bytes(node)
        return await self._intake.add_epochs(payload, caller=f"node {node}", may_write=may_write, instance=instance)

    async def _announce(self, node: str, payload: bytes, instance: str | None) -> BaseModel:
        body = parsed(AnnouncedStream, payload)
        stream = Stream(**body.model_dump(exclude={"stream"}))
        return await self._intake.desk.run(self._intake.announce, node, body.stream, stream, instance)

    async def _states(self, node: str, payload: bytes, instance: str | None) -> BaseModel:
        return await self._intake.desk.run(self._intake.set_states, node, parsed(ReportedStates, payload), instance)

    async def _assignments(self, node: str, _payload: bytes, instance: str | None) -> BaseModel:
        return await self._intake.desk.run(self._intake.assignments, node, instance)

    async def _release(self, node: str, _payload: bytes, instance: str | None) -> BaseModel:
        if instance is None:
            raise HTTPException(403, "only an admin releases the name of another agent")
        return Released(streams=await self._intake.desk.run(self._intake.owners.leave, node, instance))


def _must_be(node: str, other: str) -> None:
    if node != other:
        raise HTTPException(403, f"the topic is that of node {node}, not {other[:200]}")
