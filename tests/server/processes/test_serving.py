"""Ingest processes beside the planning one: killed, ended, orphaned; nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from query_unit import make_epoch
from serving_process import Serving, is_running, sent, serving

from mosquitto_broker import running_broker
from postgresql_server import PostgresqlServer
from sojourn.epochs.wire import encode
from sojourn.node.transports.broker import broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.store.epochs import open_store
from waiting import PATIENCE_SECONDS, eventually

NODES, EPOCHS = ("alpha", "beta"), 30
LOOK_SECONDS = 1.0  # in which a query unit looks at its database once at least


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "data", tmp_path / "log", "--workers", "2") as started:
        yield started


class Sender(threading.Thread):
    """A node that sends its epochs one after the other, each until it is acknowledged."""

    def __init__(self, unit: Serving, node: str) -> None:
        super().__init__()
        self._unit, self._node = unit, node
        self.acknowledged = 0

    def run(self) -> None:
        for sequence in range(EPOCHS):
            epoch = make_epoch(sequence, node=self._node, time_ns=(sequence + 1) * 10**9)
            while True:
                try:
                    # A connection of its own for each: whichever process has time takes it.
                    with self._unit.client(self._node) as client:
                        sent(client, [epoch])
                    break
                except httpx.HTTPError:
                    time.sleep(0.01)
            self.acknowledged += 1


def test_what_is_acknowledged_is_stored_once_whoever_is_killed(place: str, tmp_path: Path) -> None:
    with serving(place, tmp_path / "log", "--workers", "2") as unit:
        senders = [Sender(unit, node) for node in NODES]
        for sender in senders:
            sender.start()
        for kill in range(2):
            eventually(lambda: sum(sender.acknowledged for sender in senders) > (kill + 1) * 12)  # noqa: B023
            os.kill(unit.workers()[0], signal.SIGKILL)
            eventually(lambda: len(unit.workers()) == 2, lambda: unit.log)
        for sender in senders:
            sender.join(PATIENCE_SECONDS)
        eventually(lambda: unit.ready().status_code == 200, lambda: unit.log)
        assert "ended by SIGKILL; it is started again" in unit.log
        question = {"metric": "disk_io", "node": "alpha", "from_ns": 0, "to_ns": 10**12, "live": False}
        announced = {"metric": "disk_io", "unit": "operations", "granularity": "process"}
        with unit.client() as client:
            client.put("/api/v1/nodes/alpha/streams/disk", json=announced).raise_for_status()
            (answer,) = client.post("/api/v1/query", json=question).json()
        assert (answer["epochs"], answer["value"]) == (EPOCHS, 7 * EPOCHS)
        unit.end()
    store = open_store(place)
    for node in NODES:
        assert [frame["sequence"] for frame in store.frames(node, "disk", limit=100)] == [*range(EPOCHS)][::-1]
    store.close()


def test_workers_that_are_killed_while_the_database_is_away_come_back_and_say_so(
    tmp_path: Path, postgresql: PostgresqlServer
) -> None:
    """Somebody is at the door all the time: to say that it lives, and that epochs have to wait."""
    epoch = encode(make_epoch(1, time_ns=10**9))
    with serving(postgresql.new_database(), tmp_path / "log", "--workers", "2") as unit, unit.client("alpha") as node:
        postgresql.stop("immediate")
        try:
            before = unit.workers()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(set(unit.workers()) - set(before)) == 2, lambda: unit.log)
            assert httpx.get(f"{unit.url}/health/live", timeout=PATIENCE_SECONDS).status_code == 200
            assert node.post("/api/v1/epochs", content=epoch).status_code == 503
            assert unit.ready().status_code == 503
            time.sleep(4 * LOOK_SECONDS)
        finally:
            postgresql.start()
        eventually(lambda: unit.ready().status_code == 200, lambda: unit.log)
        (result,) = node.post("/api/v1/epochs", content=epoch).raise_for_status().json()["results"]
        assert result["status"] == "stored"
        lines = [line for line in unit.log.splitlines() if "could not be" in line]
        assert lines, "that the database is away is said"
        assert len(lines) == len(set(lines)), "once"


def test_all_end_in_order_and_finish_what_they_have_begun(unit: Serving) -> None:
    """Somebody else holds the database when the signal comes, and a node waits for questions."""
    answers: list[list[str]] = []
    waits: list[int] = []

    def send() -> None:
        with unit.client("alpha") as client:
            answers.append(sent(client, [make_epoch()]))

    def wait() -> None:
        with unit.client("alpha") as client:
            waits.append(client.get("/api/v1/nodes/alpha/requests", params={"wait": 25}).status_code)

    workers = unit.workers()
    writer = sqlite3.connect(Path(unit.data) / "sojourn.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    threads = [threading.Thread(target=wait), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)  # both are under way; who is slower is turned away, and fails the test
    unit.process.send_signal(signal.SIGTERM)
    threads[0].join(PATIENCE_SECONDS)
    assert waits == [204]
    assert unit.process.poll() is None
    writer.execute("COMMIT")
    writer.close()
    threads[1].join(PATIENCE_SECONDS)
    assert answers == [["stored"]]
    unit.process.wait(PATIENCE_SECONDS)
    assert not any(map(is_running, workers))
    with pytest.raises(httpx.ConnectError):
        unit.ready()


def test_ctrl_c_before_anything_is_ready_leaves_nobody(tmp_path: Path) -> None:
    unit = Serving(str(tmp_path / "data"), tmp_path / "log", "--workers", "1")
    eventually(unit.workers, lambda: unit.log)
    workers = unit.workers()
    unit.end(signal.SIGINT)
    assert not any(map(is_running, workers))
    assert "Traceback" not in unit.log


@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_twice_ends_at_once_and_says_so_in_a_line(tmp_path: Path, workers: str) -> None:
    """While a node waits for questions, which an end in order would wait for."""
    with serving(tmp_path / "data", tmp_path / "log", "--workers", workers) as unit:
        children = unit.workers()

        def wait() -> None:
            with suppress(httpx.HTTPError), unit.client("alpha") as client:
                client.get("/api/v1/nodes/alpha/requests", params={"wait": 25})

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        unit.process.send_signal(signal.SIGINT)
        unit.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        assert unit.end(signal.SIGINT) == 130
        waiting.join(PATIENCE_SECONDS)
        assert "Traceback" not in unit.log
        assert unit.log.splitlines()[-1] == "sojourn: interrupted"
        eventually(lambda: not any(map(is_running, children)))


def test_counters_of_all_processes_are_added_up_and_readiness_speaks_of_all(unit: Serving) -> None:
    def stored() -> str:
        with unit.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return next((line for line in lines if line.startswith('sojourn_epochs_received_total{status="stored"}')), "")

    for sequence in range(20):
        with unit.client("alpha") as client:
            assert sent(client, [make_epoch(sequence)]) == ["stored"]
    eventually(lambda: stored().endswith(" 20.0"), stored)
    stopped, other = unit.workers()
    os.kill(stopped, signal.SIGSTOP)  # it does not answer, and the others do
    eventually(lambda: unit.ready().json()["checks"]["workers"] == "1 of 2 do not answer")
    assert unit.ready().status_code == 503
    os.kill(stopped, signal.SIGKILL)
    eventually(lambda: unit.ready().status_code == 200)
    assert other in unit.workers()
    assert stored().endswith(" 20.0")
    workers = unit.workers()
    unit.end(signal.SIGKILL)  # none outlives the process that plans
    eventually(lambda: not any(map(is_running, workers)))


def test_workers_share_what_nodes_publish_at_a_broker(tmp_path: Path) -> None:
    """Each is a member of the subscription; what is asked of nodes, and retained for them, is the planning process'."""
    with contextmanager(running_broker)(tmp_path / "broker") as broker:
        options = ("--workers", "2", "--mqtt", broker.url)
        with serving(tmp_path / "data", tmp_path / "log", *options) as unit, unit.client() as client:
            assert unit.ready().json()["checks"] == dict.fromkeys(("store", "requests", "workers", "broker"), "ok")
            assert len(re.findall("New client connected.*sojourn-unit-", broker.log)) == 3
            transport = MqttTransport(broker_at(broker.url, where="test"), node="alpha")
            for sequence in range(8):
                (receipt,) = transport.send([encode(make_epoch(sequence))])
                assert receipt.status == "stored"
            client.put("/api/v1/nodes/alpha/assignments/disk", json={"configuration": {"metric": "cpu"}})
            eventually(lambda: "disk" in transport.assignments()[1])
            transport.close()
            done = 'sojourn_messages_total{status="200",what="epochs"} 8.0'
            eventually(lambda: done in client.get("/metrics").text, lambda: client.get("/metrics").text)
