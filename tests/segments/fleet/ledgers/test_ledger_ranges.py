"""Runs that ledgers tell of: every lost packet by its name, every mean to the nanosecond, and never a wrong one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.segments.fleet.fleet_world import SECOND, answers, record
from tests.segments.fleet.test_answers import in_order

from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch
from sojourn.core.errors import InputError
from sojourn.core.estimates import Estimate
from sojourn.estimation.ledgers.answer import REACH_NS
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.segments.answer import Interval
from sojourn.segments.fleet.answers import RunAnswer, combine
from sojourn.segments.fleet.clocks import ClockAt
from sojourn.segments.fleet.ledgers.naming import FORGOTTEN, NamingReply, checked
from sojourn.segments.fleet.ledgers.ranges import Around, exactly, lost_packets
from sojourn.segments.fleet.ledgers.replying import named_reply
from sojourn.segments.fleet.ledgers.runs import NamingWork, ledger_run, read_ledger, with_found
from sojourn.segments.plan import plan_ledger
from sojourn.sketches.ledgers.ledger import Ledger, LedgerPackets

IN_STEP = ClockAt(0.0, 0.0, 0.0, "the test")
PLAN = plan_ledger(20_000, flows=150, loss=0.08)


def world_of(seed: int, *, loss: float, load: float = 0.6) -> TwoPointWorld:
    """Two paths 7 ms apart; some packets are lost beside those that the queue drops."""
    world = make_two_point_world(seed=seed, flows=150, packets=80_000, duration_ns=30 * SECOND, load=load)
    gone = np.random.default_rng(seed).random(len(world.delay_ns)) < loss
    delay = np.where(gone, LOST, world.delay_ns)
    arrived = np.flatnonzero(delay != LOST)
    arrival = (world.sender.time_ns + delay)[arrived]
    order = np.argsort(arrival, kind="stable")
    received = replace(world.sender.select(arrived[order]), time_ns=arrival[order])
    return TwoPointWorld(world.sender, received, delay, world.keys, seed)


def with_copies(world: TwoPointWorld, share: float) -> TwoPointWorld:
    """The network makes copies of some packets, which arrive a little later."""
    random = np.random.default_rng(world.seed + 1)
    rows = np.flatnonzero(random.random(len(world.receiver)) < share)
    copies = world.receiver.select(rows)
    copies = replace(copies, time_ns=copies.time_ns + random.integers(1, 20_000_000, len(rows)))
    both = PacketBatch.concatenate([world.receiver, copies])
    return replace(world, receiver=both.select(np.argsort(both.time_ns, kind="stable")))


def ledger_of(world: TwoPointWorld, packets: int = 1 << 20) -> Ledger:
    ledger = Ledger(packets)
    ledger.append(world.sender)
    return ledger


def through_bytes(answer: RunAnswer, ledger: Ledger) -> RunAnswer:
    """A run as a query unit stores it, after its packets were named as an agent does."""
    if answer.naming is None:
        assert answer.ledger is not None
        return replace(answer, ledger=read_ledger(answer.ledger.to_bytes()))
    work = NamingWork.from_bytes(answer.naming.to_bytes())
    reply = NamingReply.from_bytes(named_reply(work.question.to_text(), ledger.between))
    assert answer.interval.flows is not None
    if reply.named is None:
        return replace(answer, naming=None)
    flow_id = answer.interval.flows.flow_id
    found = work.found(reply.named, flow_id)
    stored = read_ledger(ledger_run(found, flow_id, work.offset_ns).to_bytes())
    return replace(answer, interval=with_found(answer.interval, found, work.offset_ns), ledger=stored, naming=None)


def told(world: TwoPointWorld, ledger: Ledger) -> tuple[list[tuple[int, int]], list[RunAnswer]]:
    """When each run's packets arrived, and its answer."""
    ends = record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b")
    runs, found = answers(*ends)
    arrived = [(run.received[0].first_ns or 0, run.received[-1].last_ns or 0) for run in runs]
    return arrived, [through_bytes(one, ledger) for one in found]


def answered(found: list[RunAnswer], around: Around) -> Interval:
    clocks = [IN_STEP] * len(found)
    return exactly(combine(found, clocks, later=around.later), found, clocks, (), around)


def lost_between(world: TwoPointWorld, first_ns: int, last_ns: int) -> BoolArray:
    time_ns = world.sender.time_ns
    return (time_ns >= first_ns) & (time_ns <= last_ns) & (world.delay_ns == LOST)


def arrived_between(world: TwoPointWorld, first_ns: int, last_ns: int) -> BoolArray:
    arrival: Int64Array = world.sender.time_ns + world.delay_ns
    return (arrival >= first_ns) & (arrival <= last_ns) & (world.delay_ns != LOST)


@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01, 0.05])
@pytest.mark.parametrize("in_sequence", [True, False])
def test_lost_packets_and_means_are_exact_over_runs(loss: float, in_sequence: bool) -> None:
    """Where packets overtake each other by 7 ms, too; and nothing of it depends on chance."""
    world = world_of(3, loss=loss)
    world = in_order(world) if in_sequence else world
    arrived, found = told(world, ledger_of(world))
    assert len(found) > 4
    assert all(one.ledger is not None and one.ledger.is_complete for one in found)
    part = found[1:-1]
    around = Around(found[0], found[-1])
    whole = answered(part, around)
    true = lost_between(world, whole.first_ns, whole.last_ns)
    lost = lost_packets(part, (), around)
    assert lost.packets.packet_id.tolist() == world.sender.packet_id[true].tolist()
    assert lost.packets.time_ns.tolist() == world.sender.time_ns[true].tolist()
    assert not lost.doubtful.any()
    losses = whole.totals.losses
    assert losses.lost == losses.low == losses.high == int(true.sum())
    assert whole.flows is not None
    came = arrived_between(world, arrived[1][0], arrived[-2][1])
    for row, flow in enumerate(whole.flows.flow_id):
        of_flow = world.sender.flow_id == flow
        assert whole.flows.lost[row] == whole.flows.lost_low[row] == int((true & of_flow).sum())  # type: ignore[index]
        delays = world.delay_ns[came & of_flow]
        if len(delays):
            assert whole.flows.mean_ns[row] == pytest.approx(delays.mean(), abs=0.01)
            assert whole.flows.method_of_flow[row] == "ledger"
    mean = whole.totals.delays.mean
    assert isinstance(mean, Estimate)
    assert (mean.value, mean.samples) == (pytest.approx(world.delay_ns[came].mean(), abs=0.01), int(came.sum()))


def test_copies_that_the_network_makes_change_nothing() -> None:
    plain = world_of(5, loss=0.01)
    world = with_copies(plain, 0.002)
    found = told(world, ledger_of(world))[1]
    around = Around(found[0], found[-1])
    true = lost_between(world, found[1].interval.first_ns, found[-2].interval.last_ns)
    assert lost_packets(found[1:-1], (), around).packets.packet_id.tolist() == world.sender.packet_id[true].tolist()


def test_packets_near_an_open_end_may_be_late_and_not_lost() -> None:
    world = world_of(4, loss=0.02)
    found = told(world, ledger_of(world))[1]
    middle = found[2:3]
    lost = lost_packets(middle, (), Around())
    true = lost_between(world, middle[0].interval.first_ns, middle[0].interval.last_ns)
    sure = lost.packets.packet_id[~lost.doubtful]
    assert set(sure.tolist()) <= set(world.sender.packet_id[true].tolist()) <= set(lost.packets.packet_id.tolist())
    edges = middle[0].interval.first_ns + REACH_NS, middle[0].interval.last_ns - REACH_NS
    near = (lost.packets.time_ns <= edges[0]) | (lost.packets.time_ns >= edges[1])
    assert lost.doubtful.tolist() == near.tolist()
    whole = answered(middle, Around())
    assert whole.totals.losses.low <= int(true.sum()) <= whole.totals.losses.high
    assert whole.totals.losses.low < whole.totals.losses.high


def test_what_is_forgotten_is_answered_by_the_sample() -> None:
    """A ledger that has room for a fifth of the packets: the last runs alone are told of, the others not wrongly."""
    world = world_of(6, loss=0.01)
    ledger = ledger_of(world, 1 << 14)
    found = told(world, ledger)[1]
    assert found[0].ledger is None
    reply = NamingReply.from_bytes(named_reply(_question(world), ledger.between))
    assert (reply.named, reply.reason) == (None, FORGOTTEN)
    whole = answered(found[1:-1], Around(found[0], found[-1]))
    assert whole.flows is not None
    assert set(whole.flows.method_of_flow) - {"ledger"}
    true = int(lost_between(world, whole.first_ns, whole.last_ns).sum())
    assert whole.totals.losses.low <= true <= whole.totals.losses.high


def _question(world: TwoPointWorld) -> str:
    ends = record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b")
    first = answers(*ends)[1][0]
    assert first.naming is not None
    return first.naming.question.to_text()


def test_packets_that_were_not_lost_are_not_believed() -> None:
    """Whatever else a reply names, the sums of the receipts refuse it."""
    world = world_of(7, loss=0.01)
    ends = record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b")
    work = answers(*ends)[1][1].naming
    assert work is not None
    named = NamingReply.from_bytes(named_reply(work.question.to_text(), ledger_of(world).between)).named
    assert named is not None
    assert checked(work.question, named).missing is named.missing
    other = world.sender.select(slice(0, len(named.missing)))
    swapped = LedgerPackets(named.missing.flow_id, other.packet_id, named.missing.time_ns)
    fewer = LedgerPackets(*(column[1:] for column in vars(named.missing).values()))
    elsewhere = LedgerPackets(
        named.missing.flow_id, named.missing.packet_id, named.missing.time_ns + 2 * REACH_NS + 30 * SECOND
    )
    for wrong in (swapped, fewer, elsewhere):
        with pytest.raises(InputError, match=r"do not make the difference|another time"):
            checked(work.question, replace(named, missing=wrong))


def test_of_groups_that_are_said_to_be_unsolved_no_packet_is_believed() -> None:
    world = world_of(7, loss=0.01)
    ends = record(world.sender, PLAN, world), record(world.receiver, PLAN, world, node="b")
    work = answers(*ends)[1][1].naming
    assert work is not None
    named = NamingReply.from_bytes(named_reply(work.question.to_text(), ledger_of(world).between)).named
    assert named is not None
    fewer = LedgerPackets(*(column[1:] for column in vars(named.missing).values()))
    left = checked(work.question, replace(named, missing=fewer, unsolved=1))
    assert not left.is_complete
    assert len(left.missing) < len(fewer)


@pytest.mark.parametrize("data", [b"", b"x", b"\x78\x9c", b"\x00" * 100])
def test_a_damaged_reply_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="reply about lost packets"):
        NamingReply.from_bytes(data)


@pytest.mark.parametrize("text", ["", "x", "AAAA", "eJw=" * 10, "é"])
def test_a_damaged_question_has_a_reply_with_the_reason(text: str) -> None:
    reply = NamingReply.from_bytes(named_reply(text, lambda _first, _last: None))
    assert reply.named is None
    assert "question about lost packets" in reply.reason
