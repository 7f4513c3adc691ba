"""LDS: mean delay, size and loss of every flow, from cells that all flows share.

A matrix of R rows × C columns. In row r, flow f owns k neighbouring cells from column h_r(f) on (its
virtual LDA); a packet goes to one of them by its own hash, so that a loss spoils one cell of each row.
A row may sample (the multi-bank form), and a flow may weigh more than 1, which buys it accuracy at
the others' expense.

Guarantee: as `lda` for each cell. A flow's cells hold all its sampled packets, plus those of the flows
that collide with it.
Memory: R·C × (sum + count + digest [+ byte] bits). Time: one packet hash (two with a digest) and one
flow hash per row, O(R) per packet.

Sanjuàs-Cuxart et al., "Sketching the Delay: Tracking Temporally Uncorrelated Flow-Level Latencies",
§2.3 (structure), §4.1 (weights), §4.2 (rows that sample), §4.3 (bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import InputError, MismatchError, ParameterError, UsageError
from sojourn.core.hash_kernels import bucket, mix, salt_table, to_range
from sojourn.core.kernels import inlined, kernel
from sojourn.sketches.lda import DelayCellParameters, is_sampled, nested_thresholds
from sojourn.sketches.parameters import Field, Kind, Table, checked_text, counter_limit, integer, probabilities
from sojourn.sketches.sketch import Sketch
from sojourn.sketches.weights import FlowWeights, WeightPolicy

PACKET_FUNCTION = 1 << 21
_WORD_BITS = np.uint64(64)
_NO_COLUMN = np.empty(0, np.int64)


def _problem_with_policy(text: str) -> str:
    try:
        canonical = WeightPolicy.from_text(text).to_text()
    except InputError as error:
        return str(error)
    return "" if canonical == text else "give the policy's canonical text"


@dataclass(frozen=True, kw_only=True)
class LdsParameters(DelayCellParameters):
    """Shape of an LDS; ``shares`` are the rows' sampling probabilities (one value serves all).

    ``weights`` is the canonical text of the weight policy that flows are recorded by; empty: all weigh 1.
    """

    kind = "lds"

    rows: int = integer("R", 1, 32)
    columns: int = integer("C", 1, 2**27)
    spread: int = integer("k", 1, 2**20, default=1)
    shares: tuple[float, ...] = probabilities("p", default=(1.0,))
    byte_bits: int = integer("bytes", 0, 64, default=0)
    weights: str = checked_text("weights", _problem_with_policy, default="")

    def _check_together(self) -> None:
        super()._check_together()
        if self.spread > self.columns:
            raise self.error(f"spread {self.spread} exceeds {self.columns} columns", "lower spread")
        if len(self.shares) not in (1, self.rows):
            raise self.error(f"{len(self.shares)} shares for {self.rows} rows", "give one share, or one per row")
        if self.policy.largest > self.count_limit:
            raise self.error(
                f"weight {self.policy.largest} does not fit a count limit of {self.count_limit}",
                "lower the weight or widen count_bits",
            )

    @cached_property
    def policy(self) -> WeightPolicy:
        return WeightPolicy.from_text(self.weights)

    @property
    def row_shares(self) -> tuple[float, ...]:
        return self.shares * self.rows if len(self.shares) == 1 else self.shares

    def tables(self) -> tuple[Table, ...]:
        byte = (Field("bytes", self.byte_bits, Kind.COUNT),) if self.byte_bits else ()
        return (Table("cells", self.rows * self.columns, (*self.delay_fields(), *byte)),)

    @cached_property
    def row_salts(self) -> UInt64Array:
        return salt_table(self.rows, self.salt)

    @cached_property
    def shape(self) -> _Shape:
        return _Shape(
            row_salts=self.row_salts,
            thresholds=nested_thresholds(self.row_shares),
            columns=np.uint64(self.columns),
            spread=np.uint64(self.spread),
            packet_salt=np.uint64(hashing.salt_for(PACKET_FUNCTION, self.salt)),
            digest_salt=self.digest_salt,
            digest_mask=self.digest_mask,
            count_limit=self.count_limit,
            byte_limit=counter_limit(self.byte_bits) if self.byte_bits else 0,
        )


class _Shape(NamedTuple):
    """How packets find their cells, and where cells are full, as the kernels read it."""

    row_salts: UInt64Array
    thresholds: UInt64Array
    columns: np.uint64
    spread: np.uint64
    packet_salt: np.uint64
    digest_salt: np.uint64
    digest_mask: np.uint64
    count_limit: int
    byte_limit: int


@inlined
def _cell_of(flow_id: np.uint64, packet_hash: np.uint64, row: int, shape: _Shape) -> np.int64:
    """A packet's cell in a row, (h_r(f) + h'_r(x)) mod C of the paper's update procedure; −1 if the row does not
    sample it.
    """
    # One hash serves all rows: turned by a different number of bits for each, so that they choose independently.
    turn = np.uint64((row * 17 + 1) & 63)
    turned = (packet_hash << turn) | (packet_hash >> (_WORD_BITS - turn))
    if not is_sampled(turned, shape.thresholds[row]):
        return np.int64(-1)
    column = bucket(flow_id, shape.row_salts[row], shape.columns)
    if shape.spread > np.uint64(1):
        column += to_range(turned, shape.spread)
        if column >= np.int64(shape.columns):
            column -= np.int64(shape.columns)
    return row * np.int64(shape.columns) + column


@kernel
def _record(
    cells: Int64Array,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
    time_ns: Int64Array,
    weight: Int64Array,
    size_bytes: Int64Array,
    shape: _Shape,
) -> int:
    """Find a packet's cells, make sure that all have room, then update them.

    Looking first also starts the loads of all rows' cells together.
    """
    rows = shape.row_salts.shape[0]
    chosen = np.empty(rows, np.int64)
    byte_field = cells.shape[1] - 1
    for i in range(len(flow_id)):
        packet_hash = mix(packet_id[i] ^ shape.packet_salt)
        w = weight[i] if weight.shape[0] else np.int64(1)
        size = size_bytes[i] if shape.byte_limit else np.int64(0)
        for row in range(rows):
            cell = _cell_of(flow_id[i], packet_hash, row, shape)
            if cell >= 0:
                if cells[cell, 1] > shape.count_limit - w:
                    return i
                if shape.byte_limit and cells[cell, byte_field] > shape.byte_limit - size:
                    return i
            chosen[row] = cell
        digest = np.int64(0)
        if shape.digest_mask:
            digest = np.int64(mix(packet_id[i] ^ shape.digest_salt) & shape.digest_mask)
        for row in range(rows):
            cell = chosen[row]
            if cell >= 0:
                cells[cell, 0] += w * time_ns[i]
                cells[cell, 1] += w
                if shape.digest_mask:
                    cells[cell, 2] ^= digest
                if shape.byte_limit:
                    cells[cell, byte_field] += size
    return len(flow_id)


@kernel
def _packet_cells(flow_id: UInt64Array, packet_id: UInt64Array, shape: _Shape) -> Int64Array:
    cells = np.empty((len(flow_id), shape.row_salts.shape[0]), np.int64)
    for i in range(len(flow_id)):
        packet_hash = mix(packet_id[i] ^ shape.packet_salt)
        for row in range(shape.row_salts.shape[0]):
            cells[i, row] = _cell_of(flow_id[i], packet_hash, row, shape)
    return cells


def packet_cells(parameters: LdsParameters, batch: PacketBatch) -> Int64Array:
    """The cell of each packet in each row, −1 where the row does not sample it: what an all-knowing judge needs."""
    return _packet_cells(batch.flow_id, batch.packet_id, parameters.shape)


class Lds(Sketch[LdsParameters, PacketBatch]):
    """A lossy difference sketch at one observation point.

    ``weights`` (LDS §4.1) must be the same at both ends; where the parameters carry a policy, they follow it.
    """

    parameters_type = LdsParameters

    def __init__(self, parameters: LdsParameters, weights: FlowWeights | None = None) -> None:
        super().__init__(parameters)
        self.weights = weights
        if weights is not None and weights.largest > parameters.count_limit:
            raise ParameterError(
                f"weight {weights.largest} does not fit a count limit of {parameters.count_limit}",
                where="lds",
                action="lower the weight or widen count_bits",
            )

    def _record(self, batch: PacketBatch) -> int:
        p = self.parameters
        if p.weights and self.weights is None:
            raise UsageError("flows are weighted, and no weights are given", where="lds", action="give Lds its weights")
        if p.byte_bits and int(batch.size_bytes.min()) < 0:
            raise MismatchError("a packet has a negative size", where="size_bytes")
        weight = _NO_COLUMN if self.weights is None else self.weights.of(batch.flow_id)
        columns = batch.flow_id, batch.packet_id, batch.time_ns, weight, batch.size_bytes
        return _record(self.arrays[0], *columns, p.shape)

    def emptied(self) -> Self:
        return type(self)(self.parameters, self.weights)

    def _combined(self, other: Self, *, sign: int) -> Self:
        combined = super()._combined(other, sign=sign)
        combined.weights = self.weights or other.weights
        return combined
