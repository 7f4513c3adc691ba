"""Two running agents that record a segment with ``sketch = "auto"``, and what a query unit answers from their epochs.

The truth is that of the captures which the agents read.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import fmean

import pytest
from query_unit import Unit, running_unit

import sojourn
from mosquitto_broker import Broker
from odd_captures import START_NS, Packet, two_points, write
from sojourn.epochs.wire import decode
from sojourn.server.door.limits import Limits
from waiting import PATIENCE_SECONDS, eventually

LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)
CONFIGURATION = """
node = "{node}"
server = "{url}"
token_file = "{folder}/token"
spool = "{folder}/spool"
poll = "100ms"

[streams.wan]
metric = "packets"
capture = "{folder}/point.pcap"
sketch = "auto"
memory = "100KB"
flows = 50
epoch = "1s"

[streams.flows]
metric = "flow_packets"
capture = "{folder}/point.pcap"
epoch = "1h"
"""


@pytest.fixture
def unit(tmp_path: Path, seldom_broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS, broker=seldom_broker)


@pytest.fixture
def points(unit: Unit, tmp_path: Path) -> Iterator[dict[str, list[Packet]]]:
    """What each node sees; its agent runs, reads that once and is listening."""
    seen = dict(zip(("alpha", "beta"), two_points(both_ways=False), strict=True))
    agents = []
    for node, packets in seen.items():
        folder = tmp_path / node
        folder.mkdir()
        write(folder / "point.pcap", packets)
        (folder / "token").write_text(unit.tokens[node])
        configuration = folder / "agent.toml"
        configuration.write_text(CONFIGURATION.format(node=node, url=unit.address, folder=folder))
        command = [sys.executable, "-m", "sojourn.cli.main", "agent", "-c", str(configuration)]
        agents.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    yield seen
    for agent in agents:
        agent.send_signal(signal.SIGINT)
        _, errors = agent.communicate(timeout=PATIENCE_SECONDS)
        assert agent.returncode == 0, errors
        assert ", 0 waiting" in errors


def asked(unit: Unit, **question) -> list[dict]:
    with unit.client("viewer") as client:
        response = client.post("/api/v1/query", json={"from_ns": START_NS, **question})
    return response.json() if response.status_code == 200 else [response.json()]


def frames(unit: Unit, node: str) -> list[dict]:
    with unit.client("viewer") as client:
        return client.get(f"/api/v1/nodes/{node}/streams/wan/epochs").json()


def epochs_of(unit: Unit, node: str) -> list:
    with unit.client("viewer") as client:
        place = f"/api/v1/nodes/{node}/streams/wan/epochs"
        return [decode(client.get(f"{place}/{frame['sequence']}").content) for frame in frames(unit, node)]


def test_running_agents_record_a_segment_whose_answers_are_right(unit: Unit, points: dict[str, list[Packet]]) -> None:
    def arrived() -> dict[str, int]:
        return {node: sum(frame["recorded"] for frame in frames(unit, node)) for node in points}

    eventually(lambda: arrived() == {node: len(packets) for node, packets in points.items()}, arrived)

    sent, received = ({packet.serial: packet for packet in points[node]} for node in ("alpha", "beta"))
    result = sojourn.estimate(epochs_of(unit, "alpha"), epochs_of(unit, "beta"))
    totals = result.aggregate
    assert (totals["sent"], totals["received"], totals["lost"]) == (len(sent), len(received), len(sent) - len(received))
    delays: dict[int, list[int]] = {}
    for serial, packet in received.items():
        delays.setdefault(4000 + packet.flow, []).append(packet.time_ns - sent[serial].time_ns)
    # Bounds are whole nanoseconds.
    assert totals["low_ns"] - 1 < fmean(chain.from_iterable(delays.values())) < totals["high_ns"] + 1
    flows = {row["src_port"]: row for row in result}
    assert flows.keys() == delays.keys()
    # The captures and salts are fixed, so this is one draw: of eight intervals of 95 %, two may miss.
    inside = [row["low_ns"] - 1 < fmean(delays[port]) < row["high_ns"] + 1 for port, row in flows.items()]
    assert sum(inside) >= len(flows) - 2

    (refused,) = asked(unit, metric="packets", node="alpha")
    assert "estimate two points' epochs with `sojourn estimate`" in refused["detail"]


def test_a_query_counts_the_packets_that_the_same_agents_have_not_sent_yet(
    unit: Unit, points: dict[str, list[Packet]]
) -> None:
    """Their other stream closes its epoch only in an hour: the nodes are asked."""

    def totals() -> dict[str, float]:
        found = asked(unit, metric="flow_packets", node=list(points), group="node")
        return {row.get("node"): row.get("value") for row in found}

    eventually(lambda: totals() == {node: float(len(packets)) for node, packets in points.items()}, totals)
    truth = Counter(f"10.1.0.1:{4000 + packet.flow} > 10.2.0.1:5000 udp" for packet in points["alpha"])
    rows = asked(unit, metric="flow_packets", node="alpha", instance="10.1.0.1:* > *:5000 udp")
    assert {row["instance"] for row in rows} == set(truth)
    assert sum(row["low"] <= truth[row["instance"]] <= row["high"] for row in rows) >= len(truth) - 2, rows
