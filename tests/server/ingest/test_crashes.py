"""Whole agents and two query units of one database, over a broker or HTTP: killed in turn, everything arrives once.

Every agent is a process of its own, `sojourn agent`, and measures numbers that it wrote down before
(`ledger_source`). In the end the database holds each of its epochs once, and their sums are those of all numbers but
the ones that a restart of the agent called lost: those of the epoch that was open when it was killed.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from ledger_source import Ledger, ledger_environment
from mosquitto_broker import Broker, running_broker
from postgresql_server import PostgresqlServer
from sojourn.node.transports.broker import is_broker
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")
CUT_OFF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"


STREAM = "work"
# What an agent is given to reach its query unit before it is asked to end once more.
SETTLING_SECONDS = 2.0


@dataclass(frozen=True)
class Size:
    """How many agents close how many epochs each, through how many troubles so many seconds apart."""

    agents: int
    epochs: int
    epoch: str
    troubles: int
    apart_seconds: tuple[float, float]
    killed: int  # agents at a time

    @property
    def names(self) -> list[str]:
        return [f"node {number} +#" for number in range(self.agents)]


FULL = Size(agents=50, epochs=200, epoch="1s", troubles=30, apart_seconds=(2.0, 8.0), killed=8)


class Running:
    """A process that can be killed and started again."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command, self.log, self._environment = command, log, environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=log, env=self._environment
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)

    def restart(self) -> None:
        self.kill()
        self.start()


class FleetAgent(Running):
    """An agent of one stream, whose measurements its ledger has; all of it in a directory of its own."""

    def __init__(self, directory: Path, name: str, address: str, size: Size, environment: Mapping[str, str]) -> None:
        directory.mkdir()
        self.name, self.ledger = name, Ledger(directory, STREAM)
        self.token = directory / "token"
        self.token.touch(mode=0o600)
        lines = [f'node = "{name}"', f'server = "{address}"', f'spool = "{directory / "spool"}"', 'poll = "100ms"']
        if not is_broker(address):
            lines.append(f'token_file = "{self.token}"')
        (directory / "agent.toml").write_text("\n".join([*lines, *self.ledger.table(size.epoch)]) + "\n")
        super().__init__([*SOJOURN, "agent", "-c", str(directory / "agent.toml")], directory / "log", environment)

    def end(self) -> None:
        """Ask it to close what is open, and to send it."""
        assert self._process is not None
        self._process.terminate()

    def has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def has_sent_all(self) -> bool:
        """Whether it ended with nothing left to send; one that did not is given another run."""
        if not self.has_ended():
            return False
        if " 0 waiting" in self.log.read_text().splitlines()[-1]:
            return True
        self.start()
        time.sleep(SETTLING_SECONDS)
        self.end()
        return False


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


def run(directory: Path, data: str, size: Size, *, seed: int, server: PostgresqlServer | None = None) -> None:
    """Send everything through a broker while agents, query units, the broker and what the database does for them are
    cut off in turn; a server that is given is restarted, too, and once in the way of a crash.
    """
    chance = random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(contextmanager(running_broker)(directory / "broker"))
        units = [UnitAtBroker(data, broker, directory / f"serve-{number}.log") for number in range(2)]
        agents = fleet(directory, size, [broker.url])

        def restart_broker() -> None:
            broker.stop(chance.choice((signal.SIGKILL, signal.SIGTERM)))
            time.sleep(chance.uniform(0.0, 0.5))
            broker.start()

        troubles: list[Callable[[], None]] = [*killing(chance, units, agents, size), restart_broker]
        if "://" in data:
            troubles.append(lambda: cut_off(data))
        if server is not None:
            troubles.append(lambda: restart_server(server, chance))
        live_through(stack, chance, units, agents, troubles, size, data)
        check(agents, data, size)


def run_over_http(directory: Path, data: str, size: Size, *, seed: int) -> None:
    """The same with agents that reach one of two query units of one database by HTTP."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        units = [UnitAtPort(data, directory / f"serve-{number}.log") for number in range(2)]
        agents = fleet(directory, size, [f"http://127.0.0.1:{unit.port}" for unit in units])
        with closing(open_store(data)) as store:
            tokens = TokenStore(store)
            for agent in agents:
                agent.token.write_text(tokens.create(Role.NODE, name="n", node=agent.name)[1])

        def restart_both() -> None:
            for unit in units:
                unit.kill()
            for unit in units:
                unit.start()

        live_through(stack, chance, units, agents, [*killing(chance, units, agents, size), restart_both], size, data)
        check(agents, data, size)


def fleet(directory: Path, size: Size, addresses: Sequence[str]) -> list[FleetAgent]:
    """The agents, which send to one address after the other."""
    environment = ledger_environment(directory / "plugin")
    return [
        FleetAgent(directory / f"agent-{number}", name, addresses[number % len(addresses)], size, environment)
        for number, name in enumerate(size.names)
    ]


def killing(
    chance: random.Random, units: Sequence[ServingUnit], agents: Sequence[FleetAgent], size: Size
) -> list[Callable[[], None]]:
    """What befalls query units and agents."""

    def kill_agents() -> None:
        for agent in chance.sample(agents, size.killed):
            agent.restart()

    return [units[0].restart, kill_agents, units[1].restart]


def live_through(
    stack: ExitStack,
    chance: random.Random,
    units: Sequence[ServingUnit],
    agents: Sequence[FleetAgent],
    troubles: Sequence[Callable[[], None]],
    size: Size,
    data: str,
) -> None:
    """Run everything through the troubles, until each agent has closed its epochs and sent them."""
    for process in (*units, *agents):
        stack.callback(process.kill)
        process.start()
    for trouble in range(size.troubles):
        time.sleep(chance.uniform(*size.apart_seconds))
        assert not any(agent.has_ended() for agent in agents)
        troubles[trouble % len(troubles)]()
    for agent in agents:
        eventually(partial(has_stored, data, agent, size.epochs), agent.log.read_text, pause=0.5)
    for agent in agents:
        agent.end()
    for agent in agents:
        eventually(agent.has_sent_all, agent.log.read_text)


def has_stored(data: str, agent: FleetAgent, epochs: int) -> bool:
    """Whether so many epochs of an agent have arrived."""
    with closing(open_store(data)) as store:
        return len(store.frames(agent.name, STREAM, limit=epochs)) >= epochs


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


def check(agents: Sequence[FleetAgent], data: str, size: Size) -> None:
    """Nothing is missing, and nothing is there twice."""
    with closing(open_store(data)) as store:
        stored = 0
        for agent in agents:
            log = agent.log.read_text()
            assert not [line for line in log.splitlines() if "set aside" in line or "fault" in line]
            epochs = store.epochs(agent.name, STREAM, 0, 2**62)
            numbers = [epoch.sequence for epoch in epochs]
            assert len(numbers) == len(set(numbers)) >= size.epochs
            kept = agent.ledger.kept([log])
            sums = sum(epoch.recorded for epoch in epochs), sum(int(e.sketch.column("sum").sum()) for e in epochs)
            assert sums == (len(kept), sum(kept)), agent.name
            stored += len(epochs)
        assert store.totals()["epochs"] == stored
        assert store.totals()["epochs_set_aside"] == 0


def test_every_epoch_is_stored_once_whoever_is_killed(tmp_path: Path) -> None:
    """Two query units on one SQLite database."""
    size = Size(agents=5, epochs=25, epoch="300ms", troubles=4, apart_seconds=(0.5, 1.5), killed=2)
    run(tmp_path, str(tmp_path / "store"), size, seed=1)


def test_every_epoch_is_stored_once_over_http(tmp_path: Path) -> None:
    size = Size(agents=4, epochs=25, epoch="300ms", troubles=4, apart_seconds=(0.5, 1.5), killed=2)
    run_over_http(tmp_path, str(tmp_path / "store"), size, seed=3)


@pytest.mark.long
def test_every_epoch_of_fifty_agents_is_stored_once_in_postgresql(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    """Agents, query units, the broker, connections to the database and its server: each five times."""
    run(tmp_path, postgresql.new_database(), FULL, seed=2, server=postgresql)


@pytest.mark.long
def test_every_epoch_of_fifty_agents_is_stored_once_in_sqlite_over_http(tmp_path: Path) -> None:
    run_over_http(tmp_path, str(tmp_path / "store"), FULL, seed=4)
