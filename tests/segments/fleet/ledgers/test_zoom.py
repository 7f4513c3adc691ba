"""One flow's packets by both ends' ledgers: each with its own delay, and none called lost that may yet arrive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.segments.fleet.fleet_world import SECOND
from tests.segments.fleet.ledgers.test_ledger_ranges import with_copies, world_of

from sojourn.core.errors import WireError
from sojourn.core.estimates import LEVELS
from sojourn.epochs.epoch import KernelClock
from sojourn.lab.two_point import LOST, TwoPointWorld
from sojourn.segments.fleet.clocks import WAS_SET, ClockAt
from sojourn.segments.fleet.ledgers.naming import REACH_NS, NamingReply
from sojourn.segments.fleet.ledgers.packets import PREFIX, FlowPackets, PacketsQuestion, PacketsReply
from sojourn.segments.fleet.ledgers.replying import packets_between, packets_reply
from sojourn.segments.fleet.ledgers.zoom import PacketsResult, Zoomed
from sojourn.segments.fleet.steady import WAITING_NS
from sojourn.sketches.ledgers.ledger import BLOCK, Ledger

FLOW = {"src_ip": "10.0.0.1", "src_port": 1, "dest_ip": "10.0.0.2", "dest_port": 2, "protocol": "udp"}
IN_STEP = ClockAt(0.0, 0.0, 0.0, "the test")


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    return with_copies(world_of(5, loss=0.02), 0.01)


@pytest.fixture(scope="module")
def flow(world: TwoPointWorld) -> int:
    ids, counts = np.unique(world.sender.flow_id, return_counts=True)
    return int(ids[np.argmax(counts)])


def question(flow: int, now_ns: int, first_ns: int, last_ns: int, most: int = 100_000) -> PacketsQuestion:
    return PacketsQuestion(flow_id=flow, oldest_ns=now_ns - first_ns, newest_ns=max(0, now_ns - last_ns), most=most)


def told(batch, asked: PacketsQuestion, now_ns: int, *, size: int = 1 << 20, set_at: int = 0) -> FlowPackets:
    """An end's reply, through its bytes; the agent has polled until `now_ns`, its clock was set before a packet."""
    ledger = Ledger(size)
    ledger.append(batch.select(slice(0, set_at)))
    if set_at:
        ledger.begin_lead()
    later = batch.select(slice(set_at, None))
    ledger.append(later.select(later.time_ns <= now_ns))
    found = PacketsReply.from_bytes(packets_reply(asked.to_text(), lambda one: packets_between(ledger, one, now_ns)))
    assert found.packets is not None
    return found.packets


def check(zoomed: Zoomed, world: TwoPointWorld, flow: int) -> None:
    """All packets of what is covered are there; what arrived has its own delay, what is lost did not arrive."""
    sent = world.sender.time_ns
    rows = np.flatnonzero((world.sender.flow_id == flow) & (sent >= zoomed.first_ns) & (sent <= zoomed.last_ns))
    assert zoomed.time_ns.tolist() == sent[rows].tolist()
    delay = world.delay_ns[rows]
    assert zoomed.raw_delay_ns[zoomed.is_there].tolist() == delay[zoomed.is_there].tolist()
    assert (delay[~zoomed.is_there & ~zoomed.is_open] == LOST).all()
    assert not (zoomed.is_there & zoomed.is_open).any()


def test_every_packet_has_its_own_delay_and_lost_ones_are_known(world: TwoPointWorld, flow: int) -> None:
    first, last = int(world.sender.time_ns.min()), int(world.sender.time_ns.max())
    now = last + 5 * SECOND
    asked = question(flow, now, first + 5 * SECOND, last - 5 * SECOND)
    beside = replace(asked, oldest_ns=asked.oldest_ns + 3 * SECOND, newest_ns=asked.newest_ns - 3 * SECOND)
    zoomed = Zoomed.of(told(world.sender, asked, now), told(world.receiver, beside, now))
    check(zoomed, world, flow)
    assert not zoomed.is_open.any()
    assert (zoomed.first_ns, zoomed.last_ns) == (first + 5 * SECOND, last - 5 * SECOND)
    assert 0 < np.count_nonzero(~zoomed.is_there) < 0.2 * len(zoomed.time_ns)


def test_what_may_still_be_on_its_way_is_not_called_lost(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.min()) + 15 * SECOND
    asked = question(flow, now, now - 10 * SECOND, now)
    zoomed = Zoomed.of(told(world.sender, asked, now), told(world.receiver, asked, now))
    check(zoomed, world, flow)
    assert zoomed.is_open.any()
    assert zoomed.time_ns[zoomed.is_open].min() > now - 2 * SECOND
    assert zoomed.last_ns == now - WAITING_NS
    # What the receiver holds from the same time on tells of packets that were sent a second later at most.
    assert zoomed.first_ns <= now - 10 * SECOND + REACH_NS


def test_a_ledger_that_has_forgotten_covers_less_and_is_right(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.max()) + 5 * SECOND
    asked = question(flow, now, now - 30 * SECOND, now)
    zoomed = Zoomed.of(told(world.sender, asked, now), told(world.receiver, asked, now, size=3 * BLOCK))
    check(zoomed, world, flow)
    assert zoomed.first_ns > now - 20 * SECOND
    assert zoomed.left_out > 0
    assert len(zoomed.time_ns) > 100


def test_only_the_newest_packets_are_carried_and_the_rest_is_counted(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.max()) + 5 * SECOND
    asked = question(flow, now, now - 40 * SECOND, now, most=500)
    both = told(world.sender, asked, now), told(world.receiver, replace(asked, most=1000), now)
    zoomed = Zoomed.of(*both)
    check(zoomed, world, flow)
    count = int((world.sender.flow_id == flow).sum())
    assert len(zoomed.time_ns) + zoomed.left_out == count
    assert len(zoomed.time_ns) <= 500


def test_where_a_kernel_had_no_room_nothing_is_called_lost(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.max()) + 5 * SECOND
    asked = question(flow, now, now - 40 * SECOND, now)
    sent, received = told(world.sender, asked, now), told(world.receiver, asked, now)
    middle = int(np.median(sent.time_ns))
    zoomed = Zoomed.of(sent, replace(received, missed_ns=middle))
    lost = ~zoomed.is_there & ~zoomed.is_open
    assert lost.any()
    assert zoomed.time_ns[lost].min() > middle
    assert (zoomed.is_open & (zoomed.time_ns < middle)).any()


def test_stamps_of_before_a_clock_was_set_are_left_out(world: TwoPointWorld, flow: int) -> None:
    """They are in the ledger by another lead, and may look like any time."""
    half = len(world.sender) // 2
    ahead = world.sender.time_ns + np.where(np.arange(len(world.sender)) < half, 7 * SECOND, 0)
    now = int(world.sender.time_ns.max())
    since = int(world.sender.time_ns[half])
    asked = question(flow, now, now - 40 * SECOND, now)
    found = told(replace(world.sender, time_ns=ahead), asked, now + 20 * SECOND, set_at=half)
    rows = np.arange(half, len(world.sender))
    chosen = world.sender.time_ns[rows][world.sender.flow_id[rows] == flow]
    assert found.time_ns.tolist() == np.sort(chosen).tolist()
    assert found.first_ns == since


def test_a_flow_that_nobody_received_is_not_called_lost() -> None:
    sent = FlowPackets(packet_id=np.arange(3, dtype=np.uint64), time_ns=np.arange(3), first_ns=0, last_ns=10)
    received = FlowPackets(packet_id=np.empty(0, np.uint64), time_ns=np.empty(0, np.int64), first_ns=0, last_ns=10)
    zoomed = Zoomed.of(sent, received)
    result = PacketsResult.of("ab", FLOW, zoomed, IN_STEP, clock={})
    assert (result.sent, result.arrived, result.lost, result.open) == (3, 0, 0, 3)
    assert result.delays["mean_ns"] is None
    assert "of 3 it is not known yet" in result.summary


def test_percentiles_are_exact_but_for_the_clock(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.max()) + 5 * SECOND
    asked = question(flow, now, now - 40 * SECOND, now)
    zoomed = Zoomed.of(told(world.sender, asked, now), told(world.receiver, asked, now))
    clock = ClockAt(1000.0, 200.0, 1500.0, "the test")
    result = PacketsResult.of("ab", FLOW, zoomed, clock, clock={"uncertainty_ns": 800})
    delay = zoomed.raw_delay_ns[zoomed.is_there] - 1000
    for name, level in LEVELS.items():
        assert result.delays[f"{name}_ns"] == np.quantile(delay, level)
        assert result.delays[f"{name}_low_ns"] == np.quantile(delay, level) - 500
        assert result.delays[f"{name}_high_ns"] == np.quantile(delay, level) + 800
    assert [row["delay_ns"] for row in result if row["fate"] == "arrived"] == delay.tolist()
    assert {row["delay_ns"] for row in result if row["fate"] != "arrived"} == {None}
    assert "all ± 800 ns, by the clocks" in result.summary
    assert PacketsResult.from_dict(result.to_dict()).to_dict() == result.to_dict()


def test_a_clock_that_was_set_tells_no_delay_but_who_was_lost(world: TwoPointWorld, flow: int) -> None:
    now = int(world.sender.time_ns.max()) + 5 * SECOND
    asked = question(flow, now, now - 40 * SECOND, now)
    zoomed = Zoomed.of(told(world.sender, asked, now), told(world.receiver, asked, now))
    result = PacketsResult.of("ab", FLOW, zoomed, ClockAt(0.0, None, None, WAS_SET), clock={})
    assert result.arrived > 0
    assert result.lost == np.count_nonzero(~zoomed.is_there)
    assert result.delays["p99_ns"] is None
    assert {row["delay_ns"] for row in result} == {None}


def test_questions_and_replies_keep_what_they_say() -> None:
    asked = PacketsQuestion(flow_id=2**64 - 1, oldest_ns=10, newest_ns=0, most=7)
    assert PacketsQuestion.from_text(asked.to_text()) == asked
    clock = KernelClock(True, 5, -3, 77, True, 9)
    reply = FlowPackets(
        packet_id=np.array([1], np.uint64), time_ns=np.array([4]), first_ns=3, last_ns=5, left_out=2, missed_ns=1,
        clock=clock,
    )  # fmt: skip
    found = PacketsReply.from_bytes(PacketsReply(reply).to_bytes()).packets
    assert found is not None
    assert (found.first_ns, found.last_ns, found.left_out, found.missed_ns, found.clock) == (3, 5, 2, 1, clock)
    assert PacketsReply.from_bytes(packets_reply(asked.to_text(), lambda _: None)).reason == "no ledger is kept"


@pytest.mark.parametrize(
    "text",
    [
        PREFIX,
        PREFIX + "%%%",
        PREFIX + "A" * 5000,
        PacketsQuestion(flow_id=1, oldest_ns=5, newest_ns=6, most=1).to_text(),
        PacketsQuestion(flow_id=1, oldest_ns=2**63, newest_ns=6, most=1).to_text(),
        PacketsQuestion(flow_id=1, oldest_ns=7, newest_ns=6, most=10**9).to_text(),
        PacketsQuestion(flow_id=-1, oldest_ns=7, newest_ns=6, most=1).to_text(),
        PacketsQuestion(flow_id=1, oldest_ns=7, newest_ns=6, most="x").to_text(),  # type: ignore[arg-type]
    ],
)
def test_questions_that_cannot_be_are_answered_by_why(text: str) -> None:
    def never(_: PacketsQuestion) -> FlowPackets:
        raise AssertionError

    assert "cannot be read" in PacketsReply.from_bytes(packets_reply(text, never)).reason


def test_replies_that_are_cut_or_of_other_packets_are_refused() -> None:
    reply = FlowPackets(packet_id=np.arange(9, dtype=np.uint64), time_ns=np.arange(9), first_ns=0, last_ns=9)
    data = PacketsReply(reply).to_bytes()
    for end in range(0, len(data), 7):
        with pytest.raises(WireError, match="reply about packets"):
            PacketsReply.from_bytes(data[:end])
    with pytest.raises(WireError, match="of another time"):
        PacketsReply.from_bytes(PacketsReply(replace(reply, last_ns=5)).to_bytes())
    with pytest.raises(WireError, match="different lengths"):
        PacketsReply.from_bytes(PacketsReply(replace(reply, time_ns=np.arange(8))).to_bytes())


def test_an_agent_of_before_is_told_to_be_upgraded() -> None:
    assert "upgrade it" in PacketsReply.from_bytes(NamingReply(None, "cannot be read").to_bytes()).reason
