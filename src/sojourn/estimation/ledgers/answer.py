"""What two receipts and the sender's ledger tell of a stretch of time, put beside what the sketches say.

Guarantee: a flow that is known exactly is answered by ``ledger``, with no interval; every other one as without a
ledger, from the sample, and its ``method`` says so. Where the ledger has forgotten part of the stretch, nothing is
decoded: losses are still exact, and so are the means of flows in groups that lost nothing.
Percentiles and deviations are the sample's in any case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sojourn.core.arrays import UInt64Array
from sojourn.core.estimates import Estimate, FlowDelays, Reason
from sojourn.core.units import plural
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import encode
from sojourn.estimation.differences import Losses
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.ledgers.decoding import Named, name_packets
from sojourn.estimation.ledgers.flows import ExactFlows, exact_flows
from sojourn.estimation.ledgers.lost_packets import LostPackets, lost_packets
from sojourn.sketches.ledgers.ledger import Ledger, LedgerPackets
from sojourn.sketches.ledgers.receipt import Receipt
from sojourn.sketches.sketch import AnySketch

METHOD = "ledger"
# Packets that were sent so much earlier or later may have changed places with others, or with the marker, at the
# stretch's edges.
REACH_NS = 1_000_000_000


@dataclass(frozen=True, eq=False)
class LedgerFound:
    """The packets that make the difference, among the sender's ``packets``, and the flows' exact answers.

    ``forgot`` tells that the ledger no longer has them all, ``epoch_bytes`` what both points' epochs take, where that
    is known.
    """

    named: Named
    packets: LedgerPackets
    flows: ExactFlows
    forgot: bool
    epoch_bytes: tuple[int, ...] = ()

    @cached_property
    def lost(self) -> LostPackets:
        """The lost packets one by one."""
        return lost_packets(self.packets, self.named.missing)

    def applied(self, flows: FlowDelays) -> FlowDelays:
        """The flows' answers, exact where they are known."""
        exact, known = self.flows, self.flows.known & (self.flows.delivered > 0)
        mean = exact.mean_ns
        columns = {name: np.where(known, mean, getattr(flows, name)) for name in ("mean_ns", "low_ns", "high_ns")}
        counts = {"packets": exact.sent, "lost": exact.lost}
        for name, values in counts.items():
            for column in (name, f"{name}_low", f"{name}_high"):
                before = getattr(flows, column)
                unknown = getattr(flows, name) if before is None else before
                columns[column] = np.where(exact.counted, values.astype(np.float64), unknown)
        methods = [METHOD if row else method for row, method in zip(known, flows.method_of_flow, strict=True)]
        reason: list[Reason | None] = [
            None if row else why for row, why in zip(known.tolist(), flows.reason, strict=True)
        ]
        samples = np.where(known, exact.delivered, flows.samples)
        return replace(flows.with_columns(columns), samples=samples, methods=methods, reason=reason)

    def losses(self, sent: int, received: int) -> Losses | None:
        """The losses of the whole, where all of its packets belong to flows whose losses are known."""
        lost = int(self.flows.lost.sum())
        if int(self.flows.sent.sum()) != sent or lost < 0:
            return None
        return Losses(lost, lost, lost, max(0, received - (sent - lost)))

    def whole(self, delays: LdaAnswer, sent: int) -> LdaAnswer:
        """The delays of all packets, exactly where those of all flows are known."""
        delivered = int(self.flows.delivered.sum())
        if not self.flows.known.all() or int(self.flows.sent.sum()) != sent or delivered < 1:
            return delays
        mean = int(self.flows.delay_ns.sum()) / delivered
        return replace(delays, mean=Estimate(mean, mean, mean, delivered, METHOD))

    def sized(self, *ends: AnySketch) -> LedgerFound:
        """With the size of both points' epochs, as they would be sent."""
        epochs = (Epoch("point", "segment", 0, sketch, None, Cut()) for sketch in ends)
        return replace(self, epoch_bytes=tuple(len(encode(epoch)) for epoch in epochs))

    def bits_per_packet(self, sent: int) -> float | None:
        """What the larger of both points' epochs takes."""
        return 8 * max(self.epoch_bytes) / max(1, sent) if self.epoch_bytes else None

    def fields(self, sent: int) -> dict[str, object]:
        """What a result tells of it beside the sketches."""
        bits = self.bits_per_packet(sent)
        return {
            **({} if bits is None else {"bits_per_packet": bits, "epoch_bytes": list(self.epoch_bytes)}),
            "groups": self.named.groups,
            "unsolved_groups": self.named.unsolved,
            "exact_flows": int(np.count_nonzero(self.flows.known)),
            **(self.lost.totals if self.named.is_complete else {}),
        }

    def notes(self, sent: int) -> list[str]:
        """What is to be said of it."""
        known = int(np.count_nonzero(self.flows.known))
        notes = [f"ledger: {known:,} of {plural(len(self.flows.known), 'flow')} exact"]
        if self.named.unsolved:
            notes[0] += f"; more was lost than receipts name in {self.named.unsolved:,} of {self.named.groups:,} groups"
        if self.forgot:
            notes.append("the ledger has forgotten packets of this time: flows with losses are answered by the sample")
        if bits := self.bits_per_packet(sent):
            notes.append(f"each point would send {bits:.2f} bits a packet, keys of flows apart")
        return notes


def read_receipts(sent: Receipt, received: Receipt, flow_id: UInt64Array, ledger: Ledger | None) -> LedgerFound:
    """What receipts of one stretch of time tell of flows; `flow_id` lists all that were recorded."""
    packets = None
    if ledger is not None and sent.first_ns is not None and sent.last_ns is not None:
        packets = ledger.between(sent.first_ns - REACH_NS, sent.last_ns + REACH_NS)
        packets = ledger.between(sent.first_ns, sent.last_ns + REACH_NS) if packets is None else packets
    forgot = packets is None
    named = name_packets(sent.power_sums.minus(received.power_sums), packets or NONE, sent.parameters.name_salt)
    # Without the ledger it is not known which flows have packets in a group that is not solved.
    found = exact_flows(sent, received, named, flow_id)
    if forgot and named.unsolved:
        found = replace(found, known=np.zeros(len(flow_id), bool))
    return LedgerFound(named, packets or NONE, found, forgot)


NONE = LedgerPackets(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
