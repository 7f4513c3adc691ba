"""`sojourn serve` as a process with ingest processes, and what can be seen of them from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

__all__ = ["Serving", "children", "is_running", "serving"]


class Serving:
    """A query unit of several processes, and the tokens of two nodes and an admin."""

    def __init__(self, data: str, log: Path, *options: str) -> None:
        self.data, self._log = data, log
        store = open_store(data)
        tokens = TokenStore(store)
        self.tokens = {node: tokens.create(Role.NODE, name="n", node=node)[1] for node in ("alpha", "beta")}
        self.tokens["admin"] = tokens.create(Role.ADMIN, name="a")[1]
        store.close()
        command = [sys.executable, "-m", "sojourn", "serve", "--data", data, "--port", "0", *options]
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def client(self, who: str = "admin", **options) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        # What TLS would take is not loaded for each.
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS, verify=False, **options)

    def ready(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health/ready", timeout=PATIENCE_SECONDS, verify=False)

    def workers(self) -> list[int]:
        """The ingest processes."""
        return [pid for pid in children(self.process.pid) if "processes.ingest" in command_of(pid)]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


def sent(client: httpx.Client, epochs: Sequence[Epoch]) -> list[str]:
    """What became of epochs."""
    answer = client.post("/api/v1/epochs", content=b"".join(map(encode, epochs)))
    answer.raise_for_status()
    return [result["status"] for result in answer.json()["results"]]


@contextmanager
def serving(data: str | Path, log: Path, *options: str) -> Iterator[Serving]:
    unit = Serving(str(data), log, *options)
    try:
        eventually(lambda: unit.ready().status_code == 200, lambda: unit.log)
        yield unit
    finally:
        unit.process.kill()
        unit.process.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
