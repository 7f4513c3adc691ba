"""A real process that does what it is told, to be measured; and tracefs, where it can be had."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sojourn.core.errors import SourceError
from sojourn.core.keys import Key, key_id
from sojourn.sources.block_trace import tracefs_folder
from sojourn.sources.source import SourceBatch

_LOOP = """
import mmap, os, resource, sys, threading, time
for line in sys.stdin:
    result = None
    exec(line)
    print(repr(result), flush=True)
"""


class Worker:
    """A Python process that executes statements one by one; ``result`` is what comes back."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )
        self.do("pass")

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, statement: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{statement}\n")
        self.process.stdin.flush()
        return ast.literal_eval(self.process.stdout.readline())

    def key(self) -> str:
        return f"{Path(f'/proc/{self.pid}/comm').read_text().strip()}[{self.pid}]"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    started = Worker(tmp_path)
    yield started
    started.end()


class Totals:
    """Adds up what polls give, by the text of the keys."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._sums: dict[int, int] = {}
        self.times: dict[str, list[int]] = {}

    def add(self, found: SourceBatch[Any]) -> None:
        self._names.update((key_id(key), str(key)) for key in found.keys)
        rows = (found.batch.instance_id.tolist(), found.batch.value.tolist(), found.batch.time_ns.tolist())
        for instance_id, value, time_ns in zip(*rows, strict=True):
            self._sums[instance_id] = self._sums.get(instance_id, 0) + value
            self.times.setdefault(self._names[instance_id], []).append(time_ns)

    def of(self, key: str | Key) -> int:
        return self._sums.get({name: i for i, name in self._names.items()}.get(str(key), -1), 0)

    @property
    def all(self) -> dict[str, int]:
        return {self._names[instance_id]: total for instance_id, total in self._sums.items()}


@pytest.fixture
def totals() -> Totals:
    return Totals()


@pytest.fixture(scope="session")
def tracefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where tracefs is mounted; mounted for the tests if it is not."""
    try:
        yield tracefs_folder()
        return
    except SourceError:
        folder = tmp_path_factory.mktemp("tracefs")
    command = ["mount", "-t", "tracefs", "tracefs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"BLOCK TRACEPOINTS ARE NOT TESTED: tracefs cannot be mounted here ({done.stderr.strip()})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
