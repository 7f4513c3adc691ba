"""A source whose measurements are known without its agent: consecutive numbers, each written down before it is given.

What an agent that was killed may not have sent is what its restarts report as lost; all else has to be stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from sojourn.core.units import parse_time

__all__ = ["Ledger", "ledger_environment"]

SOURCE = '''
import os
from sojourn.core.keys import ProcessKey
from sojourn.sources.source import Metric, ReadingSource

class Ledger(ReadingSource):
    """Consecutive numbers, each written down before it is measured."""
    metric = Metric("ledger", "operations", "process", "increments")

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._number = os.pread(self._file, 1 << 30, 0).count(b"\\n")

    def read(self, now_ns):
        self._number += 1
        os.write(self._file, f"{now_ns} {self._number}\\n".encode())
        return {ProcessKey("work", 1): self._number}
'''
_LOST = re.compile(r"stream (\w+) lost what it measured from (\S+) .* before this start at ([^\s,]+)")


def ledger_environment(plugin: Path) -> dict[str, str]:
    """The environment in which the metric ``ledger`` is known, which is put into a directory."""
    information = plugin / "ledger-1.0.dist-info"
    information.mkdir(parents=True)
    (plugin / "ledger_metric.py").write_text(SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[sojourn.sources]\nledger = ledger_metric:Ledger\n")
    return os.environ | {"PYTHONPATH": f"{plugin}:{os.environ.get('PYTHONPATH', '')}"}


class Ledger:
    """What one stream was given."""

    def __init__(self, directory: Path, stream: str) -> None:
        self.path = directory / f"{stream}.ledger"
        self.stream = stream

    def table(self, epoch: str) -> list[str]:
        """The stream in an agent's configuration."""
        table = {"metric": "ledger", "path": str(self.path), "epoch": epoch}
        sizes = ["buckets = 16", "per_instance = 2", "bits = 40", "count_bits = 24"]
        return [f"[streams.{self.stream}]", *(f'{key} = "{value}"' for key, value in table.items()), *sizes]

    def numbers(self) -> list[tuple[int, int]]:
        """Time and number of each measurement."""
        if not self.path.exists():
            return []
        return [(int(time_ns), int(number)) for time_ns, number in map(str.split, self.path.read_text().splitlines())]

    def kept(self, logs: Iterable[str]) -> list[int]:
        """The numbers that an agent's logs do not call lost."""
        spans = {
            (parse_time(start) // 1000, parse_time(end) // 1000)
            for log in logs
            for name, start, end in (match.groups() for match in _LOST.finditer(log))
            if name == self.stream
        }
        return [
            number
            for time_ns, number in self.numbers()
            if not any(start < time_ns // 1000 <= end for start, end in spans)
        ]
