"""Ledgers of streams that have ended are asked about for a while, and never in the way of other streams."""

from __future__ import annotations

import threading

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.node.agent.configuration import checked_stream
from sojourn.node.agent.stream import AgentStream
from sojourn.node.ledgers import KEPT_SECONDS, StreamLedgers
from sojourn.segments.fleet.ledgers.naming import FORGOTTEN, NamingQuestion, NamingReply
from sojourn.segments.fleet.ledgers.packets import PacketsQuestion, PacketsReply
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.plan import plan_ledger
from sojourn.sketches.ledgers.power_sums import PowerSums, add_powers, names_and_groups

PLAN = plan_ledger(1_000, flows=32, loss=0.01)
START = 10**18


def stream_of(name: str) -> AgentStream:
    """A stream of a point whose ledger has a packet; nothing is captured."""
    table = parse_point("a:eth0", default="out").table(PLAN, 5_000_000_000)
    configuration = checked_stream(name, table, where="test", most_bytes=1 << 26)
    stream = AgentStream("a", configuration, first_sequence=0, most_bytes=1 << 26, pseudonyms=None)
    assert stream.ledger is not None
    ids = np.ones(1, np.uint64)
    stream.ledger.append(PacketBatch(ids, ids, np.full(1, START), np.ones(1, np.int64)))
    return stream


def question() -> str:
    """Which packet is missing: the one."""
    names, _ = names_and_groups(np.ones(1, np.uint64), np.uint64(0), 1)
    sums = np.zeros((1, 8), np.int64)
    add_powers(sums[0], names, 1, 8, np.empty(64, np.uint64))
    return NamingQuestion(START, START, 0, PowerSums(np.ones(1, np.int64), sums)).to_text()


class World:
    """Streams, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.streams = {name: stream_of(name) for name in ("point:eth0:out:g1", "point:eth0:out:g2")}
        self.ledgers = StreamLedgers(self.streams, threading.RLock(), lambda: None, clock=lambda: self.now)

    def end(self, name: str, room_bytes: int) -> None:
        self.ledgers.keep(name, self.streams.pop(name), room_bytes)

    def names(self, name: str) -> bool:
        """Whether the packet is named by a stream's ledger."""
        reply = NamingReply.from_bytes(self.ledgers.reply(name, question()))
        assert reply.named is not None or reply.reason == FORGOTTEN
        return reply.named is not None and reply.named.missing.packet_id.tolist() == [1]


def test_the_last_runs_of_a_stream_that_has_ended_are_named_for_a_while() -> None:
    world = World()
    first, second = world.streams
    assert world.names(first)
    world.end(first, 1 << 30)
    assert world.names(first)
    world.now = KEPT_SECONDS + 1
    world.end(second, 1 << 30)
    assert not world.names(first)
    assert world.names(second)


def test_a_ledger_is_not_kept_where_there_is_no_room_and_gives_way_to_streams() -> None:
    world = World()
    first, second = world.streams
    size = next(iter(world.streams.values())).ledger.memory_bytes  # type: ignore[union-attr]
    world.end(first, size - 1)
    assert not world.names(first)
    world.end(second, size)
    assert world.names(second)
    world.ledgers.make_room(size)
    assert world.names(second)
    world.ledgers.make_room(-1)
    assert not world.names(second)


def test_of_two_that_have_ended_the_older_one_gives_way() -> None:
    world = World()
    first, second = world.streams
    size = next(iter(world.streams.values())).ledger.memory_bytes  # type: ignore[union-attr]
    world.end(first, 2 * size)
    world.end(second, 2 * size - 1)
    assert not world.names(first)
    assert world.names(second)


def test_a_flows_packets_are_those_of_streams_that_run() -> None:
    world = World()
    first, _ = world.streams
    asked = PacketsQuestion(flow_id=1, oldest_ns=10**9, newest_ns=0, most=5).to_text()
    assert PacketsReply.from_bytes(world.ledgers.reply(first, asked)).packets is not None
    world.end(first, 1 << 30)
    assert PacketsReply.from_bytes(world.ledgers.reply(first, asked)).reason == "no ledger is kept"
