"""Topologies read from real routers, while links fail and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import live_marks
from routed_worlds import bring_up, six_routers
from sojourn.core.errors import TopologyError
from sojourn.lab.routed.network import RoutedLab, routed_lab
from sojourn.lab.routed.routers import Router, daemon_pids
from sojourn.mplane.planning.live_topology import Change, TopologyWatch, read_live_topology
from sojourn.mplane.planning.paths import m_sets, m_sets_after_change, shortest_paths
from sojourn.mplane.planning.topology import Topology

pytestmark = live_marks("LIVE TOPOLOGIES ARE NOT TESTED: they need root for network namespaces")

NAMES = {f"10.96.0.{number}": f"r{number}" for number in range(1, 7)}
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def lab() -> Iterator[RoutedLab]:
    with routed_lab(six_routers()) as built:
        built.wait_converged()
        yield built


@pytest.fixture
def converged(lab: RoutedLab) -> Iterator[RoutedLab]:
    yield lab
    bring_up(lab)


def source(lab: RoutedLab, router: str) -> str:
    return f"frr:{lab.router(router).folder}"


def read(lab: RoutedLab, router: str) -> Topology:
    return read_live_topology(source(lab, router), names=NAMES)


def same(one: Topology, other: Topology) -> bool:
    columns = (one.source, other.source), (one.target, other.target), (one.weight, other.weight)
    return one.names == other.names and all(a.tolist() == b.tolist() for a, b in columns)


def without(topology: Topology, one: str, other: str) -> Topology:
    u, v = topology.router(one), topology.router(other)
    return topology.without([(u, v), (v, u)])


def test_every_router_tells_the_topology_that_was_built(lab: RoutedLab) -> None:
    for router in NAMES.values():
        assert same(read(lab, router), six_routers())


def test_without_names_routers_are_their_ids(lab: RoutedLab) -> None:
    assert read_live_topology(source(lab, "r3")).names == tuple(NAMES)


def test_on_a_router_itself_it_is_the_machines_or_one_of_a_pathspace(lab: RoutedLab) -> None:
    router = lab.router("r1")
    (router.folder / "other").mkdir()
    (router.folder / "other" / "ospfd.vty").symlink_to("../ospfd.vty")
    script = (
        "from sojourn.mplane.planning.live_topology import read_live_topology\n"
        "for source in ('frr:', 'frr:other'):\n"
        "    print(read_live_topology(source).links)\n"
    )
    assert router.run(sys.executable, "-c", script) == "14\n14\n"


def test_m_sets_after_a_failure_are_those_from_scratch(converged: RoutedLab) -> None:
    before = read(converged, "r6")
    upgraded = before.source[:6] < 0
    upgraded[[before.router("r2"), before.router("r5")]] = True
    old = m_sets(shortest_paths(before), upgraded)
    converged.link_down("r2", "r3")
    converged.wait_converged()
    after = read(converged, "r6")
    assert same(after, without(six_routers(), "r2", "r3"))
    new = m_sets_after_change(old, after)
    scratch = m_sets(shortest_paths(after), upgraded)
    assert all(one.same_as(other) for one, other in zip(new.sets, scratch.sets, strict=True))
    assert not all(one.same_as(other) for one, other in zip(old.sets, new.sets, strict=True))


def poll_until_change(watch: TopologyWatch) -> Change:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        change = watch.poll(time.monotonic_ns())
        if change is not None:
            return change
        time.sleep(0.1)
    raise AssertionError("no change was seen")


def test_a_watch_tells_links_that_go_and_come_back(converged: RoutedLab) -> None:
    watch = TopologyWatch(lambda: read(converged, "r1"), ["r5"])
    assert poll_until_change(watch).before is None
    assert watch.poll(time.monotonic_ns()) is None
    converged.link_down("r4", "r5")
    gone = poll_until_change(watch)
    assert gone.gone == (("r4", "r5", 10), ("r5", "r4", 10))
    assert gone.come == ()
    converged.link_up("r4", "r5")
    back = poll_until_change(watch)
    assert back.come == (("r4", "r5", 10), ("r5", "r4", 10))


def test_the_command_prints_changes_until_ctrl_c(converged: RoutedLab, tmp_path: Path) -> None:
    names = tmp_path / "names.csv"
    names.write_text("router_id,name\n" + "".join(f"{router},{name}\n" for router, name in NAMES.items()))
    options = ["--names", str(names), "--upgraded", "r2,r5", "--watch", "--every", "100ms", "--format", "jsonl"]
    command = [sys.executable, "-m", "sojourn.cli.main", "mplane", "msets", source(converged, "r3"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert (len(first["come"]), len(first["msets"])) == (14, 6)
        converged.link_down("r1", "r2")
        change = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=PATIENCE_SECONDS)
    assert (watching.returncode, said) == (0, "")
    assert [(link["source"], link["target"]) for link in change["gone"]] == [("r1", "r2"), ("r2", "r1")]
    by_node = {entry["node"]: entry for entry in change["msets"]}
    assert by_node["r1"] == {"node": "r1", "kind": "m-server", "monitors": ["r4", "r5"], "held": ["r2"]}
    assert set(by_node) == {"r1", "r2", "r4"}
    assert change["hold_until_ns"] - change["time_ns"] == 60 * 10**9


def end_ospfd(router: Router) -> None:
    """Kill it, and wait until it is gone."""
    pid = int((router.folder / "ospfd.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pid in daemon_pids(router.folder).values() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_router_whose_ospfd_ends_says_so(converged: RoutedLab) -> None:
    router = converged.router("r4")
    end_ospfd(router)
    with pytest.raises(TopologyError, match="no ospfd can be reached"):
        read(converged, "r4")
    router.start_daemon("ospfd")
    router.vtysh("configure", "no router ospf")
    with pytest.raises(TopologyError, match="OSPF is not enabled on this router"):
        read(converged, "r4")
    end_ospfd(router)
    router.start_daemon("ospfd")
