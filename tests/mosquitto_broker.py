"""A real mosquitto on loopback, which can be killed, started again, and kept from remembering anything."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from waiting import PATIENCE_SECONDS, eventually

__all__ = ["Broker", "mosquitto", "mostly_http", "running_broker"]

OPEN = ("allow_anonymous true",)
# For tests of what does not depend on the way that epochs take: by a broker in the long run alone.
mostly_http = pytest.mark.parametrize("broker", ["http", pytest.param("mqtt", marks=pytest.mark.long)], indirect=True)


def mosquitto() -> str:
    """The program; skips where there is none."""
    # Debian puts it where only root's PATH leads.
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("mosquitto is missing and CI skips nothing")
        pytest.skip("mosquitto is not installed")
    return program


class Broker:
    """One broker in a directory; after `kill` it is started again at the same port."""

    def __init__(
        self, directory: Path, *lines: str, configuration: Path | None = None, port: int | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.port = port or _free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._file = configuration or directory / "mosquitto.conf"
        if configuration is None:
            persistence = ["persistence true", f"persistence_location {directory}/", "autosave_interval 1"]
            text = [f"listener {self.port} 127.0.0.1", *persistence, *(lines or OPEN)]
            self._file.write_text("\n".join([*text, "user root", ""]))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._directory / "mosquitto.log").read_text()

    def start(self) -> None:
        with open(self._directory / "mosquitto.log", "a") as log:
            command: Sequence[str] = [mosquitto(), "-c", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        eventually(self._is_listening, lambda: self.log)

    def _is_listening(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it: SIGTERM has it write down what is retained, SIGKILL what it wrote a second ago at most."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_SECONDS)

    def reload(self) -> None:
        """Have it read its passwords and ACL again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def forget(self) -> None:
        """Lose what it wrote down, as a broker without persistence does."""
        (self._directory / "mosquitto.db").unlink(missing_ok=True)


def running_broker(directory: Path, *lines: str) -> Iterator[Broker]:
    """A broker until the test ends."""
    broker = Broker(directory, *lines)
    broker.start()
    yield broker
    broker.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
