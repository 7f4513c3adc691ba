"""Heavy hitters: the flows over a threshold, each between bounds that are certain (LDS §4.3).

The upper bound is count-min's: the smallest sum of the flow's cells over the rows that take every packet. The lower
bound is what is left of those cells when all other listed flows are as large as they can be: peeled (`counts`) with one
cell per row; with more, a stranger takes at most its upper bound, and at most what the cells it shares hold. So

- no flow on the list that is over the threshold is ever left out;
- a flow is *surely* over it when its lower bound is: certain as long as the list is complete. A list that cells or
  bounds contradict is not; lower bounds are then 0.

Names need keys. Without a list the cells still bound how many flows can be over the threshold t, per row Σ⌊N/t⌋, and
how large the largest can be.

Cost: O(flows · R · k) per pass of peeling. Sanjuàs-Cuxart et al., "Sketching the Delay", §4.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.joint.counts import size_bounds
from sojourn.estimation.joint.decoder import unlisted_share
from sojourn.estimation.joint.incidence import FULL, lds_incidence
from sojourn.sketches.lds import Lds

Unit = Literal["packets", "bytes"]
_FIELDS: dict[Unit, str] = {"packets": "count", "bytes": "bytes"}


@dataclass(frozen=True)
class HeavyCells:
    """What is known without a list: at most so many flows over the threshold, none larger than so much."""

    threshold: int
    total: int
    most_flows: int
    largest: int


@dataclass(frozen=True, eq=False)
class HeavyHitters:
    """The listed flows that may be over the threshold, largest upper bound first; ``low ≤ truth ≤ high``."""

    threshold: int
    flow_id: UInt64Array
    low: Int64Array
    high: Int64Array
    complete: bool

    @property
    def surely(self) -> BoolArray:
        """Which are over the threshold for certain."""
        over: BoolArray = self.low >= self.threshold
        return over


def heavy_threshold(sketch: Lds, share: float, *, unit: Unit = "packets") -> int:
    """The number of packets or bytes that is this share of all that was recorded."""
    if not 0 < share < 1:
        raise ParameterError(
            f"{share} is no share of the traffic", where="heavy", action="use more than 0, less than 1"
        )
    return max(1, math.ceil(share * _total(sketch, unit)))


def _total(sketch: Lds, unit: Unit) -> int:
    if unit == "packets":
        return sketch.recorded
    full = _full_rows(sketch)
    return int(_matrix(sketch, unit)[full[0]].sum())


def _matrix(sketch: Lds, unit: Unit) -> Int64Array:
    return sketch.column(_FIELDS[unit]).reshape(sketch.parameters.rows, sketch.parameters.columns)


def _full_rows(sketch: Lds) -> list[int]:
    rows = [row for row, share in enumerate(sketch.parameters.row_shares) if share >= FULL]
    if not rows:
        raise ParameterError(
            "every row samples, so that nothing bounds a flow's size", where="lds", action="record one row with share 1"
        )
    return rows


def find_heavy_cells(sketch: Lds, threshold: int, *, unit: Unit = "packets") -> HeavyCells:
    """How many flows over the threshold there can be, and the size that none exceeds."""
    rows = _matrix(sketch, unit)[_full_rows(sketch)]
    total, spread = _total(sketch, unit), sketch.parameters.spread
    if spread > 1:
        longer = np.concatenate([rows, rows[:, : spread - 1]], axis=1)
        rows = np.lib.stride_tricks.sliding_window_view(longer, spread, axis=1).sum(axis=2)
        return HeavyCells(threshold, total, total // threshold, min(total, int(rows.max(axis=1).min())))
    most = min(int((rows // threshold).sum(axis=1).min()), total // threshold)
    return HeavyCells(threshold, total, most, min(total, int(rows.max(axis=1).min())))


def find_heavy_hitters(
    sketch: Lds, flow_id: UInt64Array, threshold: int, *, unit: Unit = "packets", complete: bool = True
) -> HeavyHitters:
    """The flows that may have sent `threshold` or more; ``complete``: `flow_id` lists every flow that was recorded."""
    if threshold < 1:
        raise ParameterError(f"a threshold of {threshold}", where="heavy", action="use 1 or more")
    _full_rows(sketch)
    ids = np.unique(flow_id)
    count = sketch.column(_FIELDS[unit])
    incidence = lds_incidence(sketch.parameters, ids)
    bounds = size_bounds(incidence, count)
    listed = complete and bounds.consistent and unlisted_share(incidence, count.astype(np.float64)) == 0
    low, high = np.zeros_like(bounds.low), bounds.high
    if listed and sketch.parameters.spread > 1:
        _raise_by_windows(sketch, ids, count, low, high)
    elif listed:
        low = bounds.low
    if unit == "packets" and sketch.weights is not None:
        weight = sketch.weights.of(ids)
        low, high = -(-low // weight), high // weight
    over = np.flatnonzero(high >= threshold)
    over = over[np.lexsort((-low[over], -high[over]))]
    return HeavyHitters(threshold, ids[over], low[over], high[over], listed)


def _raise_by_windows(sketch: Lds, ids: UInt64Array, count: Int64Array, low: Int64Array, high: Int64Array) -> None:
    """Lower bounds of flows that are spread over neighbouring cells."""
    p = sketch.parameters
    first = bucket_matrix(ids, p.row_salts, np.uint64(p.columns))
    for row in _full_rows(sketch):
        order = np.argsort(first[:, row], kind="stable")
        held = count[row * p.columns : (row + 1) * p.columns]
        _raise_in_row(order, first[order, row], p.spread, held, low, high)


@kernel
def _raise_in_row(
    order: Int64Array, start: Int64Array, spread: int, held: Int64Array, low: Int64Array, high: Int64Array
) -> None:
    """Flows in the order of their first columns: only near ones share cells (around the end of the row, too)."""
    flows, columns = len(order), len(held)
    for i in range(flows):
        own = np.int64(0)
        for k in range(spread):
            own += held[(start[i] + k) % columns]
        for step in (1, -1):
            for distance in range(1, flows):
                other = (i + step * distance) % flows
                apart = (step * (start[other] - start[i])) % columns
                if apart >= spread or own <= low[order[i]]:
                    break
                shared = np.int64(0)
                begin = start[other] if step > 0 else start[i]
                for k in range(spread - apart):
                    shared += held[(begin + k) % columns]
                own -= min(high[order[other]], shared)
        low[order[i]] = max(low[order[i]], own)
