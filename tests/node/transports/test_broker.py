"""Brokers as they are in the field, too small, silent or none at all; and no acknowledgement but a query unit's."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from query_unit import LIMITS, make_epoch, running_unit
from typer.testing import CliRunner

from mosquitto_broker import Broker, running_broker
from sojourn.cli.main import app
from sojourn.core.errors import UsageError
from sojourn.epochs.wire import encode
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.broker import Arrived, BrokerConnection, Outgoing, broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.topics import MOST_PAYLOAD_BYTES, NodeTopics
from sojourn.node.transports.transport import (
    Announcement,
    Asked,
    RefusedError,
    TooLargeError,
    TransportError,
)
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from waiting import PATIENCE_SECONDS, eventually

# What something that is no broker may answer to a CONNECT.
FRONTS = {
    "nothing": b"",
    "page": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>",
    "rubbish": bytes(range(256)),
    "an earlier MQTT": b"\x20\x02\x00\x01",
    "a packet without end": b"\x20\xff\xff\xff\x7f" + bytes(1000),
    "not now": b"\x20\x03\x00\x88\x00",
}


@contextmanager
def front(answer: bytes) -> Iterator[str]:
    """The address of somebody who answers every connection so, and then stays silent."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                kept.append(connection)
                connection.recv(1000)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield f"mqtt://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("kind", FRONTS)
def test_who_is_no_broker_is_a_failure_in_one_line_and_in_time(kind: str) -> None:
    with front(FRONTS[kind]) as url:
        transport = MqttTransport(broker_at(url, where="test"), node="alpha", timeout_seconds=1.0)
        begun = time.monotonic()
        with pytest.raises((TransportError, RefusedError)) as raised:
            transport.announce(Announcement("s", "cpu", "ns", "process"))
        assert time.monotonic() - begun < 60
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 1000
        assert str(raised.value).startswith(url)
        transport.close()


def test_no_more_is_on_its_way_than_the_broker_says_that_it_takes() -> None:
    """One that takes two messages at once, and acknowledges none: the others wait."""
    came = bytearray()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(1000)
        connection.sendall(b"\x20\x06\x00\x00\x03\x21\x00\x02")  # CONNACK with a receive maximum of 2
        with suppress(OSError):
            while data := connection.recv(1000):
                came.extend(data)

    threading.Thread(target=serve, daemon=True).start()
    access = broker_at(f"mqtt://127.0.0.1:{listening.getsockname()[1]}", where="test")
    connection = BrokerConnection(access, client_id="x", receive_maximum=5, arrived=lambda message: message.done())
    connection.open(PATIENCE_SECONDS)
    for _ in range(10):
        connection.post(Outgoing("a", b"a message"))
    eventually(lambda: came.count(b"a message") >= 2)
    connection._client.publish("a", b"the end")  # at QoS 0 nothing holds it back: it comes after all that was sent
    eventually(lambda: b"the end" in came)
    assert came.count(b"a message") == 2
    connection.close()
    listening.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Broker]:
    yield from running_broker(tmp_path / "broker")


class FalseUnit:
    """Somebody who may read nodes' messages at a broker, and answers them in words of its own."""

    def __init__(self, broker: Broker, reply: bytes, *, correlation: bytes | None = None) -> None:
        self._reply, self._correlation = reply, correlation
        self._connection = BrokerConnection(
            broker_at(broker.url, where="test"), client_id="false", receive_maximum=10, arrived=self._arrived
        )
        self._connection.open(PATIENCE_SECONDS)
        self._connection.subscribe(["$share/sojourn/sojourn/v1/+/up/#"], seconds=PATIENCE_SECONDS)

    def _arrived(self, message: Arrived) -> None:
        message.done()
        if message.response_topic is not None:
            correlation = self._correlation or message.correlation
            self._connection.post(Outgoing(message.response_topic, self._reply, correlation=correlation))

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"stored",
        b"[]",
        b"[" * 50_000,
        b'{"status": 200}',
        b'{"status": true, "unit": "u", "body": {}}',
        b'{"status": 200, "unit": "u"}',
        b'{"status": 200, "unit": "u", "body": {"results": []}}',
        b'{"status": 200, "unit": "u", "body": {"results": [{"stream": "disk", "sequence": 0, "status": "lost"}]}}',
        b'{"status": 503, "unit": "u", "detail": "the database is away"}',
    ],
    ids=range(10),
)
def test_no_other_words_than_a_query_units_are_an_acknowledgement(real: Broker, reply: bytes) -> None:
    with (
        closing(FalseUnit(real, reply)),
        closing(MqttTransport(broker_at(real.url, where="test"), node="alpha")) as transport,
        pytest.raises(TransportError),
    ):
        transport.send([encode(make_epoch())])


def test_a_reply_to_another_call_is_none_to_this_one(real: Broker) -> None:
    good = {"results": [{"stream": "disk", "sequence": 0, "status": "stored"}]}
    reply = json.dumps({"status": 200, "unit": "u", "body": good}).encode()
    transport = MqttTransport(broker_at(real.url, where="test"), node="alpha", timeout_seconds=1.0)
    late = pytest.raises(TransportError, match="no query unit answered in time")
    with closing(FalseUnit(real, reply, correlation=secrets.token_bytes(12))), closing(transport), late:
        transport.send([encode(make_epoch())])


def test_a_broker_of_small_packets_gets_small_batches_and_what_is_too_large_is_set_aside(tmp_path: Path) -> None:
    lines = ("allow_anonymous true", "max_packet_size 20000")
    sketch = BucketArray(BucketArrayParameters(buckets=4000, per_instance=2, bits=64))
    sketch.record(7, 5, 10**9)
    with contextmanager(running_broker)(tmp_path / "broker", *lines) as broker:
        for unit in running_unit(tmp_path / "data", LIMITS, broker=broker):
            with closing(Spool(tmp_path / "spool", limit_bytes=64 << 20)) as spool, closing(unit.transport()) as way:
                for sequence in range(150):
                    spool.put(make_epoch(sequence))
                spool.put(type(make_epoch())("alpha", "disk", 150, sketch, ()))
                reports: list[str] = []
                SpoolSender(spool, way, lock=threading.RLock(), report=reports.append).send_waiting()
                assert len(spool) == 0
            stored = [epoch.sequence for epoch in unit.store.epochs("alpha", "disk", 0, 2**62)]
            assert stored == list(range(150))
            (line,) = reports
            assert "takes packets of at most 20,000 bytes (413)" in line
            assert "set aside" in line


def test_a_message_that_no_query_unit_takes_is_not_sent_at_all() -> None:
    transport = MqttTransport(broker_at("mqtt://127.0.0.1:9", where="test"), node="alpha")
    with pytest.raises(TooLargeError):
        transport.send([bytes(MOST_PAYLOAD_BYTES + 1)])


def test_a_node_answers_under_its_own_topics_alone(real: Broker) -> None:
    """A question that asks for the answer elsewhere is none."""
    writer = BrokerConnection(
        broker_at(real.url, where="test"), client_id="w", receive_maximum=10, arrived=lambda message: message.done()
    )
    writer.open(PATIENCE_SECONDS)
    asked = {"id": "q", "streams": ["s"], "from_ns": 0, "to_ns": 1}
    with closing(MqttTransport(broker_at(real.url, where="test"), node="alpha")) as transport, closing(writer):
        assert transport.next_question(0.0) is None
        for to in ("sojourn/v1/beta/up/answers/1", "sojourn/v1/alpha/up/epochs", None, "sojourn/v1/alpha/up/answers/1"):
            body = json.dumps({**asked, "id": str(to)}).encode()
            writer.publish(
                Outgoing(NodeTopics("alpha").down("questions"), body, response_topic=to), seconds=PATIENCE_SECONDS
            )
        found = transport.next_question(PATIENCE_SECONDS)
        assert found == Asked("sojourn/v1/alpha/up/answers/1", ("s",), 0, 1)
        with pytest.raises(RefusedError):
            transport.answer(Asked("sojourn/v1/beta/up/answers/1", ("s",)), [])


def test_what_waits_when_the_broker_is_killed_is_refused_at_once_and_sent_to_the_next(
    real: Broker, tmp_path: Path
) -> None:
    for unit in running_unit(tmp_path / "data", LIMITS, broker=real):
        with closing(unit.transport()) as transport:
            assert transport.send([encode(make_epoch(0))])[0].status == "stored"
            real.stop(9)
            with pytest.raises(TransportError):
                transport.send([encode(make_epoch(1))])
            real.start()
            eventually(lambda transport=transport: _is_stored(transport))  # type: ignore[misc]


def _is_stored(transport: MqttTransport) -> bool:
    try:
        return transport.send([encode(make_epoch(1))])[0].status in ("stored", "duplicate")
    except TransportError:
        return False


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mqtt://", "no address of a broker"),
        ("mqtt://host:99999", "no address of a broker"),
        ("mqtts://host/path", "no address of a broker"),
        ("mqtts://unit:secret@host", "write it in a file"),
        ("ws://host", "no address of a broker"),
    ],
)
def test_an_address_that_is_none_is_explained(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        broker_at(url, where="--mqtt")
    result = CliRunner().invoke(app, ["serve", "--mqtt", url])
    assert isinstance(result.exception, UsageError)
    assert "secret" not in str(result.exception)


def test_options_for_a_broker_need_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--mqtt-password-file", str(tmp_path / "none")])
    assert isinstance(result.exception, UsageError)
    agent = ["agent", "--node", "a", "--server", "mqtt://h", "--spool", str(tmp_path), "--ca-file", "none", "--check"]
    result = CliRunner().invoke(app, agent)
    assert isinstance(result.exception, UsageError)
    assert "certificates are for mqtts://" in str(result.exception)
