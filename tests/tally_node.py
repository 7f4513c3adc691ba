"""An agent that counts what a test writes, and questions to the query unit that it reports to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import OperationalError

from query_unit import Unit

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode
from sojourn.node.spool.file import FILE_NAME, reading
from waiting import PATIENCE_SECONDS

__all__ = ["PLUGIN", "Node", "ask", "is_listening"]

PLUGIN = '''
from sojourn.core.keys import ProcessKey
from sojourn.sources.source import Metric, ReadingSource

class Tally(ReadingSource):
    """What was appended to a file since the last look: lines of a name and an amount."""
    metric = Metric("tally", "operations", "process", "increments")

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = open(path)

    def read(self, now_ns):
        found = {}
        for line in self._file.read().split("\\n"):
            if line:
                name, amount = line.split()
                key = ProcessKey(name, 1)
                found[key] = found.get(key, 0) + int(amount)
        return found
'''

AGENT = (sys.executable, "-m", "sojourn.cli.main", "agent")


class Node:
    """An agent that counts what a test writes into its tally."""

    def __init__(self, directory: Path, url: str, token: str, *, program: Sequence[str] = AGENT) -> None:
        self._program = program
        plugin = directory / "plugin"
        information = plugin / "tally-1.0.dist-info"
        information.mkdir(parents=True)
        (plugin / "tally_metric.py").write_text(PLUGIN)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tally\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[sojourn.sources]\ntally = tally_metric:Tally\n")
        self.tally = directory / "tally"
        self.tally.touch()
        self.spool = directory / "spool"
        self.truth: Counter[str] = Counter()
        (directory / "token").write_text(token)
        self.configuration = directory / "agent.toml"
        self.configuration.write_text(f"""
node = "alpha"
server = "{url}"
token_file = "{directory / "token"}"
spool = "{self.spool}"
spool_limit = "64KiB"
poll = "100ms"

[streams.tally]
metric = "tally"
path = "{self.tally}"
epoch = "500ms"
buckets = 32
per_instance = 3
bits = 32
count_bits = 16
""")
        self.environment = os.environ | {"PYTHONPATH": f"{plugin}:{os.environ.get('PYTHONPATH', '')}"}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [*self._program, "-c", str(self.configuration)]
        self.process = subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)

    def end(self) -> None:
        """However the test went, no agent stays behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def stop(self, number: int = signal.SIGTERM) -> str:
        assert self.process is not None
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return errors

    def spooled(self) -> int:
        """What the closed epochs in its spool hold in all."""
        return sum(int(epoch.sketch.column("sum").sum()) for epoch in self.epochs("waiting", "sent"))

    def spooled_of(self, stream: str) -> int:
        """The same of one stream."""
        waiting = [epoch for epoch in self.epochs("waiting", "sent") if epoch.stream == stream]
        return sum(int(epoch.sketch.column("sum").sum()) for epoch in waiting)

    def epochs(self, *states: str) -> list[Epoch]:
        """The epochs in its spool that are in one of some states, read while it runs or not."""
        path = self.spool / FILE_NAME
        if not path.exists():
            return []
        with reading(path) as connection, suppress(OperationalError):
            rows = connection.execute("SELECT state, data FROM entries ORDER BY stream, sequence").fetchall()
            return [decode(data) for state, data in rows if state in states]
        return []

    def count(self, rounds: int = 10) -> None:
        """Some more work by five processes, of very different amounts."""
        lines = [f"proc{i} {2**i * (1 + r % 3)}" for r in range(rounds) for i in range(5)]
        for line in lines:
            name, amount = line.split()
            self.truth[f"{name}[1]"] += int(amount)
        with open(self.tally, "a") as file:
            file.write("\n".join(lines) + "\n")


def ask(unit: Unit, **question) -> list[dict]:
    body = {"metric": "tally", "node": "alpha", "from_ns": 0, **question}
    with unit.client("viewer") as client:
        response = client.post("/api/v1/query", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def is_listening(unit: Unit) -> bool:
    with unit.client("viewer") as client:
        return any(n["listening"] for n in client.get("/api/v1/nodes").json())
