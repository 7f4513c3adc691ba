"""Flows of one interface: how much passes, and the round trips of their answers (`rtt`), a frame each interval.

Memory: the ring, the table of flows, the round trips that are waited for, and the summaries of one interval.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from sojourn.capture.live.reader import LiveReader, rehearsal
from sojourn.cli.top.frame import Frame, Sort
from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array, rows_of
from sojourn.core.units import format_age
from sojourn.rtt.round_trips import RttMeter
from sojourn.rtt.summary import RttSummaries

MOST_FLOWS = 1 << 16


@dataclass(eq=False)
class InterfaceFlows:
    """What passes an interface; a flow's delay is that of its answers: to its source and back."""

    reader: LiveReader
    interval_ns: int
    title: str = field(init=False)
    delays: str = "round trip"
    sorts: tuple[Sort, ...] = (Sort.RATE, Sort.DELAY, Sort.P99)
    _packets: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _bytes: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.title = self.reader.name
        # Compile before there are packets to lose.
        summaries = RttSummaries(MOST_FLOWS)
        for samples in RttMeter().feed(rehearsal()[1]):
            summaries.add(samples)
        summaries.columns()

    def stop(self) -> None:
        self.reader.stop()

    def frames(self) -> Generator[Frame, None, None]:
        meter, summaries = RttMeter(), RttSummaries(MOST_FLOWS)
        begun_ns = time.time_ns()
        for _, batch in self.reader.with_transport():
            deque(map(summaries.add, meter.feed(batch)), maxlen=0)
            now_ns = time.time_ns()
            if now_ns - begun_ns >= self.interval_ns:
                yield self._frame(begun_ns, now_ns, summaries)
                begun_ns, summaries = now_ns, RttSummaries(MOST_FLOWS)

    def _frame(self, begun_ns: int, end_ns: int, summaries: RttSummaries) -> Frame:
        table, seconds = self.reader.flows, (end_ns - begun_ns) / 1e9
        packets, sizes = table.packets.copy(), table.bytes.copy()
        known = len(self._packets)
        new_packets, new_bytes = packets.copy(), sizes.copy()
        new_packets[:known] -= self._packets
        new_bytes[:known] -= self._bytes
        self._packets, self._bytes = packets, sizes
        rows = np.flatnonzero(new_packets)
        ids = table.ids[rows].copy()
        names = dict(zip(ids.tolist(), rows.tolist(), strict=True))
        samples, mean_ns, p99_ns = _round_trips(summaries, ids)
        mean = float(np.nansum(samples * mean_ns) / samples.sum()) if samples.sum() else None
        rates = new_packets[rows] / seconds, 8 * new_bytes[rows] / seconds
        return Frame(
            end_ns,
            end_ns - begun_ns,
            ids,
            {
                "packets_per_second": rates[0],
                "bits_per_second": rates[1],
                "packets": new_packets[rows].astype(np.float64),
                "samples": samples,
                "mean_ns": mean_ns,
                "p99_ns": p99_ns,
            },
            lambda flow_id: table.named(names[flow_id]),
            {"packets_per_second": float(rates[0].sum()), "bits_per_second": float(rates[1].sum()), "mean_ns": mean},
            [*self.reader.warnings, *([] if len(ids) else [self._nothing()])],
        )

    def _nothing(self) -> str:
        span = format_age(self.interval_ns)
        return f"no IP packet passed {self.reader.name} for {span}; check the interface and the filter"


def _round_trips(summaries: RttSummaries, ids: UInt64Array) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Samples, mean and p99 of each flow: of the kind with most samples, as kinds wait for different things."""
    found = summaries.columns()
    rows = rows_of(ids, found["flow_id"])
    order = np.argsort(found["samples"], kind="stable")  # the most samples last: they are what stays
    order = order[rows[order] >= 0]
    columns = np.zeros(len(ids)), np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    for column, name in zip(columns, ("samples", "mean_rtt", "p99_rtt"), strict=True):
        column[rows[order]] = found[name][order]
    return columns
