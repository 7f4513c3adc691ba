"""`PacketsResult`: one flow's packets, each with its delay, by the ledgers of both ends.

Packets are paired by their ids, as in captures (`matching.pairing`). A packet that was sent and is not at the receiver
is *lost* once that one's ledger reaches so far beyond the time at which it would have arrived that no packet of the
flow took as long; until then it is *open*: it may still be on its way. Guarantee: what is covered was held by both
ledgers, and all the flow's packets of it are here; percentiles are those of all that arrived, and as uncertain as the
clocks. Cost: that of pairing, O(packets · log packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch
from sojourn.core.estimates import LEVELS
from sojourn.core.keys import FLOW_FIELDS
from sojourn.core.results import Columns, Result
from sojourn.core.units import format_duration, format_time, plural
from sojourn.estimation.ledgers.answer import REACH_NS
from sojourn.matching.clock.correction import TimedPairs
from sojourn.matching.pairing import DUPLICATE, MATCHED, PacketPairs, pair_packets
from sojourn.segments.fleet.clocks import ClockAt, RunFrame, smallest
from sojourn.segments.fleet.leads import Kernels
from sojourn.segments.fleet.ledgers.packets import FlowPackets

ARRIVED, LOST, OPEN = "arrived", "lost", "open"
# How many times the range of a flow's delays a packet may be late before it counts as lost; a second at least.
PATIENCE = 2
_KNOWN = ("segment", "flow", "covered", "sent", "arrived", "lost", "open", "copies", "left_out", "delays", "clock")


@dataclass(frozen=True, eq=False)
class Zoomed:
    """A flow's packets in the order in which they were sent: raw delays of those that arrived, −1 of others; and what
    became of them.

    ``left_out`` were sent before what both ends tell of, ``copies`` are packets that the sender's point shows twice.
    """

    time_ns: Int64Array
    raw_delay_ns: Int64Array
    is_there: BoolArray
    is_open: BoolArray
    first_ns: int
    last_ns: int
    left_out: int
    copies: int
    kernels: Kernels

    @classmethod
    def of(cls, sent: FlowPackets, received: FlowPackets) -> Zoomed:
        """What both ends' replies tell."""
        pairs = pair_packets(_batch(sent), _batch(received))
        raw = np.zeros(len(sent), np.int64)
        raw[pairs.sender_row] = pairs.raw_delay_ns
        first_ns, is_open = _edges(sent, received, pairs)
        is_there = pairs.sender_status == MATCHED
        is_copy = pairs.sender_status == DUPLICATE
        inside = sent.time_ns >= first_ns
        rows = np.flatnonzero(inside & ~is_copy)
        rows = rows[np.argsort(sent.time_ns[rows], kind="stable")]
        return cls(
            time_ns=sent.time_ns[rows],
            raw_delay_ns=raw[rows],
            is_there=is_there[rows],
            is_open=(is_open & ~is_there)[rows],
            first_ns=min(first_ns, sent.last_ns),
            last_ns=sent.last_ns,
            left_out=sent.left_out + int(np.count_nonzero(~inside)),
            copies=int(np.count_nonzero(is_copy & inside)),
            kernels=(sent.clock, received.clock),
        )

    @property
    def frame(self) -> RunFrame:
        return RunFrame(self.first_ns, self.last_ns, self.kernels)

    @property
    def pairs(self) -> TimedPairs:
        """The packets with the smallest raw delays, for the clock."""
        sent_ns = self.time_ns[self.is_there]
        return smallest(TimedPairs(sent_ns, sent_ns + self.raw_delay_ns[self.is_there]))


def _batch(packets: FlowPackets) -> PacketBatch:
    one = np.zeros(len(packets), np.uint64)
    return PacketBatch(one, packets.packet_id, packets.time_ns, np.zeros(len(packets), np.int64))


def _edges(sent: FlowPackets, received: FlowPackets, pairs: PacketPairs) -> tuple[int, BoolArray]:
    """From when on both ends tell, and which packets may yet arrive, or have arrived unseen."""
    if not len(pairs):
        return sent.first_ns, np.ones(len(sent), bool)
    least, most = int(pairs.raw_delay_ns.min()), int(pairs.raw_delay_ns.max())
    reach_ns = max(REACH_NS, PATIENCE * (most - least))
    expected_ns = sent.time_ns + least
    is_open = expected_ns + reach_ns > received.last_ns
    if received.missed_ns:
        is_open |= expected_ns - reach_ns <= received.missed_ns
    # No packet arrives sooner than the fastest, but for what clocks drift meanwhile.
    return max(sent.first_ns, received.first_ns - least + REACH_NS), is_open


@dataclass(frozen=True, eq=False, repr=False)
class PacketsResult(Result):
    """One row for each packet of a flow, in the order in which they were sent: when, its delay (None if it did not
    arrive) and its fate: ``arrived``, ``lost``, or ``open``: it may still be on its way.

    ``covered`` is the stretch of which all packets are told, ``left_out`` how many older ones were too many, or no
    longer held by both ends. ``delays`` has ``mean_ns``, ``min_ns``, ``max_ns`` and the percentiles of all that
    arrived, each with what clocks leave unsure (``…_low_ns``, ``…_high_ns``).
    """

    segment: str
    flow: Mapping[str, Any]
    covered: Mapping[str, int]
    sent: int
    arrived: int
    lost: int
    open: int
    copies: int
    left_out: int
    delays: Mapping[str, float | None]
    clock: Mapping[str, Any]
    rows: Mapping[str, Sequence[Any]]
    warnings: Sequence[str] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)

    rows_name = "packets"

    @classmethod
    def of(cls, segment: str, flow: Mapping[str, Any], zoomed: Zoomed, by: ClockAt, **told: Any) -> PacketsResult:
        """The packets with their delays by a clock, as far as it tells them."""
        there = zoomed.is_there
        delay_ns = zoomed.raw_delay_ns - round(by.offset_ns)
        is_known = there & by.tells_delays
        fates = np.where(there, ARRIVED, np.where(zoomed.is_open, OPEN, LOST))
        delays = [one if known else None for one, known in zip(delay_ns.tolist(), is_known.tolist(), strict=True)]
        opened = int(zoomed.is_open.sum())
        return cls(
            segment,
            {name: flow.get(name) for name in FLOW_FIELDS},
            {"from_ns": zoomed.first_ns, "to_ns": zoomed.last_ns},
            sent=len(there),
            arrived=int(there.sum()),
            lost=len(there) - int(there.sum()) - opened,
            open=opened,
            copies=zoomed.copies,
            left_out=zoomed.left_out,
            delays=_delays(delay_ns[is_known], by),
            rows={"time_ns": zoomed.time_ns.tolist(), "delay_ns": delays, "fate": fates.tolist()},
            **told,
        )

    @classmethod
    def from_dict(cls, answer: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        rows = {name: [one[name] for one in answer["packets"]] for name in ("time_ns", "delay_ns", "fate")}
        remarks = {name: answer.get(name, []) for name in ("warnings", "notes")}
        return cls(**{name: answer[name] for name in _KNOWN}, rows=rows, **remarks)

    def columns(self) -> Columns:
        return self.rows

    def fields(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in _KNOWN}
        named = {name: dict(plain[name]) for name in ("flow", "covered", "delays", "clock")}
        return {**plain, **named, "warnings": list(self.warnings), "notes": list(self.notes)}

    @property
    def summary(self) -> str:
        first, last = self.covered["from_ns"], self.covered["to_ns"]
        share = f" ({self.lost / self.sent:.3%})" if self.sent else ""
        when = f"from {format_time(first)} to {format_time(last)} ({format_duration(last - first)})"
        lines = [f"{self.segment}: {plural(self.sent, 'packet')} of the flow, {when}, by both ends' ledgers"]
        lines.append(f"{self.arrived:,} arrived, {self.lost:,} lost{share}")
        if self.open:
            lines[-1] += f"; of {self.open:,} it is not known yet"
        if self.delays.get("mean_ns") is not None:
            words = [f"{word} {format_duration(self.delays[f'{name}_ns'] or 0.0)}" for name, word in _WORDS.items()]
            lines.append(f"delay: {', '.join(words)}; {self._doubt()}")
        if self.left_out:
            lines.append(f"{plural(self.left_out, 'older packet')} left out")
        return "\n".join(lines)

    def _doubt(self) -> str:
        doubt = self.clock.get("uncertainty_ns")
        if doubt is None:
            return "relative to the two clocks, as it is not known how these differ"
        return "exact" if not doubt else f"all ± {format_duration(doubt)}, by the clocks"


_WORDS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "longest"}


def _delays(delay_ns: Int64Array, clock: ClockAt) -> dict[str, float | None]:
    """Statistics of all delays, and how low and high the clock may have them."""
    names = ("mean", "min", "max", *LEVELS)
    if not len(delay_ns):
        return {f"{name}_{end}": None for name in names for end in ("ns", "low_ns", "high_ns")}
    values = [float(delay_ns.mean()), float(delay_ns.min()), float(delay_ns.max())]
    values += np.quantile(delay_ns, list(LEVELS.values())).tolist()
    below = None if clock.high_ns is None else clock.high_ns - clock.offset_ns
    above = None if clock.low_ns is None else clock.offset_ns - clock.low_ns
    found: dict[str, float | None] = {}
    for name, value in zip(names, values, strict=True):
        found[f"{name}_ns"] = value
        found[f"{name}_low_ns"] = None if below is None else value - below
        found[f"{name}_high_ns"] = None if above is None else value + above
    return found
