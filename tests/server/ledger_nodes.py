"""Two nodes that keep ledgers, and answer over the real channel what a query unit asks these for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from query_unit import Unit

from sojourn.client.query_unit import Client
from sojourn.core.arrays import PacketBatch
from sojourn.lab.two_point import TwoPointWorld
from sojourn.node.transports.transport import Transport
from sojourn.segments.fleet.ledgers.packets import PREFIX, FlowPackets, PacketsQuestion
from sojourn.segments.fleet.ledgers.replying import named_reply, packets_between, packets_reply
from sojourn.sketches.ledgers.ledger import Ledger
from waiting import PATIENCE_SECONDS

__all__ = ["admin_of_ledgers", "both", "chosen"]

AHEAD_NS = 7_000_000_000_000  # the receiver's clock
LATER_NS = 4_000_000_000


@contextmanager
def node(
    transport: Transport, batch: PacketBatch, now_ns: int, *, is_old: bool = False, held: int = 1 << 18
) -> Iterator[None]:
    """A node that answers what its ledger of so many packets is asked for, as an agent that has polled until some time;
    an old one knows of lost packets alone.
    """
    ledger = Ledger(held)
    ledger.append(batch)
    over, waits = threading.Event(), threading.Event()

    def of_flow(asked: PacketsQuestion) -> FlowPackets:
        return packets_between(ledger, asked, now_ns)

    def listen() -> None:
        while not over.is_set():
            asked = transport.next_question(0.2)
            waits.set()
            if asked is None:
                continue
            if asked.ledger.startswith(PREFIX) and not is_old:
                reply = packets_reply(asked.ledger, of_flow)
            else:
                reply = named_reply(asked.ledger, ledger.between)
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
def admin_of_ledgers(unit: Unit) -> Iterator[Client]:
    """An admin who has created the segment that the nodes' ledgers are of."""
    with Client(unit.url, unit.tokens["admin"]) as client:
        client.create_segment("ab", "alpha:eth0", "beta:eth1", epoch_ns=5_000_000_000, sketch="ledger")
        yield client


@contextmanager
def both(
    transports: tuple[Transport, Transport],
    world: TwoPointWorld,
    *,
    ahead_ns: int = AHEAD_NS,
    held: int = 1 << 18,
    **how: bool,
) -> Iterator[None]:
    """Both nodes, the receiver's clock ahead by hours."""
    now_ns = int(world.sender.time_ns.max()) + LATER_NS
    received = replace(world.receiver, time_ns=world.receiver.time_ns + ahead_ns)
    with ExitStack() as stack:
        stack.enter_context(node(transports[0], world.sender, now_ns, held=held))
        stack.enter_context(node(transports[1], received, now_ns + ahead_ns, **how))
        yield


def chosen(world: TwoPointWorld) -> tuple[str, int]:
    """A flow whose packets fit into the bodies that the test's query unit reads."""
    ids, counts = np.unique(world.sender.flow_id, return_counts=True)
    flow = int(ids[np.argmin(np.abs(counts - 1500))])
    return str(world.keys[flow]), flow
