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
names the reason, and has no delays.

As a row (a line of JSON in files, an object in the query unit's interface) a measurement has the fields of
`SegmentMeasurement`, with `kind` and `hops` in place of the segment. Reading checks every field before it is used; an
error names the file and the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sojourn.core.errors import InputError, ParameterError
from sojourn.core.estimates import Estimate

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
        is_router = self.kind is SegmentKind.ROUTER
        if len(self.hops) < _HOPS_OF_LINK or (is_router and len(self.hops) != _HOPS_OF_ROUTER):
            raise ParameterError(f"no {self.kind} has {len(self.hops)} hops", where="segment")

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

    `low_ns` and `high_ns` are the 95 % interval of the mean; `std_ns` is the deviation of single packets' delays.
    Fields are None where nothing justifies a number.
    """

    segment: Segment
    dscp: int
    interval: int
    start_ns: int
    end_ns: int
    packets: int
    lost: int = 0
    mean_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    std_ns: float | None = None
    method: str  # "lda" or "probes"
    void: str | None = None

    def estimated(self, mean: Estimate | None, *, std_ns: float | None, lost: int) -> SegmentMeasurement:
        """The same with what was estimated; an interval without bounds is none."""
        is_bounded = mean is not None and math.isfinite(mean.high - mean.low)
        low, high = (mean.low, mean.high) if mean and is_bounded else (None, None)
        return replace(self, mean_ns=mean.value if mean else None, low_ns=low, high_ns=high, std_ns=std_ns, lost=lost)


MAX_HOPS = 64
MAX_TEXT = 200
_MAX_LINE = 100_000
_WHOLE = ("dscp", "interval", "start_ns", "end_ns", "packets", "lost")
_REAL = ("mean_ns", "low_ns", "high_ns", "std_ns")
_FIELDS = {"kind", "hops"} | {field.name for field in fields(SegmentMeasurement)} - {"segment"}


def measured_by(segment: Segment) -> str:
    """The node that measures a segment: the router itself, or the one whose probes cross it.

    >>> measured_by(Segment.inside("a", "r", "b")), measured_by(Segment.between("a", "x", "b"))
    ('r', 'a')
    """
    return segment.hops[1] if segment.kind is SegmentKind.ROUTER else segment.hops[0]


def to_row(measurement: SegmentMeasurement) -> dict[str, object]:
    """A measurement as plain values."""
    row = asdict(measurement)
    segment = row.pop("segment")
    return {"kind": str(segment["kind"]), "hops": list(segment["hops"]), **row}


def to_line(measurement: SegmentMeasurement) -> str:
    """A measurement as a line of JSON."""
    return json.dumps(to_row(measurement), ensure_ascii=False, allow_nan=False) + "\n"


def from_row(row: object, *, where: str = "measurement") -> SegmentMeasurement:
    """The measurement in a row; InputError names the field that is wrong."""
    if not isinstance(row, Mapping) or set(row) != _FIELDS:
        raise InputError("not the fields of a measurement", where=where, action=f"give {', '.join(sorted(_FIELDS))}")
    for name in _WHOLE:
        if type(row[name]) is not int or not 0 <= row[name] < 1 << 63:
            raise InputError(f"{name} is {str(row[name])[:40]!r}", where=where, action="use whole numbers from 0 on")
    for name in _REAL:
        if row[name] is not None and not _is_real(row[name]):
            raise InputError(f"{name} is {str(row[name])[:40]!r}", where=where, action="use a number or null")
    for name in ("method", "void"):
        if not _is_text(row[name]) and not (name == "void" and row[name] is None):
            raise InputError(f"{name} is {str(row[name])[:40]!r}", where=where, action="use printable text")
    values: dict[str, Any] = {name: row[name] for name in _FIELDS - {"kind", "hops"}}
    values |= {name: float(row[name]) for name in _REAL if row[name] is not None}
    return SegmentMeasurement(segment=_segment(row["kind"], row["hops"], where), **values)


def _segment(kind: object, hops: object, where: str) -> Segment:
    is_kind = isinstance(kind, str) and kind in set(SegmentKind)
    if not is_kind or not isinstance(hops, list) or not all(_is_text(hop) for hop in hops):
        raise InputError("no kind and hops of a segment", where=where, action="hops are routers' names")
    if len(hops) > MAX_HOPS:
        raise InputError(f"{len(hops)} hops", where=where, action=f"a segment has at most {MAX_HOPS}")
    try:
        return Segment(SegmentKind(str(kind)), tuple(hops))
    except ParameterError as error:
        raise InputError(error.what, where=where) from None


def _is_real(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1 << 63 and math.isfinite(value)  # type: ignore[arg-type]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_TEXT and value.isprintable()


def read_measurements(path: Path) -> Iterator[SegmentMeasurement]:
    """The measurements of a file, a line of JSON each."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(_lines(file, path), 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError:
                raise InputError("not JSON", where=where, action="give files of sojourn mplane probe -w") from None
            yield from_row(row, where=where)


def _lines(file: Iterable[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if len(line) > _MAX_LINE:
            raise InputError(f"a line of {len(line)} characters", where=f"{path}:{number}")
        yield line
