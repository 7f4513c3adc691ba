"""Segments with ledgers beside captures on the same interfaces: every lost packet, and every mean to the nanosecond."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from chain_worlds import SECOND, STAMPS_NS, Truth, Watch, flows_of, watched
from machine import live_marks
from sojourn.core.arrays import BoolArray
from sojourn.core.errors import ServerError
from sojourn.core.keys import key_id, parse_key
from sojourn.estimation.ledgers.answer import REACH_NS
from sojourn.lab.chain.forwarder import Disturbance
from sojourn.lab.chain.load import Load, run_load
from sojourn.lab.chain.network import Chain, three_machines
from sojourn.segments.fleet.ledgers.lost import LostResult
from sojourn.segments.fleet.ledgers.zoom import PacketsResult
from sojourn.segments.result import SegmentResult
from waiting import eventually

EPOCH_NS = 5 * SECOND
LOAD_SECONDS, COVERED_SECONDS, LEAST_COVERED_SECONDS = 25, 15, 8
pytestmark = live_marks("NETWORK NAMESPACES ARE NOT TESTED: they need root")
DATAGRAMS_PORT = 9
T = TypeVar("T")
LATE = {"late": 0.05, "late_ns": 50_000_000}
CASES = {
    "nothing": Disturbance(delay_ns=5_000_000),
    "1 %": Disturbance(delay_ns=5_000_000, loss=0.01),
    "0.1 %": Disturbance(delay_ns=5_000_000, loss=0.001),
    "5 %": Disturbance(delay_ns=5_000_000, loss=0.05),
    "1 % in bursts": Disturbance(delay_ns=5_000_000, loss=0.01, burst=5.0),
    "1 %, late": Disturbance(delay_ns=5_000_000, loss=0.01, **LATE),
    "1 %, doubled": Disturbance(delay_ns=5_000_000, loss=0.01, doubled=0.01),
}


SENDER = """
import socket, sys, time
one, until, number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < until:
    one.sendto(number.to_bytes(400), (sys.argv[1], int(sys.argv[3])))
    number += 1
    time.sleep(0.008)
"""


def run_traffic(chain: Chain, seconds: int, *, then: Callable[[], T] = lambda: None) -> T:
    """TCP, MQTT and HTTP, and datagrams; iperf3's give up if the one that they greet with is lost.

    Datagrams go on until what is done then is done.
    """
    load = Load(seconds=seconds, streams=1, stream_rate=1_000_000, datagram_rate=0, publishers=10, fetchers=2)
    with chain.source.start(sys.executable, "-c", SENDER, chain.sink.address, "600", str(DATAGRAMS_PORT)):
        run_load(chain, load)
        return then()


def named(watch: Watch, until_ns: int) -> LostResult:
    """The lost packets once ledgers tell of all runs up to a time."""
    watch.settle("path", until_ns)
    found: list[LostResult] = []

    def is_told() -> bool:
        with watch.fleet.client() as client:
            try:
                found[:] = [client.lost_packets("path", 0, until_ns)]
            except ServerError:  # nothing is told yet
                return False
        longest = max(span["to_ns"] - span["from_ns"] for span in found[0].covered)
        return longest >= LEAST_COVERED_SECONDS * SECOND

    eventually(is_told, lambda: f"ledgers tell only of {found and found[0].covered}", pause=1.0)
    return found[0]


def longest_of(lost: LostResult) -> dict[str, int]:
    """The longest stretch of time that ledgers tell of."""
    return dict(max(lost.covered, key=lambda span: span["to_ns"] - span["from_ns"]))


def sent_at(lost: LostResult) -> Counter[tuple[int, int]]:
    """Lost packets by their flows and times."""
    rows = [row for row in lost if row["src_ip"] is not None]
    return Counter((key_id(parse_key(text_of(row))), row["time_ns"]) for row in rows)


def text_of(row: Mapping[str, Any]) -> str:
    return f"{row['src_ip']}:{row['src_port']} > {row['dest_ip']}:{row['dest_port']} {row['protocol']}"


def lost_of(truth: Truth, chosen: BoolArray) -> Counter[tuple[int, int]]:
    gone = chosen & (truth.delay_ns < 0)
    return Counter(zip(truth.sent.flow_id[gone].tolist(), truth.sent.time_ns[gone].tolist(), strict=True))


def check_lost(lost: LostResult, truth: Truth) -> None:
    """Hold the list against the captures: all of it away from open ends, where packets may be late."""
    longest = longest_of(lost)
    inner = {"from_ns": longest["from_ns"] + REACH_NS + 1, "to_ns": longest["to_ns"] - REACH_NS - 1}
    found = sent_at(lost)
    inside = Counter({one: n for one, n in found.items() if inner["from_ns"] <= one[1] <= inner["to_ns"]})
    assert inside == lost_of(truth, truth.within([inner]))


def check_means(result: SegmentResult, truth: Truth, *, in_order: bool) -> None:
    """Of datagrams capture and agent have the same stamps; TCP that comes in is stamped for each socket anew.

    Packets that were one when they left have one stamp, and a marker among them has some on either side: what is beside
    an end of what is covered may be in it or not. All else is equal to the packet, and the mean to the nanosecond.
    """
    chosen = truth.within(result.covered)
    rows = [row for row in flows_of(result) if row["method"] == "ledger"]
    assert len(rows) >= 0.9 * len(flows_of(result)) > 5
    clear = 0
    for row in rows:
        sent, lost = truth.counts(row, result.covered)
        delays = truth.of_flow(row, chosen)
        arrived = delays[delays >= 0]
        gone = np.count_nonzero(delays < 0)
        assert row["packets"] in sent, (sent, row)
        if in_order:
            assert row["lost"] in lost, (lost, row)
        # Of packets that are late at an open end it is not known whether they were lost, and the interval says so.
        assert row["lost_low"] < lost.stop, (lost, row)
        assert row["lost_high"] >= lost.start, (lost, row)
        if len(sent) > 1 or len(lost) > 1:
            continue
        clear += 1
        assert row["lost_low"] <= gone <= row["lost_high"], row
        if in_order and len(arrived):
            away_ns = abs(row["mean_ns"] + result.clock["offset_ns"] - arrived.mean())
            assert away_ns <= (1 if row["protocol"] == "udp" else STAMPS_NS), row
    assert clear > 0.8 * len(rows)


def zoomed(watch: Watch) -> PacketsResult:
    """The packets of the datagrams' flow of the last seconds, while they go on."""
    rows = flows_of(watch.settle("path", 0))
    [text] = {text_of(row) for row in rows if row["dest_port"] == DATAGRAMS_PORT}
    with watch.fleet.client() as client:
        return client.flow_packets("path", text, last_ns=8 * SECOND)


def check_packets(found: PacketsResult, truth: Truth) -> None:
    """Each packet of what is covered is there with its delay, to the nanosecond; what is called lost never came."""
    flow = truth.sent.flow_id == np.uint64(key_id(parse_key(text_of(found.flow))))
    rows = np.flatnonzero(flow & truth.within([found.covered]))
    assert [row["time_ns"] for row in found] == truth.sent.time_ns[rows].tolist()
    assert len(rows) > 200, (found, found.notes)
    delays = [None if row["delay_ns"] is None else row["delay_ns"] + found.clock["offset_ns"] for row in found]
    true = [None if delay < 0 else delay for delay in truth.delay_ns[rows].tolist()]
    for row, delay, one in zip(found, delays, true, strict=True):
        assert (row["fate"] == "arrived") == (delay is not None)
        assert delay == one or row["fate"] == "open", (row, one)
    assert found.open < 0.4 * len(rows)
    assert found.clock["uncertainty_ns"] is not None


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_lost_packets_and_means_are_those_of_the_captures(name: str, tmp_path: Path) -> None:
    disturbance = CASES[name]
    with (
        three_machines(disturbance=disturbance) as chain,
        watched(chain, tmp_path, segments=("path",), epoch_ns=EPOCH_NS, sketch="ledger") as watch,
    ):
        begun_ns = time.time_ns()
        packets = run_traffic(chain, LOAD_SECONDS, then=lambda: zoomed(watch))
        lost = named(watch, begun_ns + COVERED_SECONDS * SECOND)
        longest = longest_of(lost)
        result = watch.ask("path", from_ns=longest["from_ns"], to_ns=longest["to_ns"])
        assert [dump.finish() for dump in watch.dumps] == [0, 0, 0, 0]
        truth = watch.truth("path")
    check_packets(packets, truth)
    check_lost(lost, truth)
    check_means(result, truth, in_order=not disturbance.late and not disturbance.doubled)


@pytest.mark.long
@pytest.mark.parametrize("crashed", ["source", "sink", "query unit"])
def test_a_crash_leaves_a_gap_and_no_wrong_name(crashed: str, tmp_path: Path) -> None:
    """What an agent's ledger had is lost with it: runs that nobody names are answered by the sample, and say so."""
    with (
        three_machines(disturbance=CASES["1 %"]) as chain,
        watched(chain, tmp_path, segments=("path",), epoch_ns=EPOCH_NS, sketch="ledger") as watch,
    ):
        process = watch.fleet if crashed == "query unit" else watch.agents[crashed]

        def crash() -> None:
            process.kill()
            process.start()

        begun_ns = time.time_ns()
        timer = threading.Timer(17, crash)
        timer.start()
        run_traffic(chain, 45)
        timer.join()
        watch.settle("path", begun_ns + 35 * SECOND)
        lost = named(watch, begun_ns + 35 * SECOND)
        result = watch.settle("path", begun_ns + 35 * SECOND)
        assert [dump.finish() for dump in watch.dumps] == [0, 0, 0, 0]
        truth = watch.truth("path")
    truth.check(result)
    true = lost_of(truth, truth.within([{"from_ns": 0, "to_ns": 2**62}]))
    sure = LostResult.from_dict({**lost.to_dict(), "packets": [row for row in lost if not row["doubtful"]]})
    assert not sent_at(sure) - true
    assert len(sent_at(sure)) > 10
