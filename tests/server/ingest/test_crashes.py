"""Nodes, a broker and two query units that share messages and a database: killed in turn, everything arrives once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import sending_nodes
from mosquitto_broker import running_broker
from postgresql_server import PostgresqlServer
from sojourn.store.epochs import open_store
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")
CUT_OFF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"


@dataclass(frozen=True)
class Size:
    """How many nodes, in how many processes, send how many epochs each, through how many kills."""

    nodes: int
    processes: int
    epochs: int
    kills: int
    pause_seconds: float

    @property
    def names(self) -> list[str]:
        return [f"node {number} +#" for number in range(self.nodes)]


class Running:
    """A process that can be killed and started again."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)

    def is_done(self) -> bool:
        """Whether it ended by itself, with everything acknowledged."""
        assert self._process is not None
        code = self._process.poll()
        assert code in (None, 0), self._log.read_text()
        return code == 0

    def is_at_broker(self, before: int = 0) -> bool:
        return self._log.read_text().count("taking messages at") > before

    def restart(self) -> None:
        """As after a crash; a query unit has to be back before the next one is killed."""
        before = self._log.read_text().count("taking messages at")
        self.kill()
        self.start()
        if before:
            eventually(lambda: self.is_at_broker(before), self._log.read_text)


def run(directory: Path, data: str, size: Size, *, seed: int) -> None:
    """Send everything while nodes, query units, the broker and connections to the database are cut off in turn."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(contextmanager(running_broker)(directory / "broker"))
        serve = [*SOJOURN, "serve", "--data", data, "--port", "0", "--mqtt", broker.url]
        units = [Running(serve, directory / f"serve-{number}.log") for number in range(2)]
        (directory / "nodes").mkdir()
        send = [sys.executable, sending_nodes.__file__, broker.url, str(directory / "nodes")]
        send += [str(size.epochs), str(size.pause_seconds)]
        groups = [size.names[number :: size.processes] for number in range(size.processes)]
        nodes = [Running([*send, *names], directory / "nodes.log") for names in groups]
        for process in (*units, *nodes):
            stack.callback(process.kill)
        for unit in units:
            unit.start()
            eventually(unit.is_at_broker)
        for process in nodes:
            process.start()

        def restart_broker() -> None:
            broker.stop(chance.choice((signal.SIGKILL, signal.SIGTERM)))
            time.sleep(chance.uniform(0.0, 0.5))
            broker.start()

        troubles: list[Callable[[], None]] = [
            units[0].restart,
            lambda: None if (node := chance.choice(nodes)).is_done() else node.restart(),
            units[1].restart,
            restart_broker,
        ]
        if "://" in data:
            troubles.append(lambda: cut_off(data))
        for kill in range(size.kills):
            time.sleep(chance.uniform(0.5, 1.5))
            troubles[kill % len(troubles)]()
        eventually_all(nodes)


def cut_off(data: str) -> None:
    """End every connection to the database, whatever it is doing, as a restart of it does."""
    engine = create_engine(data)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"{CUT_OFF} AND pid <> pg_backend_pid()")
    engine.dispose()


def eventually_all(nodes: Sequence[Running]) -> None:
    for process in nodes:
        eventually(process.is_done, pause=0.2)


def check(directory: Path, data: str, size: Size) -> None:
    reports = (directory / "nodes" / "log").read_text() if (directory / "nodes" / "log").exists() else ""
    assert "set aside" not in reports
    assert "fault" not in reports
    store = open_store(data)
    try:
        for node in size.names:
            epochs = store.epochs(node, sending_nodes.STREAM, 0, 2**62)
            assert [epoch.sequence for epoch in epochs] == list(range(size.epochs))
            sums = [int(epoch.sketch.column("sum").sum()) for epoch in epochs]
            assert sums == [sum(sending_nodes.truth(node, sequence)) for sequence in range(size.epochs)]
        assert store.totals()["epochs"] == size.nodes * size.epochs
        assert store.totals()["epochs_set_aside"] == 0
    finally:
        store.close()


def test_every_epoch_is_stored_once_whoever_is_killed(tmp_path: Path) -> None:
    """Two query units on one SQLite database."""
    size = Size(nodes=6, processes=2, epochs=60, kills=4, pause_seconds=0.1)
    data = str(tmp_path / "store")
    run(tmp_path, data, size, seed=1)
    check(tmp_path, data, size)


@pytest.mark.long
def test_every_epoch_of_fifty_nodes_is_stored_once_in_postgresql(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    size = Size(nodes=50, processes=5, epochs=200, kills=30, pause_seconds=0.3)
    data = postgresql.new_database()
    run(tmp_path, data, size, seed=2)
    check(tmp_path, data, size)
