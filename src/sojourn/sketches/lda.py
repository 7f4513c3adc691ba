"""LDA: mean, deviation and loss of everything that crosses a segment.

A packet is hashed to at most one of `banks` × `rows` cells, the same cell at both ends, and its time
stamp is added there. Where the two ends counted the same packets, the difference of the two sums is
the sum of their delays; a lost packet spoils one cell only. An XOR digest of packet hashes tells
cells whose counts agree by accident (a packet lost, another from across the interval's edge).

Guarantee: cells equal at both ends in count and digest hold the same packets but for probability 2⁻ᵇ
(b = digest bits); a sum of delays is exact while every delay stays below `max_delay_ns`.
Memory: cells × (sum + count + digest bits). Time: one hash and one cell per packet, O(1).

Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.hash_kernels import mix, to_range
from sojourn.core.kernels import kernel
from sojourn.sketches.delay_cells import DelayCellParameters, bank_of, disjoint_thresholds, nested_thresholds
from sojourn.sketches.parameters import Table, flag, integer, probabilities
from sojourn.sketches.sketch import Sketch


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
        return _record(
            self.arrays[0],
            batch.packet_id,
            batch.time_ns,
            p.thresholds,
            np.uint64(p.rows),
            np.uint64(hashing.salt_for(0, p.salt)),
            p.digest_salt,
            p.digest_mask,
            p.count_limit,
        )

    def record(self, packet_id: int, time_ns: int) -> None:
        """Record one packet, or raise `SketchFullError` and change nothing."""
        self._record_one(PacketBatch.of([0], [packet_id], [time_ns]))
