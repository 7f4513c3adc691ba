"""Readings: what a fleet measured in a window of time as named numbers with labels, of a bounded number of series.

Every export is made of the same readings, so that a number has one name wherever it arrives.

Guarantee: at most `ReadingLimits.most_series` series, whatever the fleet is: of each metric the largest nodes and the
largest instances, of all metrics and segments so many; how many of each were left out is a reading, too. Values are in
base units (seconds instead of ns). A number that is not finite is no reading.
Cost: some 300 bytes a series in the text format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from sojourn.core.errors import InputError, UsageError
from sojourn.core.units import format_duration

SECOND_NS = 1_000_000_000
# Upper bounds of the buckets of delays: 10 µs to 10 s, three a decade; what is more is in a last one.
BOUNDS_NS = (*(step * 10**power for power in range(4, 10) for step in (1, 2, 5)), 10**10)
MOST_METRICS = 20
MOST_TOP, MOST_NODES, MOST_SEGMENTS = 100, 1000, 1000
LEAST_WINDOW_NS, LONGEST_WINDOW_NS = SECOND_NS, 3600 * SECOND_NS
DEFAULT_WINDOW_NS, DEFAULT_LAG_NS = 60 * SECOND_NS, 15 * SECOND_NS


@dataclass(frozen=True, kw_only=True)
class Family:
    """All readings of one name: what they mean, their unit, and what tells them apart."""

    text: str
    labels: tuple[str, ...]
    unit: str = ""
    is_histogram: bool = False


_SCOPES = {
    "fleet": ("all nodes together", ("metric", "unit")),
    "node": ("a node", ("metric", "unit", "node")),
    "instance": ("one of the largest instances", ("metric", "unit", "node", "key")),
}
_KINDS = {"rate": "Amount a second of", "mean": "Mean of the measurements of"}
_ENDS = {"": "", "_low": " (low end of the 95 % interval)", "_high": " (high end of the 95 % interval)"}
_SEGMENT = ("segment", "from", "to")


def _families() -> dict[str, Family]:
    known = {
        f"sojourn_{scope}_{kind}{end}": Family(text=f"{words} {of}{interval}", labels=labels)
        for (scope, (of, labels)), (kind, words), (end, interval) in product(
            _SCOPES.items(), _KINDS.items(), _ENDS.items()
        )
    }

    def segment(name: str, text: str, unit: str = "", *, is_histogram: bool = False) -> None:
        full = f"sojourn_segment_{name}{f'_{unit}' if unit else ''}"
        known[full] = Family(text=text, labels=_SEGMENT, unit=unit, is_histogram=is_histogram)

    segment("delay", "Delays of all packets, by a sample of them", "seconds", is_histogram=True)
    segment("delay_mean", "Mean delay of all packets", "seconds")
    segment("delay_p99", "Largest 99th percentile of a run", "seconds")
    segment("sent", "Packets that passed the sender", "packets")
    segment("lost", "Packets that did not reach the receiver", "packets")
    segment("loss", "Share of packets that did not reach the receiver", "ratio")
    segment("covered", "Time that the numbers of the segment rest on", "seconds")
    segment("clock_known", "Whether packets of both directions, or one node, tell the clocks' offset")
    known["sojourn_export_window_seconds"] = Family(text="Length of the window", labels=(), unit="seconds")
    known["sojourn_export_left_out"] = Family(text="Beyond the limits, and not among the series", labels=("what",))
    known["sojourn_export_failed"] = Family(text="Whether it could not be read", labels=("what",))
    return known


FAMILIES = _families()
_OF_SEGMENT = sum(1 for one in FAMILIES.values() if one.labels == _SEGMENT and not one.is_histogram)


@dataclass(frozen=True, kw_only=True)
class ReadingLimits:
    """How many nodes and instances of a metric, and how many segments, readings name; the largest ones."""

    top: int = 10
    nodes: int = 100
    segments: int = 100

    def __post_init__(self) -> None:
        for name, most in (("top", MOST_TOP), ("nodes", MOST_NODES), ("segments", MOST_SEGMENTS)):
            if not 0 <= getattr(self, name) <= most:
                what = f"{getattr(self, name)} is not among 0 … {most}"
                raise UsageError(what, where=name, action="every one of them is series that somebody has to keep")

    @property
    def most_series(self) -> int:
        """The largest number of series that there can be, whatever was measured."""
        of_metrics = MOST_METRICS * 3 * (1 + self.nodes + self.top)
        # A histogram has a series for each bucket, one for what is more, its count and its sum.
        of_segments = self.segments * (_OF_SEGMENT + len(BOUNDS_NS) + 3)
        return of_metrics + of_segments + 1 + len(LEFT_OUT) + MOST_METRICS + 1


LEFT_OUT = ("metrics", "nodes", "instances", "segments")


@dataclass(frozen=True, kw_only=True)
class Window:
    """The stretch of time that readings are of; it ends a while ago, as epochs come when they are complete."""

    window_ns: int = DEFAULT_WINDOW_NS
    lag_ns: int = DEFAULT_LAG_NS

    def __post_init__(self) -> None:
        if not LEAST_WINDOW_NS <= self.window_ns <= LONGEST_WINDOW_NS:
            what = f"{format_duration(self.window_ns)} is not among 1 s … 1 h"
            raise UsageError(what, where="window", action="give twice the longest epoch of your nodes, or more")
        if not 0 <= self.lag_ns <= LONGEST_WINDOW_NS:
            what = f"{format_duration(self.lag_ns)} is not among 0 s … 1 h"
            raise UsageError(what, where="lag", action="give the longest epoch of your nodes, or more")

    def span(self, now_ns: int) -> tuple[int, int]:
        """From when to when, seen from now."""
        return now_ns - self.lag_ns - self.window_ns, now_ns - self.lag_ns


@dataclass(frozen=True, kw_only=True)
class Point:
    """One reading: a number, or how many delays lie in each bucket (one more than there are bounds) and their sum."""

    name: str
    labels: Mapping[str, str]
    value: float | None = None
    counts: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What no other reading has."""
        return self.name, *(self.labels[name] for name in FAMILIES[self.name].labels)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All readings of a window."""

    from_ns: int
    to_ns: int
    points: tuple[Point, ...] = field(default=())

    def by_family(self) -> Iterator[tuple[str, Family, list[Point]]]:
        """The readings of each name that has any, in the order in which families are declared."""
        found: dict[str, list[Point]] = {name: [] for name in FAMILIES}
        for point in self.points:
            found[point.name].append(point)
        for name, points in found.items():
            if points:
                yield name, FAMILIES[name], points

    @property
    def series(self) -> int:
        """How many series they are in Prometheus' data model."""
        return sum(len(point.counts) + 2 if point.counts else 1 for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        points = [
            {
                "name": point.name,
                "labels": dict(point.labels),
                "value": point.value,
                "counts": list(point.counts) or None,
            }
            for point in self.points
        ]
        bounds = [bound / SECOND_NS for bound in BOUNDS_NS]
        return {"from_ns": self.from_ns, "to_ns": self.to_ns, "bounds_seconds": bounds, "points": points}

    @classmethod
    def from_dict(cls, answer: Mapping[str, Any], *, where: str) -> Readings:
        """The inverse of `to_dict`; names that are not known here are left out, what is no reading is an error."""
        try:
            if [round(bound * SECOND_NS) for bound in answer["bounds_seconds"]] != list(BOUNDS_NS):
                raise InputError("its delays are in other buckets", where=where, action="use the same version at both")
            points = tuple(map(_point_of, (one for one in answer["points"] if one["name"] in FAMILIES)))
            return cls(from_ns=int(answer["from_ns"]), to_ns=int(answer["to_ns"]), points=points)
        except (KeyError, TypeError, ValueError):
            raise InputError("these are no readings", where=where, action="is it a query unit?") from None


def _point_of(one: Mapping[str, Any]) -> Point:
    family = FAMILIES[one["name"]]
    labels = {name: str(one["labels"][name]) for name in family.labels}
    counts = tuple(float(count) for count in one["counts"] or ())
    if len(counts) != (len(BOUNDS_NS) + 1) * family.is_histogram:
        raise ValueError(one["name"])
    return Point(name=one["name"], labels=labels, value=float(one["value"]), counts=counts)


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A value with its interval: of all nodes, of a node, or of an instance of a node."""

    value: float
    low: float
    high: float
    node: str | None = None
    key: str | None = None

    @property
    def scope(self) -> Literal["fleet", "node", "instance"]:
        return "fleet" if self.node is None else "node" if self.key is None else "instance"


def metric_points(
    metric: str, unit: str, stat: Literal["sum", "mean"], amounts: Iterable[Amount], seconds: float
) -> Iterator[Point]:
    """The readings of a metric; sums of so many seconds become rates."""
    in_ns = unit == "ns"
    scale = (1 / SECOND_NS if in_ns else 1.0) / (seconds if stat == "sum" else 1.0)
    kind = "rate" if stat == "sum" else "mean"
    for amount in amounts:
        labels = {"metric": metric, "unit": "seconds" if in_ns else unit, "node": amount.node, "key": amount.key}
        known = {name: text for name, text in labels.items() if text is not None}
        for end, value in (("", amount.value), ("_low", amount.low), ("_high", amount.high)):
            if math.isfinite(value):
                yield Point(name=f"sojourn_{amount.scope}_{kind}{end}", labels=known, value=value * scale)


@dataclass(frozen=True, kw_only=True)
class SegmentDelays:
    """How many delays of a segment lie in each bucket, as a sample tells; none where no packet was sampled."""

    counts: tuple[float, ...] = ()

    def of_packets(self, received: int) -> tuple[float, ...]:
        """The same for all packets that arrived."""
        sampled = sum(self.counts)
        return tuple(count * received / sampled for count in self.counts) if sampled else ()


def segment_points(totals: Mapping[str, Any], delays: SegmentDelays) -> Iterator[Point]:
    """The readings of a segment from its totals, as `rank_segments` of the client gives them."""
    labels = {name: str(totals[name]) for name in _SEGMENT}
    mean_ns, p99_ns, received = totals["mean_ns"], totals["worst_p99_ns"], totals["received"]
    numbers: dict[str, float | None] = {
        "delay_mean_seconds": None if mean_ns is None else mean_ns / SECOND_NS,
        "delay_p99_seconds": None if p99_ns is None else p99_ns / SECOND_NS,
        "sent_packets": totals["sent"],
        "lost_packets": totals["lost"],
        "loss_ratio": totals["loss"],
        "covered_seconds": (totals["last_ns"] - totals["first_ns"]) / SECOND_NS,
        "clock_known": float(totals["clock"] == "followed"),
    }
    counts = delays.of_packets(received)
    if counts and mean_ns is not None:
        total = mean_ns / SECOND_NS * received
        yield Point(name="sojourn_segment_delay_seconds", labels=labels, value=total, counts=counts)
    for name, value in numbers.items():
        if value is not None and math.isfinite(value):
            yield Point(name=f"sojourn_segment_{name}", labels=labels, value=float(value))


def export_points(window_ns: int, left_out: Mapping[str, int], failed: Sequence[str]) -> Iterator[Point]:
    """The readings of the export itself."""
    yield Point(name="sojourn_export_window_seconds", labels={}, value=window_ns / SECOND_NS)
    for what in LEFT_OUT:
        yield Point(name="sojourn_export_left_out", labels={"what": what}, value=float(left_out.get(what, 0)))
    for what in failed:
        yield Point(name="sojourn_export_failed", labels={"what": what}, value=1.0)
