"""Streams that fail, for whatever reason, end alone, are reported and tried again; nothing they do keeps the agent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from mosquitto_broker import Broker
from sojourn.core.errors import CaptureError, ParameterError, SourceError
from sojourn.node.agent.stream import WatchedSource
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.door.limits import Limits
from sojourn.sources.registry import new_source
from tally_node import PLUGIN, Node, ask, is_listening
from waiting import PATIENCE_SECONDS, eventually

LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)
# What a metric of one's own may do: raise anything, wait for ever, ask for all memory, end the program.
TROUBLES = '''
import time as _time

class Trouble(Tally):
    """Does what a file names, when it is opened or polled."""
    metric = Metric("trouble", "operations", "process", "increments")

    def __init__(self, path: str, what: str = "", when: str = "poll") -> None:
        super().__init__(path)
        self._path, self._what, self._when = path, what, when

    def open(self):
        if self._when == "open":
            self._do()

    def read(self, now_ns):
        if self._when == "poll":
            self._do()
        return super().read(now_ns)

    def _do(self):
        if self._what == "wait":
            _time.sleep(3600)
        elif self._what == "memory":
            bytearray(1 << 62)
        elif self._what == "exit":
            raise SystemExit(3)
        elif self._what == "system":
            raise OSError(5, "Input/output error", "/dev/thing")
        elif self._what == "file":
            if open(self._path + ".mood").read() != "good":
                raise RuntimeError("a bad mood\\nin two lines")
'''


@pytest.fixture
def unit(tmp_path: Path, seldom_broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS, broker=seldom_broker)


@pytest.fixture
def node(tmp_path: Path, unit: Unit) -> Iterator[Node]:
    made = Node(tmp_path, unit.address, unit.tokens["alpha"])
    plugin = tmp_path / "plugin"
    (plugin / "tally_metric.py").write_text(PLUGIN + TROUBLES)
    points = plugin / "tally-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "trouble = tally_metric:Trouble\n")
    yield made
    made.end()


def states(unit: Unit) -> dict[str, dict]:
    with unit.client("viewer") as client:
        return client.get("/api/v1/nodes/alpha/states").json()["streams"]


def resident_bytes(node: Node) -> int:
    assert node.process is not None
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ended_within(node: Node, seconds: float) -> str:
    """What the agent says when it is stopped, which takes it only so long."""
    begun = time.monotonic()
    errors = node.stop()
    assert time.monotonic() - begun < seconds
    assert node.process is not None
    assert node.process.returncode == 0
    assert "Traceback" not in errors
    assert "fault" not in errors
    return errors


def test_assignments_that_cannot_be_end_alone_and_are_reported(unit: Unit, node: Node, tmp_path: Path) -> None:
    """As an earlier query unit, which checks nothing, would pass them on."""
    os.mkfifo(tmp_path / "pipe")
    trouble = {"metric": "trouble", "path": str(node.tally)}
    wrong: dict[str, tuple[dict, str]] = {
        "type": ({"metric": "packets", "interface": 7, "sketch": "lda", "rows": 8}, "interface is 7"),
        "large": ({"metric": "cpu", "buckets": 1 << 28}, "of memory, the limit is"),
        "larger": ({"metric": "cpu", "buckets": 1 << 29}, "whole number"),
        "pipe": ({"metric": "flow_bytes", "capture": str(tmp_path / "pipe")}, "is a pipe"),
        "device": ({"metric": "flow_bytes", "capture": "/dev/zero"}, "is a pipe, a device"),
        "stdin": ({"metric": "flow_bytes", "capture": "-"}, "is stdin"),
        "unknown": ({"metric": "nothing"}, "no metric"),
        "memory": (trouble | {"what": "memory"}, "MemoryError"),
        "exit": (trouble | {"what": "exit"}, "raised SystemExit"),
        "system": (trouble | {"what": "system", "when": "open"}, "/dev/thing: Input/output error"),
        "mood": (trouble | {"what": "file"}, "mood"),
    }
    assignments = AssignmentStore(unit.store)
    for name, (table, _) in wrong.items():
        assignments.assign("alpha", name, table)
    (tmp_path / "tally.mood").write_text("bad")
    node.start()
    eventually(lambda: sum(state["state"] == "failed" for state in states(unit).values()) == len(wrong))
    eventually(lambda: all(words in (states(unit)[name]["reason"] or "") for name, (_, words) in wrong.items()))
    shown = states(unit)
    assert shown["tally"]["state"] == "running"
    assert all("\n" not in (state["reason"] or "") for state in shown.values())
    assert shown["mood"]["reason"] == "a bad mood in two lines"
    node.count()
    eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    assert resident_bytes(node) < 10**9
    (tmp_path / "tally.mood").write_text("good")
    eventually(lambda: states(unit)["mood"]["state"] == "running")
    errors = ended_within(node, 15)
    assert errors.count("stream mood failed and will be tried again: a bad mood in two lines") == 1
    assert errors.count("stream mood is recorded again") == 1
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


@pytest.mark.parametrize("when", ["open", "poll"])
def test_a_source_that_never_returns_keeps_neither_the_others_nor_the_end(unit: Unit, node: Node, when: str) -> None:
    stuck = {"metric": "trouble", "path": str(node.tally), "what": "wait", "when": when}
    AssignmentStore(unit.store).assign("alpha", "stuck", stuck)
    node.start()
    eventually(lambda: "stuck" in states(unit))
    for _ in range(3):
        node.count()
        eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    errors = ended_within(node, 15)
    assert ", 0 waiting" in errors
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


def test_a_stream_of_the_nodes_own_that_fails_is_tried_again(unit: Unit, node: Node, tmp_path: Path) -> None:
    own = f'\n[streams.own]\nmetric = "trouble"\npath = "{node.tally}"\nwhat = "file"\nepoch = "500ms"\n'
    node.configuration.write_text(node.configuration.read_text() + own)
    (tmp_path / "tally.mood").write_text("good")
    node.start()
    eventually(lambda: is_listening(unit))
    node.count()
    eventually(lambda: ask(unit, metric="trouble")[0]["value"] == sum(node.truth.values()))
    (tmp_path / "tally.mood").write_text("bad")
    eventually(lambda: states(unit).get("own", {}).get("state") == "failed")
    (tmp_path / "tally.mood").write_text("good")
    eventually(lambda: states(unit)["own"]["state"] == "running")
    node.stop()
    # It counts anew from the beginning of the file when it is opened again; nothing before is lost or doubled.
    assert ask(unit, metric="trouble", live=False)[0]["value"] == 2 * sum(node.truth.values())
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


def test_a_configuration_that_takes_too_much_memory_is_wrong(node: Node) -> None:
    text = node.configuration.read_text()
    for change in ('stream_memory = "1KiB"\n', 'memory = "1KiB"\n'):
        node.configuration.write_text(change + text)
        node.start()
        assert node.process is not None
        _, errors = node.process.communicate(timeout=PATIENCE_SECONDS)
        assert node.process.returncode == 2
        assert "of memory" in errors
    node.configuration.write_text('stream_memory = "1MiB"\nmemory = "2MiB"\n' + text)
    node.start()
    assert node.process is not None
    eventually(node.spool.exists)
    time.sleep(0.2)
    node.stop(signal.SIGTERM)


def test_a_capture_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "-"):
        with pytest.raises(CaptureError, match="cannot be polled"):
            new_source("packets", capture=path).open()


def test_options_are_of_the_kinds_that_a_source_names() -> None:
    for options in ({"interface": 7}, {"capture": True}, {"interface": "lo", "max_flows": 2.5}):
        with pytest.raises(ParameterError, match="give a"):
            new_source("packets", **options)


class Waiting:
    """A source that waits, as long as a test wants."""

    def __init__(self) -> None:
        self.may_go = False
        self.closed = False

    def open(self) -> None:
        while not self.may_go:
            time.sleep(0.01)

    def close(self) -> None:
        self.closed = True


def test_a_source_that_was_given_up_is_closed_when_it_returns() -> None:
    slow = Waiting()
    watched = WatchedSource(slow, name="slow")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="in time"):
        watched.open(seconds=0.1)
    assert watched.is_busy
    slow.may_go = True
    eventually(lambda: slow.closed and not watched.is_busy)
