"""Coordinated sampling: both observation points keep the same packets, because a hash decides.

The low 32 bits of a packet's hash are a uniform number u; a *threshold* t = round(p · 2³²) keeps the
packets with u < t, a share p of them. Several banks take disjoint packets, the rarest bank first:

- nested (LDA, with leading zeros when the probabilities are powers of two): bank j would keep a
  share p_j; a packet that a rarer bank keeps is lost to it, so its real share is p_j − p_{j+1};
- disjoint (COLATE's loss variant): bank j keeps a share p_j exactly; the shares add up to at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.core.arrays import UInt64Array
from sojourn.core.kernels import inlined

__all__ = ["bank_of", "disjoint_thresholds", "is_sampled", "nested_thresholds", "threshold"]

_LOW_HALF = np.uint64(0xFFFFFFFF)


def threshold(probability: float) -> int:
    """The number of 32-bit words below which a packet is kept; at least one.

    >>> threshold(0.25) == 2**30
    True
    """
    return max(1, round(probability * 2**32))


def nested_thresholds(shares: Sequence[float]) -> UInt64Array:
    """Thresholds of banks whose packet sets contain one another, most frequent first."""
    return np.array([threshold(p) for p in shares], np.uint64)


def disjoint_thresholds(shares: Sequence[float]) -> UInt64Array:
    """Thresholds of banks that take a share each: cumulative from the last bank."""
    from_last = np.cumsum([threshold(p) for p in reversed(shares)])
    return np.array([min(int(t), 2**32) for t in from_last[::-1]], np.uint64)


@inlined
def is_sampled(hashed: np.uint64, limit: np.uint64) -> np.bool_:
    """Whether a packet's hash falls below a threshold."""
    return (hashed & _LOW_HALF) < limit


@inlined
def bank_of(hashed: np.uint64, thresholds: UInt64Array) -> int:
    """The rarest bank that takes a packet, −1 when none does; thresholds fall, so few are looked at."""
    uniform = hashed & _LOW_HALF
    bank = -1
    while bank + 1 < thresholds.shape[0] and uniform < thresholds[bank + 1]:
        bank += 1
    return bank
