"""Nodes, a broker and two query units that share messages and a database: killed in turn, everything arrives once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from query_unit import make_epoch

from mosquitto_broker import Broker, running_broker
from postgresql_server import PostgresqlServer
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.broker import broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.sending import SpoolSender
from sojourn.store.epochs import open_store
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")


@dataclass(frozen=True)
class Size:
    """How many nodes send how many epochs, through how many kills."""

    nodes: int
    epochs: int
    kills: int
    pause_seconds: float


class Serving:
    """A query unit's process, which can be killed and started again."""

    def __init__(self, directory: Path, data: str, broker: Broker, number: int) -> None:
        self._command = [*SOJOURN, "serve", "--data", data, "--port", "0", "--mqtt", broker.url]
        self._log = directory / f"serve-{number}.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    @property
    def connections(self) -> int:
        """How often it reached the broker."""
        return self._log.read_text().count("taking messages at")

    def await_connection(self, before: int = 0) -> None:
        eventually(lambda: self.connections > before, self._log.read_text)


@dataclass
class SendingNode:
    """A node whose epochs close now and then, and are sent from its spool by the agent's own sender."""

    name: str
    directory: Path
    broker: Broker
    size: Size
    reports: list[str] = field(default_factory=list)
    truth: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._transport = MqttTransport(broker_at(self.broker.url, where="test"), node=self.name, timeout_seconds=3.0)
        self._spool = Spool(self.directory / self.name, limit_bytes=16 << 20)
        self._sender = SpoolSender(self._spool, self._transport, lock=self._lock, report=self.reports.append)
        self._threads = [
            threading.Thread(target=self._record, daemon=True),
            threading.Thread(target=self._sender.run, args=(self._stop,), daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _record(self) -> None:
        chance = random.Random(self.name)
        for sequence in range(self.size.epochs):
            values = tuple(chance.randrange(1, 1000) for _ in range(3))
            self.truth.append(sum(values))
            with self._lock:
                self._spool.put(make_epoch(sequence, node=self.name, time_ns=sequence + 1, values=values))
            self._stop.wait(chance.uniform(0, 2 * self.size.pause_seconds))

    @property
    def is_done(self) -> bool:
        return not self._threads[0].is_alive() and len(self._spool) == 0

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        self._transport.close()
        self._spool.close()


def run(directory: Path, data: str, size: Size, *, seed: int) -> list[SendingNode]:
    """Send everything while query units and the broker are killed in turn."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(contextmanager(running_broker)(directory / "broker"))
        units = [Serving(directory, data, broker, number) for number in range(2)]
        for unit in units:
            unit.start()
            stack.callback(unit.kill)
        nodes = [SendingNode(f"node {k} +#", directory, broker, size) for k in range(size.nodes)]
        for unit in units:
            unit.await_connection()
        for node in nodes:
            node.start()
            stack.callback(node.end)
        for kill in range(size.kills):
            time.sleep(chance.uniform(0.5, 1.5))
            if kill % 3 == 2:
                broker.stop(chance.choice((signal.SIGKILL, signal.SIGTERM)))
                time.sleep(chance.uniform(0.0, 0.5))
                broker.start()
            else:
                unit = units[kill % 3]
                before = unit.connections
                unit.kill()
                unit.start()
                unit.await_connection(before)
        eventually(lambda: all(node.is_done for node in nodes), lambda: [node.reports for node in nodes])
    return nodes


def check(data: str, nodes: list[SendingNode]) -> None:
    store = open_store(data)
    try:
        for node in nodes:
            epochs = store.epochs(node.name, "disk", 0, 2**62)
            assert [epoch.sequence for epoch in epochs] == list(range(len(node.truth)))
            assert [int(epoch.sketch.column("sum").sum()) for epoch in epochs] == node.truth
            assert not any("set aside" in line or "fault" in line for line in node.reports), node.reports
        assert store.totals()["epochs"] == sum(len(node.truth) for node in nodes)
        assert store.totals()["epochs_set_aside"] == 0
    finally:
        store.close()


def test_every_epoch_is_stored_once_whoever_is_killed(tmp_path: Path) -> None:
    """Two query units on one SQLite database."""
    data = str(tmp_path / "store")
    check(data, run(tmp_path, data, Size(nodes=6, epochs=60, kills=3, pause_seconds=0.1), seed=1))


@pytest.mark.long
def test_every_epoch_of_fifty_nodes_is_stored_once_in_postgresql(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    data = postgresql.new_database()
    check(data, run(tmp_path, data, Size(nodes=50, epochs=200, kills=30, pause_seconds=0.2), seed=2))
