"""The agent in trouble: a query unit that is away, a full disk, sources that complain, streams that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, bound_socket, make_epoch, running_unit

from sojourn.core.errors import StoreError
from sojourn.epochs.store import open_store
from sojourn.node import spool as spool_module
from sojourn.node.agent import Agent
from sojourn.node.configuration import configuration_of
from sojourn.node.http import HttpTransport
from sojourn.node.spool import Spool
from sojourn.server.limits import Limits
from sojourn.server.tokens import Role, TokenStore
from tally_node import PLUGIN, Node, ask, is_listening
from waiting import PATIENCE_SECONDS, eventually

LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)
RUBBISH = """            if line == "rubbish":
                self._ignored["lines of rubbish"] += 1
            elif line:
"""
WARNINGS = """
    @property
    def warnings(self):
        count = self._ignored["lines of rubbish"]
        return [f"{count} lines of rubbish so far"] if count else []
"""


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS)


@pytest.fixture
def node(tmp_path: Path, unit: Unit) -> Iterator[Node]:
    made = Node(tmp_path, unit.url, unit.tokens["alpha"])
    yield made
    made.end()


def test_what_was_measured_while_the_query_unit_was_away_from_the_start_is_stored_and_can_be_asked(
    tmp_path: Path,
) -> None:
    """The unit holds numbers that the node does not know of, and has never heard of the stream."""
    earlier = 40
    store = open_store(tmp_path / "data")
    store.add([make_epoch(i, stream="tally", time_ns=i, values=(1,)) for i in range(earlier)])
    token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
    store.close()
    bound = bound_socket()
    node = Node(tmp_path, f"http://127.0.0.1:{bound.getsockname()[1]}", token)
    node.start()
    try:
        node.count()
        eventually(lambda: any(node.spool.glob("*.epoch")) or any(node.spool.glob("*.sent")))
        running = running_unit(tmp_path / "data", LIMITS, listening=bound)
        unit = next(running)
        eventually(lambda: bool(unit.store.streams(node="alpha")))
        eventually(lambda: unit.store.totals()["epochs"] > earlier)
        errors = node.stop()
        assert "cannot be reached" in errors
        assert "is there again" in errors
        assert "has its number" not in errors
        assert ask(unit, live=False)[0]["value"] == sum(node.truth.values()) + earlier
        next(running, None)
    finally:
        node.end()


def test_everything_that_waits_to_be_sent_is_part_of_a_live_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, second = 250, 10**9
    running = running_unit(tmp_path / "data", LIMITS)
    unit = next(running)
    node = Node(tmp_path, unit.url, unit.tokens["alpha"])
    spool = Spool(node.spool, limit_bytes=1 << 20)
    for i in range(waiting):
        spool.put(make_epoch(i, stream="tally", time_ns=(i + 1) * second, values=(i,)))

    with monkeypatch.context() as disk:
        disk.setattr(unit.store, "add", _full_store)
        node.start()
        try:
            eventually(lambda: is_listening(unit))
            (total,) = ask(unit)
            assert total["value"] == sum(range(waiting))
            assert (total["live"], total["epochs"], total["notes"]) == (True, waiting, [])
            eventually(lambda: is_listening(unit))
            (part,) = ask(unit, from_ns=11 * second, to_ns=20 * second)
            assert part["value"] == sum(range(10, 20))
            assert part["live"] is True
            assert part["covered"] == [{"from_ns": s * second, "to_ns": s * second} for s in range(11, 21)]
        finally:
            node.end()
    next(running, None)


def test_what_a_source_warns_of_and_leaves_out_is_told(unit: Unit, node: Node, tmp_path: Path) -> None:
    (tmp_path / "plugin" / "tally_metric.py").write_text(PLUGIN.replace("            if line:\n", RUBBISH) + WARNINGS)
    node.start()
    eventually(lambda: is_listening(unit))
    for _ in range(3):
        with open(node.tally, "a") as file:
            file.write("rubbish\n")
        node.count(1)
        ask(unit)
    errors = node.stop()
    assert errors.count("lines of rubbish so far") == 1, "said once, though its number grows"
    assert "stream tally: 3 lines of rubbish" in errors


def test_an_assigned_stream_that_cannot_be_recorded_does_not_end_the_others(unit: Unit, node: Node) -> None:
    narrow = {"metric": "tally", "path": str(node.tally), "bits": 2, "count_bits": 8, "buckets": 4, "per_instance": 1}
    with unit.client("admin") as client:
        client.put("/api/v1/nodes/alpha/assignments/narrow", json={"configuration": narrow})
    node.start()
    eventually(lambda: len(unit.store.streams(node="alpha")) == 2)
    node.count()
    eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    assert node.stop().count("stream narrow failed and will be tried again: narrow: a measurement does not fit") == 1


def test_a_full_disk_does_not_end_the_agent(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"node": "alpha", "server": "http://127.0.0.1:9", "token": "t", "spool": str(tmp_path / "spool")}
    tables |= {"poll": "50ms", "streams": {"memory": {"metric": "memory", "epoch": "200ms", "instances": ["py*"]}}}
    configuration = configuration_of(tables, where="test")
    transport = HttpTransport(unit.url, unit.tokens["alpha"], node="alpha")
    said: list[str] = []
    with monkeypatch.context() as disk:
        disk.setattr(spool_module.os, "fsync", _full)
        # Nothing can be sent, either, until there is room again.
        disk.setattr(unit.store, "add", _full_store)
        agent = Agent(configuration, transport, report=said.append)
        running = threading.Thread(target=agent.run)
        running.start()
        eventually(lambda: agent.spool.unwritten >= 2)
    try:
        eventually(lambda: unit.store.totals()["epochs"] >= 2)
    finally:
        agent.stop()
        running.join(timeout=PATIENCE_SECONDS)
    assert any("No space left" in line and "wait in memory" in line for line in said)
    assert any("can be written again" in line for line in said)
    assert agent.spool.unwritten == 0
    measured = unit.store.epochs("alpha", "memory", 0, 2**62)
    assert sum(epoch.recorded for epoch in measured) == agent.counts.measurements


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def _full_store(*_: object) -> None:
    raise StoreError("the database says: database or disk is full")
