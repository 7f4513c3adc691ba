"""What was measured of a segment in an interval: the common currency of in-router sketches, probes and the station.

A *segment* is a piece of a path between two measurement points. It is named by its hops:

================  ====================  =====================================================================
kind              hops                  measured by
================  ====================  =====================================================================
`ROUTER`          (a, r, b)             LDA inside r, between its interfaces that face a and b
`LINK`            (a, b)                probes from a to b, neighbours
`VIRTUAL_LINK`    (a, x, …, b)          probes from a to b over routers that were not upgraded
================  ====================  =====================================================================

A measurement belongs to an interval, delimited by Start and End messages; one that lost its Start or End is *void*: it
says why, and has no delays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sojourn.core.errors import ParameterError

__all__ = ["Segment", "SegmentKind", "SegmentMeasurement"]

_HOPS_OF_ROUTER = 3
_HOPS_OF_LINK = 2


class SegmentKind(StrEnum):
    """Where a segment lies."""

    ROUTER = "router"
    LINK = "link"
    VIRTUAL_LINK = "virtual link"


@dataclass(frozen=True, order=True)
class Segment:
    """A piece of a path by the names of its hops.

    >>> str(Segment.inside("a", "r", "b"))
    'a>[r]>b'
    >>> str(Segment.between("a", "x", "b"))
    'a>x>b'
    """

    kind: SegmentKind
    hops: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.hops) < _HOPS_OF_LINK or (self.kind is SegmentKind.ROUTER) != self._is_inside():
            raise ParameterError(f"no {self.kind} has {len(self.hops)} hops", where="segment")

    def _is_inside(self) -> bool:
        return self.kind is SegmentKind.ROUTER and len(self.hops) == _HOPS_OF_ROUTER

    @classmethod
    def inside(cls, ingress: str, router: str, egress: str) -> Segment:
        """Inside an m-router, from the interface that faces one neighbour to the one that faces another."""
        return cls(SegmentKind.ROUTER, (ingress, router, egress))

    @classmethod
    def between(cls, *hops: str) -> Segment:
        """From one m-node to the next: a link, or a virtual link over others."""
        return cls(SegmentKind.LINK if len(hops) == _HOPS_OF_LINK else SegmentKind.VIRTUAL_LINK, hops)

    def __str__(self) -> str:
        if self.kind is SegmentKind.ROUTER:
            ingress, router, egress = self.hops
            return f"{ingress}>[{router}]>{egress}"
        return ">".join(self.hops)


@dataclass(frozen=True, kw_only=True)
class SegmentMeasurement:
    """One segment, one measurement equivalence class (DSCP), one interval; times in ns.

    `low_ns` and `high_ns` hold the true mean in 95 of 100 cases; `std_ns` is the deviation of single packets' delays.
    Fields are None where nothing justifies a number.
    """

    segment: Segment
    dscp: int
    interval: int
    start_ns: int
    end_ns: int
    packets: int
    lost: int
    mean_ns: float | None
    low_ns: float | None
    high_ns: float | None
    std_ns: float | None
    method: str  # "lda" or "probes"
    void: str | None = None
