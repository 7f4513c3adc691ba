"""A segment measured live: exactly the packets sent in the time count, however many were on their way at its edges."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from live_hosts import transfer_seconds
from machine import needs_root
from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.filters import PacketFilter
from sojourn.capture.live.reader import LiveReader
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import InputError, LiveCaptureError, ParameterError
from sojourn.core.estimates import Estimate
from sojourn.lab.namespaces import Bottleneck, Network, two_hosts
from sojourn.segments.live import NOTICE_NS, EdgeLog, LiveAnswer, LiveSegment, Overload
from sojourn.segments.plan import SegmentPlan, plan_ledger, plan_segment
from waiting import PATIENCE_SECONDS

with_root = needs_root("LIVE SEGMENTS ARE NOT TESTED: they need root for packet sockets and network namespaces")
pytestmark = pytest.mark.live

RATE, BURST, FRAME_BYTES = 4_000_000, 200, 1000
PLAN = plan_segment("lds", 100_000, flows=10, loss=0.0)


def numbered(first: int, count: int) -> PacketBatch:
    numbers = np.arange(first, first + count)
    return PacketBatch.of(np.ones(count, np.int64), numbers, numbers)


def test_an_edge_keeps_the_oldest_and_gives_back_what_has_no_room() -> None:
    log = EdgeLog(10)
    assert len(log.add(numbered(0, 7))) == 0
    assert log.add(numbered(7, 7)).time_ns.tolist() == [10, 11, 12, 13]
    assert len(log.add(numbered(14, 2))) == 2
    assert log.packets().time_ns.tolist() == list(range(10))
    assert (log.count, log.overflow) == (10, 6)


def test_an_edge_that_keeps_the_newest_forgets_the_oldest_in_bounded_memory() -> None:
    log = EdgeLog(10, keep_newest=True)
    for first in range(0, 1000, 4):
        assert len(log.add(numbered(first, 4))) == 0
        assert log.count <= 13
    assert log.packets().time_ns.tolist() == list(range(988, 1000))
    assert log.overflow == 0


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts(bottleneck=Bottleneck(RATE, queue_bytes=400_000), router=True) as hosts:
        yield hosts


@contextmanager
def filled_queue(network: Network, load: float = 0.995) -> Iterator[None]:
    """A burst that fills the bottleneck's queue for 0.4 s, then almost its rate: it stays filled for a minute.

    With a load above 1 it overflows.
    """
    with network.sender.entered():
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ending = threading.Event()

    def send() -> None:
        number = 0
        begun = time.monotonic()
        while not ending.is_set():
            allowed = BURST + load * RATE / 8 / FRAME_BYTES * (time.monotonic() - begun)
            while number < allowed:
                endpoint.sendto(number.to_bytes(4, "big").ljust(FRAME_BYTES - 42), (network.receiver.address, 7777))
                number += 1
            time.sleep(0.002)

    sending = threading.Thread(target=send)
    with endpoint:
        sending.start()
        try:
            yield
        finally:
            ending.set()
            sending.join()
            time.sleep(1)  # the queue runs empty


def stop_noting_when(segment: LiveSegment, stopped: list[int]) -> None:
    """Stop, and say between which times that was."""
    stopped.append(time.time_ns())
    segment.stop()
    stopped.append(time.time_ns())


def measure(
    network: Network,
    *,
    stop_after: float | None = None,
    stopped: list[int] | None = None,
    expression: str = "udp",
    plan: SegmentPlan = PLAN,
    **options: object,
) -> tuple[LiveAnswer, LiveSegment]:
    assert network.router is not None
    with network.router.entered():
        left = LiveReader("left", direction="in", packet_filter=PacketFilter(expression))
        right = LiveReader("right", direction="out", packet_filter=PacketFilter(expression))
    with left, right:
        segment = LiveSegment(left, right, plan, exact=True, **options)  # type: ignore[arg-type]
        if stop_after is not None:
            threading.Timer(stop_after, stop_noting_when, (segment, stopped)).start()
        return segment.run(), segment


@with_root
def test_packets_in_flight_at_the_edges_are_not_taken_for_lost(network: Network) -> None:
    with filled_queue(network):
        answer, segment = measure(network, seconds=1.5)
    assert answer.whole is not None
    assert answer.match is not None
    totals, exact = answer.whole.totals, answer.match.aggregate
    in_flight = answer.left_out["sent before the start at receiver"]
    assert in_flight > 50  # what a cut at the same time would have taken for packets from nowhere
    assert (totals.sent, totals.received, totals.losses.lost) == (exact.sent, exact.received, 0)
    assert exact.max_ns > 100_000_000
    assert isinstance(totals.delays.mean, Estimate)
    assert totals.delays.mean.value == pytest.approx(exact.mean_ns, rel=1e-9)  # every cell is usable
    assert answer.whole.flows is not None
    assert answer.whole.flows.mean_ns[0] == pytest.approx(exact.mean_ns, rel=1e-6)
    first, last = segment.sender.counts.first_ns.min(), segment.sender.counts.last_ns.max()
    assert answer.first_ns <= first <= last <= answer.last_ns == answer.first_ns + 1_500_000_000


@with_root
def test_a_stop_ends_at_its_own_time_and_waits_for_those_on_their_way(network: Network) -> None:
    stopped: list[int] = []
    with filled_queue(network):
        answer, _ = measure(network, stop_after=2.0, stopped=stopped)
    assert answer.match is not None
    assert stopped[0] <= answer.last_ns - NOTICE_NS <= stopped[1]
    assert (answer.match.aggregate.lost, answer.match.ignored()) == (0, {})
    assert answer.left_out["sent after the end at receiver"] > 50


@with_root
def test_packets_that_come_too_fast_to_be_matched_are_measured_with_sketches_from_then_on(network: Network) -> None:
    assert network.router is not None
    with network.router.entered():
        left, right = (LiveReader(name, direction=way) for name, way in (("left", "in"), ("right", "out")))
    with left, right, filled_queue(network):
        segment = LiveSegment(left, right, None, seconds=4.0, exact=True, fallback=lambda: PLAN)
        threading.Timer(2.0, segment.go_over, (Overload(5_000, 20_000),)).start()
        begun = time.time_ns()
        answer = segment.run()
    assert answer.match is None
    assert answer.overload == Overload(5_000, 20_000)
    assert answer.whole is not None
    totals = answer.whole.totals
    assert begun + 3_000_000_000 <= answer.first_ns < answer.last_ns
    assert (totals.sent, totals.losses.lost) == (totals.received, 0)
    # Those of the time that was left, and no others.
    assert totals.sent == pytest.approx((answer.last_ns - answer.first_ns) / 1e9 * RATE / 8 / FRAME_BYTES, rel=0.05)
    assert answer.left_out["sent before the start at receiver"] > 50
    assert "5,000 of 20,000 had been dropped" in answer.overload.told(answer.first_ns)


@with_root
def test_classes_are_told_apart_live(network: Network) -> None:
    assert network.router is not None
    marks = ("0xb8", "0x00")
    pings = [network.sender.start("ping", "-i", "0.02", "-Q", mark, network.receiver.address) for mark in marks]
    with network.router.entered():
        options = DecodeOptions(dscp=True)
        left, right = (LiveReader(name, options, direction=way) for name, way in (("left", "in"), ("right", "out")))
    with left, right, pings[0], pings[1]:
        answer = LiveSegment(left, right, None, seconds=1.0, max_delay_ns=200_000_000, exact=True, by_class=True).run()
    assert answer.match is not None
    assert answer.classes is not None
    found = {dscp: part.aggregate for dscp, part in answer.classes.answers(answer.match)}
    assert set(found) == {46, 0}
    assert all(total.sent > 5 and total.lost == 0 for total in found.values())
    assert sum(total.sent for total in found.values()) == answer.match.aggregate.sent


@with_root
def test_flows_that_do_not_take_the_way_are_left_out_of_the_totals(network: Network) -> None:
    """A ping of the router itself enters at the left and never leaves at the right."""
    router, receiver = (
        network.sender.start("ping", "-i", "0.02", to) for to in ("10.97.1.1", network.receiver.address)
    )
    with router, receiver:
        answer, segment = measure(network, seconds=1.0, expression="icmp")
    assert answer.whole is not None
    assert len(answer.one_sided) == 1
    assert len(segment.sender.counts) == 2
    assert 5 <= answer.whole.totals.sent == answer.whole.totals.received <= 55


@with_root
@pytest.mark.parametrize("sketch", ["auto", pytest.param("lds", marks=pytest.mark.long)])
def test_one_flow_at_heavy_loss_has_its_counts_and_a_delay(network: Network, sketch: str) -> None:
    """What is expected by default, 1000 flows and 1 % loss, and then one flow that loses a third or more."""
    plan = plan_segment(sketch, 32_000, flows=1000, loss=0.01, joint=True)
    with filled_queue(network, load=2.5):
        answer, _ = measure(network, seconds=2.0, plan=plan)
    assert answer.whole is not None
    assert answer.match is not None
    totals, exact, flows = answer.whole.totals, answer.match.aggregate, answer.whole.flows
    assert exact.lost > 0.28 * exact.sent
    assert (totals.sent, totals.received, totals.losses.lost) == (exact.sent, exact.received, exact.lost)
    assert isinstance(totals.delays.mean, Estimate)
    assert totals.delays.mean.value == pytest.approx(exact.mean_ns, rel=0.1)
    assert flows is not None
    assert (flows.packets[0], flows.lost[0]) == (exact.sent, exact.lost)
    assert flows.mean_ns[0] == pytest.approx(exact.mean_ns, rel=0.2)


@with_root
def test_a_ledger_is_as_exact_as_matching_every_packet(network: Network) -> None:
    plan = plan_ledger(50_000, flows=10, loss=0.3)
    with filled_queue(network, load=1.3):
        answer, _ = measure(network, seconds=2.0, plan=plan)
    assert answer.whole is not None
    assert answer.match is not None
    flows, exact = answer.whole.flows, answer.match.flows
    assert flows is not None
    assert exact.lost.sum() > 0
    assert flows.method_of_flow == ["ledger"]
    assert (flows.packets[0], flows.lost[0]) == (exact.packets[0], exact.lost[0])
    assert flows.mean_ns[0] == pytest.approx(exact.mean_ns[0], abs=0.5)


@with_root
def test_packets_put_together_by_the_card_are_no_loss() -> None:
    """The sender's kernel hands over up to 64 KB at once; the router's second interface sends what fits the wire."""
    plan = plan_segment("auto", 100_000, flows=10, loss=0.01, joint=True)
    with two_hosts(bottleneck=Bottleneck(20_000_000, queue_bytes=400_000), router=True) as hosts:
        assert hosts.router is not None
        hosts.sender.run("ethtool", "-K", "eth0", "tx", "on", "tso", "on", "gso", "on")
        hosts.router.run("ethtool", "-K", "left", "gro", "on")
        sending = threading.Thread(target=transfer_seconds, args=(hosts.sender, hosts.receiver, 6_000_000))
        starting = threading.Timer(0.5, sending.start)
        starting.start()
        answer, _ = measure(hosts, seconds=3.0, max_delay_ns=500_000_000, expression="tcp", plan=plan)
        starting.join()
        sending.join()
    assert answer.whole is not None
    totals, flows = answer.whole.totals, answer.whole.flows
    assert totals.received > totals.sent
    assert totals.losses.lost is None
    assert 0 <= totals.losses.low <= totals.losses.high
    assert flows is not None
    assert answer.resegmented.tolist() == flows.flow_id.tolist()
    assert np.isnan(flows.lost).all()


@with_root
def test_without_packets_or_with_an_interface_that_goes_there_is_one_error(network: Network) -> None:
    with pytest.raises(InputError, match="left: there was no IP packet to measure; check the interface"):
        measure(network, seconds=0.2, max_delay_ns=100_000_000, expression="udp port 9")
    assert network.router is not None
    down = threading.Timer(1.0, network.router.run, ("ip", "link", "set", "right", "down"))
    down.start()
    begun = time.monotonic()
    with pytest.raises(LiveCaptureError, match="right: the interface is down"):
        measure(network, seconds=2 * PATIENCE_SECONDS)
    assert time.monotonic() - begun < PATIENCE_SECONDS
    down.join()
    network.router.run("ip", "link", "set", "right", "up")


@with_root
def test_requests_that_make_no_sense_are_refused() -> None:
    with LiveReader("lo") as one, LiveReader("lo") as other:
        with pytest.raises(ParameterError, match="max_delay"):
            LiveSegment(one, other, PLAN, max_delay_ns=-1)
        with pytest.raises(ParameterError, match="nothing is to be measured"):
            LiveSegment(one, other, None)
