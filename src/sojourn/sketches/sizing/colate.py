"""COLATE's own sizing: counters n, counters per flow m, bits b and threshold T for a wanted interval and reliability.

As published: for a flow's mean latency to lie within β of the truth with probability α, its sum of time stamps at each
point must lie within B (Eq. 12) with probability A (Eq. 11). With memory M, and t the sum of time stamps of a flow:

- n·b = M (Eq. 13), b = log₂(T/n) + 1 (Eq. 14), t_max/m + (T − t_max)/n = 2ᵇ − 1 (Eq. 15);
- B·t_min = k·√m·n/(n − m) · √((t_min/m)(1 − 1/m) + ((T − t_min)/n)(1 − 1/n)), k = √2·erf⁻¹(A) (Eq. 22).

Three things to know before using it:

- Eq. 21 and 22 are printed with n − m where the derivation from Eq. 18 gives (n − m)². ``printed=True`` keeps the
  printed form; the paper's own example contradicts it (docs/maths/sizing.md).
- Eq. 13 to 15 make m·T/n ≈ t_max, so Eq. 22 says B·t_min ≈ k·√(t_min + t_max) whatever n is: the requirement holds for
  nearly all memories or for none. `published_sizing` solves the four as printed; ``per_flow`` fixes m instead and
  takes Eq. 22 as the inequality that it means.
- Eq. 2's variance is linear in time stamps, so B depends on the unit of time: any requirement is met by a finer one.
  It is no guarantee. `segments.planning.search` has the sizing that is.

Sums of time stamps are in the unit of the counters (`resolution_ns`), counted from the start of the epoch. Cost: µs.

Shahzad and Liu, "Noise Can Help", §5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from sojourn.core.errors import ParameterError
from sojourn.sketches.counter_vector import CounterVectorParameters

LEAST_BITS, MOST_BITS = 1.0, 63.0
BISECTIONS = 100


@dataclass(frozen=True)
class FlowSums:
    """Sums of time stamps of the smallest and the largest flow that count, t_min and t_max."""

    least: float
    most: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.most) and 0 < self.least <= self.most):
            raise ParameterError(
                f"sums of time stamps {self.least:g} … {self.most:g}",
                where="colate sizing",
                action="give 0 < least ≤ most",
            )

    @classmethod
    def of_traffic(cls, least_packets: float, most_packets: float, *, epoch_ns: float, resolution_ns: int) -> FlowSums:
        """Of flows whose packets are spread evenly over the epoch: half its length per packet.

        >>> FlowSums.of_traffic(1000, 10_000, epoch_ns=2e9, resolution_ns=1000)
        FlowSums(least=1000000000.0, most=10000000000.0)
        """
        stamp = epoch_ns / 2 / resolution_ns
        return cls(least_packets * stamp, most_packets * stamp)


@dataclass(frozen=True)
class ColateSizing:
    """A solution: real numbers, as the equations give them, and the interval B that Eq. 21 promises with them."""

    counters: float
    per_flow: float
    bits: float
    threshold: float
    interval: float

    @property
    def memory_bits(self) -> float:
        return self.counters * self.bits

    def parameters(self, *, resolution_ns: int, origin_ns: int = 0, salt: int = 0) -> CounterVectorParameters:
        """Whole numbers that keep to the memory: b rounded up (as in the paper), n = M/b down, T kept within both."""
        bits = max(2, math.ceil(self.bits - 1e-9))
        counters = max(1, int(self.memory_bits + 1e-6) // bits)
        threshold = min(self.threshold, counters * 2.0 ** (bits - 1), 2.0**62)
        return CounterVectorParameters(
            counters=counters,
            per_flow=max(1, min(round(self.per_flow), counters)),
            bits=bits,
            choice="random",
            wrap=False,
            threshold=int(threshold),
            origin_ns=origin_ns,
            resolution_ns=resolution_ns,
            salt=salt,
        )


def individual_reliability(reliability: float) -> float:
    """A, what each point must reach so that both together reach α (Eq. 11).

    >>> individual_reliability(0.95)
    0.975
    """
    if not 0 <= reliability < 1:
        raise ParameterError(f"reliability {reliability:g}", where="colate sizing", action="use 0 … below 1")
    return (1 + reliability) / 2


def individual_interval(interval: float, sent: float, received: float) -> float:
    """B, how close each point's sum of time stamps must be; sums of a flow at the two points (Eq. 12).

    >>> individual_interval(0.05, sent=1.0, received=1.5)
    0.01
    """
    if not (interval > 0 and 0 < sent < received < math.inf):
        raise ParameterError(
            f"interval {interval:g} for sums {sent:g} and {received:g}",
            where="colate sizing",
            action="use an interval above 0 and sums that grow on the way",
        )
    return interval * (received - sent) / (received + sent)


def reliability_factor(reliability: float) -> float:
    """k, half the width of the normal interval that holds with probability A (Eq. 20).

    >>> round(reliability_factor(0.95), 3)
    2.241
    """
    return NormalDist().inv_cdf((1 + individual_reliability(reliability)) / 2)


def published_interval(
    counters: float, per_flow: float, *, threshold: float, flow_sum: float, reliability: float, printed: bool = False
) -> float:
    """B of a flow with this sum of time stamps, solved from Eq. 21 (NaN where its variance is negative, m < 1)."""
    n, m, total, t = counters, per_flow, threshold, flow_sum
    if m >= n:
        return math.inf
    variance = (t / m) * (1 - 1 / m) + ((total - t) / n) * (1 - 1 / n)
    if variance < 0:
        return math.nan
    return reliability_factor(reliability) * n * math.sqrt(m * variance / (n - m) ** (1 if printed else 2)) / t


def published_sizing(
    memory_bits: int,
    sums: FlowSums,
    *,
    interval: float,
    reliability: float,
    per_flow: int | None = None,
    printed: bool = False,
) -> ColateSizing:
    """n, m, b and T for memory M and individual interval B; with `per_flow` the m given, and Eq. 22 as an inequality.

    Raises a `ParameterError` that says the B which can be had when no b satisfies Eq. 22.

    >>> sums = FlowSums(least=1.2e6, most=3.5e6)
    >>> given = published_sizing(1 << 23, sums, interval=0.01, reliability=0.95, per_flow=20)
    >>> round(given.counters), round(given.bits, 2), f"{given.threshold:.0e}"
    (455483, 18.42, '8e+10')
    """
    if not (memory_bits >= 64 and interval > 0):
        raise ParameterError(
            f"{memory_bits} bits for an interval of {interval:g}",
            where="colate sizing",
            action="give 64 bits or more and an interval above 0",
        )

    def solution(bits: float) -> ColateSizing:
        return _at_bits(memory_bits, bits, sums, reliability=reliability, printed=printed)

    finest = _where_falling(lambda bits: solution(bits).per_flow, float(per_flow or 1), LEAST_BITS, MOST_BITS)
    best = solution(finest)
    if not best.interval <= interval:
        raise ParameterError(
            f"the equations promise no interval below {best.interval:.3g} for flows this small, at any memory",
            where="colate sizing",
            action=f"ask for more than that (wanted {interval:.3g}), or for larger flows only",
        )
    if per_flow is not None:
        return best
    return solution(_where_falling(lambda bits: solution(bits).interval, interval, LEAST_BITS, finest))


def _at_bits(memory_bits: int, bits: float, sums: FlowSums, *, reliability: float, printed: bool) -> ColateSizing:
    """What Eq. 13 to 15 make of n, m and T once b is chosen, and the B that follows."""
    n = memory_bits / bits
    mean = 2.0 ** (bits - 1)
    m = 1 / ((mean - 1) / sums.most + 1 / n)
    reached = published_interval(
        n, m, threshold=n * mean, flow_sum=sums.least, reliability=reliability, printed=printed
    )
    return ColateSizing(n, m, bits, n * mean, reached)


def _where_falling(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a falling function passes `target`, or the end at which it comes closest; halved till floats end."""
    if function(high) >= target:
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return high
