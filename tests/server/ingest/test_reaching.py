"""Nodes through a broker: assignments retained as the store has them, presence, and a broker that comes and goes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, is_at_broker, make_epoch, running_unit

from mosquitto_broker import Broker, running_broker
from sojourn.epochs.wire import encode
from sojourn.node.transports import mqtt
from sojourn.node.transports.broker import Arrived, BrokerConnection, Outgoing, broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.topics import NodeTopics
from sojourn.node.transports.transport import Announcement, NameTakenError, TransportError
from sojourn.server.ingest import reaching
from sojourn.server.ingest.link import BrokerOptions
from sojourn.server.ingest.reaching import BrokerCarrier
from waiting import PATIENCE_SECONDS, eventually

STREAM = {"metric": "cpu", "epoch": "1s"}
ASSIGNED = NodeTopics("alpha").down("assignments")
CPU = Announcement("cpu", "cpu", "ns", "process")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    yield from running_broker(tmp_path / "broker")


@pytest.fixture
def unit(tmp_path: Path, broker: Broker) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS, broker=broker)


def connected(broker: Broker, arrived=lambda message: message.done()) -> BrokerConnection:
    made = BrokerConnection(
        broker_at(broker.url, where="test"), client_id=secrets.token_hex(8), receive_maximum=100, arrived=arrived
    )
    made.open(PATIENCE_SECONDS)
    return made


def retained(broker: Broker, topic: str = ASSIGNED) -> bytes | None:
    """What a broker hands to somebody who comes now; None for nothing."""
    came: dict[str, bytes] = {}

    def keep(message: Arrived) -> None:
        came[message.topic] = message.payload
        message.done()

    with closing(connected(broker, keep)) as connection:
        # A message to ourselves that is sent afterwards comes afterwards.
        end = f"end/{secrets.token_hex(8)}"
        connection.subscribe([topic, end], seconds=PATIENCE_SECONDS)
        connection.publish(Outgoing(end, b"end"), seconds=PATIENCE_SECONDS)
        eventually(lambda: end in came, pause=0.005)
    return came.get(topic)


def streams(broker: Broker) -> dict[str, object] | None:
    payload = retained(broker)
    return None if payload is None else json.loads(payload)["streams"]


def assign(unit: Unit, name: str, stream: dict[str, str] | None = STREAM) -> None:
    with unit.client("admin") as client:
        path = f"/api/v1/nodes/alpha/assignments/{name}"
        done = client.delete(path) if stream is None else client.put(path, json={"configuration": stream})
        assert done.status_code == 200, done.text


def test_assignments_are_retained_and_the_last_withdrawal_clears_them(unit: Unit, broker: Broker) -> None:
    assert retained(broker) is None
    assign(unit, "cpu")
    eventually(lambda: streams(broker) == {"cpu": STREAM})
    assign(unit, "cpu", None)
    eventually(lambda: retained(broker) is None)


def test_a_node_has_its_assignments_from_the_broker_while_no_query_unit_runs(tmp_path: Path, broker: Broker) -> None:
    for unit in running_unit(tmp_path / "data", LIMITS, broker=broker):
        assign(unit, "cpu")
        eventually(lambda: streams(broker) == {"cpu": STREAM})
    with closing(MqttTransport(broker_at(broker.url, where="test"), node="alpha")) as transport:
        with pytest.raises(TransportError, match="no query unit"):
            transport.announce(CPU)
        eventually(lambda: transport.assignments()[1] == {"cpu": STREAM})


def test_a_broker_that_lost_its_memory_is_told_again(unit: Unit, broker: Broker) -> None:
    assign(unit, "cpu")
    eventually(lambda: streams(broker) == {"cpu": STREAM})
    broker.stop()
    broker.forget()
    broker.start()
    eventually(lambda: streams(broker) == {"cpu": STREAM})
    assert is_at_broker(unit)


def test_what_is_retained_becomes_what_the_store_has(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a query unit that was killed between a commit and its message, or two that spoke in the other order."""
    monkeypatch.setattr(reaching, "SYNC_SECONDS", 0.5)
    stale = json.dumps({"version": 1, "streams": {"old": STREAM}}).encode()
    with closing(connected(broker)) as connection:
        for node in ("alpha", "beta"):
            message = Outgoing(NodeTopics(node).down("assignments"), stale, is_retained=True)
            connection.post(message).result(PATIENCE_SECONDS)
        for unit in running_unit(tmp_path / "data", LIMITS, broker=broker):
            eventually(lambda: retained(broker) is None)
            eventually(lambda: retained(broker, NodeTopics("beta").down("assignments")) is None)
            assign(unit, "cpu")
            eventually(lambda: streams(broker) == {"cpu": STREAM})
            connection.post(Outgoing(ASSIGNED, stale, is_retained=True)).result(PATIENCE_SECONDS)
            eventually(lambda: streams(broker) == {"cpu": STREAM})


def is_listening(unit: Unit) -> bool:
    with unit.client("viewer") as client:
        return any(node["listening"] for node in client.get("/api/v1/nodes").json())


def test_a_node_listens_while_it_is_connected_and_no_longer(unit: Unit, broker: Broker) -> None:
    transport = MqttTransport(broker_at(broker.url, where="test"), node="alpha", instance="0123456789abcdef")
    assert transport.assignments() == (0, {})
    assert transport.next_question(0.0) is None
    eventually(lambda: is_listening(unit))
    # As a crash ends it: nothing is said, the broker speaks its will.
    connection = transport._connection
    assert connection is not None
    connection._client.socket().close()
    eventually(lambda: not is_listening(unit))
    eventually(lambda: _listens(transport) and is_listening(unit))
    transport.close()
    eventually(lambda: not is_listening(unit))


def _listens(transport: MqttTransport) -> bool:
    try:
        transport.next_question(0.0)
    except TransportError:
        return False
    return True


def test_a_second_agent_of_the_name_is_refused_and_not_asked(unit: Unit, broker: Broker) -> None:
    access = broker_at(broker.url, where="test")
    with (
        closing(MqttTransport(access, node="alpha", instance="0" * 16)) as first,
        closing(MqttTransport(access, node="alpha", instance="1" * 16)) as second,
    ):
        first.announce(CPU)
        assert second.next_question(0.0) is None
        eventually(lambda: is_listening(unit))
        with pytest.raises(NameTakenError, match="another agent sends stream cpu under the name alpha"):
            second.announce(CPU)
        with pytest.raises(NameTakenError):
            second.next_question(0.0)
        eventually(lambda: not is_listening(unit))
        first.leave()
        second.announce(CPU)
        assert second.next_question(0.0) is None
        eventually(lambda: is_listening(unit))


def test_presence_that_nobody_renews_ends_by_itself() -> None:
    now = [0.0]
    carrier = BrokerCarrier(unit="u", post=lambda _: None, clock=lambda: now[0])
    carrier.note_presence("alpha", "a", b"{}")
    assert carrier.reaches("alpha")
    now[0] = mqtt.PRESENCE_SECONDS + 1
    assert not carrier.reaches("alpha")


def test_the_agents_that_are_kept_apart_under_one_name_are_few() -> None:
    carrier = BrokerCarrier(unit="u", post=lambda _: None)
    for number in range(1000):
        carrier.note_presence("alpha", f"{number}", b"{}")
    carrier.note_presence("alpha", "x" * 1000, b"{}")
    assert len(carrier._present["alpha"]) == reaching.NODE_AGENTS
    for number in range(1000):
        carrier.note_presence("alpha", f"{number}", b"")
    assert not carrier.reaches("alpha")


def test_an_agent_that_is_silent_asks_for_its_assignments_so_that_its_name_stays_its_own(
    unit: Unit, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign(unit, "cpu")
    eventually(lambda: streams(broker) == {"cpu": STREAM})
    counted = 'sojourn_messages_total{status="200",what="assignments"}'

    def asked() -> bool:
        with unit.client("viewer") as client:
            return counted in client.get("/metrics").text

    with closing(MqttTransport(broker_at(broker.url, where="test"), node="alpha", instance="0" * 16)) as transport:
        transport.next_question(0.0)
        eventually(lambda: transport._retained is not None)
        assert transport.assignments()[1] == {"cpu": STREAM}
        assert not asked()
        monkeypatch.setattr(mqtt, "HEARTBEAT_SECONDS", 0.0)
        assert transport.assignments()[1] == {"cpu": STREAM}
        assert asked()
        monkeypatch.undo()
        transport._retained = (1, {"old": STREAM})  # what a broker may be behind with
        transport._answered_at = transport._connected_at = float("-inf")
        for _ in range(2):
            assert transport.assignments()[1] == {"cpu": STREAM}, "the broker's word does not take its place again"


def test_a_query_unit_serves_http_without_its_broker_and_takes_messages_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(tmp_path / "broker")
    options = BrokerOptions(access=broker_at(broker.url, where="test"))
    for unit in running_unit(tmp_path / "data", LIMITS, broker_options=options):
        with unit.client("alpha") as client:
            content, headers = encode(make_epoch(1)), {"Content-Type": "application/cbor"}
            assert client.post("/api/v1/epochs", content=content, headers=headers).status_code == 200
        assert not is_at_broker(unit)
        broker.start()
        eventually(lambda unit=unit: is_at_broker(unit))  # type: ignore[misc]
        with closing(MqttTransport(broker_at(broker.url, where="test"), node="alpha")) as transport:
            assert transport.send([encode(make_epoch(2))])[0].status == "stored"
    broker.stop()
    warned = [record.getMessage() for record in caplog.records if "will try again" in record.getMessage()]
    assert len(warned) == 1
    assert "cannot be reached" in warned[0]
    assert "is the broker running?" in warned[0]
