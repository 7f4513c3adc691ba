"""Flows from one interface of this machine to another: every packet matched, a frame for each stretch of time.

A stretch is shown when its packets are judged: `max_delay` after its end, and what captures need to hand packets over.
A flow of which both interfaces never saw the same packet goes elsewhere, and is not shown (`segments.live`).

Memory: the rings, the tables of flows, the packets of the latest `max_delay`, and what each flow has in a stretch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.capture.flows.table import FlowTable
from sojourn.capture.live.interface import start_together
from sojourn.capture.live.reader import LiveReader, rehearsal
from sojourn.cli.top.frame import Frame, Sort
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt64Array, lengthened, rows_of
from sojourn.core.units import format_age
from sojourn.matching.consumers import LostColumns, MatchedColumns
from sojourn.matching.join_table import RECEIVER, SENDER
from sojourn.matching.percentiles import FlowPercentiles
from sojourn.matching.statistics import DelayTotals
from sojourn.segments.live import GRACE_NS, LiveMatch

PAUSE_SECONDS = 0.05


@dataclass(eq=False)
class Stretch:
    """The packets that were sent in a stretch of time."""

    delays: DelayTotals = field(default_factory=DelayTotals)
    percentiles: FlowPercentiles = field(default_factory=FlowPercentiles)


class LatestStretches:
    """A `PacketConsumer` that adds packets up by stretch, and forgets a stretch when it is taken."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self._parts: dict[int, Stretch] = {}
        self._taken = -1
        self.travels = np.zeros(0, np.bool_)  # whether a flow was seen to go from the sender to the receiver

    def take_matched(self, packets: MatchedColumns) -> None:
        """Packets that both saw; those that the receiver saw first travel the other way."""
        ahead = packets.delay_ns >= 0
        flow = packets.flow[ahead]
        self.travels = lengthened(self.travels, int(flow.max(initial=-1)) + 1)
        self.travels[flow] = True
        for part, own in self._by_stretch(packets.sent_ns, ahead):
            columns = MatchedColumns(
                packets.flow[own], packets.number[own], packets.sent_ns[own], packets.delay_ns[own]
            )
            part.delays.take_matched(columns)
            part.percentiles.take_matched(columns)

    def take_lost(self, packets: LostColumns) -> None:
        for part, own in self._by_stretch(packets.sent_ns, np.ones(len(packets), np.bool_)):
            part.delays.take_lost(LostColumns(packets.flow[own], packets.number[own], packets.sent_ns[own]))

    def _by_stretch(self, sent_ns: Int64Array, wanted: BoolArray) -> Iterator[tuple[Stretch, BoolArray]]:
        slots = sent_ns // self.interval_ns
        for slot in np.unique(slots[wanted]).tolist():
            if slot > self._taken:
                yield self._parts.setdefault(slot, Stretch()), wanted & (slots == slot)

    def columns(self, flow: Int64Array) -> dict[str, Any]:  # noqa: ARG002
        """Flows as a whole have nothing of this."""
        return {}

    def totals(self, flow: Int64Array) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def take(self, slot: int) -> Stretch:
        """A stretch of which every packet is judged, and earlier ones forgotten."""
        self._taken = max(self._taken, slot)
        found = self._parts.get(slot, Stretch())
        self._parts = {other: part for other, part in self._parts.items() if other > slot}
        return found


class SentBytes:
    """Bytes of each flow by stretch, as the sender sent them."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._parts: dict[int, FlowTable] = {}

    def add(self, batch: PacketBatch) -> None:
        slots = batch.time_ns // self._interval_ns
        for slot in np.unique(slots).tolist():
            own = batch.select(slots == slot)
            self._parts.setdefault(slot, FlowTable()).update(own.flow_id, own.time_ns, own.size_bytes)

    def take(self, slot: int, ids: UInt64Array) -> Int64Array:
        """The bytes of flows in a stretch, which is forgotten with those before it."""
        table = self._parts.get(slot, FlowTable())
        for past in [other for other in list(self._parts) if other <= slot]:
            self._parts.pop(past)
        rows = rows_of(table.ids, ids)
        found = np.zeros(len(ids), np.int64)
        found[rows >= 0] = table.bytes[rows[rows >= 0]]
        return found


class FlowsBetween:
    """What travels from the sender's interface to the receiver's."""

    delays = "delay"
    sorts = (Sort.DELAY, Sort.P99, Sort.LOSS, Sort.RATE)

    def __init__(self, sender: LiveReader, receiver: LiveReader, *, interval_ns: int, max_delay_ns: int) -> None:
        self.readers = sender, receiver
        self.title = f"{sender.name} → {receiver.name}"
        self._interval_ns, self._max_delay_ns = interval_ns, max_delay_ns
        self._stretches, self._sent = LatestStretches(interval_ns), SentBytes(interval_ns)
        self._match = LiveMatch(max_delay_ns, [self._stretches])
        self._stopped = threading.Event()
        self._failures: list[BaseException] = []
        _compile(interval_ns, max_delay_ns)

    def stop(self) -> None:
        self._stopped.set()
        for reader in self.readers:
            reader.stop()

    def frames(self) -> Generator[Frame, None, None]:
        sender, receiver = self.readers
        slot = start_together([receiver.capture, sender.capture]) // self._interval_ns + 1
        threads = [threading.Thread(target=self._read, args=(side,), daemon=True) for side in (SENDER, RECEIVER)]
        for thread in threads:
            thread.start()
        try:
            while not self._stopped.is_set() and not self._failures:
                judged_ns = min(reader.complete_until_ns for reader in self.readers) - self._max_delay_ns - GRACE_NS
                if (slot + 1) * self._interval_ns <= judged_ns:
                    with self._match.lock:
                        frame = self._frame(slot)
                    yield frame
                    slot += 1
                else:
                    self._stopped.wait(PAUSE_SECONDS)
        finally:
            self.stop()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _read(self, side: int) -> None:
        """All of one interface; a failure ends the other too."""
        try:
            asked_ns = time.time_ns()
            for batch in self.readers[side]:
                if side == SENDER and len(batch):
                    with self._match.lock:
                        self._sent.add(batch)
                self._match.take(side, batch, asked_ns)
                asked_ns = time.time_ns()
        except BaseException as failure:
            self._failures.append(failure)
            for reader in self.readers:
                reader.stop()

    def _frame(self, slot: int) -> Frame:
        part, seconds = self._stretches.take(slot), self._interval_ns / 1e9
        travels = self._stretches.travels
        numbers = np.flatnonzero(travels)
        delays, lost = part.delays.statistics(numbers), part.delays.lost(numbers)
        active = delays.received + lost > 0
        numbers, lost, received = numbers[active], lost[active], delays.received[active]
        ids = self._match.stream.numbers.ids[numbers].copy()
        packets = (received + lost).astype(np.float64)
        bits = 8 * self._sent.take(slot, ids)
        total, tails = part.delays.aggregate(numbers), part.percentiles.totals(numbers)
        end_ns = (slot + 1) * self._interval_ns
        return Frame(
            end_ns,
            self._interval_ns,
            ids,
            {
                "packets_per_second": packets / seconds,
                "bits_per_second": bits / seconds,
                "packets": packets,
                "samples": received.astype(np.float64),
                "mean_ns": delays.mean_ns[active],
                "p99_ns": np.asarray(part.percentiles.columns(numbers)["p99_ns"], np.float64),
                "lost": lost.astype(np.float64),
                "loss": lost / packets,
            },
            self._named,
            {
                "packets_per_second": total.sent / seconds,
                "bits_per_second": float(bits.sum()) / seconds,
                "mean_ns": total.mean_ns,
                "p99_ns": tails["p99_ns"],
                "loss": total.lost / total.sent if total.sent else None,
            },
            self._notes(len(ids), bool(travels.any())),
        )

    def _named(self, flow_id: int) -> dict[str, str | int | None]:
        table = self.readers[SENDER].flows
        row = int(rows_of(table.ids, np.array([flow_id], np.uint64))[0])
        return table.named(row) if row >= 0 else {}

    def _notes(self, flows: int, has_flows: bool) -> Sequence[str]:
        notes = [text for reader in self.readers for text in reader.warnings]
        if flows:
            return notes
        if has_flows:
            return [*notes, f"nothing travelled from {self.title} for {format_age(self._interval_ns)}"]
        counts = [f"{reader.name} showed {reader.ip_packets:,} IP packets" for reader in self.readers]
        what = f"no packet was seen at both interfaces so far ({' and '.join(counts)})"
        return [*notes, f"{what}: does traffic take this way? if it goes back, exchange them; see --directions"]


def _compile(interval_ns: int, max_delay_ns: int) -> None:
    """Match a made-up packet, so that nothing is compiled while there are packets to lose."""
    stretches, sent = LatestStretches(interval_ns), SentBytes(interval_ns)
    match, batch = LiveMatch(max_delay_ns, [stretches]), rehearsal()[0]
    sent.add(batch)
    for side in (SENDER, RECEIVER):
        match.take(side, batch, 0)
    match.answer()
    slot = int(batch.time_ns[0]) // interval_ns
    part = stretches.take(slot)
    part.percentiles.columns(np.zeros(1, np.int64))
    sent.take(slot, batch.flow_id)
