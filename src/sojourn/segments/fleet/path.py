"""`PathResult`: where on a path of segments each flow waits and loses, side by side.

The segments' answers are about the same range of time, each of its own runs: a flow's parts add up to its whole within
what happened at the edges of these. The slowest part of each flow, and of all packets, is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.core.errors import UsageError
from sojourn.core.keys import FLOW_FIELDS
from sojourn.core.results import Columns, Result
from sojourn.core.units import format_duration
from sojourn.segments.result import SegmentResult


@dataclass(frozen=True, eq=False, repr=False)
class PathResult(Result):
    """One row per flow: its mean delay and its lost packets on every segment, and the segment that it waits on most."""

    segments: Sequence[Mapping[str, Any]]
    rows: Mapping[str, Sequence[Any]]
    warnings: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Mapping[str, SegmentResult]) -> PathResult:
        """The breakdown of a path, its segments in order."""
        if not parts:
            raise UsageError("a path has at least one segment", where="path", action="name its segments in order")
        flows: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
        for name, part in parts.items():
            for row in part:
                if "start_ns" not in row:
                    flows.setdefault(tuple(row[key] for key in FLOW_FIELDS), {})[name] = row
        packets = {
            flow: max((row["packets"] or 0 for row in found.values()), default=0) for flow, found in flows.items()
        }
        order = sorted(flows, key=lambda flow: -packets[flow])
        columns: dict[str, list[Any]] = {key: [flow[at] for flow in order] for at, key in enumerate(FLOW_FIELDS)}
        columns["packets"] = [packets[flow] for flow in order]
        for name in parts:
            columns[f"{name}_mean_ns"] = [flows[flow].get(name, {}).get("mean_ns") for flow in order]
            columns[f"{name}_lost"] = [flows[flow].get(name, {}).get("lost") for flow in order]
        columns["slowest"] = [_slowest({n: row.get("mean_ns") for n, row in flows[flow].items()}) for flow in order]
        segments = [{"segment": name, **part.aggregate, "clock": dict(part.clock)} for name, part in parts.items()]
        warnings = [f"{name}: {text}" for name, part in parts.items() for text in part.warnings]
        return cls(segments, columns, warnings)

    @property
    def slowest(self) -> str | None:
        """The segment on which packets wait longest."""
        return _slowest({one["segment"]: one["mean_ns"] for one in self.segments})

    @property
    def headings(self) -> list[tuple[str, str]]:
        """The columns of segments' means, and what to call them in a table."""
        return [(f"{one['segment']}_mean_ns", one["segment"]) for one in self.segments]

    def columns(self) -> Columns:
        return self.rows

    def fields(self) -> dict[str, object]:
        return {
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            "segments": [dict(one) for one in self.segments],
            "slowest": self.slowest,
        }

    @property
    def summary(self) -> str:
        return "\n".join(map(self._line, self.segments))

    def _line(self, one: Mapping[str, Any]) -> str:
        mean = "unknown" if one["mean_ns"] is None else format_duration(one["mean_ns"])
        p99 = f", p99 {format_duration(one['p99_ns'])}" if one.get("p99_ns") is not None else ""
        lost = "losses unknown" if one["lost"] is None else f"{one['lost']:,} of {one['sent']:,} lost"
        most = "  ← slowest" if one["segment"] == self.slowest and len(self.segments) > 1 else ""
        return f"{one['segment']}: mean {mean}{p99}, {lost}{most}"


def _slowest(means: Mapping[str, float | None]) -> str | None:
    known = {name: mean for name, mean in means.items() if mean is not None}
    return max(known, key=lambda name: known[name]) if known else None
