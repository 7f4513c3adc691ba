"""A real query unit and a real agent that are killed, and a network that fails, at instants that a seed chooses.

The agent's source numbers its measurements and writes each down in a ledger before it hands it over. In the end the
store has to hold exactly the numbers in the ledger without those that a restart reported as lost.
"""

from __future__ import annotations

import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ledger_source import Ledger, ledger_environment
from mosquitto_broker import Broker
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

__all__ = ["KillWorld", "Outcome"]

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")
STREAMS = {"fast": "300ms", "slow": "4s"}


class Wire:
    """A forwarder between agent and query unit, or its broker, which can be cut."""

    def __init__(self, scheme: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self.port_there = 0
        self._is_cut = False
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for end in list(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._forward, args=(here,), daemon=True).start()

    def _forward(self, here: socket.socket) -> None:
        with here, suppress(OSError):
            if self._is_cut:
                return
            with socket.create_connection(("127.0.0.1", self.port_there)) as there:
                other = {here: there, there: here}
                self._ends.update(other)
                while not self._is_cut:
                    for end in select.select(list(other), [], [], 1.0)[0]:
                        data = end.recv(1 << 16)
                        if not data:
                            return
                        other[end].sendall(data)


@dataclass
class Outcome:
    """What came of it."""

    measured: int = 0
    lost: int = 0
    reported: int = 0
    clean: int = 0
    mute: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


class KillWorld:
    """Everything in one directory; `close` ends all processes."""

    def __init__(self, directory: Path, *, seed: int, broker: Broker | None = None) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._broker = broker
        self._wire = Wire("http" if broker is None else "mqtt")
        self._unit: subprocess.Popen[str] | None = None
        self._agent: subprocess.Popen[str] | None = None
        self.logs: list[str] = []
        self._ledgers = {name: Ledger(directory, name) for name in STREAMS}
        self._configure()

    def _configure(self) -> None:
        self._environment = ledger_environment(self._directory / "plugin")
        store = open_store(self._directory / "store")
        (self._directory / "token").write_text(TokenStore(store).create(Role.NODE, name="n", node="alpha")[1])
        store.close()
        lines = [
            'node = "alpha"',
            f'server = "{self._wire.url}"',
            f'token_file = "{self._directory / "token"}"',
            f'spool = "{self._directory / "spool"}"',
            'spool_limit = "256KiB"',
            'poll = "20ms"',
        ]
        for name, epoch in STREAMS.items():
            lines += self._ledgers[name].table(epoch)
        (self._directory / "agent.toml").write_text("\n".join(lines) + "\n")

    def _numbers(self, stream: str) -> list[tuple[int, int]]:
        """Time and number of each measurement."""
        return self._ledgers[stream].numbers()

    def start_unit(self) -> None:
        command = [*SOJOURN, "serve", "--data", str(self._directory / "store"), "--port", "0"]
        if self._broker is not None:
            command += ["--mqtt", self._broker.url]
        log = open(self._directory / "serve.log", "a")  # noqa: SIM115
        with log:
            self._unit = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._unit.stdout is not None
        url = self._unit.stdout.readline().strip()
        self._wire.port_there = int(url.rpartition(":")[2]) if self._broker is None else self._broker.port

    def start_agent(self) -> None:
        log = open(self._directory / "agent.log", "w")  # noqa: SIM115
        with log:
            command = [*SOJOURN, "agent", "-c", str(self._directory / "agent.toml")]
            self._agent = subprocess.Popen(command, env=self._environment, stderr=log, text=True)

    def _stop_agent(self, number: int) -> None:
        assert self._agent is not None
        self._agent.send_signal(number)
        self._agent.wait(PATIENCE_SECONDS)
        self.logs.append((self._directory / "agent.log").read_text())

    def _kill_unit(self) -> None:
        assert self._unit is not None
        self._unit.kill()
        self._unit.communicate()

    def close(self) -> None:
        self._wire.close()
        for process in (self._agent, self._unit):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, kills: int) -> Outcome:
        """So many kills of the agent, some of the query unit, some cuts of the wire; then a run that ends in order."""
        self.start_unit()
        for _ in range(kills):
            before = len(self._numbers("slow"))
            self.start_agent()
            if self._chance.random() < 0.85:
                eventually(lambda before=before: len(self._numbers("slow")) > before, self._last_words)  # type: ignore[misc]
                self._live_through(self._chance.uniform(0.0, 7.0))
            else:
                time.sleep(self._chance.uniform(0.0, 3.0))  # it may not even have begun
            self._stop_agent(signal.SIGKILL)
        before = len(self._numbers("slow"))
        self.start_agent()
        eventually(lambda: len(self._numbers("slow")) > before + 20, self._last_words)
        self._stop_agent(signal.SIGTERM)
        assert " 0 waiting" in self.logs[-1], self.logs[-1]
        self.start_agent()
        eventually(lambda: "nothing was lost" in self._last_words(), self._last_words)
        self._stop_agent(signal.SIGTERM)
        self._kill_unit()
        return self._outcome()

    def _last_words(self) -> str:
        return (self._directory / "agent.log").read_text()

    def _live_through(self, seconds: float) -> None:
        """Some time, in which the network or the query unit may fail."""
        fate = self._chance.random()
        first = self._chance.uniform(0.0, seconds)
        time.sleep(first)
        if fate < 0.25:
            self._wire.cut()
        elif fate < 0.4:
            self._kill_unit()
        elif fate < 0.5 and self._broker is not None:
            self._broker.stop(signal.SIGKILL)
            self._broker.start()
        time.sleep(seconds - first)
        if 0.25 <= fate < 0.4:
            self.start_unit()
        self._wire.mend()

    def _outcome(self) -> Outcome:
        outcome = Outcome()
        store = open_store(self._directory / "store")
        for name, ledger in self._ledgers.items():
            numbers, kept = ledger.numbers(), ledger.kept(self.logs)
            epochs = store.epochs("alpha", name, 0, 2**62)
            stored = (sum(e.recorded for e in epochs), sum(int(e.sketch.column("sum").sum()) for e in epochs))
            outcome.measured += len(numbers)
            outcome.lost += len(numbers) - len(kept)
            if stored != (len(kept), sum(kept)):
                outcome.differences.append(f"{name}: stored {stored}, kept {(len(kept), sum(kept))}")
        store.close()
        for log in self.logs[1:]:
            if "lost what it measured" in log:
                outcome.reported += 1
            elif "nothing was lost" in log:
                outcome.clean += 1
            elif log.strip():
                outcome.mute.append(log)
        outcome.conflicts = [log for log in self.logs if "has its number" in log or "arrived whole" in log]
        return outcome
