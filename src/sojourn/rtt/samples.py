"""RTT samples: how a kernel writes them down, and the columns in which they leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.kernels import borrowing_inlined
from sojourn.rtt.state import MIN_RTT, SYN_TIME, Count, RttTables

__all__ = ["RttSamples"]

# Columns of a sample while it is in a kernel's buffer.
FLOW, DONE, RTT, LOWEST, KIND, NOTE = range(6)
SAMPLE_WORDS = 6


@dataclass(frozen=True, eq=False)
class RttSamples:
    """One row per sample, in the order in which they were completed.

    ``flow_id`` is the flow of the packet that completed the sample (the answer), ``time_ns`` when it was
    seen; ``min_rtt_ns`` is the smallest of that flow direction so far, of any kind. ``kind`` and
    ``note`` are numbers of `Kind` and `Note`.
    """

    flow_id: UInt64Array
    time_ns: Int64Array
    rtt_ns: Int64Array
    min_rtt_ns: Int64Array
    kind: UInt8Array
    note: UInt8Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """The samples one by one, as Python's integers: time, flow id, RTT, least RTT, kind, note."""
        columns = (self.time_ns, self.flow_id, self.rtt_ns, self.min_rtt_ns, self.kind, self.note)
        return zip(*(column.tolist() for column in columns), strict=True)

    @classmethod
    def none(cls) -> RttSamples:
        """No samples, with the columns of some."""
        return cls.from_buffer(np.empty((0, SAMPLE_WORDS), np.int64))

    @classmethod
    def from_buffer(cls, buffer: Int64Array) -> RttSamples:
        """Columns copied out of a kernel's rows."""
        return cls(
            np.ascontiguousarray(buffer[:, FLOW]).view(np.uint64),
            np.ascontiguousarray(buffer[:, DONE]),
            np.ascontiguousarray(buffer[:, RTT]),
            np.ascontiguousarray(buffer[:, LOWEST]),
            buffer[:, KIND].astype(np.uint8),
            buffer[:, NOTE].astype(np.uint8),
        )


@borrowing_inlined
def write_sample(
    tables: RttTables, written: int, timed_row: int, flow_id: int, now: int, sent: int, kind: int, note: int
) -> int:
    """Write one sample unless its times make no sense; returns how many are written now.

    `timed_row` is the direction of the packet that was timed, `flow_id` that of the answer.
    """
    times, counts, samples = tables.times, tables.counts, tables.samples
    rtt = now - sent
    if sent < times[timed_row, SYN_TIME]:
        counts[Count.EARLIER_CONNECTION] += 1
        return written
    if rtt < 0:
        counts[Count.ANSWER_BEFORE_PACKET] += 1
        return written
    if rtt > tables.max_rtt_ns:
        counts[Count.ANSWER_TOO_LATE] += 1
        return written
    if rtt < times[timed_row, MIN_RTT]:
        times[timed_row, MIN_RTT] = rtt
    samples[written, FLOW] = flow_id
    samples[written, DONE] = now
    samples[written, RTT] = rtt
    samples[written, LOWEST] = times[timed_row, MIN_RTT]
    samples[written, KIND] = kind
    samples[written, NOTE] = note
    return written + 1
