"""Answers about topologies: the plans of the command line, and changes named as a diagnosis names them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.web.pages.network_world import CSV, SILENT, SLOW, UPGRADED, network_measurements

from sojourn.core.errors import SojournError, TopologyError
from sojourn.server.topologies.answering import MOST_ROUTERS, Measured, changes, describe, path, plan, read_file
from sojourn.store.epochs import open_store
from sojourn.store.measurements import MeasurementStore
from sojourn.store.topologies import TopologyFile, TopologyStore


@pytest.fixture(scope="module")
def ring() -> TopologyFile:
    return read_file("ring.csv", CSV.encode(), None)[0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    store = open_store(str(tmp_path_factory.mktemp("store")))
    MeasurementStore(store).add(network_measurements())
    return Measured(url=store.engine.url, from_ns=0, to_ns=2**63 - 1, dscp=0, most_bytes=1 << 26)


def test_a_plan_is_that_of_the_command_line(ring: TopologyFile, tmp_path: Path) -> None:
    (tmp_path / "ring.csv").write_text(CSV)
    traffic = "from,to,weight\nr0,r4,5\nr7,r2,1\n"
    (tmp_path / "traffic.csv").write_text(traffic)
    command = [sys.executable, "-m", "sojourn", "mplane", "upgrade", "ring.csv", "--count", "4", "--strategy", "best"]
    command += ["--exclude", "r0", "--must", "r3", "--traffic", "traffic.csv", "--format", "json"]
    said = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    found = plan(ring, 4, "best", ["r0"], ["r3"], traffic)
    assert {name: found[name] for name in said} == said


def test_the_segments_that_changed_are_told_from_those_that_did_not(ring: TopologyFile, measured: Measured) -> None:
    found = changes(ring, measured)
    clear = {row["segment"] for row in found["segments"] if row["clear"]}
    assert clear == {">".join(SLOW), ">".join(SILENT)}
    assert found["upgraded"] == sorted(UPGRADED)
    slow = next(row for row in found["segments"] if row["segment"] == ">".join(SLOW))
    assert slow["low_ns"] < 6e6 < slow["high_ns"]


def test_nothing_measured_is_no_error(ring: TopologyFile, measured: Measured) -> None:
    later = Measured(**{**vars(measured), "from_ns": 2**62})
    assert changes(ring, later)["segments"] == []
    found = path(ring, later, "r2", "r5", None)
    assert found["diagnosis"] is None
    assert found["mean_ns"] is None


def test_a_path_has_its_segments_now_and_before(ring: TopologyFile, measured: Measured) -> None:
    found = path(ring, measured, "r3", "r5", None)
    assert found["diagnosis"]["cause"] == "r4>r5"
    assert [one["hops"] for one in found["paths"]] == [["r3", "r4", "r5"]]
    slow = next(row for row in found["segments"] if row["segment"] == "r4>r5")
    assert slow["mean_ns"] - slow["before_ns"] > 4e6
    whole = path(ring, measured, "r3", "r5", [])
    assert [row["segment"] for row in whole["segments"]] == ["r3>r4>r5"]


def test_a_network_has_its_places_where_they_are_known() -> None:
    graph = (
        '<graphml><key attr.name="Longitude" for="node" id="x"/><key attr.name="Latitude" for="node" id="y"/><graph>'
        '<node id="a"><data key="x">-74.0</data><data key="y">40.7</data></node><node id="b"/>'
        '<node id="c"><data key="x">200</data><data key="y">1</data></node>'
        '<edge source="a" target="b"/><edge source="b" target="c"/></graph></graphml>'
    )
    found = describe(read_file("net.graphml", graph.encode(), None)[0])
    assert found["places"] == {"a": (-74.0, 40.7)}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", b"x", "names no known format"),
        ("a.csv", b"\xff", "not UTF-8 text"),
        ("a.csv", b"source,target,weight\na,b,-1\n", r"a\.csv:2: a weight is above 0"),
        ("a.graphml", b"<!DOCTYPE x [<!ENTITY a 'b'>]><graphml/>", "declares the entity"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name_and_line(name: str, content: bytes, why: str) -> None:
    with pytest.raises(SojournError, match=why):
        read_file(name, content, None)


def test_a_network_that_is_too_large_is_refused() -> None:
    lines = "".join(f"n{k},n{k + 1},1\n" for k in range(MOST_ROUTERS))
    with pytest.raises(TopologyError, match="plan on a part of it"):
        read_file("long.csv", f"source,target,weight\n{lines}".encode(), False)


def test_a_file_beside_the_server_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1.latencies.intra").write_text("nonsense\n")
    assert read_file("1.weights.intra", b"a b 1\nb a 1\n", None)[0].routers == 2


def test_topologies_are_stored_replaced_listed_and_removed(tmp_path: Path, ring: TopologyFile) -> None:
    store = open_store(str(tmp_path))
    kept = TopologyStore(store)
    for name in ("b", "a", "b"):
        kept.put(name, ring, who="me")
    assert [one.name for one in kept.all()] == ["a", "b"]
    assert kept.named("a") == ring
    assert kept.named("c") is None
    assert kept.remove("a")
    assert not kept.remove("a")
    store.close()
