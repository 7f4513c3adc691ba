"""A real agent of metrics: what it has loaded, what memory it takes, and that all of it works without numpy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from mosquitto_broker import Broker, mostly_http
from sojourn.server.control.assignments import AssignmentStore
from tally_node import PLUGIN, Node, ask, is_listening
from waiting import eventually

HEAVY = {"numpy", "numba", "llvmlite", "scipy", "pandas", "httpx", "pydantic", "pydantic_core", "rich"}
# What agents are to stay under. One takes 32 MiB here, at a broker too: a quarter is left for other machines.
MOST_BYTES = 40 << 20
LOADED = '''
import sys as _sys
from sojourn.core.keys import NodeKey as _NodeKey

class Loaded(ReadingSource):
    """Tells a file which modules the agent's own process has loaded, whenever it is polled."""
    metric = Metric("loaded", "modules", "node", "samples")

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def read(self, now_ns):
        with open(self._path, "a") as file:
            file.write(" ".join(_sys.modules) + "\\n")
        return {_NodeKey("modules"): len(_sys.modules)}
'''
STREAMS = """
[streams.loaded]
metric = "loaded"
path = "{path}"
epoch = "500ms"

[streams.cpu]
metric = "cpu"
epoch = "500ms"

[streams.memory]
metric = "memory"
epoch = "500ms"
instances = ["*"]

[streams.disk]
metric = "disk_io"
epoch = "500ms"
spreading = "hashed-steps"
"""


@pytest.fixture
def unit(tmp_path: Path, broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", broker=broker)


@pytest.fixture
def node(tmp_path: Path, unit: Unit) -> Iterator[Node]:
    made = Node(tmp_path, unit.address, unit.tokens["alpha"])
    plugin = tmp_path / "plugin"
    (plugin / "tally_metric.py").write_text(PLUGIN + LOADED)
    points = plugin / "tally-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "loaded = tally_metric:Loaded\n")
    made.configuration.write_text(made.configuration.read_text() + STREAMS.format(path=tmp_path / "loaded"))
    yield made
    made.end()


def loaded(node: Node) -> set[str]:
    """The packages that the agent's process has loaded until now."""
    polls = node.tally.with_name("loaded").read_text().splitlines()
    return {module.partition(".")[0] for module in polls[-1].split()}


def assert_is_light(node: Node) -> None:
    assert node.process is not None
    assert loaded(node) & HEAVY == set()
    assert not any(name in Path(f"/proc/{node.process.pid}/maps").read_text() for name in ("numpy", "llvmlite"))
    rollup = Path(f"/proc/{node.process.pid}/smaps_rollup").read_text().splitlines()
    (resident,) = (int(line.split()[1]) << 10 for line in rollup if line.startswith("Rss:"))
    assert resident < MOST_BYTES, f"{resident / 2**20:.1f} MiB"


def test_an_agent_of_metrics_loads_no_numpy_and_stays_small(unit: Unit, node: Node) -> None:
    """It announces, records, checkpoints, closes, sends, answers live, and takes an assignment."""
    AssignmentStore(unit.store).assign("alpha", "more", {"metric": "cpu", "epoch": "500ms", "salted": False})
    node.start()
    eventually(lambda: is_listening(unit))
    for _ in range(10):
        node.count()
        time.sleep(0.15)
    eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
    assert ask(unit)[0]["live"] is True
    eventually(lambda: ask(unit, live=False)[0]["epochs"] >= 2)
    for metric in ("cpu", "memory", "loaded", "disk_io"):
        assert ask(unit, metric=metric)[0]["value"] > 0, metric
    eventually(lambda: unit.store.last_sequence("alpha", "more") is not None)
    assert_is_light(node)
    assert "Traceback" not in node.stop()
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


@mostly_http
def test_a_spool_that_overflows_merges_without_numpy_and_loses_nothing(unit: Unit, node: Node) -> None:
    """While the query unit is away; then the agent is killed, started again, and all arrives."""
    text = node.configuration.read_text()
    text = text[: text.index("[streams.cpu]")].replace('"500ms"', '"100ms"\nsalts = 1')
    node.configuration.write_text(text.replace(unit.address, unit.nowhere).replace('"64KiB"', '"4KiB"'))
    node.start()
    eventually(node.spool.exists)
    for _ in range(30):
        node.count(2)
        time.sleep(0.15)
    eventually(lambda: node.spooled_of("tally") == sum(node.truth.values()))
    spans = [epoch.last_ns - epoch.first_ns for epoch in node.epochs("waiting") if epoch.stream == "tally"]
    assert max(spans) > 1_000_000_000, "epochs of 100 ms were merged"
    assert_is_light(node)
    node.end()
    node.configuration.write_text(text)
    node.tally.write_text("")
    node.start()
    eventually(lambda: is_listening(unit))
    eventually(lambda: ask(unit, live=False)[0]["value"] == sum(node.truth.values()))
    assert_is_light(node)
    assert "the agent was killed" in node.stop()
