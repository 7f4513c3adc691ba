"""The agent in trouble: a query unit that is away, a full disk, sources that complain, streams that cannot be."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, bound_socket, make_epoch, running_unit

from machine import needs_root
from mosquitto_broker import Broker, mostly_http
from sojourn.core.errors import StoreError
from sojourn.node.agent import agent as agent_module
from sojourn.node.agent.agent import Agent
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.spool.file import FILE_NAME, reading
from sojourn.node.spool.spool import Spool
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
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
def unit(tmp_path: Path, broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS, broker=broker)


@pytest.fixture
def node(tmp_path: Path, unit: Unit) -> Iterator[Node]:
    made = Node(tmp_path, unit.address, unit.tokens["alpha"])
    yield made
    made.end()


def test_what_was_measured_while_the_query_unit_was_away_from_the_start_is_stored_and_can_be_asked(
    tmp_path: Path, broker: Broker | None
) -> None:
    """The unit holds numbers that the node does not know of, and has never heard of the stream."""
    earlier = 40
    store = open_store(tmp_path / "data")
    store.add([make_epoch(i, stream="tally", time_ns=i, values=(1,)) for i in range(earlier)])
    token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
    store.close()
    bound = bound_socket()
    node = Node(tmp_path, broker.url if broker else f"http://127.0.0.1:{bound.getsockname()[1]}", token)
    node.start()
    try:
        node.count()
        eventually(lambda: node.epochs("waiting", "sent"))
        running = running_unit(tmp_path / "data", LIMITS, listening=bound, broker=broker)
        unit = next(running)
        eventually(lambda: bool(unit.store.streams(node="alpha")))
        eventually(lambda: unit.store.totals()["epochs"] > earlier)
        errors = node.stop()
        assert "cannot be reached" in errors or "no query unit" in errors
        assert "is there again" in errors
        assert "has its number" not in errors
        assert ask(unit, live=False)[0]["value"] == sum(node.truth.values()) + earlier
        next(running, None)
    finally:
        node.end()


def test_an_agent_that_ends_just_when_the_query_unit_has_come_says_what_its_epochs_are_of(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
    store.close()
    bound = bound_socket()
    node = Node(tmp_path, f"http://127.0.0.1:{bound.getsockname()[1]}", token)
    node.start()
    try:
        node.count()
        eventually(lambda: node.spooled() == sum(node.truth.values()))
        running = running_unit(tmp_path / "data", LIMITS, listening=bound)
        unit = next(running)
        node.stop()
        assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())
        next(running, None)
    finally:
        node.end()


def test_everything_that_waits_to_be_sent_is_part_of_a_live_answer(
    tmp_path: Path, broker: Broker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, second = 250, 10**9
    running = running_unit(tmp_path / "data", LIMITS, broker=broker)
    unit = next(running)
    node = Node(tmp_path, unit.address, unit.tokens["alpha"])
    spool = Spool(node.spool, limit_bytes=1 << 20)
    for i in range(waiting):
        spool.put(make_epoch(i, stream="tally", time_ns=(i + 1) * second, values=(i,)))
    spool.close()
    with monkeypatch.context() as disk:
        disk.setattr(unit.store, "add_encoded", _full_store)
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


@mostly_http
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


@mostly_http
def test_an_assigned_stream_that_cannot_be_recorded_does_not_end_the_others(unit: Unit, node: Node) -> None:
    narrow = {"metric": "tally", "path": str(node.tally), "bits": 2, "count_bits": 8, "buckets": 4, "per_instance": 1}
    with unit.client("admin") as client:
        client.put("/api/v1/nodes/alpha/assignments/narrow", json={"configuration": narrow})
    node.start()
    eventually(lambda: len(unit.store.streams(node="alpha")) == 2)
    node.count()
    eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    assert node.stop().count("stream narrow failed and will be tried again: narrow: a measurement does not fit") == 1


def limit_files(node: Node, most_bytes: int) -> None:
    """Have the agent's writes refused beyond so many bytes of any file, as a full disk does; -1 takes that back."""
    assert node.process is not None
    _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (hard if most_bytes < 0 else most_bytes, hard))


@mostly_http
def test_a_full_disk_does_not_end_the_agent(unit: Unit, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.start()
    eventually(lambda: is_listening(unit))
    limit_files(node, 1)
    with monkeypatch.context() as disk:
        # Nothing can be sent, either, until there is room again.
        disk.setattr(unit.store, "add_encoded", _full_store)
        for _ in range(3):
            node.count()
            time.sleep(0.6)
        eventually(lambda: ask(unit)[0]["epochs"] >= 2)
        assert ask(unit)[0]["value"] == sum(node.truth.values()), "it waits in memory, and can be asked for"
        assert node.spooled() < sum(node.truth.values())
        limit_files(node, -1)
        eventually(lambda: node.spooled() == sum(node.truth.values()))
    eventually(lambda: ask(unit, live=False)[0]["value"] == sum(node.truth.values()))
    errors = node.stop()
    assert errors.count("recording goes on, epochs wait in memory") == 1
    assert errors.count("can be written again") == 1
    assert "lost" not in errors


@mostly_http
def test_what_could_neither_be_written_nor_sent_is_listed_exactly_at_the_end(
    unit: Unit, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start()
    eventually(lambda: is_listening(unit))
    limit_files(node, 1)
    monkeypatch.setattr(unit.store, "add_encoded", _full_store)
    for _ in range(3):
        node.count()
        time.sleep(0.6)
    errors = node.stop()
    listed = re.findall(r"epoch \d+ of tally \((\d+) measurements from \S+Z to \S+Z\) could neither be sent", errors)
    summary = re.search(r"sojourn: (\d+) measurements in", errors)
    assert summary is not None
    assert sum(map(int, listed)) == int(summary.group(1)) > 0
    assert node.process is not None
    assert node.process.returncode == 0


@needs_root("only root can make a disk read-only; CI skips nothing")
@mostly_http
def test_an_agent_that_starts_on_a_read_only_disk_records_and_writes_later(unit: Unit, node: Node) -> None:
    """What a killed run left there is taken up as soon as the disk allows it."""

    def mount(*how: str) -> None:
        subprocess.run(["mount", *how, str(node.spool)], check=True)

    node.spool.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs")
    try:
        node.start()
        node.count()
        eventually(lambda: unit.store.totals()["epochs"] or node.spooled())
        node.stop(signal.SIGKILL)
        eventually(lambda: not is_listening(unit))
        node.tally.write_text("")
        mount("-o", "remount,ro")
        node.start()
        eventually(lambda: is_listening(unit))
        node.count()
        eventually(lambda: ask(unit)[0]["value"] >= sum(node.truth.values()) // 2)
        mount("-o", "remount,rw")
        eventually(lambda: ask(unit, live=False)[0]["value"] == sum(node.truth.values()))
        errors = node.stop()
        assert "unknown until its spool can be written" in errors
        assert "stream tally lost what it measured from" in errors
        assert "can be written again" in errors
    finally:
        node.end()
        subprocess.run(["umount", "-l", str(node.spool)], check=True)


@mostly_http
def test_a_second_agent_on_a_spool_is_refused_with_the_number_of_the_first(unit: Unit, node: Node) -> None:
    node.start()
    eventually(lambda: is_listening(unit))
    assert node.process is not None
    first = node.process
    command = [sys.executable, "-m", "sojourn.cli.main", "agent", "-c", str(node.configuration)]
    second = subprocess.run(command, env=node.environment, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"another agent (process {first.pid}) uses this spool" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    node.count()
    eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    node.stop()
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


@mostly_http
def test_an_agent_whose_clock_is_set_back_has_a_checkpoint_of_all_that_is_open(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"node": "alpha", "server": unit.address, "token": "t", "spool": str(tmp_path / "spool")}
    tables |= {"poll": "50ms", "streams": {"memory": {"metric": "memory", "epoch": "30m", "instances": ["py*"]}}}
    monkeypatch.setattr(agent_module, "CHECKPOINT_NS", 100_000_000)
    set_back = 0
    agent = Agent(
        configuration_of(tables, where="test"),
        unit.transport(),
        report=lambda _: None,
        clock=lambda: time.time_ns() - set_back,
    )
    running = threading.Thread(target=agent.run)
    running.start()

    def checkpoints() -> list[tuple[int, int]]:
        with reading(tmp_path / "spool" / FILE_NAME) as connection:
            query = "SELECT sequence, first_ns FROM entries WHERE state = 'open' ORDER BY sequence"
            return connection.execute(query).fetchall()

    try:
        eventually(lambda: len(checkpoints()) == 1)
        set_back = 3600 * 10**9
        eventually(lambda: len(checkpoints()) == 2)
        (before, early), (after, late) = checkpoints()
        assert after == before + 1
        assert late < early - set_back // 2
    finally:
        agent.stop()
        running.join(timeout=PATIENCE_SECONDS)
    assert sum(e.recorded for e in unit.store.epochs("alpha", "memory", 0, 2**62)) == agent.counts.measurements


def _full_store(*_: object) -> None:
    raise StoreError("the database says: database or disk is full")
