"""A query unit and agents as processes of their own, as `sojourn serve` and `sojourn agent` run them.

Guarantee: an agent that has started is recording (`RunningAgent.start` waits for it); leaving its context has it close
and send its open epochs; leaving the query unit's context ends it. Both can be killed, as a crash does, and started
again. With a `Host` they are processes of that host. `Fleet.end` ends all of them in a time that is given.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sojourn.client.query_unit import Client
from sojourn.core.errors import SojournError
from sojourn.lab.namespaces import Host
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore

START_SECONDS = 90.0
STOP_SECONDS = 90.0
SOJOURN = (sys.executable, "-m", "sojourn.cli.main")

StreamTable = Mapping[str, object]


class Fleet:
    """A query unit, where its nodes keep their files, and the host that it and (by default) the agents run on."""

    def __init__(
        self, directory: Path, token: str, *, host: Host | None, address: str, port: int, prefix: Sequence[str]
    ) -> None:
        self.directory = directory
        self.token = token
        self.host = host
        self.url = ""
        self.prefix = tuple(prefix)
        self.agents: list[RunningAgent] = []
        self._address = address
        self._port = port
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The query unit's process number, of the last start."""
        return self.process.pid if self.process is not None else 0

    def ask(self, **question: Any) -> list[dict[str, object]]:
        """Answers over HTTP, to a question as the query unit's interface has it."""
        with self.client() as client:
            return [dict(answer) for answer in client.query(**{"from_ns": 0, "live": False, **question})]

    def is_recording(self, node: str) -> bool:
        """Whether a node has announced itself and waits for questions, which it does once its sources are open."""
        with self.client() as client:
            return any(one["name"] == node and one["listening"] for one in client.nodes())

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client with an admin's rights, on the host of the query unit."""
        with self.host.entered() if self.host is not None else nullcontext(), Client(self.url, self.token) as client:
            yield client

    def start(self) -> None:
        """Serve; after `kill` at the same port, from what is stored."""
        port = self.url.rpartition(":")[2] or str(self._port)
        command = [*self.prefix, *_prefix(self.host), *SOJOURN, "serve", "--data", str(self.directory / "store")]
        with open(self.directory / "serve.log", "a") as log:
            self.process = subprocess.Popen(
                [*command, "--host", self._address, "--port", port],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = self.process.stdout.readline().strip() if self.process.stdout is not None else ""
        if not self.url:
            raise SojournError(f"did not start: {_last_line(self.directory / 'serve.log')}", where="query unit")

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            _end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            _end(self.process, signal.SIGTERM)

    def end(self, seconds: float) -> None:
        """Ask the query unit and all agents to end, at once; kill what has not after so many seconds."""
        running = [*(one.process for one in self.agents), self.process]
        processes = [process for process in running if process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:  # all at once: the kernel takes a while to take the memory of each
            process.kill()
        for process in processes:
            _end(process, signal.SIGKILL)


@contextmanager
def query_unit(
    directory: Path,
    *,
    host: Host | None = None,
    address: str = "127.0.0.1",
    port: int = 0,
    prefix: Sequence[str] = (),
) -> Iterator[Fleet]:
    """Serve a new store in a directory until the context ends; port 0 is a free one.

    `prefix` is a command that runs each command of the fleet, such as ``setpriv``.
    """
    store = open_store(directory / "store")
    token = TokenStore(store).create(Role.ADMIN, name="lab")[1]
    store.close()
    fleet = Fleet(directory, token, host=host, address=address, port=port, prefix=prefix)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


class RunningAgent:
    """An agent's process, which can be killed and started again with the same files."""

    def __init__(self, fleet: Fleet, node: str, command: Sequence[str], *, has_streams: bool) -> None:
        self.node = node
        self._has_streams = has_streams
        self._fleet = fleet
        self._command = command
        self._log = fleet.directory / node / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process number, of the last start."""
        return self.process.pid if self.process is not None else 0

    def launch(self) -> None:
        """Run it; it records after a while."""
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def start(self) -> None:
        """Run it, and wait until it records, or without streams of its own until it waits for some."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.has_ended or time.monotonic() > deadline:
                raise SojournError(f"does not record: {_last_line(self._log)}", where=f"agent {self.node}")
            time.sleep(0.2)

    @property
    def has_ended(self) -> bool:
        """Whether its process is no more."""
        return self.process is not None and self.process.poll() is not None

    def _is_ready(self) -> bool:
        return self._fleet.is_recording(self.node) if self._has_streams else self._log.stat().st_size > 0

    def kill(self) -> None:
        """End it as a crash does: what it had not written down is lost."""
        if self.process is not None:
            _end(self.process, signal.SIGKILL)

    def stop(self) -> int:
        """Have it close and send its open epochs; its exit code, 0 also for one that was killed on purpose.

        So was one that SIGTERM ended before it had begun: later it ends in order.
        """
        if self.process is None or self.process.returncode == -signal.SIGKILL:
            return 0
        _end(self.process, signal.SIGTERM)
        return 0 if self.process.returncode == -signal.SIGTERM else self.process.returncode

    @property
    def last_line(self) -> str:
        """What it said last."""
        return _last_line(self._log)


@contextmanager
def agent(
    fleet: Fleet,
    node: str,
    streams: Mapping[str, StreamTable] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    host: Host | None = None,
    program: Sequence[str] = (*SOJOURN, "agent"),
    waits: bool = True,
) -> Iterator[RunningAgent]:
    """Run an agent, of the fleet's host or another, and wait until it records, unless `waits` is False.

    `program` takes the agent's options, `settings` go into its configuration; without streams it records what it is
    assigned.
    """
    store = open_store(fleet.directory / "store")
    token = TokenStore(store).create(Role.NODE, name=node, node=node)[1]
    store.close()
    home = fleet.directory / node
    home.mkdir()
    (home / "token").write_text(token)
    top = {"node": node, "server": fleet.url, "token_file": str(home / "token"), "spool": str(home / "spool")}
    (home / "agent.toml").write_text(_toml({**top, "poll": "1s", **(settings or {})}, streams or {}))
    command = [*fleet.prefix, *_prefix(host or fleet.host), *program, "-c", str(home / "agent.toml")]
    running = RunningAgent(fleet, node, command, has_streams=bool(streams))
    fleet.agents.append(running)
    code = 0
    try:
        if waits:
            running.start()
        else:
            running.launch()
        yield running
    finally:
        code = running.stop()
    if code != 0:
        raise SojournError(f"ended with {code}: {running.last_line}", where=f"agent {node}")


def ending_with_us() -> tuple[str, ...]:
    """A command by which others end (SIGTERM) when the thread that starts them does; nothing where there is none."""
    return ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()


def _prefix(host: Host | None) -> tuple[str, ...]:
    return ("ip", "netns", "exec", host.namespace) if host is not None else ()


def _toml(top: Mapping[str, object], streams: Mapping[str, StreamTable]) -> str:
    """Texts, numbers, switches and lists are written in TOML as in JSON."""

    def lines(table: Mapping[str, object]) -> str:
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())

    return lines(top) + "".join(f"\n[streams.{name}]\n{lines(table)}" for name, table in streams.items())


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes], first: signal.Signals) -> None:
    for sign in (first, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def _last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
