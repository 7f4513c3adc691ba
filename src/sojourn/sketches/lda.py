"""LDA: mean, deviation and loss of everything that crosses a segment.

A packet is hashed to at most one of `banks` × `rows` cells, the same cell at both ends, and its time
stamp is added there. Where the two ends counted the same packets, the difference of the two sums is
the sum of their delays; a lost packet spoils one cell only. An XOR digest of packet hashes tells
cells whose counts agree by accident (a packet lost, another from across the interval's edge).

Guarantee: cells equal at both ends in count and digest hold the same packets but for probability 2⁻ᵇ
(b = digest bits); a sum of delays is exact while every delay stays below `max_delay_ns`.
Memory: cells × (sum + count + digest bits). Time: one hash and one cell per packet, O(1).

Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III.

**Cells** ⟨sum of time stamps, packet count, digest⟩ are common to all delay sketches. The sum is kept modulo 2ᵇ: the
difference of two such sums is exact as long as the true sum of delays lies within ±2ᵇ⁻¹. That is ensured when
recording: a cell counts at most 2ᵇ⁻¹ / `max_delay_ns` packets before the sketch reports that it is full.

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
from functools import cached_property

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.hash_kernels import mix, to_range
from sojourn.core.kernels import inlined, kernel
from sojourn.sketches.parameters import Field, Kind, Parameters, Table, counter_limit, flag, integer, probabilities
from sojourn.sketches.sketch import Sketch

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


@dataclass(frozen=True, kw_only=True)
class LdaParameters(DelayCellParameters):
    """Size and sampling of an LDA.

    ``shares`` are the banks' sampling probabilities, most frequent first (p_1 … p_n of the paper).
    """

    kind = "lda"

    rows: int = integer("m", 1, 2**27)
    shares: tuple[float, ...] = probabilities("p", default=(1.0,))
    nested: bool = flag("nested", default=True)

    def _check_together(self) -> None:
        super()._check_together()
        if self.nested and any(a <= b for a, b in zip(self.shares, self.shares[1:], strict=False)):
            raise self.error(f"shares {self.shares} do not fall", "give nested banks the most frequent first")
        if not self.nested and sum(self.shares) > 1 + 1e-9:
            raise self.error(f"shares add up to {sum(self.shares):g}", "keep disjoint banks within 1")

    @property
    def banks(self) -> int:
        return len(self.shares)

    @property
    def effective_shares(self) -> tuple[float, ...]:
        """The share of all packets that each bank really takes."""
        if not self.nested:
            return self.shares
        rarer = (*self.shares[1:], 0.0)
        return tuple(p - q for p, q in zip(self.shares, rarer, strict=True))

    def tables(self) -> tuple[Table, ...]:
        return (Table("cells", self.rows * self.banks, self.delay_fields()),)

    @cached_property
    def thresholds(self) -> UInt64Array:
        make = nested_thresholds if self.nested else disjoint_thresholds
        return make(self.shares)


def tuned_share(rows: int, losses: float, *, load: float = 1.0) -> float:
    """The sampling probability of a bank made for `losses` lost packets: p = min(1, α·m/(L + 1)).

    ``load`` (α of the paper) is how many lost packets a row meets on average. A sampled packet's row survives with
    probability e^−α, so the sample grows with α·e^−α: α = 1 is best for the mean. The paper takes ½, which
    maximises its lower bound α(1 − α) and leaves more rows to tell the deviation.

    >>> round(tuned_share(1024, 5000, load=0.5), 4)
    0.1024
    """
    return min(1.0, load * rows / (losses + 1))


@kernel
def _record(
    cells: Int64Array,
    packet_id: UInt64Array,
    time_ns: Int64Array,
    thresholds: UInt64Array,
    rows: np.uint64,
    cell_salt: np.uint64,
    digest_salt: np.uint64,
    digest_mask: np.uint64,
    count_limit: int,
) -> int:
    """One pass over the packets; the index of the first that does not fit."""
    for i in range(len(packet_id)):
        hashed = mix(packet_id[i] ^ cell_salt)
        bank = bank_of(hashed, thresholds)
        if bank < 0:
            continue
        cell = bank * np.int64(rows) + to_range(hashed, rows)
        if cells[cell, 1] >= count_limit:
            return i
        cells[cell, 0] += time_ns[i]
        cells[cell, 1] += 1
        if digest_mask:
            cells[cell, 2] ^= np.int64(mix(packet_id[i] ^ digest_salt) & digest_mask)
    return len(packet_id)


class Lda(Sketch[LdaParameters, PacketBatch]):
    """A lossy difference aggregator at one observation point."""

    parameters_type = LdaParameters

    def _record(self, batch: PacketBatch) -> int:
        p = self.parameters
        cells = p.thresholds, np.uint64(p.rows), np.uint64(hashing.salt_for(0, p.salt))
        digest = p.digest_salt, p.digest_mask
        return _record(self.arrays[0], batch.packet_id, batch.time_ns, *cells, *digest, p.count_limit)

    def record(self, *row: int) -> None:
        """Record one packet by its id and time: of which flow it is does not matter."""
        super().record(0, *row)
