"""Cells ⟨sum of time stamps, packet count, digest⟩, and which packets go into them: common to all delay sketches.

The sum is kept modulo 2ᵇ: the difference of two such sums is exact as long as the true sum of delays
lies within ±2ᵇ⁻¹. That is ensured when recording: a cell counts at most 2ᵇ⁻¹ / `max_delay_ns` packets
before the sketch reports that it is full.

**Coordinated sampling**: both observation points keep the same packets, because a hash decides. The low 32 bits of a
packet's hash are a uniform number u; a *threshold* t = round(p · 2³²) keeps the packets with u < t, a share p of them.
Several banks take disjoint packets, the rarest bank first:

- nested (LDA, with leading zeros when the probabilities are powers of two): bank j would keep a
  share p_j; a packet that a rarer bank keeps is lost to it, so its real share is p_j − p_{j+1};
- disjoint (COLATE's loss variant): bank j keeps a share p_j exactly; the shares add up to at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import UInt64Array
from sojourn.core.kernels import inlined
from sojourn.sketches.parameters import Field, Kind, Parameters, counter_limit, integer

DIGEST_FUNCTION = 1 << 20
_LOW_HALF = np.uint64(0xFFFFFFFF)


def modular_capacity(sum_bits: int, largest: int) -> int:
    """How many values up to `largest` a centred sum of `sum_bits` bits can tell apart.

    >>> modular_capacity(32, 1_000_000)
    2147
    """
    return counter_limit(sum_bits - 1) // largest if sum_bits > 1 else 0


@dataclass(frozen=True, kw_only=True)
class DelayCellParameters(Parameters):
    """Widths of a cell's counters and the salt of its hash functions."""

    sum_bits: int = integer("b", 2, 64, default=56)
    count_bits: int = integer("c", 1, 64, default=24)
    digest_bits: int = integer("d", 0, 64, default=16)
    max_delay_ns: int = integer("delay", 1, 2**62, default=10_000_000_000)
    salt: int = integer("salt", 0, 2**64 - 1, default=0)

    def _check_together(self) -> None:
        if self.count_limit < 1:
            raise self.error(
                f"a sum of {self.sum_bits} bits cannot hold a delay of {self.max_delay_ns} ns",
                "widen sum_bits or lower max_delay_ns",
            )

    @property
    def count_limit(self) -> int:
        """Packets (times their weights) a cell may count before the sketch is full."""
        capacity = modular_capacity(self.sum_bits, self.max_delay_ns)
        return min(counter_limit(self.count_bits), capacity)

    def delay_fields(self) -> tuple[Field, ...]:
        digest = (Field("digest", self.digest_bits, Kind.DIGEST),) if self.digest_bits else ()
        return (
            Field("sum", self.sum_bits, Kind.MODULAR),
            Field("count", self.count_bits, Kind.COUNT),
            *digest,
        )

    @property
    def digest_salt(self) -> np.uint64:
        return np.uint64(hashing.salt_for(DIGEST_FUNCTION, self.salt))

    @property
    def digest_mask(self) -> np.uint64:
        """The digest's bits; 0 where there is no digest."""
        return np.uint64((1 << self.digest_bits) - 1)


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
