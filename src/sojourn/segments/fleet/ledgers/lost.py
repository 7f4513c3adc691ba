"""`LostResult`: the packets that a segment has lost, one by one, as ledgers name them.

Lost packets of which each was sent within `BURST_NS` of the one before are a *burst*. What no ledger told of is not
covered: nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.keys import FLOW_FIELDS, TrafficKey, flow_fields
from sojourn.core.results import Columns, Result
from sojourn.core.units import format_duration, format_time, plural
from sojourn.segments.fleet.ledgers.ranges import LostPackets

BURST_NS = 10_000_000
_NONE: dict[str, Any] = dict.fromkeys(FLOW_FIELDS)


def bursts_of(time_ns: Int64Array) -> Int64Array:
    """The number of each packet's burst, by the times at which they were sent, in order.

    >>> bursts_of(np.array([0, 1, 20_000_000, 25_000_000, 60_000_000]))
    array([0, 0, 1, 1, 2])
    """
    return np.cumsum(np.diff(time_ns, prepend=time_ns[:1]) > BURST_NS)


@dataclass(frozen=True, eq=False, repr=False)
class LostResult(Result):
    """One row for each lost packet, in the order in which they were sent: when, of which flow, in which burst; and
    whether it may have arrived outside of what is covered.

    Of ``sent`` packets ``lost`` were, ``doubtful`` ones among these; ``left_out`` rows were too many.
    """

    segment: str
    covered: Sequence[Mapping[str, int]]
    untold: Sequence[Mapping[str, int]]
    sent: int
    lost: int
    doubtful: int
    bursts: int
    longest_burst: int
    left_out: int
    rows: Mapping[str, Sequence[Any]]
    notes: Sequence[str] = field(default_factory=list)

    rows_name = "packets"

    @classmethod
    def of(
        cls, segment: str, lost: LostPackets, keys: Mapping[int, TrafficKey], *, most: int, **told: Any
    ) -> LostResult:
        """The first `most` of lost packets; keys of flows by their ids, as far as they are known."""
        time_ns, burst = lost.packets.time_ns, bursts_of(lost.packets.time_ns)
        named = {flow: _fields(keys.get(flow)) for flow in set(lost.packets.flow_id[:most].tolist())}
        flows = [named[flow] for flow in lost.packets.flow_id[:most].tolist()]
        rows: dict[str, Sequence[Any]] = {"time_ns": time_ns[:most].tolist()}
        rows |= {name: [fields[name] for fields in flows] for name in FLOW_FIELDS}
        rows |= {"burst": burst[:most].tolist(), "doubtful": lost.doubtful[:most].tolist()}
        return cls(
            segment,
            lost=len(lost),
            doubtful=int(lost.doubtful.sum()),
            bursts=int(burst[-1]) + 1 if len(burst) else 0,
            longest_burst=int(np.bincount(burst).max()) if len(burst) else 0,
            left_out=max(0, len(lost) - most),
            rows=rows,
            **told,
        )

    @classmethod
    def from_dict(cls, answer: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        packets = answer["packets"]
        names = ("time_ns", *FLOW_FIELDS, "burst", "doubtful")
        rows = {name: [packet.get(name) for packet in packets] for name in names}
        known = ("segment", "covered", "untold", "sent", "lost", "doubtful", "bursts", "longest_burst", "left_out")
        return cls(**{name: answer[name] for name in known}, rows=rows, notes=answer.get("notes", []))

    def columns(self) -> Columns:
        return self.rows

    def fields(self) -> dict[str, object]:
        return {
            "segment": self.segment,
            "covered": [dict(span) for span in self.covered],
            "untold": [dict(span) for span in self.untold],
            "sent": self.sent,
            "lost": self.lost,
            "doubtful": self.doubtful,
            "bursts": self.bursts,
            "longest_burst": self.longest_burst,
            "left_out": self.left_out,
        }

    @property
    def summary(self) -> str:
        if not self.covered:
            return f"{self.segment}: no ledger tells of this time"
        first, last = self.covered[0]["from_ns"], self.covered[-1]["to_ns"]
        share = f" ({self.lost / self.sent:.3%})" if self.sent else ""
        lines = [f"{self.segment}: {self.lost:,} of {plural(self.sent, 'packet')} lost{share}, in "]
        lines[0] += f"{plural(self.bursts, 'burst')} of {self.longest_burst:,} at most"
        lines.append(f"from {format_time(first)} to {format_time(last)}, as the sender's ledger names them")
        if self.doubtful:
            lines.append(f"{self.doubtful:,} of these may have arrived outside of what is covered")
        if self.untold:
            length = sum(span["to_ns"] - span["from_ns"] for span in self.untold)
            lines.append(f"of {format_duration(length)} in between, or at the ends, no ledger tells")
        if self.left_out:
            lines.append(f"{self.left_out:,} more are left out")
        return "\n".join(lines)


def _fields(key: TrafficKey | None) -> dict[str, Any]:
    return _NONE if key is None else {**_NONE, **flow_fields(key)}
