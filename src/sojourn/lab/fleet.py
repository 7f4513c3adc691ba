"""A query unit and agents as processes of their own, as `sojourn serve` and `sojourn agent` run them.

Guarantee: an agent that has started is recording (`started` waits for it); leaving its context has it close and send
its open epochs; leaving the query unit's context ends it. With a `Host` all of them are processes of that host.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Fleet:
    """A running query unit, where its nodes keep their files, and the host that everything runs on (or none)."""

    url: str
    token: str
    directory: Path
    host: Host | None = None

    def ask(self, **question: Any) -> list[dict[str, object]]:
        """Answers over HTTP, to a question as the query unit's interface has it."""
        with self._on_host(), Client(self.url, self.token) as client:
            return [dict(answer) for answer in client.query(**{"from_ns": 0, "live": False, **question})]

    def is_recording(self, node: str) -> bool:
        """Whether a node has announced itself and waits for questions, which it does once its sources are open."""
        with self._on_host(), Client(self.url, self.token) as client:
            return any(one["name"] == node and one["listening"] for one in client.nodes())

    def _on_host(self) -> AbstractContextManager[None]:
        return self.host.entered() if self.host is not None else nullcontext()


@contextmanager
def query_unit(directory: Path, *, host: Host | None = None) -> Iterator[Fleet]:
    """Serve a new store in a directory until the context ends."""
    data = directory / "store"
    store = open_store(data)
    token = TokenStore(store).create(Role.ADMIN, name="lab")[1]
    store.close()
    command = [*_prefix(host), *SOJOURN, "serve", "--data", str(data), "--port", "0"]
    with open(directory / "serve.log", "w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        url = process.stdout.readline().strip() if process.stdout is not None else ""
        if not url:
            raise SojournError(f"did not start: {_last_line(directory / 'serve.log')}", where="query unit")
        fleet = Fleet(url, token, directory, host)
        yield fleet
    finally:
        _end(process)


@contextmanager
def agent(fleet: Fleet, node: str, streams: Mapping[str, StreamTable], *, poll: str = "1s") -> Iterator[int]:
    """Run an agent, and wait until it records; its process number."""
    store = open_store(fleet.directory / "store")
    token = TokenStore(store).create(Role.NODE, name=node, node=node)[1]
    store.close()
    home = fleet.directory / node
    home.mkdir()
    (home / "token").write_text(token)
    top = {"node": node, "server": fleet.url, "token_file": str(home / "token"), "spool": str(home / "spool")}
    (home / "agent.toml").write_text(_toml({**top, "poll": poll}, streams))
    with open(home / "log", "w") as log:
        process = subprocess.Popen(
            [*_prefix(fleet.host), *SOJOURN, "agent", "-c", str(home / "agent.toml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not fleet.is_recording(node):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SojournError(f"does not record: {_last_line(home / 'log')}", where=f"agent {node}")
            time.sleep(0.2)
        yield process.pid
    finally:
        _end(process)
    if process.returncode != 0:
        raise SojournError(f"ended with {process.returncode}: {_last_line(home / 'log')}", where=f"agent {node}")


def _prefix(host: Host | None) -> tuple[str, ...]:
    return ("ip", "netns", "exec", host.namespace) if host is not None else ()


def _toml(top: Mapping[str, object], streams: Mapping[str, StreamTable]) -> str:
    """Texts, numbers, switches and lists are written in TOML as in JSON."""

    def lines(table: Mapping[str, object]) -> str:
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())

    return lines(top) + "".join(f"\n[streams.{name}]\n{lines(table)}" for name, table in streams.items())


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def _last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
