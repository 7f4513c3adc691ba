"""What an estimator answers: a value with an interval that is true, or the reason there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias

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
        if not 0 < self.level < 1:
            raise ParameterError(f"level {self.level} is not between 0 and 1", where=self.method)

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
