"""Two nodes that keep ledgers, and answer over the real channel what a query unit asks these for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from query_unit import Unit

from sojourn.core.arrays import PacketBatch
from sojourn.lab.two_point import TwoPointWorld
from sojourn.segments.fleet.ledgers.naming import NamingReply
from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsQuestion
from sojourn.segments.fleet.ledgers.replying import packets_between, packets_reply
from sojourn.sketches.ledgers.ledger import Ledger
from waiting import PATIENCE_SECONDS

__all__ = ["both", "chosen"]

AHEAD_NS = 7_000_000_000_000  # the receiver's clock
LATER_NS = 4_000_000_000


@contextmanager
def node(unit: Unit, name: str, batch: PacketBatch, now_ns: int, *, is_old: bool = False) -> Iterator[None]:
    """A node that answers what its ledger is asked for, as an agent that has polled until some time."""
    ledger = Ledger(1 << 18)
    ledger.append(batch)
    over, waits = threading.Event(), threading.Event()
    transport = unit.transport(name)

    def of_flow(asked: PacketsQuestion) -> FlowPackets:
        return packets_between(ledger, asked, now_ns, since=(ledger.forgotten_ns + 1, 0))

    def listen() -> None:
        while not over.is_set():
            asked = transport.next_question(0.2)
            waits.set()
            if asked is None:
                continue
            reply = NamingReply(None, "cannot be read").to_bytes() if is_old else packets_reply(asked.ledger, of_flow)
            transport.answer(asked, [reply] if asked.ledger else [])

    thread = threading.Thread(target=listen)
    thread.start()
    assert waits.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def both(unit: Unit, world: TwoPointWorld, **how: bool) -> Iterator[None]:
    """Both nodes, the receiver's clock ahead by hours."""
    now_ns = int(world.sender.time_ns.max()) + LATER_NS
    received = replace(world.receiver, time_ns=world.receiver.time_ns + AHEAD_NS)
    with ExitStack() as stack:
        stack.enter_context(node(unit, "alpha", world.sender, now_ns))
        stack.enter_context(node(unit, "beta", received, now_ns + AHEAD_NS, **how))
        yield


def chosen(world: TwoPointWorld) -> tuple[str, int]:
    """A flow whose packets fit into the bodies that the test's query unit reads."""
    ids, counts = np.unique(world.sender.flow_id, return_counts=True)
    flow = int(ids[np.argmin(np.abs(counts - 1500))])
    return str(world.keys[flow]), flow
