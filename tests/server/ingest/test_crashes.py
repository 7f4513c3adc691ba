"""Nodes and two query units of one database, over a broker or HTTP: killed in turn, everything arrives once."""

from __future__ import annotations

import random
import signal
import socket
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
from mosquitto_broker import Broker, running_broker
from postgresql_server import PostgresqlServer
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
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


FULL = Size(nodes=50, processes=5, epochs=200, kills=30, pause_seconds=0.3)


class Running:
    """A process that can be killed and started again."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self.log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)

    def is_done(self) -> bool:
        """Whether it ended by itself, with everything acknowledged."""
        assert self._process is not None
        code = self._process.poll()
        assert code in (None, 0), self.log.read_text()
        return code == 0

    def restart(self) -> None:
        self.kill()
        self.start()


class ServingUnit(Running):
    """A query unit, which is back before something else is killed."""

    def start(self) -> None:
        before = self._times_up()
        super().start()
        eventually(lambda: self._times_up() > before, self.log.read_text)

    def _times_up(self) -> int:
        raise NotImplementedError


class UnitAtBroker(ServingUnit):
    """One that takes messages of a broker's, as it says."""

    def __init__(self, data: str, broker: Broker, log: Path) -> None:
        log.touch()
        super().__init__([*SOJOURN, "serve", "--data", data, "--port", "0", "--mqtt", broker.url], log)

    def _times_up(self) -> int:
        return self.log.read_text().count("taking messages at")


class UnitAtPort(ServingUnit):
    """One that takes requests at a port, always the same."""

    def __init__(self, data: str, log: Path) -> None:
        log.touch()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        super().__init__([*SOJOURN, "serve", "--data", data, "--port", str(self.port)], log)

    def _times_up(self) -> int:
        with socket.socket() as probe:
            return int(probe.connect_ex(("127.0.0.1", self.port)) == 0)


def run(directory: Path, data: str, size: Size, *, seed: int, server: PostgresqlServer | None = None) -> int:
    """Send everything through a broker while nodes, query units, the broker and what the database does for them are
    cut off in turn; a server that is given is restarted, too, and once in the way of a crash. How many troubles.
    """
    chance = random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(contextmanager(running_broker)(directory / "broker"))
        units = [UnitAtBroker(data, broker, directory / f"serve-{number}.log") for number in range(2)]
        nodes = sending(directory, size, [broker.url])

        def restart_broker() -> None:
            broker.stop(chance.choice((signal.SIGKILL, signal.SIGTERM)))
            time.sleep(chance.uniform(0.0, 0.5))
            broker.start()

        troubles: list[Callable[[], None]] = [*killing(chance, units, nodes), restart_broker]
        if "://" in data:
            troubles.append(lambda: cut_off(data))
        if server is not None:
            troubles.append(lambda: restart_server(server, chance))
        return live_through(stack, chance, units, nodes, troubles, size.kills)


def run_over_http(directory: Path, data: str, size: Size, *, seed: int) -> int:
    """The same with nodes that reach one of two query units of one database by HTTP."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        units = [UnitAtPort(data, directory / f"serve-{number}.log") for number in range(2)]
        nodes = sending(directory, size, [f"http://127.0.0.1:{unit.port}" for unit in units])
        store = open_store(data)
        tokens = TokenStore(store)
        for name in size.names:
            text = tokens.create(Role.NODE, name="n", node=name)[1]
            (directory / "nodes" / f"{name}.token").write_text(text)
        store.close()

        def restart_both() -> None:
            for unit in units:
                unit.kill()
            for unit in units:
                unit.start()

        troubles = [*killing(chance, units, nodes), restart_both]
        return live_through(stack, chance, units, nodes, troubles, size.kills)


def sending(directory: Path, size: Size, addresses: Sequence[str]) -> list[Running]:
    """The processes of nodes, which send to one address after the other."""
    (directory / "nodes").mkdir()
    processes = []
    for number in range(size.processes):
        send = [sys.executable, sending_nodes.__file__, addresses[number % len(addresses)], str(directory / "nodes")]
        send += [str(size.epochs), str(size.pause_seconds), *size.names[number :: size.processes]]
        processes.append(Running(send, directory / "nodes.log"))
    return processes


def killing(chance: random.Random, units: Sequence[ServingUnit], nodes: Sequence[Running]) -> list[Callable[[], None]]:
    """What befalls query units and nodes."""

    def kill_nodes() -> None:
        node = chance.choice(nodes)
        if not node.is_done():
            node.restart()

    return [units[0].restart, kill_nodes, units[1].restart]


def live_through(
    stack: ExitStack,
    chance: random.Random,
    units: Sequence[ServingUnit],
    nodes: Sequence[Running],
    troubles: Sequence[Callable[[], None]],
    kills: int,
) -> int:
    """Run everything through so many troubles; how many came while there was something to send."""
    for process in (*units, *nodes):
        stack.callback(process.kill)
        process.start()
    met = 0
    for kill in range(kills):
        time.sleep(chance.uniform(0.5, 1.5))
        met += not all(node.is_done() for node in nodes)
        troubles[kill % len(troubles)]()
    eventually_all(nodes)
    return met


def cut_off(data: str) -> None:
    """End every connection to the database, whatever it is doing."""
    engine = create_engine(data)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"{CUT_OFF} AND pid <> pg_backend_pid()")
    engine.dispose()


def restart_server(server: PostgresqlServer, chance: random.Random) -> None:
    """Stop the database's server, in order or so that it has to recover, and leave it away for a while."""
    server.stop(chance.choice(("fast", "immediate")))
    time.sleep(chance.uniform(0.0, 2.0))
    server.start()


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


def test_every_epoch_is_stored_once_over_http(tmp_path: Path) -> None:
    size = Size(nodes=4, processes=2, epochs=40, kills=4, pause_seconds=0.1)
    data = str(tmp_path / "store")
    assert run_over_http(tmp_path, data, size, seed=3) == size.kills
    check(tmp_path, data, size)


@pytest.mark.long
def test_every_epoch_of_fifty_nodes_is_stored_once_in_postgresql(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    """Nodes, query units, the broker, connections to the database and its server: each five times."""
    data = postgresql.new_database()
    assert run(tmp_path, data, FULL, seed=2, server=postgresql) > FULL.kills // 2
    check(tmp_path, data, FULL)


@pytest.mark.long
def test_every_epoch_of_fifty_nodes_is_stored_once_in_sqlite_over_http(tmp_path: Path) -> None:
    data = str(tmp_path / "store")
    assert run_over_http(tmp_path, data, FULL, seed=4) > FULL.kills // 2
    check(tmp_path, data, FULL)
