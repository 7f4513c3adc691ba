"""SDS: mean delay of every flow where the receiver knows each packet's delay.

R rows × C columns; a flow has one cell per row, and every packet adds its delay and 1 to each. It is
LDS without its protection against loss: for traffic whose packets carry time stamps, or for delays
that are measured at one point (round-trip times).

Guarantee: a flow alone in one of its cells is answered exactly; a cell's sum and count never leave
their range. Memory: R·C × (sum + count bits). Time: one hash and one cell per row, O(R) per packet.

Sanjuàs-Cuxart et al., "Sketching the Delay", §2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sojourn.core.arrays import Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.hash_kernels import bucket, salt_table
from sojourn.core.kernels import kernel
from sojourn.sketches.parameters import Field, Kind, Parameters, Table, integer
from sojourn.sketches.sketch import Sketch


@dataclass(frozen=True, kw_only=True)
class SdsParameters(Parameters):
    """Shape of an SDS and the widths of its counters; sums are signed (clocks may disagree)."""

    kind = "sds"

    rows: int = integer("R", 1, 32)
    columns: int = integer("C", 1, 2**27)
    sum_bits: int = integer("b", 2, 64, default=48)
    count_bits: int = integer("c", 1, 64, default=24)
    salt: int = integer("salt", 0, 2**64 - 1, default=0)

    def tables(self) -> tuple[Table, ...]:
        fields = (
            Field("sum", self.sum_bits, Kind.SIGNED),
            Field("count", self.count_bits, Kind.COUNT),
        )
        return (Table("cells", self.rows * self.columns, fields),)

    @cached_property
    def row_salts(self) -> UInt64Array:
        return salt_table(self.rows, self.salt)


@kernel
def _record(
    cells: Int64Array,
    flow_id: UInt64Array,
    delay: Int64Array,
    row_salts: UInt64Array,
    columns: np.uint64,
    lowest: int,
    highest: int,
    count_limit: int,
) -> int:
    """Find a packet's cells, make sure that all have room, then update them."""
    rows = row_salts.shape[0]
    chosen = np.empty(rows, np.int64)
    for i in range(len(flow_id)):
        d = delay[i]
        for row in range(rows):
            cell = row * np.int64(columns) + bucket(flow_id[i], row_salts[row], columns)
            held = cells[cell, 0]
            if cells[cell, 1] >= count_limit:
                return i
            if (d > 0 and held > highest - d) or (d < 0 and held < lowest - d):
                return i
            chosen[row] = cell
        for row in range(rows):
            cells[chosen[row], 0] += d
            cells[chosen[row], 1] += 1
    return len(flow_id)


class Sds(Sketch[SdsParameters, MeasurementBatch]):
    """A simple delay sketch; a measurement's instance is the flow, its value the delay."""

    parameters_type = SdsParameters
    batch_type = MeasurementBatch

    def _record(self, batch: MeasurementBatch) -> int:
        p = self.parameters
        total, count = p.tables()[0].fields
        limits = total.lowest, total.highest, count.highest
        return _record(self.arrays[0], batch.instance_id, batch.value, p.row_salts, np.uint64(p.columns), *limits)
