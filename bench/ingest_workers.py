"""Ingest by several processes: what ``sojourn serve --workers N`` takes over real sockets, beside one process.

So many nodes send at once as there are connections, each a batch after the other; what they send is encoded before. CPU
is that of the query unit's processes together, from /proc, and not of PostgreSQL's, nor of the client's. Where the
machine has no more than two processors, client and database take their part of them: CPU per epoch says what more
processors would be worth, the rate what these are.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.ingest import KEYS, PARAMETERS, POSTGRESQL, SQLITE, postgresql_in
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.sketches.bucket_array import BucketArray
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore

__all__ = ["NOTE", "table"]

CONNECTIONS, WORKERS = 8, (0, 1, 2)
SIZES = {1: 40, 100: 10}  # epochs in a message, and messages of each connection
NOTE = (
    f"{CONNECTIONS} connections, a node each; epochs of {KEYS} keys; a new database each; `fsync` as it comes. "
    f"Processors: {os.cpu_count()}, which client and PostgreSQL share with the query unit."
)
HERTZ = os.sysconf("SC_CLK_TCK")


def _bodies(node: str, size: int, count: int) -> list[bytes]:
    """Messages of a node, each of so many epochs."""
    keys = tuple(ProcessKey("worker", number) for number in range(KEYS))
    sketch = BucketArray(PARAMETERS)
    for key in keys:
        sketch.record(key_id(key), 1000, 10**18)
    epochs = [encode(Epoch(node, "stream", number, sketch, keys)) for number in range(size * count)]
    return [b"".join(epochs[start : start + size]) for start in range(0, len(epochs), size)]


@contextmanager
def _unit(data: str, workers: int) -> Iterator[tuple[str, int]]:
    """The URL and the process id of a query unit that runs, all of whose processes are ready."""
    command = [sys.executable, "-m", "sojourn", "serve", "--data", data, "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while httpx.get(f"{url}/health/ready").status_code != 200:
            time.sleep(0.1)
        try:
            yield url, process.pid
        finally:
            process.terminate()


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    others = [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in _children(task)]
    return [pid, *{*map(int, children), *others}]


def _children(task: Path) -> Sequence[str]:
    return (task / "children").read_text().split()


def _cpu_seconds(pids: Sequence[int]) -> list[float]:
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [(int(one[11]) + int(one[12])) / HERTZ for one in fields]


def _send(url: str, token: str, bodies: Sequence[bytes]) -> None:
    host = url.rpartition("/")[2]
    connection = http.client.HTTPConnection(host)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/cbor"}
    for body in bodies:
        connection.request("POST", "/api/v1/epochs", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"refused: {answer.status}")
    connection.close()


def _run(data: str, workers: int, size: int) -> tuple[float, float, float]:
    """Epochs a second, and CPU an epoch: of all processes, and of the planning one."""
    store = open_store(data)
    tokens = [TokenStore(store).create(Role.NODE, name="n", node=f"node-{i}")[1] for i in range(CONNECTIONS)]
    store.close()
    all_bodies = [_bodies(f"node-{i}", size, SIZES[size] + 1) for i in range(CONNECTIONS)]
    with _unit(data, workers) as (url, pid):
        for token, bodies in zip(tokens, all_bodies, strict=True):
            _send(url, token, bodies[:1])
        pids = _family(pid)
        before, wall = _cpu_seconds(pids), time.perf_counter()
        senders = [
            threading.Thread(target=_send, args=(url, token, bodies[1:]))
            for token, bodies in zip(tokens, all_bodies, strict=True)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        wall = time.perf_counter() - wall
        used = [after - earlier for after, earlier in zip(_cpu_seconds(pids), before, strict=True)]
    epochs = CONNECTIONS * SIZES[size] * size
    return epochs / wall, sum(used) / epochs, used[0] / epochs


def table() -> list[str]:
    """Rate and CPU with so many processes, on both databases."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    lines = [
        "| database | epochs in a message | workers | epochs/s | CPU an epoch | of it the planning process |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name, postgresql_in(Path(name) / "pg") as new_schema:
        for database in (SQLITE, POSTGRESQL):
            for size in SIZES:
                for workers in WORKERS:
                    data = str(Path(name) / f"{size}-{workers}") if database == SQLITE else new_schema()
                    rate, cpu, planning = _run(data, workers, size)
                    shown = f"{rate:,.0f} | {cpu * 1e6:,.0f} µs | {planning * 1e6:,.0f} µs"
                    lines.append(f"| {database} | {size} | {workers} | {shown} |")
    return lines
