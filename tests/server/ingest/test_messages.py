"""What comes through a broker is let in only where it belongs, and no node's messages stop those of the others."""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit

from mosquitto_broker import Broker, running_broker
from sojourn.epochs.wire import encode
from sojourn.node.transports.broker import Arrived, BrokerConnection, Outgoing, broker_at
from sojourn.node.transports.topics import NodeTopics
from sojourn.node.transports.transport import TransportError
from sojourn.store.epochs import StreamRecord
from waiting import PATIENCE_SECONDS, eventually

SLOW = replace(LIMITS, requests_per_second=0.001, burst=3)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from running_broker(tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"), LIMITS, broker=broker)


class Stranger:
    """A client that publishes whatever it likes, and reads all that comes to nodes."""

    def __init__(self, broker: Broker) -> None:
        self._came: queue.Queue[Arrived] = queue.Queue()
        self._connection = BrokerConnection(
            broker_at(broker.url, where="test"),
            client_id=secrets.token_hex(8),
            receive_maximum=100,
            arrived=self._keep,
        )
        self._connection.open(PATIENCE_SECONDS)
        self._connection.subscribe(["sojourn/v1/+/down/#"], seconds=PATIENCE_SECONDS)

    def _keep(self, message: Arrived) -> None:
        message.done()
        self._came.put(message)

    def publish(self, topic: str, payload: bytes, **how) -> None:
        self._connection.publish(Outgoing(topic, payload, **how), seconds=PATIENCE_SECONDS)

    def reply(self) -> tuple[str, dict]:
        """The next message to a node: its topic, and what it says."""
        message = self._came.get(timeout=PATIENCE_SECONDS)
        return message.topic, json.loads(message.payload)

    def ask(self, what: str, payload: bytes, *, node: str = "alpha", **how) -> tuple[str, dict]:
        self.publish(NodeTopics(node).up(what), payload, **how)
        return self.reply()

    @property
    def is_silent(self) -> bool:
        return self._came.empty()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def stranger(broker: Broker, unit: Unit) -> Iterator[Stranger]:
    assert unit.broker is broker
    made = Stranger(broker)
    yield made
    made.close()


def counted(unit: Unit, name: str) -> float:
    with unit.client("viewer") as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_epochs_are_acknowledged_one_by_one_to_the_topic_and_number_that_the_node_gave(stranger: Stranger) -> None:
    body = encode(make_epoch(1)) + encode(make_epoch(2))
    to = NodeTopics("alpha").down("replies/1f2e3d4c")
    topic, reply = stranger.ask("epochs", body, response_topic=to, correlation=b"number 7")
    assert topic == to
    assert reply["status"] == 200
    assert [(row["sequence"], row["status"]) for row in reply["body"]["results"]] == [(1, "stored"), (2, "stored")]
    _, again = stranger.ask("epochs", body + encode(make_epoch(1, values=(5,))))
    assert [row["status"] for row in again["body"]["results"]] == ["duplicate", "duplicate", "conflict"]


def test_epochs_of_another_node_than_the_topics_are_refused_and_none_of_the_batch_is_stored(
    stranger: Stranger, unit: Unit
) -> None:
    body = encode(make_epoch(50)) + encode(make_epoch(50, node="beta"))
    _, reply = stranger.ask("epochs", body)
    assert reply["status"] == 403
    assert "the topic is that of node alpha, not beta" in reply["detail"]
    assert not any(unit.store.epoch_bytes(node, "disk", 50) for node in ("alpha", "beta"))


@pytest.mark.parametrize(
    "to",
    [
        "sojourn/v1/beta/down/replies/1",
        "sojourn/v1/beta/down/assignments",
        "sojourn/v1/alpha/down/assignments",
        "sojourn/v1/alpha/down/questions",
        "sojourn/v1/alpha/down/replies/../../../beta/down/replies" + "x" * 1000,
        "elsewhere",
    ],
)
def test_a_reply_goes_to_the_nodes_own_replies_wherever_it_is_asked_to_go(stranger: Stranger, to: str) -> None:
    topic, reply = stranger.ask("epochs", b"", response_topic=to)
    assert topic == "sojourn/v1/alpha/down/replies"
    assert (reply["status"], reply["detail"]) == (400, "the body holds no epoch")


@pytest.mark.parametrize(
    "level", ["%61lpha", "al%70ha", "a%2Fb", "%2E%2E", "alpha%20", "alph%C3%A", "x" * 300], ids=lambda text: text[:10]
)
def test_a_topic_that_spells_a_name_otherwise_is_nobodys(stranger: Stranger, unit: Unit, level: str) -> None:
    before, ignored = unit.store.totals()["epochs"], counted(unit, "sojourn_messages_ignored_total")
    stranger.publish(f"sojourn/v1/{level}/up/epochs", encode(make_epoch(60)))
    if level == "alpha%20":  # a name, but not that of the epochs
        assert stranger.reply()[1]["status"] == 403
    else:
        eventually(lambda: counted(unit, "sojourn_messages_ignored_total") > ignored)
        assert stranger.is_silent
    assert unit.store.totals()["epochs"] == before


@pytest.mark.parametrize(
    ("what", "payload", "status", "words"),
    [
        ("epochs", b"\xff\xff", 400, "CBOR"),
        ("epochs", bytes(LIMITS.body_bytes + 1), 413, "exceeds"),
        ("epochs", b"".join(encode(make_epoch(k)) for k in range(LIMITS.batch_epochs + 1)), 413, "more than 20 epochs"),
        ("announce", b"{}", 422, "metric"),
        ("announce", b'{"stream": "a/b", "metric": "cpu", "unit": "ns", "granularity": "process"}', 400, "slash"),
        ("states", b"[" * 100_000, 422, "JSON"),
        ("states", b'{"streams": {"s": {"state": "well"}}}', 422, "state"),
        ("release", b"", 403, "only an admin"),
    ],
)
def test_what_is_wrong_is_refused_to_its_node_with_the_reason(
    stranger: Stranger, what: str, payload: bytes, status: int, words: str
) -> None:
    _, reply = stranger.ask(what, payload)
    assert reply["status"] == status
    assert words in reply["detail"]
    assert "\n" not in reply["detail"]
    assert len(reply["detail"]) < 1100


def test_an_agents_number_has_the_form_that_it_has_over_http(stranger: Stranger) -> None:
    _, reply = stranger.ask("assignments", b"", user={"Sojourn-Instance": "../x"})
    assert reply["status"] == 422


def test_an_answer_that_nobody_asked_for_is_counted_and_left(stranger: Stranger, unit: Unit) -> None:
    answering = stranger.ask("assignments", b"")[1]["unit"]
    refused = 'sojourn_messages_total{status="404",what="answers"}'
    before = counted(unit, refused)
    stranger.publish(NodeTopics("alpha").up(f"answers/{answering}"), encode(make_epoch(71)), correlation=b"none")
    eventually(lambda: counted(unit, refused) > before)
    assert unit.store.epoch_bytes("alpha", "disk", 71) is None


def test_messages_at_qos_0_are_counted_and_not_taken(unit: Unit, broker: Broker) -> None:
    import paho.mqtt.publish as at_once

    ignored = counted(unit, "sojourn_messages_ignored_total")
    at_once.single("sojourn/v1/alpha/up/epochs", encode(make_epoch(70)), qos=0, port=broker.port)
    eventually(lambda: counted(unit, "sojourn_messages_ignored_total") > ignored)
    assert unit.store.epoch_bytes("alpha", "disk", 70) is None


def test_one_node_that_sends_too_much_is_told_so_and_the_others_are_served(tmp_path: Path) -> None:
    with contextmanager(running_broker)(tmp_path / "broker") as broker:
        for unit in running_unit(tmp_path / "data", SLOW, broker=broker):
            stranger = Stranger(broker)
            statuses = [stranger.ask("epochs", b"\xff")[1]["status"] for _ in range(6)]
            assert statuses == [400, 400, 400, 429, 429, 429]
            _, reply = stranger.ask("epochs", encode(make_epoch(node="beta")), node="beta")
            assert reply["status"] == 200
            assert unit.store.epoch_bytes("beta", "disk", 0) is not None
            stranger.close()


def test_two_query_units_split_what_nodes_send(tmp_path: Path) -> None:
    with contextmanager(running_broker)(tmp_path / "broker") as broker:
        for first in running_unit(tmp_path / "data", LIMITS, broker=broker):
            for second in running_unit(tmp_path / "data", LIMITS, broker=broker):
                stranger = Stranger(broker)
                for number in range(20):
                    assert stranger.ask("epochs", encode(make_epoch(number)))[1]["status"] == 200
                stranger.close()
                taken = 'sojourn_messages_total{status="200",what="epochs"}'
                shares = [counted(unit, taken) for unit in (first, second)]
                assert sum(shares) == 20
                assert min(shares) >= 5
                assert len(first.store.epochs("alpha", "disk", 0, 2**62)) == 20


def test_a_node_reaches_a_query_unit_that_fails_and_says_so(
    stranger: Stranger, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as fault:
        fault.setattr(unit.store, "add_encoded", broken)
        assert stranger.ask("epochs", encode(make_epoch(80)))[1]["status"] == 500
    assert stranger.ask("epochs", encode(make_epoch(80)))[1]["status"] == 200


def test_names_of_every_form_are_nodes(stranger: Stranger, unit: Unit) -> None:
    for name in ("dach +1", "süd#2", "100 %", "$SYS"):
        _, reply = stranger.ask("epochs", encode(make_epoch(node=name)), node=name)
        assert reply["status"] == 200
        assert unit.store.epoch_bytes(name, "disk", 0) is not None


def test_without_a_query_unit_the_broker_says_so_at_once(tmp_path: Path) -> None:
    with contextmanager(running_broker)(tmp_path / "broker") as broker:
        stranger = Stranger(broker)
        with pytest.raises(TransportError, match=r"no query unit; is sojourn serve --mqtt running"):
            stranger.publish("sojourn/v1/alpha/up/epochs", b"")
        stranger.close()


def test_streams_are_announced_and_go_on_from_what_is_stored(stranger: Stranger, unit: Unit) -> None:
    unit.store.add([make_epoch(7, stream="cpu")])
    body = {"stream": "cpu", "metric": "cpu", "unit": "ns", "granularity": "process", "values": "increments"}
    _, reply = stranger.ask("announce", json.dumps(body).encode())
    assert reply["body"]["last_sequence"] == 7
    assert StreamRecord("alpha", "cpu", "cpu", "ns", "process", "increments") in unit.store.streams(node="alpha")
