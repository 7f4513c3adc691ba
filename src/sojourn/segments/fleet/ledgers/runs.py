"""What ledgers tell of a run: every flow's packets, losses and sum of delays, and the packets that were lost.

Both ends' receipts of a run come with its epochs. If nothing makes a difference between them, they tell everything.
Else `NamingWork` waits until the agent that keeps the sender's ledger has named the packets that do
(`segments.fleet.ledgers.naming`), and what it names is checked against both receipts before it is believed. What
follows, a `LedgerRun`, is stored with the run's answer, so that no agent is needed any more.

Guarantee: what a flow is `known` by is exact for the packets that *arrived* in the run; ``missing`` ones were sent in
it and did not, ``extra`` ones were sent before or after. A run that no ledger tells of stays as it was answered.
Cost: 25 bytes for each flow and 24 for each packet that makes the difference, before compression.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import cbor2
import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.estimation.ledgers.answer import LedgerFound
from sojourn.estimation.ledgers.decoding import Named
from sojourn.estimation.ledgers.flows import exact_flows
from sojourn.segments.answer import Interval, parts_of
from sojourn.segments.fleet.ledgers.naming import NO_PACKETS, NamingQuestion, checked, inflated, packed, unpacked
from sojourn.segments.planning.layout import RECEIPT
from sojourn.segments.ranges import moved_flows
from sojourn.sketches.ledgers.ledger import LedgerPackets
from sojourn.sketches.ledgers.receipt import Receipt
from sojourn.sketches.sketch import AnySketch

COMPRESSION = 1
MOST_STORED = 256 << 20
_WORK, _RUN = "work", "run"


@dataclass(frozen=True, eq=False)
class LedgerRun:
    """Flows in order of their ids: packets ``sent``, and those ``lost`` (negative where more arrived), as far as they
    are ``counted``; the sum of raw delays less ``offset_ns`` each, where it is ``known``.

    ``is_complete`` says that all packets that are missing are named; extra ones of flows that the sender never saw are
    not.
    """

    flow_id: UInt64Array
    sent: Int64Array
    lost: Int64Array
    delay_ns: Int64Array
    counted: BoolArray
    known: BoolArray
    offset_ns: int
    missing: LedgerPackets
    extra: LedgerPackets
    is_complete: bool

    @property
    def delivered(self) -> Int64Array:
        return self.sent - self.lost

    def to_bytes(self) -> bytes:
        """For the store."""
        numbers = [column.astype("<i8").tobytes() for column in (self.sent, self.lost, self.delay_ns)]
        flags = (self.counted.astype(np.uint8) | (self.known.astype(np.uint8) << 1)).tobytes()
        columns = [self.flow_id.astype("<u8").tobytes(), *numbers, flags]
        named = [packed(self.missing), packed(self.extra), self.is_complete]
        return zlib.compress(cbor2.dumps([_RUN, columns, self.offset_ns, *named]), COMPRESSION)


def read_ledger(data: bytes | None) -> LedgerRun | None:
    """What is stored of a run, if its packets are named."""
    if not data:
        return None
    kind, *items = cbor2.loads(inflated(data, MOST_STORED))
    if kind != _RUN:
        return None
    columns, offset_ns, missing, extra, is_complete = items
    flow_id = np.frombuffer(columns[0], "<u8").astype(np.uint64)
    sent, lost, delay_ns = (np.frombuffer(column, "<i8").astype(np.int64) for column in columns[1:4])
    flags = np.frombuffer(columns[4], np.uint8)
    how = (flags & 1).astype(bool), (flags & 2).astype(bool)
    return LedgerRun(
        flow_id, sent, lost, delay_ns, *how, offset_ns, unpacked(missing), unpacked(extra), bool(is_complete)
    )


@dataclass(frozen=True, eq=False)
class NamingWork:
    """The receipts of a run that differ, the receiver's by a clock behind by ``offset_ns``, and the question."""

    question: NamingQuestion
    sent: Receipt
    received: Receipt
    offset_ns: int

    def to_bytes(self) -> bytes:
        """For the store, until it is done."""
        receipts = [encode(Epoch("ledger", "receipt", 0, one)) for one in (self.sent, self.received)]
        return zlib.compress(cbor2.dumps([_WORK, self.question.to_text(), receipts, self.offset_ns]), COMPRESSION)

    @classmethod
    def from_bytes(cls, data: bytes) -> NamingWork:
        _, text, receipts, offset_ns = cbor2.loads(inflated(data, MOST_STORED))
        sent, received = (decode(one).sketch for one in receipts)
        return cls(NamingQuestion.from_text(text), sent, received, offset_ns)  # type: ignore[arg-type]

    def found(self, named: Named, flow_id: UInt64Array) -> LedgerFound:
        """What follows for flows, if the packets make the difference; an `InputError` else."""
        return _found(self.sent, self.received, checked(self.question, named), flow_id)


def question_text(data: bytes) -> str:
    """The question of work that is stored."""
    _, text, *_ = cbor2.loads(inflated(data, MOST_STORED))
    return str(text)


def told_by_ends(
    sender: AnySketch, receiver: AnySketch, flow_id: UInt64Array, offset_ns: int
) -> LedgerRun | NamingWork | None:
    """What both ends' receipts tell by themselves, or else what is to be asked; None where there are none, or it is too
    much to ask. The receiver's is by a clock behind by `offset_ns`; `flow_id` lists all flows that were recorded.
    """
    sent, received = (parts_of(sketch).get(RECEIPT) for sketch in (sender, receiver))
    if not isinstance(sent, Receipt) or not isinstance(received, Receipt):
        return None
    difference = sent.power_sums.minus(received.power_sums)
    if not difference.counts.any() and not difference.sums.any():
        nothing = Named(NO_PACKETS, NO_PACKETS, np.empty(0, np.uint64), difference.groups, 0, 0)
        return ledger_run(_found(sent, received, nothing, flow_id), flow_id, offset_ns)
    if sent.first_ns is None or sent.last_ns is None:
        return None
    question = NamingQuestion(sent.first_ns, sent.last_ns, int(sent.parameters.name_salt), difference)
    return NamingWork(question, sent, received, offset_ns) if question.is_askable else None


def _found(sent: Receipt, received: Receipt, named: Named, flow_id: UInt64Array) -> LedgerFound:
    return LedgerFound(named, NO_PACKETS, exact_flows(sent, received, named, flow_id), forgot=False)


def ledger_run(found: LedgerFound, flow_id: UInt64Array, offset_ns: int) -> LedgerRun:
    """What was found, for the store."""
    order = np.argsort(flow_id)
    exact, named = found.flows, found.named
    return LedgerRun(
        flow_id[order],
        sent=exact.sent[order],
        lost=exact.lost[order],
        delay_ns=exact.delay_ns[order],
        counted=exact.counted[order],
        known=exact.known[order],
        offset_ns=offset_ns,
        missing=named.missing,
        extra=named.extra,
        is_complete=not named.unsolved and not len(named.doubtful),
    )


def with_found(interval: Interval, found: LedgerFound, offset_ns: int) -> Interval:
    """A run's answer with what ledgers tell of its flows."""
    if interval.flows is None:
        return interval
    flows = moved_flows(interval.flows, -offset_ns)
    assert flows is not None
    return replace(interval, flows=moved_flows(found.applied(flows), offset_ns))
