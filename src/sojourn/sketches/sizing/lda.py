"""How many cells an LDA needs: as its paper says, and from the sample that its cells leave.

As published: S packets in usable cells keep the mean within a share ε of the truth but for probability
2·exp(−ε²Sμ²/2σ²) (Eq. 1); a bank of m rows that samples with p = α·m/(L + 1), α = ½, keeps at least
α(1 − α)·m·R/(L + 1) of R packets received when L are lost (Eq. 2).

Expected instead of bounded: a cell is usable when none of the lost packets fell into it, so a bank that really takes
a share q keeps q·R·(1 − q/m)ᴸ; banks add up. The error of a sample without replacement is z·(σ/μ)·√((1 − S/R)/S).

Two things follow that the paper does not say. The best α is 1, not ½: it maximises α·e^−α, the sample itself, not its
bound. And with p ∝ m/L the sample is about m·(1 − l)/(e·l) at loss share l, however long the interval: under loss a
longer interval buys nothing, only cells do. Eq. 1 is the tail of a normal mean (a Hoeffding bound has the range of the
delays in it, not σ): for few packets of heavy tails it promises too much.

Cost: microseconds. Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III-D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from sojourn.core.errors import ParameterError
from sojourn.sketches.lda import LdaParameters

PUBLISHED_ALPHA = 0.5
BEST_ALPHA = 1.0
MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class LdaSizing:
    """Rows of a single bank, its sampling probability, and the sample that Eq. 2 promises."""

    rows: int
    share: float
    samples: float


def needed_samples(error: float, confidence: float, variation: float) -> float:
    """S for a relative error at a confidence by Eq. 1; `variation` is σ/μ.

    >>> round(needed_samples(0.01, 0.95, 1.0))
    73778
    """
    return 2 * (variation / error) ** 2 * math.log(2 / (1 - confidence))


def best_share(rows: int, lost: float, *, alpha: float = BEST_ALPHA) -> float:
    """p = min(1, α·m/(L + 1))."""
    return min(1.0, alpha * rows / (lost + 1))


def published_lda(
    sent: float, lost: float, *, error: float, confidence: float, variation: float, alpha: float = PUBLISHED_ALPHA
) -> LdaSizing:
    """The rows of one bank by Eq. 1 and 2; few losses (L < m) need no sampling: (1 − L/m)·R.

    >>> sizing = published_lda(5e6, 5e3, error=0.01, confidence=0.95, variation=1.0)
    >>> sizing.rows, round(sizing.share, 4), round(sizing.samples)
    (296, 0.0296, 73911)
    """
    received = sent - lost
    wanted = needed_samples(error, confidence, variation)
    if wanted >= received:
        raise ParameterError(
            f"Eq. 1 asks for {wanted:.3g} packets and {received:.3g} arrive",
            where="lda sizing",
            action="ask for a longer interval, or a larger error",
        )
    rows = math.ceil(wanted * (lost + 1) / (alpha * (1 - alpha) * received))
    share = best_share(rows, lost, alpha=alpha)
    if share < 1:
        return LdaSizing(rows, share, alpha * (1 - alpha) * rows / (lost + 1) * received)
    rows = max(1, math.ceil(lost / (1 - wanted / received)))
    return LdaSizing(rows, 1.0, (1 - lost / rows) * received if lost else received)


def expected_samples(parameters: LdaParameters, sent: float, lost: float) -> tuple[float, float]:
    """The packets in usable cells, and their standard deviation (cells are usable or not independently)."""
    received = sent - lost
    mean = variance = 0.0
    for share in parameters.effective_shares:
        usable = math.exp(lost * math.log1p(-min(share / parameters.rows, 1 - 1e-12)))
        packets = share * received / parameters.rows
        mean += parameters.rows * packets * usable
        variance += parameters.rows * packets**2 * usable * (1 - usable)
    return mean, math.sqrt(variance)


def expected_error(
    parameters: LdaParameters, sent: float, lost: float, *, confidence: float, variation: float
) -> float:
    """The relative error of the mean that is kept with this confidence; one deviation of S is given away."""
    mean, deviation = expected_samples(parameters, sent, lost)
    samples = mean - deviation
    if samples < 1:
        return math.inf
    unseen = max(0.0, 1 - samples / max(sent - lost, samples))
    return NormalDist().inv_cdf((1 + confidence) / 2) * variation * math.sqrt(unseen / samples)


def smallest_lda(
    banks: LdaParameters, sent: float, lost: float, *, error: float, confidence: float, variation: float
) -> LdaParameters:
    """The fewest rows with these banks whose expected error is the wanted one or less."""

    def reached(rows: int) -> bool:
        tried = replace(banks, rows=rows)
        return expected_error(tried, sent, lost, confidence=confidence, variation=variation) <= error

    most = MOST_ROWS // banks.banks
    if not reached(most):
        least = expected_error(replace(banks, rows=most), sent, lost, confidence=confidence, variation=variation)
        raise ParameterError(
            f"even {most:,} rows leave an error of {least:.3g}",
            where="lda sizing",
            action="ask for a larger error or count on less loss",
        )
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return replace(banks, rows=high)
