"""What an agent does with the ledgers of its points: it names lost packets, and tells of one flow's packets, when the
query unit asks.

Guarantee: whatever is asked, the reply is within limits, and takes time within them: at most `MOST_SUMS` sums, of as
many packets as the ledger has. A stretch of which packets are forgotten, or were never seen by this agent, is said to
be so. Recording goes on meanwhile: packets are copied before they are looked at.
Cost: a copy of the stretch's packets (24 bytes each), and some 0.1 µs for each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import WireError
from sojourn.estimation.ledgers.answer import REACH_NS
from sojourn.estimation.ledgers.decoding import name_packets
from sojourn.segments.fleet.ledgers.naming import (
    FORGOTTEN,
    MOST_NAMED,
    NO_LEDGER,
    TOO_MANY,
    NamingQuestion,
    NamingReply,
)
from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsQuestion, PacketsReply
from sojourn.segments.fleet.steady import WAITING_NS
from sojourn.sketches.ledgers.ledger import Ledger, LedgerPackets
from sojourn.sketches.ledgers.power_sums import PowerSums

Between = Callable[[int, int], LedgerPackets | None]
OfFlow = Callable[[PacketsQuestion], FlowPackets | None]


def named_reply(text: str, between: Between) -> bytes:
    """The reply to a question, by the packets that were sent between two times (None: some are forgotten)."""
    try:
        question = NamingQuestion.from_text(text)
    except WireError as error:
        return NamingReply(None, str(error)).to_bytes()
    first, last = question.first_ns, question.last_ns
    # Packets that changed places with a marker lie outside; where those are forgotten the others may still do.
    packets = between(first - REACH_NS, last + REACH_NS) or between(first, last + REACH_NS)
    if packets is None:
        return NamingReply(None, FORGOTTEN).to_bytes()
    named = name_packets(question.difference, packets, np.uint64(question.salt))
    if len(named.missing) + len(named.extra) + len(named.doubtful) > MOST_NAMED:
        return NamingReply(None, TOO_MANY).to_bytes()
    return NamingReply(named).to_bytes()


def packets_reply(text: str, of_flow: OfFlow) -> bytes:
    """The reply to a question about a flow's packets (None: no ledger is kept)."""
    try:
        found = of_flow(PacketsQuestion.from_text(text))
    except WireError as error:
        return PacketsReply(None, str(error)).to_bytes()
    return PacketsReply(found, "" if found is not None else NO_LEDGER).to_bytes()


def packets_between(ledger: Ledger, asked: PacketsQuestion, now_ns: int) -> FlowPackets:
    """The packets that are asked for, by what the clock of stamps shows now.

    The last ones, which may still wait in the kernel's ring, are left for later.
    """
    last_ns = now_ns - max(asked.newest_ns, WAITING_NS)
    first_ns = min(max(now_ns - asked.oldest_ns, ledger.comparable_since_ns), last_ns)
    found = ledger.of_flow(asked.flow_id, first_ns, last_ns)
    order = np.argsort(found.time_ns, kind="stable")
    left_out = max(0, len(order) - asked.most)
    if left_out:
        # Of packets with one stamp all are told of, or none.
        first_ns = int(found.time_ns[order[left_out - 1]]) + 1
        left_out = int(np.searchsorted(found.time_ns[order], first_ns))
    rows = order[left_out:]
    return FlowPackets(
        packet_id=found.packet_id[rows],
        time_ns=found.time_ns[rows],
        first_ns=first_ns,
        last_ns=last_ns,
        left_out=left_out,
    )


def rehearse_naming() -> None:
    """Compile, or load, what naming needs: who asks does not wait for that."""
    packets, ledger = np.arange(1, 3, dtype=np.uint64), Ledger(1)
    ledger.append(PacketBatch(packets, packets, np.ones(2, np.int64), np.ones(2, np.int64)))
    difference = PowerSums(np.ones(1, np.int64), np.ones((1, 8), np.int64))
    named_reply(NamingQuestion(1, 1, 0, difference).to_text(), ledger.between)
