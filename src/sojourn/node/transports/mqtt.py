"""The MQTT transport: a node reaches query units through a broker, by MQTT 5's requests and responses.

Guarantee: the meaning of every call is that of HTTP. Epochs are acknowledged by the query unit that has stored them, in
a reply on the node's own topic: that the broker has taken a message (PUBACK) acknowledges nothing. Without a reply
they are sent again (`TransportError`): at least once on the way, exactly once in the store, which knows copies. The
query unit's numbers for refusals are HTTP's, so the agent does the same about them.

What HTTP asks for again and again comes by itself: assignments are retained at the broker and come with the connection
and with every change; questions come as messages; that the agent listens is a retained message that its will clears.
Who has not heard of a query unit for `HEARTBEAT_SECONDS` asks for its assignments, so that its name stays its own.
Cost: one connection, two messages for each call; nothing is kept at the broker for a node but its presence.
"""

from __future__ import annotations

import json
import math
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from sojourn import __version__
from sojourn.node.transports.broker import Arrived, BrokerAccess, BrokerConnection, NobodyError, Outgoing
from sojourn.node.transports.forms import (
    Assigned,
    assigned,
    checked_object,
    described,
    last_sequence,
    parsed,
    question,
    receipts,
    told_states,
)
from sojourn.node.transports.topics import MOST_PAYLOAD_BYTES, NodeTopics
from sojourn.node.transports.transport import (
    AgentReport,
    Announcement,
    Asked,
    NameTakenError,
    NoAnswerError,
    Receipt,
    RefusedError,
    StreamState,
    TooLargeError,
    TransportError,
    for_node,
    refusal,
)

TIMEOUT_SECONDS = 10.0
# A slow uplink may take this long for a batch beside the time for the answer.
SLOWEST_BYTES_PER_SECOND = 64 << 10
# Of what comes to a node, at most so much is on its way at once.
RECEIVE_MAXIMUM = 16
# Half of what an owner may be silent for, and less.
HEARTBEAT_SECONDS = 120.0
# A broker that restarts sends no wills: what it retains of presence ends by itself.
PRESENCE_SECONDS, REFRESH_SECONDS = 600, 240.0
MOST_QUESTIONS = 100
MOST_UNITS = 64
INSTANCE_PROPERTY = "Sojourn-Instance"
MORE_PROPERTY = "more"
# What stands in the queue of questions for a change of assignments.
_LOOK = Asked("", ())


class MqttTransport:
    """A node's way to the query units at a broker; safe from several threads."""

    def __init__(
        self,
        access: BrokerAccess,
        *,
        node: str,
        instance: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.server = access.url
        self._access = access
        self._topics = NodeTopics(node)
        self._instance = instance
        self._agent = instance or secrets.token_hex(16)
        self._timeout = timeout_seconds
        self._deadline: float | None = None
        self._connecting = threading.Lock()
        self._connection: BrokerConnection | None = None
        self._is_closed = False
        self._connected_at = self._answered_at = self._present_at = float("-inf")
        self._replies: dict[bytes, Future[Any]] = {}
        self._questions: queue.Queue[Asked | TransportError] = queue.Queue(MOST_QUESTIONS)
        self._to_answer: OrderedDict[str, tuple[str, bytes | None]] = OrderedDict()
        self._retained: Assigned | None = None
        self._taken: NameTakenError | None = None
        self._units: list[str] = []

    def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(with_will=True)

    def hurry(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _allowed(self, size: int = 0) -> float:
        allowed = self._timeout + size / SLOWEST_BYTES_PER_SECOND
        return allowed if self._deadline is None else max(0.1, min(allowed, self._deadline - time.monotonic()))

    def _connected(self) -> BrokerConnection:
        """The connection, made anew if it was lost; whoever needs it first makes it, and the others wait."""
        allowed = self._allowed()
        if not self._connecting.acquire(timeout=allowed):
            raise NoAnswerError("does not answer", where=self.server, action="is the broker overloaded?")
        try:
            if self._is_closed:
                raise TransportError("the connection was closed", where=self.server)
            if self._connection is None or not self._connection.is_open:
                if self._connection is not None:
                    self._connection.close()
                self._connection = self._new_connection(allowed)
            return self._connection
        finally:
            self._connecting.release()

    def _new_connection(self, seconds: float) -> BrokerConnection:
        self._retained, self._present_at = None, float("-inf")
        # Questions of before are over, and so is the word that the connection was lost.
        with suppress(queue.Empty):
            while True:
                self._questions.get_nowait()
        connection = BrokerConnection(
            self._access,
            client_id=f"sojourn-{self._agent}",
            receive_maximum=RECEIVE_MAXIMUM,
            arrived=self._arrived,
            lost=self._lost,
            will=Outgoing(self._topics.up(f"presence/{self._agent}"), b"", is_retained=True),
        )
        connection.open(seconds)
        down = [f"replies/{self._agent}", "assignments", "questions"]
        try:
            connection.subscribe([self._topics.down(what) for what in down], seconds=seconds)
        except (TransportError, RefusedError):
            connection.close()
            raise
        self._connected_at = time.monotonic()
        return connection

    def _lost(self, why: TransportError) -> None:
        for waiting in list(self._replies.values()):
            with suppress(Exception):
                waiting.set_exception(why)
        self._put(why)

    def _put(self, found: Asked | TransportError) -> None:
        with suppress(queue.Full):
            self._questions.put_nowait(found)

    def _arrived(self, message: Arrived) -> None:
        """Sort what came; in the connection's thread, so nothing here waits."""
        try:
            if message.topic == self._topics.down("questions"):
                self._take_question(message)
            elif message.topic == self._topics.down("assignments"):
                self._take_assignments(message)
            elif message.correlation is not None:
                waiting = self._replies.get(message.correlation)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.payload)
        except TransportError:
            pass  # somebody else's words on our topics: neither an answer nor a question
        finally:
            message.done()

    def _take_question(self, message: Arrived) -> None:
        to = message.response_topic
        if self._taken is not None or to is None or not self._topics.is_for_answers(to):
            return
        asked = question(parsed(message.payload, self.server), self.server)
        self._to_answer[asked.id] = to, message.correlation
        while len(self._to_answer) > MOST_QUESTIONS:
            self._to_answer.popitem(last=False)
        self._put(asked)

    def _take_assignments(self, message: Arrived) -> None:
        """Keep what is retained; where nothing is (any more), a query unit is asked."""
        self._retained = assigned(parsed(message.payload, self.server), self.server) if message.payload else None
        self._put(_LOOK)

    def _ask(self, what: str, payload: bytes) -> Any:
        """A query unit's answer to a message; raises its refusal."""
        if len(payload) > MOST_PAYLOAD_BYTES:
            raise TooLargeError(
                f"takes messages of at most {MOST_PAYLOAD_BYTES:,} bytes (413)", where=self.server, status=413
            )
        deadline = time.monotonic() + self._allowed(len(payload))
        connection = self._connected()
        correlation = secrets.token_bytes(12)
        waiting = self._replies[correlation] = Future()
        message = Outgoing(
            self._topics.up(what),
            payload,
            response_topic=self._topics.down(f"replies/{self._agent}"),
            correlation=correlation,
            user={INSTANCE_PROPERTY: self._instance} if self._instance else {},
            # Nobody waits for the answer later: it is sent again, and must not be worked off twice after an outage.
            expires_seconds=max(1, math.ceil(deadline - time.monotonic())),
        )
        try:
            connection.publish(message, seconds=deadline - time.monotonic())
            reply = waiting.result(max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            raise NoAnswerError(
                "the broker took it, and no query unit answered in time", where=self.server, action="is one overloaded?"
            ) from None
        finally:
            del self._replies[correlation]
        return self._understood(reply)

    def _understood(self, reply: bytes) -> Any:
        answer = checked_object(parsed(reply, self.server), self.server, status=int, unit=str)
        status = answer["status"]
        self._meet(answer["unit"])
        if 200 <= status < 300:
            self._taken = None
            self._answered_at = time.monotonic()
            return answer.get("body")
        detail = " ".join(str(answer.get("detail", "")).split())[:300]
        refused = refusal(status, detail, self.server)
        if not isinstance(refused, RefusedError):
            raise refused
        error = for_node(refused)
        if isinstance(error, NameTakenError):
            self._taken = error
            self._withdraw()
        raise error

    def _meet(self, unit: str) -> None:
        """Notice a query unit that has not answered before: after a restart it may know nothing of our streams."""
        if unit in self._units:
            return
        if self._units:
            self._put(TransportError("another query unit answers", where=self.server))
        self._units = [*self._units[-MOST_UNITS:], unit]

    def announce(self, announcement: Announcement) -> int | None:
        body = {"stream": announcement.stream, **described(announcement)}
        return last_sequence(self._ask("announce", _json(body)), self.server)

    def send(self, epochs: list[bytes]) -> list[Receipt]:
        return receipts(self._ask("epochs", b"".join(epochs)), self.server, sent=len(epochs))

    def assignments(self) -> Assigned:
        heard = max(self._connected_at, self._answered_at)
        if self._retained is not None and self._taken is None and time.monotonic() - heard < HEARTBEAT_SECONDS:
            return self._retained
        found = assigned(self._ask("assignments", b""), self.server)
        if found != self._retained:
            # The broker is behind the store: a query unit is asked until it has something new.
            self._retained = None
        return found

    def report_states(self, states: Mapping[str, StreamState], agent: AgentReport | None = None) -> None:
        checked_object(self._ask("states", _json(told_states(states, agent))), self.server, streams=dict)

    def leave(self) -> None:
        if self._instance:
            self._ask("release", b"")

    def next_question(self, wait_seconds: float) -> Asked | None:
        connection = self._connected()
        if self._taken is not None:
            raise self._taken
        self._show_presence(connection)
        try:
            found = self._questions.get(timeout=max(0.0, wait_seconds))
        except queue.Empty:
            return None
        if isinstance(found, TransportError):
            raise found
        return found

    def _show_presence(self, connection: BrokerConnection) -> None:
        if time.monotonic() - self._present_at < REFRESH_SECONDS:
            return
        payload = _json({"agent": self._agent, "version": __version__})
        topic = self._topics.up(f"presence/{self._agent}")
        message = Outgoing(topic, payload, is_retained=True, expires_seconds=PRESENCE_SECONDS)
        # Where nobody looks at present, it is retained for those who will.
        with suppress(NobodyError):
            connection.publish(message, seconds=self._allowed())
        self._present_at = time.monotonic()

    def _withdraw(self) -> None:
        """Stop being asked, until the name is ours again."""
        connection, was = self._connection, self._present_at
        self._present_at = float("-inf")
        if connection is not None and was != float("-inf"):
            with suppress(TransportError, RefusedError):
                connection.post(Outgoing(self._topics.up(f"presence/{self._agent}"), b"", is_retained=True))

    def answer(self, asked: Asked, epochs: list[bytes], *, more: bool = False) -> None:
        if asked is _LOOK:
            return
        if asked.id not in self._to_answer:
            raise RefusedError("nobody waits for that answer", where=self.server, status=404)
        topic, correlation = self._to_answer[asked.id]
        if not more:
            del self._to_answer[asked.id]
        user = {MORE_PROPERTY: "true"} if more else {}
        payload = b"".join(epochs)
        message = Outgoing(topic, payload, correlation=correlation, user=user, expires_seconds=60)
        self._connected().publish(message, seconds=self._allowed(len(payload)))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
