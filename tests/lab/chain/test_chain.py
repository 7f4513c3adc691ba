"""The three machines carry real traffic with offload on, apart from what the fleet sends; clocks go as they should."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import sojourn
from machine import live_marks
from sojourn.lab.chain.load import BROKER_PORT, DATAGRAM_PORT, STREAM_PORT, WEB_PORT, Load, run_load, services
from sojourn.lab.chain.network import three_machines
from sojourn.lab.chain.shifted_agent import ClockFault
from sojourn.lab.fleet import Fleet, agent, query_unit
from sojourn.lab.namespaces import NAMESPACES, Bottleneck
from sojourn.lab.tcpdump import Tcpdump
from waiting import eventually

SECOND = 1_000_000_000
STREAM = {"packets": {"metric": "flow_packets", "interface": "eth0", "direction": "in", "epoch": "1s"}}
pytestmark = live_marks("NETWORK NAMESPACES ARE NOT TESTED: they need root")


@pytest.mark.long
def test_traffic_of_all_kinds_passes_the_bottleneck_and_is_captured_on_the_way(tmp_path: Path) -> None:
    """The queue shows between the router's ports; nothing of the fleet's is captured."""
    with ExitStack() as stack:
        chain = stack.enter_context(three_machines(Bottleneck(4_000_000, queue_bytes=20_000)))
        stack.enter_context(services(chain, tmp_path))
        places = ((chain.source, "eth0", "out"), (chain.router, "left", "in"), (chain.router, "right", "out"))
        dumps = [
            Tcpdump(host, port, tmp_path / f"{port}.pcap", direction=direction, snap_bytes=128)
            for host, port, direction in places
        ]
        run_load(chain, Load(seconds=3, publishers=3, fetchers=2))
        assert "1 received" in chain.source.run("ping", "-c", "1", chain.station.address)
        assert [dump.finish() for dump in dumps] == [0, 0, 0]
    first, second = (
        sojourn.measure(str(tmp_path / f"{a}.pcap"), str(tmp_path / f"{b}.pcap"), clock="none")
        for a, b in (("eth0", "left"), ("left", "right"))
    )
    ports = {int(port) for port in second.columns()["dest_port"]}
    assert {STREAM_PORT, DATAGRAM_PORT, BROKER_PORT, WEB_PORT} == ports
    link, queue = first.aggregate, second.aggregate
    assert link["lost"] < queue["lost"]
    assert max(link["mean_ns"], 1_000_000) < queue["mean_ns"]
    assert not list(NAMESPACES.glob(f"sojourn-{os.getpid()}-*"))


def times_of(fleet: Fleet, node: str) -> list[int]:
    """When the first packet that is stored was seen, if any was."""
    (answer,) = fleet.ask(metric="flow_packets", node=node)
    return [span["from_ns"] for span in answer["covered"]]  # type: ignore[union-attr, attr-defined]


@pytest.mark.long
def test_agents_beside_each_other_have_clocks_that_differ_and_come_back_after_a_kill(tmp_path: Path) -> None:
    with ExitStack() as stack:
        chain = stack.enter_context(three_machines())
        fleet = stack.enter_context(query_unit(tmp_path, host=chain.station, address=chain.station.address))
        late = ClockFault(offset_ns=-3 * SECOND)
        right = stack.enter_context(agent(fleet, "source", STREAM, host=chain.source))
        wrong = stack.enter_context(agent(fleet, "sink", STREAM, host=chain.sink, program=late.program))
        chain.source.run("ping", "-c", "20", "-i", "0.01", chain.sink.address)
        eventually(lambda: times_of(fleet, "source") and times_of(fleet, "sink"))
        apart = times_of(fleet, "source")[0] - times_of(fleet, "sink")[0]
        assert abs(apart - 3 * SECOND) < SECOND // 2
        known = len(times_of(fleet, "sink"))
        for crashed in (right, wrong, fleet):
            crashed.kill()
        fleet.start()
        right.start()
        wrong.start()
        chain.source.run("ping", "-c", "20", "-i", "0.01", chain.sink.address)
        eventually(lambda: len(times_of(fleet, "sink")) > known)


def test_a_clock_shows_its_offset_drift_and_step() -> None:
    clock = ClockFault(offset_ns=-3 * SECOND, drift_ppm=50, since_ns=10 * SECOND, steps=((20 * SECOND, SECOND),))
    true = np.array([10, 19, 20, 30]) * SECOND
    assert (clock.shown(true) - true).tolist() == [
        -3 * SECOND,
        -3 * SECOND + 450_000,
        -2 * SECOND + 500_000,
        -2 * SECOND + 1_000_000,
    ]
    assert clock.shown(int(true[2])) == clock.shown(true)[2]
