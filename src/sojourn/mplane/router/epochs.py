"""Measurement state packets of an m-router, as epochs: how they are named, and what a pair of them measures.

An interval of one segment and class is two epochs, one LDA from each side, both of the router's node with the
interval's number as their sequence. Their streams are named::

    router:INGRESS>EGRESS:dscp46:1000ms:ingress
    router:INGRESS>EGRESS:dscp46:1000ms:egress

by the neighbours that the two interfaces face, the class (DSCP) and the interval's length. Interval n begins at
n · length since the Unix epoch, on every router. An interval that cannot be used has, instead of its egress LDA, a
small epoch in a stream that names the reason (``…:void start lost``). Where nothing passed there are no epochs.

`segment_measurements` pairs and decodes them. Guarantee: a measurement with a mean rests on two LDAs over the same
packets, those between Start and End; `lost` is exact. Everything else is void with a reason.

`summarise` pools intervals: with r_i packets received in interval i and r their sum, mean = Σ r_i·m_i / r; the
intervals' errors are independent, so that half-widths add as √Σ (r_i·h_i / r)²; variance = Σ r_i (s_i² + (m_i − mean)²)
/ r. Intervals without a mean are left out.

Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III (intervals) and §VI (measurement state
packets).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sojourn.core.errors import ParameterError
from sojourn.epochs.epoch import Epoch
from sojourn.estimation.lda import estimate_lda
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.sketches.lda import Lda, LdaParameters

MS_NS = 1_000_000
MOST_DSCP = 63
_NAME = r"[^:>/\s](?:[^:>/]*[^:>/\s])?"
_STREAM = re.compile(rf"router:({_NAME})>({_NAME}):dscp(\d{{1,2}}):(\d{{1,9}})ms:(ingress|egress|void [a-z ]{{1,60}})")
_VOID = "void "


class Side(StrEnum):
    """Which end of a segment recorded an epoch."""

    INGRESS = "ingress"
    EGRESS = "egress"


class Void(StrEnum):
    """Why an interval cannot be used."""

    START_LOST = "start lost"
    END_LOST = "end lost"
    START_NOT_SENT = "start not seen at the ingress"
    END_NOT_SENT = "end not seen at the ingress"
    INGRESS_DROPS = "packets not recorded at the ingress"
    EGRESS_DROPS = "packets not recorded at the egress"
    ROUTE_CHANGED = "route changed"
    SKETCH_FULL = "sketch full"
    INGRESS_MISSING = "ingress epoch missing"
    EGRESS_MISSING = "egress epoch missing"
    OTHER_PACKETS = "the egress saw more packets than the ingress"
    OTHER_PARAMETERS = "the two sides recorded with different parameters"


@dataclass(frozen=True)
class RouterStream:
    """The parts of a stream's name; neighbours' names contain neither ``:`` nor ``>`` nor ``/``.

    >>> RouterStream("a", "b", 46, 1_000_000_000, Side.INGRESS).name
    'router:a>b:dscp46:1000ms:ingress'
    >>> RouterStream.parse("router:a>b:dscp0:100ms:void start lost").void
    <Void.START_LOST: 'start lost'>
    """

    ingress: str
    egress: str
    dscp: int
    interval_ns: int
    side: Side | None
    void: Void | None = None

    def __post_init__(self) -> None:
        if (self.side is None) == (self.void is None):
            raise ParameterError("a stream has a side, or a reason to be void", where="router stream")
        if self.interval_ns <= 0 or self.interval_ns % MS_NS:
            raise ParameterError(f"an interval of {self.interval_ns} ns", action="use whole milliseconds")
        if not _STREAM.fullmatch(self.name) or self.dscp > MOST_DSCP:
            raise ParameterError(
                f"{self.name!r} cannot name a stream",
                where="router stream",
                action="use DSCP 0 to 63 and neighbours' names without : > and /",
            )

    @property
    def name(self) -> str:
        end = f"{_VOID}{self.void}" if self.void else str(self.side)
        return f"router:{self.ingress}>{self.egress}:dscp{self.dscp}:{self.interval_ns // MS_NS}ms:{end}"

    @classmethod
    def parse(cls, name: str) -> RouterStream | None:
        """The parts of a name, or None if it is not a router's stream."""
        match = _STREAM.fullmatch(name)
        if match is None:
            return None
        ingress, egress, dscp, length, end = match.groups()
        reason = end.removeprefix(_VOID) if end.startswith(_VOID) else None
        if int(dscp) > MOST_DSCP or int(length) == 0 or reason not in (None, *Void):
            return None
        side = None if reason else Side(end)
        return cls(ingress, egress, int(dscp), int(length) * MS_NS, side, Void(reason) if reason else None)

    def voided(self, void: Void) -> RouterStream:
        """The stream that names the reason why this one's interval cannot be used."""
        return replace(self, side=None, void=void)


def void_epoch(node: str, stream: RouterStream, interval: int) -> Epoch:
    """The small epoch that takes the place of one that cannot be used; its one record gives stores its time.

    Like that of all routers' epochs its salt is the interval's number, so that no two of them are ever merged.
    """
    sketch = Lda(LdaParameters(rows=1, count_bits=1, sum_bits=64, digest_bits=0, salt=interval))
    sketch.record(0, interval * stream.interval_ns)
    return Epoch(node, stream.name, interval, sketch)


@dataclass
class _Interval:
    """The epochs of one interval of a segment and class."""

    ingress: Epoch | None = None
    egress: Epoch | None = None
    void: Void | None = None


_Place = tuple[int, Segment, int, int, int]  # begins, segment, class, number, length


def segment_measurements(epochs: Iterable[Epoch]) -> list[SegmentMeasurement]:
    """The measurements in routers' epochs, of each segment, class and interval, in time order; others are left out.

    An interval of which one side is not among the epochs (yet) is void.
    """
    intervals: dict[_Place, _Interval] = {}
    for epoch in epochs:
        stream = RouterStream.parse(epoch.stream)
        if stream is None:
            continue
        segment = Segment.inside(stream.ingress, epoch.node, stream.egress)
        begins = epoch.sequence * stream.interval_ns
        place = (begins, segment, stream.dscp, epoch.sequence, stream.interval_ns)
        found = intervals.setdefault(place, _Interval())
        if stream.void is not None:
            found.void = stream.void
        elif stream.side is Side.INGRESS:
            found.ingress = epoch
        else:
            found.egress = epoch
    return [_measurement(place, intervals[place]) for place in sorted(intervals)]


def _measurement(place: _Place, interval: _Interval) -> SegmentMeasurement:
    begins, segment, dscp, number, length = place
    void = interval.void or _void_of(interval.ingress, interval.egress)
    sent = interval.ingress.recorded if interval.ingress else 0
    bare = SegmentMeasurement(
        segment=segment,
        dscp=dscp,
        interval=number,
        start_ns=begins,
        end_ns=begins + length,
        packets=sent,
        method="lda",
        void=str(void) if void else None,
    )
    sides = [epoch.sketch for epoch in (interval.ingress, interval.egress) if epoch]
    ldas = [sketch for sketch in sides if isinstance(sketch, Lda)]
    if void or len(ldas) < len(Side):
        return bare
    answer = estimate_lda(*ldas)
    deviation = answer.deviation.value if answer.deviation else None
    return bare.estimated(answer.mean or None, std_ns=deviation, lost=sent - ldas[1].recorded)


def _void_of(ingress: Epoch | None, egress: Epoch | None) -> Void | None:
    """Why two sides, both sent as usable, cannot be compared; None if they can."""
    if ingress is None:
        return Void.INGRESS_MISSING
    if egress is None:
        return Void.EGRESS_MISSING
    if ingress.parameters != egress.parameters or not isinstance(ingress.sketch, Lda):
        return Void.OTHER_PARAMETERS
    return Void.OTHER_PACKETS if egress.recorded > ingress.recorded else None


@dataclass(frozen=True, kw_only=True)
class SegmentSummary:
    """One segment and class over many intervals; ``void`` counts those of no use by reason."""

    segment: Segment
    dscp: int
    intervals: int
    packets: int
    lost: int
    mean_ns: float | None
    low_ns: float | None
    high_ns: float | None
    std_ns: float | None
    void: Counter[str] = field(default_factory=Counter)


def summarise(measurements: Iterable[SegmentMeasurement]) -> list[SegmentSummary]:
    """A summary per segment and class, sorted; packets and lost are those of intervals that are not void."""
    groups: dict[tuple[Segment, int], list[SegmentMeasurement]] = {}
    for one in measurements:
        groups.setdefault((one.segment, one.dscp), []).append(one)
    return [_summary(segment, dscp, group) for (segment, dscp), group in sorted(groups.items())]


def _summary(segment: Segment, dscp: int, group: list[SegmentMeasurement]) -> SegmentSummary:
    usable = [one for one in group if one.void is None]
    mean, half, deviation = _together(usable)
    return SegmentSummary(
        segment=segment,
        dscp=dscp,
        intervals=len(group),
        packets=sum(one.packets for one in usable),
        lost=sum(one.lost for one in usable),
        mean_ns=mean,
        low_ns=None if mean is None or half is None else mean - half,
        high_ns=None if mean is None or half is None else mean + half,
        std_ns=deviation,
        void=Counter(one.void for one in group if one.void is not None),
    )


def _together(usable: list[SegmentMeasurement]) -> tuple[float | None, float | None, float | None]:
    """Mean, half-width and deviation; each None where an interval has none to give."""
    parts = [(one.packets - one.lost, one.mean_ns, one) for one in usable if one.mean_ns is not None]
    received = sum(count for count, _, _ in parts)
    if not received:
        return None, None, None
    mean = sum(count * value for count, value, _ in parts) / received
    halves = [
        count * (one.high_ns - one.low_ns) / 2
        for count, _, one in parts
        if one.high_ns is not None and one.low_ns is not None
    ]
    squares = [count * (one.std_ns**2 + (value - mean) ** 2) for count, value, one in parts if one.std_ns is not None]
    half = math.hypot(*halves) / received if len(halves) == len(parts) else None
    return mean, half, math.sqrt(sum(squares) / received) if len(squares) == len(parts) else None
