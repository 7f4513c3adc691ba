"""Generated networks for the monitoring station: what probes and LDAs would measure of a path's segments.

A path a → x → m → y → n → b with the m-routers m and n: five segments. A segment's delay is a floor plus queueing that
wanders from interval to interval (AR(1), log-normal) and varies from packet to packet (gamma, skewed). Probes see some
twenty packets an interval, LDAs some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sojourn.mplane.measurements import Segment, SegmentKind, SegmentMeasurement
from sojourn.mplane.planning.paths import PathSegments, path_segments, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder
from sojourn.mplane.probing.plan import mean_of

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
MS = 1_000_000


def line_topology(names: str = "axmynb") -> Topology:
    builder = TopologyBuilder("line")
    for source, target in pairwise(names):
        builder.add_link(source, target, "1", line=1)
    builder.add_missing_directions()
    return builder.finish()


def line_path() -> PathSegments:
    return path_segments(shortest_paths(line_topology()), "a", "b", {"m", "n"})


@dataclass(frozen=True, kw_only=True)
class SegmentLaw:
    """How a segment behaves: ns of floor and queueing, how queueing wanders, loss, packets measured per interval."""

    floor_ns: float = 1.0 * MS
    queue_ns: float = 1.0 * MS
    wander: float = 0.2
    memory: float = 0.0
    shape: float = 1.0
    loss: float = 0.0
    packets: float = 20.0


@dataclass(frozen=True)
class Fault:
    """A segment's delay or loss grows by so much in intervals from `first` to before `last`."""

    segment: Segment
    first: int
    last: int
    delay_ns: float = 0.0
    loss: float = 0.0


def law_of(segment: Segment, **changes: float) -> SegmentLaw:
    packets = 400.0 if segment.kind is SegmentKind.ROUTER else 20.0
    return replace(SegmentLaw(packets=packets), **changes)  # type: ignore[arg-type]


def measured(
    random: np.random.Generator, segment: Segment, law: SegmentLaw, intervals: int, fault: Fault | None = None
) -> list[SegmentMeasurement]:
    """The measurements of consecutive intervals of one second."""
    level, rows = random.normal(), []
    for number in range(intervals):
        level = law.memory * level + np.sqrt(1 - law.memory**2) * random.normal()
        strikes = fault is not None and fault.segment == segment and fault.first <= number < fault.last
        queue = law.queue_ns * np.exp(law.wander * level - law.wander**2 / 2)
        sent = int(random.poisson(law.packets))
        lost = int(random.binomial(sent, min(law.loss + (fault.loss if strikes and fault else 0.0), 1.0)))
        delays = law.floor_ns + random.gamma(law.shape, queue / law.shape, sent - lost)
        if strikes and fault is not None and fault.delay_ns:
            delays += random.gamma(4, fault.delay_ns / 4, sent - lost)
        rows.append(row(segment, number, sent, lost, delays))
    return rows


def row(
    segment: Segment, number: int, sent: int, lost: int, delays: np.ndarray, void: str | None = None
) -> SegmentMeasurement:
    mean = mean_of(delays) if len(delays) > 2 and void is None else None
    return SegmentMeasurement(
        segment=segment,
        dscp=0,
        interval=START_NS // SECOND + number,
        start_ns=START_NS + number * SECOND,
        end_ns=START_NS + (number + 1) * SECOND,
        packets=sent,
        lost=lost,
        mean_ns=mean.value if mean else None,
        low_ns=mean.low if mean else None,
        high_ns=mean.high if mean else None,
        std_ns=float(delays.std(ddof=1)) if mean else None,
        method="lda" if segment.kind is SegmentKind.ROUTER else "probes",
        void=void,
    )


def world(
    seed: int, *, intervals: int = 23, fault: Fault | None = None, path: PathSegments | None = None, **law: float
) -> list[SegmentMeasurement]:
    """Measurements of all segments of a path, the line's by default."""
    random = np.random.default_rng(seed)
    segments = (path or line_path()).segments
    return [one for segment in segments for one in measured(random, segment, law_of(segment, **law), intervals, fault)]
