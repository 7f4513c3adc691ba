"""What an estimator answers: a value with an interval that is true, or the reason there is none.

`FlowDelays` holds the estimates of many flows as columns, without a Python object per flow. The quantiles at the end
are those that 95 % intervals are made of: Student's t by its expansion around the normal quantile (Fisher and Cornish):
within 1 % for three degrees of freedom or more, and exact values below. χ² by the cube of a normal (Wilson and
Hilferty): within 4 % from five degrees of freedom on; with fewer its lower quantile is too low (0 for one), so that
intervals err to the wide side.

Not SciPy's ``stdtrit`` and ``chdtri``: importing scipy.special takes 0.15 s of CPU in a `sojourn measure` that needs
nothing else of it (scipy.stats 0.8 s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError


class Reason(StrEnum):
    """Why there is no estimate."""

    UNKNOWN_INSTANCE = "unknown instance"
    NO_USABLE_CELLS = "no usable cells"
    NO_EPOCHS_IN_RANGE = "no epochs in range"
    NOTHING_RECORDED = "nothing recorded"
    LOST_IN_NOISE = "lost in noise"
    INCOMPLETE_LIST = "the list of flows is not complete"
    NOT_SAMPLED = "none of its packets was sampled"
    NONE_ARRIVED = "none of its sampled packets arrived"
    EXTRA_PACKETS = "packets arrived that were not sent, or twice"
    OTHER_WAY = "travels the other way, or the clocks differ"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, the interval that holds the truth with probability `level`, and its origin.

    ``samples`` is how many packets or measurements the value rests on; an estimator that cannot
    know gives its best integer estimate. A bound may be infinite where the data bounds nothing.
    """

    value: float
    low: float
    high: float
    samples: int
    method: str
    unit: str = "ns"
    level: float = 0.95

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ParameterError(f"an estimate cannot be {self.value}", where=self.method)
        if not self.low <= self.value <= self.high:
            raise ParameterError(
                f"the interval {self.low}…{self.high} misses its value {self.value}",
                where=self.method,
            )

    @classmethod
    def around(cls, value: float, half_width: float, *, samples: int, method: str, unit: str = "ns") -> Estimate:
        """An estimate whose 95 % interval is symmetric.

        >>> Estimate.around(10.0, 2.0, samples=5, method="lda").low
        8.0
        """
        half = math.inf if math.isnan(half_width) else half_width
        return cls(value, value - half, value + half, samples, method, unit)

    def not_below(self, bound: float) -> Estimate:
        """The same estimate, knowing that the truth is at least `bound`."""
        return replace(self, value=max(self.value, bound), low=max(self.low, bound), high=max(self.high, bound))

    def less(self, known: float) -> Estimate:
        """The estimate of what is left when `known` of it, surely part of it, is taken away."""
        value, low, high = (max(0.0, bound - known) for bound in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def contains(self, truth: float) -> bool:
        return self.low <= truth <= self.high


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No estimate, and why; false in a condition."""

    reason: Reason

    def __bool__(self) -> Literal[False]:
        return False


Answer: TypeAlias = Estimate | Unanswered


# The percentiles of every answer, by their names.
LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
NORMAL_95 = 1.959963984540054
ROOT_HALF = math.sqrt(0.5)  # Φ(z) = (1 + erf(z·√½))/2
MOST_DEGREES = 1000  # beyond, Student's quantile is within 0.2 % of the normal one
_STUDENT_FEW = {1: 12.7062, 2: 4.3027}


@lru_cache(maxsize=4096)
def student_95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t; infinite without a degree of freedom.

    >>> round(student_95(10), 3)
    2.228
    """
    if degrees < 1:
        return math.inf
    if degrees in _STUDENT_FEW:
        return _STUDENT_FEW[degrees]
    z, v = NORMAL_95, float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def spread_95(degrees: float) -> tuple[float, float]:
    """What a variance estimated with so many degrees of freedom is multiplied by for its 95 % interval.

    The degrees need not be whole; the upper factor is infinite where they are too few, and the lower one 0 where the
    approximation by Wilson and Hilferty ends.

    >>> [round(factor, 3) for factor in spread_95(100)]
    [0.772, 1.347]
    """
    if not degrees > 0:
        return 0.0, math.inf
    width = 2 / (9 * degrees)
    lower, upper = (max(0.0, 1 - width + sign * NORMAL_95 * math.sqrt(width)) ** 3 for sign in (-1, 1))
    return 1 / upper if upper >= 1 else 0.0, 1 / lower if lower > 0 else math.inf


def percentile_columns(found: FloatArray) -> dict[str, Any]:
    """Percentiles (`LEVELS` × value, low, high × …) by the names of answers."""
    parts = ("ns", "low_ns", "high_ns")
    return {
        f"{level}_{part}": values
        for level, three in zip(LEVELS, found, strict=True)
        for part, values in zip(parts, three, strict=True)
    }


_LISTS = ("reason", "method", "methods")


@dataclass(frozen=True, eq=False)
class FlowDelays:
    """One row per asked flow; NaN and a reason where there is no answer.

    ``packets`` and ``lost`` are what the method knows of the flow's size (NaN where it knows nothing): estimates, of
    which a literal LDS's are never too low. ``methods`` names each flow's own method where flows are answered by
    different ones. ``percentiles`` (flows × `LEVELS` × value, low, high) are there where packets' own delays are known.
    ``shared_shape`` (flows × `LEVELS`) tells which of them rest on other flows' packets, too.
    ``heard_ns`` is what cells say of the flow by themselves, without what flows have in common, with its precision
    (1/ns²; 0: nothing), where they were decoded for all flows together, ``heard_counts`` the same of packets' numbers,
    ``heard_apart`` how far flows' means are apart (one standard deviation, the same for all), ``heard_inverse`` what
    the inverse of the delivered packets' number is expected to be.
    ``packets_low`` … ``lost_high`` are the ends of 95 % intervals, equal where a number is exact, where they are known.
    ``state_ns`` and ``state_variance`` are for the next run of the same flows (`estimation.posterior.history`).
    """

    flow_id: UInt64Array
    mean_ns: FloatArray
    low_ns: FloatArray
    high_ns: FloatArray
    std_ns: FloatArray
    samples: Int64Array
    packets: FloatArray
    lost: FloatArray
    reason: list[Reason | None]
    method: str
    methods: list[str] | None = None
    percentiles: FloatArray | None = None
    shared_shape: BoolArray | None = None
    heard_ns: FloatArray | None = None
    heard_precision: FloatArray | None = None
    heard_counts: FloatArray | None = None
    heard_apart: FloatArray | None = None
    heard_inverse: FloatArray | None = None
    packets_low: FloatArray | None = None
    packets_high: FloatArray | None = None
    lost_low: FloatArray | None = None
    lost_high: FloatArray | None = None
    state_ns: FloatArray | None = None
    state_variance: FloatArray | None = None

    @property
    def method_of_flow(self) -> list[str]:
        """The method that answered each flow."""
        return self.methods if self.methods is not None else [self.method] * len(self.flow_id)

    @property
    def answered(self) -> BoolArray:
        return ~np.isnan(self.mean_ns)

    def at(self, rows: Int64Array) -> FlowDelays:
        """The answers of some of the rows, in this order; a row may be asked for twice."""
        known = [f.name for f in fields(self) if f.name not in _LISTS and getattr(self, f.name) is not None]
        columns = {name: getattr(self, name)[rows] for name in known}
        reason = [self.reason[row] for row in rows.tolist()]
        methods = None if self.methods is None else [self.methods[row] for row in rows.tolist()]
        return FlowDelays(**columns, reason=reason, method=self.method, methods=methods)

    def counted(self, packets: FloatArray, lost: FloatArray) -> FlowDelays:
        """The same with numbers of packets that are exact."""
        return replace(
            self,
            packets=packets,
            packets_low=packets,
            packets_high=packets,
            lost=lost,
            lost_low=lost,
            lost_high=lost,
        )

    def with_columns(self, columns: Mapping[str, FloatArray]) -> FlowDelays:
        """The same with other numbers in some columns."""
        return replace(self, **columns)  # type: ignore[arg-type]

    def largest(self, limit: int | None) -> FlowDelays:
        """The flows with most packets, largest first; all of them without a limit.

        Flows without a delay come last, and before them those whose delay rests on no packet of theirs.
        """
        doubt = np.where(self.answered, self.samples == 0, 2)
        return self.at(np.lexsort((-np.nan_to_num(self.packets), doubt))[:limit])

    def answers(self) -> list[Answer]:
        """One object per flow."""
        return [
            Unanswered(reason) if reason is not None else Estimate(mean, low, high, samples, method)
            for reason, mean, low, high, samples, method in zip(
                self.reason,
                self.mean_ns.tolist(),
                self.low_ns.tolist(),
                self.high_ns.tolist(),
                self.samples.tolist(),
                self.method_of_flow,
                strict=True,
            )
        ]


def flow_delays_of(
    flow_id: UInt64Array, answers: list[Answer], packets: Int64Array, lost: FloatArray, method: str
) -> FlowDelays:
    """Columns from one answer object per flow."""
    unknown = (np.nan, np.nan, np.nan, 0)
    values = [(a.value, a.low, a.high, a.samples) if isinstance(a, Estimate) else unknown for a in answers]
    mean, low, high, samples = (np.array([row[i] for row in values], np.float64) for i in range(4))
    reasons = [None if isinstance(a, Estimate) else a.reason for a in answers]
    std = np.full(len(flow_id), np.nan)
    sizes = packets.astype(np.float64)
    return FlowDelays(flow_id, mean, low, high, std, samples.astype(np.int64), sizes, lost, reasons, method)


def unanswered_flows(flow_id: UInt64Array, reason: Reason, method: str) -> FlowDelays:
    """No answer for any of the flows, for one reason."""
    unknown = np.full(len(flow_id), np.nan)
    none = np.zeros(len(flow_id), np.int64)
    reasons: list[Reason | None] = [reason] * len(flow_id)
    return FlowDelays(flow_id, unknown, unknown, unknown, unknown, none, unknown, unknown, reasons, method)
