"""Cells ⟨sum of time stamps, packet count, digest⟩: what LDA and LDS have in common.

The sum is kept modulo 2ᵇ: the difference of two such sums is exact as long as the true sum of delays
lies within ±2ᵇ⁻¹. That is ensured when recording: a cell counts at most 2ᵇ⁻¹ / `max_delay_ns` packets
before the sketch says it is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core import hashing
from sojourn.sketches.parameters import Parameters, integer
from sojourn.sketches.tables import Field, Kind, counter_limit

__all__ = ["DelayCellParameters", "modular_capacity"]

DIGEST_FUNCTION = 1 << 20


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
