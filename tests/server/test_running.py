"""The query unit as a process: whether it lives and is ready, how it ends, and what its log looks like."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from query_unit import Unit, make_epoch

from sojourn.epochs.wire import encode
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

CBOR = {"Content-Type": "application/cbor"}


class Process:
    """`sojourn serve` on a port of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.data = directory / "data"
        store = open_store(self.data)
        self.token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
        store.close()
        self.log = directory / "log"
        command = [sys.executable, "-m", "sojourn", "serve", "--data", str(self.data), "--port", "0", *options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def send(self, *epochs: Any) -> httpx.Response:
        headers = {**CBOR, "Authorization": f"Bearer {self.token}"}
        body = b"".join(map(encode, epochs))
        return httpx.post(f"{self.url}/api/v1/epochs", content=body, headers=headers, timeout=PATIENCE_SECONDS)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path, "--log-format", "json")
    eventually(lambda: httpx.get(f"{started.url}/health/ready").status_code == 200)
    yield started
    started.process.kill()
    started.process.wait()


def test_a_batch_that_is_being_stored_is_finished_and_a_node_that_waits_is_sent_away(process: Process) -> None:
    """Somebody else holds the database for longer than requests once had after a signal."""
    answers: list[httpx.Response] = []
    waits: list[httpx.Response] = []
    headers = {"Authorization": f"Bearer {process.token}"}

    def wait() -> None:
        url = f"{process.url}/api/v1/nodes/alpha/requests"
        waits.append(httpx.get(url, headers=headers, params={"wait": 25}, timeout=PATIENCE_SECONDS))

    writer = sqlite3.connect(process.data / "sojourn.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    threads = [
        threading.Thread(target=wait),
        threading.Thread(target=lambda: answers.append(process.send(make_epoch()))),
    ]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    process.process.send_signal(signal.SIGTERM)
    threads[0].join(PATIENCE_SECONDS)
    assert waits[0].status_code == 204
    time.sleep(3.5)
    assert process.process.poll() is None
    writer.execute("COMMIT")
    writer.close()
    threads[1].join(PATIENCE_SECONDS)
    assert answers[0].json()["results"][0]["status"] == "stored"
    process.end()
    store = open_store(process.data)
    assert store.totals()["epochs"] == 1
    store.close()


def test_the_log_in_json_has_an_object_a_line(process: Process) -> None:
    assert httpx.get(f"{process.url}/api/v1/nodes", headers={"Authorization": "Bearer x"}).status_code == 401
    process.end()
    records = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert all(set(record) == {"time", "level", "logger", "message"} for record in records)
    (refused,) = [record for record in records if record["logger"] == "sojourn.access"]
    assert (refused["level"], refused["message"]) == ("warning", "sign-in failed from 127.0.0.1 with an invalid token")
    assert any(record["message"].startswith("serving") for record in records)


def test_a_unit_is_ready_while_its_store_answers(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    with unit.client(None) as client:
        assert client.get("/health/live").json()["status"] == "ok"
        found = client.get("/health/ready")
        assert (found.status_code, found.json()["checks"]) == (200, {"store": "ok", "requests": "ok"})
        unit.store.engine.dispose()
        database = Path(unit.store.where) / "sojourn.sqlite"
        monkeypatch.setattr(unit.store, "engine", open_nothing(database))
        found = client.get("/health/ready")
        assert (found.status_code, found.json()["status"]) == (503, "not ready")
        assert "the database says" in found.json()["checks"]["store"]
        assert client.get("/health/live").status_code == 200
    monkeypatch.undo()


def open_nothing(database: Path) -> Any:
    """The engine of a database that is not there."""
    from sqlalchemy import create_engine

    return create_engine(f"sqlite:///file:{database}.gone?mode=ro&uri=true")
