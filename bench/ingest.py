"""Ingest: what storing epochs costs beside raw inserts of the rows that it leaves behind, in the same run.

Batches of 100 epochs as agents send them: 4 streams of the default bucket array with 20 keys each, the keys of a stream
changing slowly. *raw* writes the same rows (epochs, directory of keys, sightings) with prepared statements of
`sqlite3` or psycopg, one transaction a batch, under the same settings; the PostgreSQL is a real one on a socket, with
`fsync` as it comes. CPU is of the query unit's process alone: over HTTP the application is called as its server calls
it (reading HTTP from a socket is not in it; `ingest_workers` has that), by MQTT a node in a process of its own, on any
processor, sends through a real mosquitto. One batch is on its way at a time, as an agent sends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg
from starlette.types import ASGIApp, Message

from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.headers import encoded_epochs
from sojourn.epochs.wire import encode
from sojourn.node.transports.broker import broker_at
from sojourn.node.transports.mqtt import MqttTransport
from sojourn.node.transports.transport import TransportError
from sojourn.server.app import create_app
from sojourn.server.door.limits import Limits
from sojourn.server.ingest.link import BrokerOptions
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore

__all__ = ["KEYS", "NOTE", "PARAMETERS", "POSTGRESQL", "SQLITE", "postgresql_in", "table"]

BATCHES, BATCH, STREAMS, KEYS = 40, 100, 4, 20
REPETITIONS = 3
PARAMETERS = BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24)
TABLES = ("epochs", "instances", "sightings")
NOTE = f"One core; {BATCHES} batches of {BATCH} epochs of {KEYS} keys, best of {REPETITIONS} runs, new databases each."


def _batches() -> list[list[bytes]]:
    epochs = []
    for number in range(BATCHES * BATCH // STREAMS):
        keys = tuple(ProcessKey("worker", number // 10 + i) for i in range(KEYS))
        sketch = BucketArray(PARAMETERS)
        for key in keys:
            sketch.record(key_id(key), 1000, 10**18 + number * 10**9)
        epochs += [encode(Epoch("gateway-7", f"stream-{i}", number, sketch, keys)) for i in range(STREAMS)]
    return [epochs[i : i + BATCH] for i in range(0, len(epochs), BATCH)]


Timed = tuple[float, float]  # seconds of CPU, and of the wall clock, for all batches but the first, which warms up


def _timed(run: Callable[[], object]) -> Timed:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def _store(place: Path | str, batches: list[list[bytes]]) -> Timed:
    with closing(open_store(place)) as store:

        def add(some: list[list[bytes]]) -> None:
            for batch in some:
                store.add_encoded(list(encoded_epochs(b"".join(batch))))

        add(batches[:1])
        return _timed(lambda: add(batches[1:]))


def _handler(place: Path | str, batches: list[list[bytes]]) -> Timed:
    with closing(open_store(place)) as store:
        token = TokenStore(store).create(Role.ADMIN, name="bench")[1]
        app = create_app(store, limits=Limits(requests_per_second=1e6, burst=10**6))
        bodies = [b"".join(batch) for batch in batches]

        async def post() -> Timed:
            async with app.router.lifespan_context(app):
                for number, body in enumerate(bodies):
                    if number == 1:
                        cpu, wall = time.process_time(), time.perf_counter()
                    await _post(app, token, body)
                return time.process_time() - cpu, time.perf_counter() - wall

        return asyncio.run(post())


async def _post(app: ASGIApp, token: str, body: bytes) -> None:
    """A request as a server hands it to the application: no client's work is in it, and none of parsing HTTP."""
    headers = {"host": "unit", "authorization": f"Bearer {token}", "content-length": str(len(body))}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/epochs",
        "raw_path": b"/api/v1/epochs",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("unit", 80),
        "state": {},
    }
    told: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        told.append(message)

    await app(scope, receive, send)
    if told[0]["status"] != 200:
        raise SystemExit(f"epochs were refused: {told}")


@contextmanager
def _mosquitto(folder: Path) -> Iterator[str]:
    """The URL of a broker that runs in a folder."""
    folder.mkdir(parents=True)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    (folder / "conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    # Debian puts it where only root's PATH leads.
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "mosquitto"
    command = [program, "-c", str(folder / "conf")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"mqtt://127.0.0.1:{port}"
        finally:
            process.terminate()


def _by_broker(folder: Path, place: Path | str, batches: list[list[bytes]]) -> Timed:
    with closing(open_store(place)) as store, _mosquitto(folder) as url:
        access = broker_at(url, where="bench")
        limits = Limits(requests_per_second=1e6, burst=10**6)
        app = create_app(store, limits=limits, broker=BrokerOptions(access=access))

        here, there = multiprocessing.Pipe()
        node = multiprocessing.get_context("spawn").Process(target=_send, args=(url, batches, there))

        def send() -> Timed:
            node.start()
            here.recv()
            cpu = time.process_time()
            here.send("go on")
            wall: float = here.recv()
            node.join()
            return time.process_time() - cpu, wall

        async def run() -> Timed:
            async with app.router.lifespan_context(app):
                return await asyncio.to_thread(send)

        return asyncio.run(run())


def _send(url: str, batches: list[list[bytes]], there: Connection) -> None:
    """A node, in a process of its own: the first batch until broker and query unit are there, the others when told."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with closing(MqttTransport(broker_at(url, where="bench"), node="gateway-7")) as transport:
        while True:
            with suppress(TransportError):
                transport.send(batches[0])
                break
            time.sleep(0.1)
        there.send("ready")
        there.recv()
        there.send(_timed(lambda: [transport.send(batch) for batch in batches[1:]])[1])


def _rows(stored: Path) -> Iterator[tuple[str, list[list[tuple[object, ...]]]]]:
    """The rows of each table of a store, dealt out to as many batches."""
    with closing(sqlite3.connect(stored / "sojourn.sqlite")) as connection:
        for name in TABLES:
            rows = connection.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall()
            share = -(-len(rows) // BATCHES)
            yield name, [rows[i * share : (i + 1) * share] for i in range(BATCHES)]


def _raw(folder: Path, stored: Path) -> Timed:
    rows = dict(_rows(stored))
    open_store(folder).close()
    with closing(sqlite3.connect(folder / "sojourn.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")

        def insert(numbers: range) -> None:
            for number in numbers:
                connection.execute("BEGIN IMMEDIATE")
                for name, batches in rows.items():
                    if batches[number]:
                        marks = ", ".join("?" * len(batches[number][0]))
                        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", batches[number])
                connection.execute("COMMIT")

        insert(range(1))
        return _timed(lambda: insert(range(1, BATCHES)))


@contextmanager
def postgresql_in(folder: Path) -> Iterator[Callable[[], str]]:
    """What gives the URL of a new schema of a server that runs in a folder; it refuses to be run by root."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        raise SystemExit("the figures of PostgreSQL need Debian's package postgresql")
    folder.mkdir(parents=True)
    user = None if os.geteuid() else "postgres"
    if user is not None:
        shutil.chown(folder, user)
        for parent in folder.parents[:2]:
            parent.chmod(0o755)

    def run(program: str, *words: str) -> None:
        command = [str(programs[-1].parent / program), "-D", str(folder / "data"), *words]
        with open(folder / "log", "ab") as log:
            subprocess.run(command, stdout=log, stderr=log, user=user, cwd=folder, check=True)

    address = f"postgresql+psycopg://sojourn@/postgres?host={folder}"
    names = count()

    def new_schema() -> str:
        name = f"bench_{next(names)}"
        with psycopg.connect(address.replace("+psycopg", "")) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{address}&options=-csearch_path%3D{name}"

    run("initdb", "--auth=trust", "--username=sojourn", "--encoding=UTF8")
    run("pg_ctl", "start", "-w", "-o", f"-c listen_addresses='' -c unix_socket_directories={folder}")
    try:
        yield new_schema
    finally:
        run("pg_ctl", "stop", "-w", "-m", "immediate")


def _raw_postgresql(place: str, stored: Path) -> Timed:
    """The same rows as are in an SQLite store, by psycopg's own `executemany`, which sends them in one go."""
    rows = dict(_rows(stored))
    open_store(place).close()
    with psycopg.connect(place.replace("+psycopg", "")) as connection:

        def insert(numbers: range) -> None:
            for number in numbers:
                with connection.transaction(), connection.cursor() as cursor:
                    for name, batches in rows.items():
                        if batches[number]:
                            marks = ", ".join(["%s"] * len(batches[number][0]))
                            cursor.executemany(f"INSERT INTO {name} VALUES ({marks})".encode(), batches[number])

        insert(range(1))
        return _timed(lambda: insert(range(1, BATCHES)))


SQLITE, POSTGRESQL, RAW = "SQLite", "PostgreSQL", "raw inserts of the same rows"


def table() -> list[str]:
    """CPU and rate of the store, the request handler and raw inserts, on both databases."""
    batches = _batches()
    found: dict[tuple[str, str], list[Timed]] = {}
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name, postgresql_in(Path(name) / "pg") as new_schema:
        for run in range(REPETITIONS + 1):  # the first warms up
            folder = Path(name) / str(run)
            places: dict[str, Callable[[str], Path | str]] = {
                SQLITE: folder.joinpath,
                POSTGRESQL: lambda _: new_schema(),
            }
            times: dict[tuple[str, str], Timed] = {}
            for database, place in places.items():
                times[database, "`EpochStore.add_encoded`"] = _store(place("store"), batches)
                times[database, "`POST /api/v1/epochs`"] = _handler(place("handler"), batches)
                broker = folder / f"broker-{database}"
                times[database, "`…/up/epochs` through mosquitto"] = _by_broker(broker, place("mqtt"), batches)
            times[SQLITE, RAW] = _raw(folder / "raw", folder / "store")
            times[POSTGRESQL, RAW] = _raw_postgresql(new_schema(), folder / "store")
            if run:
                for what, timed in times.items():
                    found.setdefault(what, []).append(timed)
    best = {what: (min(cpu for cpu, _ in runs), min(wall for _, wall in runs)) for what, runs in found.items()}
    epochs = (BATCHES - 1) * BATCH
    lines = ["| database | path | CPU an epoch | epochs/s | rate ÷ raw | CPU ÷ raw |", "|---|---|---:|---:|---:|---:|"]
    for (database, what), (cpu, wall) in sorted(best.items(), key=lambda one: one[0][0] != SQLITE):
        raw = best[database, RAW]
        ratios = f"{raw[1] / wall:.2f} | {cpu / raw[0]:.1f}"
        lines.append(f"| {database} | {what} | {cpu / epochs * 1e6:,.0f} µs | {epochs / wall:,.0f} | {ratios} |")
    return [*lines, "", *_parts(batches)]


def _parts(batches: list[list[bytes]]) -> list[str]:
    """What cannot be left out of taking an epoch in, beside what it takes to insert it."""

    bodies = [b"".join(batch) for batch in batches[1:]]

    def headers() -> None:
        for batch in bodies:
            list(encoded_epochs(batch))

    headers()
    cpu = min(_timed(headers)[0] for _ in range(REPETITIONS)) / ((BATCHES - 1) * BATCH)
    return [f"Reading and checking an epoch's header (CBOR, check word, parameters) alone takes {cpu * 1e6:.0f} µs."]
