"""A service manager's socket hears that a program is ready, that it still works and that it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from query_unit import running_unit

from sojourn.core.host import service


class Manager:
    """A real datagram socket, as systemd has one."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._endpoint.bind(self.address)
        self.heard: list[str] = []

    def hear(self, word: str, seconds: float = 60.0) -> None:
        """Wait until a message with a line that begins so has come."""
        deadline = time.monotonic() + seconds
        while True:
            self._endpoint.settimeout(max(0.01, deadline - time.monotonic()))
            text = self._endpoint.recv(4096).decode()
            self.heard.append(text)
            if any(line.startswith(word) for line in text.splitlines()):
                return

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long; what has come before does not count."""
        self._endpoint.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._endpoint.recv(4096)
        self._endpoint.settimeout(seconds)
        try:
            self._endpoint.recv(4096)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._endpoint.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", found.address)
    yield found
    found.close()


def test_without_a_manager_nothing_is_said_and_nothing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not service.notify("READY=1")
    for nobody in (str(tmp_path / "nobody"), "relative", "@nobody-listens-here"):
        monkeypatch.setenv("NOTIFY_SOCKET", nobody)
        assert not service.notify("READY=1")


def test_a_name_in_the_kernels_own_space_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"sojourn-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as endpoint:
        endpoint.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        assert service.notify("STOPPING=1")
        assert endpoint.recv(100) == b"STOPPING=1"


def test_the_watchdog_hears_twice_in_its_time_and_only_of_its_own_process(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert service.Watchdog().seconds == 0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    watchdog = service.Watchdog()
    assert watchdog.seconds == 0.05
    watchdog.alive()
    watchdog.alive()  # too soon to be said again
    manager.hear("WATCHDOG=1")
    time.sleep(0.06)
    watchdog.alive()
    manager.hear("WATCHDOG=1")
    assert len(manager.heard) == 2


def _environment(manager: Manager) -> dict[str, str]:
    return {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"}


def test_the_query_unit_tells_its_manager(manager: Manager, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sojourn", "serve", "--data", tmp_path / "data", "--port", "0"]
    with subprocess.Popen(command, env=_environment(manager), stdout=subprocess.DEVNULL) as unit:
        manager.hear("READY=1", 120)
        manager.hear("WATCHDOG=1")
        manager.hear("WATCHDOG=1")
        unit.terminate()
        manager.hear("STOPPING=1")
        assert unit.wait(30) in (0, -15)  # in the end it lets the signal have its way, which systemd takes for success


def test_an_agent_tells_its_manager_as_long_as_it_records(manager: Manager, tmp_path: Path) -> None:
    units = running_unit(tmp_path / "data")
    unit = next(units)
    (tmp_path / "token").write_text(unit.tokens["alpha"])
    words = ("--node", "alpha", "--server", unit.address, "--token-file", tmp_path / "token", "-s", "cpu=cpu")
    command = [sys.executable, "-m", "sojourn", "agent", *words, "--spool", tmp_path / "spool"]
    with subprocess.Popen(command, env=_environment(manager)) as agent:
        manager.hear("READY=1", 120)
        manager.hear("WATCHDOG=1")
        manager.hear("WATCHDOG=1")
        agent.send_signal(19)  # stopped, as one that hangs: nobody says anything for it
        time.sleep(0.3)
        assert manager.is_silent(2.0)
        agent.send_signal(18)
        agent.terminate()
        manager.hear("STOPPING=1")
        assert agent.wait(30) == 0
    next(units, None)
