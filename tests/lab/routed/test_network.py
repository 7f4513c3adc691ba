"""Routed labs: real OSPF routers that converge, forward, fail and leave nothing behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from machine import live_marks
from routed_worlds import bring_up, six_routers, traces
from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.namespaces import Bottleneck, Host, own_prefix, remove_leftovers
from sojourn.lab.routed import traffic as routed_traffic
from sojourn.lab.routed.network import RoutedLab, routed_lab
from sojourn.lab.routed.state import remove_stale_labs
from sojourn.lab.routed.traffic import Traffic, send_traffic
from sojourn.mplane.planning.topology import TopologyBuilder

pytestmark = live_marks("THE ROUTED LAB IS NOT TESTED: it needs root for network namespaces")


@pytest.fixture(scope="module")
def lab() -> Iterator[RoutedLab]:
    mask = os.umask(0o077)  # the daemons are of another user, who must read their files all the same
    with routed_lab(six_routers(), hosts={"h1": "r1", "h2": "r6"}) as built:
        os.umask(mask)
        built.wait_converged()
        yield built
    assert traces(own_prefix()) == []


@pytest.fixture
def converged(lab: RoutedLab) -> Iterator[RoutedLab]:
    """The lab with all links up and no bottleneck, before and after."""
    yield lab
    lab.set_bottleneck("r1", "r2", None)
    bring_up(lab)


def reached(source: Host, target: Host) -> str:
    """What ping says once it gets through; hosts' networks may be routed a moment after the routers themselves."""
    again = f"until ping -c 1 -W 1 {target.address}; do sleep 0.1; done"
    return source.run("sh", "-c", again, timeout=300)


def test_packets_pass_from_host_to_host_over_the_routers(lab: RoutedLab) -> None:
    # Four routers lie on each of the two shortest paths.
    assert "ttl=60" in reached(lab.host("h1"), lab.host("h2"))


def test_routers_reach_every_loopback_over_their_own_commands(lab: RoutedLab) -> None:
    for router in lab.routers[1:]:
        assert "1 received" in lab.router("r1").run("ping", "-c", "1", router.address)
    assert "10.96.0.6" in lab.router("r1").run("vtysh", "-c", "show ip route")


def test_a_failed_link_is_routed_around_and_comes_back(converged: RoutedLab) -> None:
    converged.link_down("r1", "r2")
    converged.wait_converged()
    assert frozenset({"r1", "r2"}) not in converged.links_up()
    route = converged.router("r1").run("ip", "route", "get", converged.router("r2").address)
    assert converged.interface("r1", "r4") in route
    converged.link_up("r1", "r2")
    converged.wait_converged()
    route = converged.router("r1").run("ip", "route", "get", converged.router("r2").address)
    assert converged.interface("r1", "r2") in route


def test_a_router_that_is_cut_off_is_no_lack_of_convergence(converged: RoutedLab) -> None:
    for neighbour in ("r2", "r4"):
        converged.link_down("r1", neighbour)
    converged.wait_converged()
    answer = converged.router("r1").vtysh_json("show ip route ospf json")
    assert "10.96.0.6/32" not in answer


def test_a_bottleneck_limits_one_direction_and_goes_away(converged: RoutedLab) -> None:
    def rate(source: str, target: str) -> float:
        address = converged.router(target).address
        with converged.router(target).start("iperf3", "-s", "-1"):
            listening = "until ss -ltn | grep -q :5201; do sleep 0.05; done"
            converged.router(target).run("sh", "-c", listening, timeout=300)
            report = json.loads(converged.router(source).run("iperf3", "-J", "-c", address, "-t", "1"))
        return float(report["end"]["sum_received"]["bits_per_second"])

    converged.set_bottleneck("r1", "r2", Bottleneck(5_000_000))
    assert rate("r1", "r2") < 6_000_000
    assert rate("r2", "r1") > 6_000_000
    converged.set_bottleneck("r1", "r2", None)
    assert rate("r1", "r2") > 6_000_000


def test_traffic_is_marked_and_counted_and_several_run_at_once(converged: RoutedLab) -> None:
    sender, receiver = converged.host("h1"), converged.host("h2")
    with receiver.entered():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    with tap, ThreadPoolExecutor(2) as pool:
        tap.settimeout(120)
        runs = [
            pool.submit(send_traffic, sender, receiver, Traffic(rate=rate, seconds=1, dscp=dscp, data_bytes=500))
            for rate, dscp in ((800_000, 46), (400_000, 10))
        ]
        marks: set[int] = set()
        while not {46 << 2, 10 << 2} <= marks:
            marks.add(tap.recv(2048)[1])
        reports = [run.result(300) for run in runs]
    assert [report.lost for report in reports] == [0, 0]
    # 200 and 100 where iperf3 is not kept from sending in the end.
    assert 100 < (reports[0].packets or 0) < 250
    assert 50 < (reports[1].packets or 0) < 125


def test_traffic_that_finds_no_way_says_so(converged: RoutedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_traffic, "CONNECT_MS", 500)
    converged.link_down("r6", "h2")
    with pytest.raises(SojournError, match=r"^traffic from h1 to h2: iperf3 reports: unable to connect"):
        send_traffic(converged.host("h1"), converged.host("h2"), Traffic(rate=800_000, seconds=1))
    converged.link_up("r6", "h2")
    reached(converged.host("h2"), converged.host("h1"))


def test_what_is_not_there_is_refused_by_name(lab: RoutedLab) -> None:
    with pytest.raises(UsageError, match=r"no link between r1 and r6; neighbours of r1 are r2, r4, h1"):
        lab.link_down("r1", "r6")
    with pytest.raises(UsageError, match="no router or host 'r9'"):
        lab.router("r9")
    with pytest.raises(UsageError, match="h1 is a host"):
        lab.router("h1")


def test_packets_are_not_put_together_on_any_interface(lab: RoutedLab) -> None:
    for router in lab.routers:
        for end, _ in lab.plan.ends_of(router.name):
            assert "tcp-segmentation-offload: off" in router.run("ethtool", "-k", end.interface)


def test_the_daemons_keep_out_of_the_places_of_the_machines_own_router(lab: RoutedLab) -> None:
    for router in lab.routers:
        pids = [(router.folder / f"{daemon}.pid").read_text().strip() for daemon in ("zebra", "ospfd")]
        assert [path for pid in pids for path in Path("/var/tmp/frr").glob(f"*.{pid}")] == []
        assert (router.folder / "ospfd-gr.json").exists()


def has_netem(lab: RoutedLab) -> bool:
    try:
        lab.host("h1").run("tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms")
    except SojournError:
        return False
    return True


def test_latencies_delay_packets_or_are_refused_in_plain_words(lab: RoutedLab) -> None:
    """Kernels without netem cannot delay; a lab with latencies is then not built at all, rather than without."""
    builder = TopologyBuilder("far away")
    builder.add_link("a", "b", "1", latency_ms="20", line=1)
    far = builder.finish()
    if has_netem(lab):
        with routed_lab(far) as built:
            built.wait_converged()
            times = built.router("a").run("ping", "-c", "3", "-i", "0.1", built.router("b").address)
            assert float(times.rpartition("= ")[2].split("/")[0]) > 39
    else:
        refused = (
            r"^a: no latency on to-b: failed with code 2: .*; load the module sch_netem, or build without latencies"
        )
        with pytest.raises(SojournError, match=refused), routed_lab(far):
            pass
    with routed_lab(far, latencies=False) as near:
        near.wait_converged()
        # Labs lie side by side, although their addresses are the same.
        assert near.router("a").address == lab.router("r1").address
        assert lab.converged() is None


def test_the_lab_of_a_killed_process_is_removed_by_the_next() -> None:
    code = (
        "import time\n"
        "from routed_worlds import six_routers\n"
        "from sojourn.lab.namespaces import own_prefix\n"
        "from sojourn.lab.routed.network import routed_lab\n"
        "with routed_lab(six_routers()):\n"
        "    print(own_prefix(), flush=True)\n"
        "    time.sleep(100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"}
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert maker.stdout is not None
    label = maker.stdout.readline().strip()
    assert len(traces(label)) == 6 + 1 + 12  # namespaces, the directory, processes
    remove_stale_labs()
    assert len(traces(label)) == 6 + 1 + 12  # its maker runs
    maker.kill()
    maker.wait(300)
    maker.stdout.close()
    remove_leftovers()
    remove_stale_labs()
    assert traces(label) == []
