"""The deviation of a flow's delays from an LDS, as published: LDA's estimator on the flow's own cells (LDS §4.3).

In each row, neighbouring cells of the flow's virtual LDA are subtracted, which gives every packet a random sign, so
that cross terms cancel in expectation (LDA, Eq. 5): F = Σ(D₂ − D₁)²/Σ(N₂ + N₁) over the pairs of usable cells, σ² = F
− μ². It needs spread ≥ 2; a flow has at most R·⌊k/2⌋ pairs, so the answer is rough, as the paper says. Where σ is
small against μ, F − μ² is the difference of two large numbers and may be negative: no answer.

``centred`` is the better one of the same cells: σ² = Σ(D − μN)²/N ÷ (cells − 1); `estimate_lds` gives it as ``std_ns``.

Interval: F (or the centred sum) is chi-square with as many degrees as pairs (cells − 1); strangers' share of the cells
widens it by its expected size times what a stranger may add. Cost: O(flows · R · k).

Sanjuàs-Cuxart et al., "Sketching the Delay", §4.3; Kompella et al., "Router Support for Fine-Grained Latency
Measurements", §III-E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import Reason
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.published.collisions import RowLoads
from sojourn.estimation.quantiles import NORMAL_95, spread_95
from sojourn.sketches.lds import Lds

__all__ = ["FlowDeviations", "estimate_lds_deviation"]

# Columns of `_moments`' result: of all usable cells, then of pairs of usable neighbours.
SUM, COUNT, CELLS, LOAD, SQUARES, PAIRS, PAIR_COUNT, PAIR_SQUARES = range(8)


@dataclass(frozen=True, eq=False)
class FlowDeviations:
    """One row per asked flow; NaN and a reason where there is no answer; `degrees` are pairs, or cells − 1."""

    flow_id: UInt64Array
    std_ns: FloatArray
    low_ns: FloatArray
    high_ns: FloatArray
    degrees: Int64Array
    reason: list[Reason | None]
    method: str

    @property
    def answered(self) -> BoolArray:
        return ~np.isnan(self.std_ns)


def estimate_lds_deviation(
    sender: Lds, receiver: Lds, flow_id: UInt64Array, *, method: Literal["published", "centred"] = "published"
) -> FlowDeviations:
    """The standard deviation of each flow's delays."""
    parameters = sender.parameters
    if parameters.spread < 2:
        raise ParameterError("a flow with one cell per row shows no deviation", where="lds", action="use spread ≥ 2")
    cells = cell_difference(sender, receiver)
    share = np.repeat(parameters.row_shares, parameters.columns)
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    agree = cells.usable | ((cells.sent == 0) & (cells.received == 0))
    totals = _moments(
        first, parameters.spread, parameters.columns, cells.delay_sum, cells.sent, cells.usable, agree, share
    )
    weight = 1.0 if sender.weights is None else sender.weights.of(flow_id).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = totals[:, SUM] / totals[:, COUNT]
        if method == "published":
            second, degrees = totals[:, PAIR_SQUARES] / totals[:, PAIR_COUNT] / weight, totals[:, PAIRS]
            offset = mean**2
        else:
            left = totals[:, SQUARES] - mean * totals[:, SUM]
            second, degrees = left / (totals[:, CELLS] - 1) / weight, totals[:, CELLS] - 1
            offset = np.zeros(len(flow_id))
        load = totals[:, LOAD] / totals[:, CELLS]
    strangers = _strangers(cells.delay_sum, cells.sent, cells.usable, share, load, offset)
    return _answer(flow_id, second, offset, np.maximum(degrees, 0).astype(np.int64), strangers, totals, method)


def _strangers(
    delay_sum: Int64Array, sent: Int64Array, usable: BoolArray, share: FloatArray, load: FloatArray, offset: FloatArray
) -> FloatArray:
    """What strangers may add to a variance: 1.96·√E[φ²] times the variance of all delays and of cells' means.

    Pairs suffer more: a stranger whose cells begin between the two is in one of them only, which adds φ²·N·μ². All
    cells of the flow count, not the best row's, so strangers are as many as in any one row.
    """
    loads = RowLoads.of(sent / share, delay_sum, sent, usable)
    if not np.isfinite(loads.mean_spread) or loads.mean_spread == 0:
        return np.zeros(len(load))
    held = np.nan_to_num(load, nan=1.0)
    part = np.nan_to_num(loads.shares(held, np.ones(len(load), np.int64)))
    variance = NORMAL_95 * part * (loads.delay_variance + loads.mean_spread**2)
    added: FloatArray = variance + NORMAL_95 * part**2 * held * np.nan_to_num(offset)
    return added


def _answer(
    flow_id: UInt64Array,
    second: FloatArray,
    offset: FloatArray,
    degrees: Int64Array,
    strangers: FloatArray,
    totals: FloatArray,
    method: str,
) -> FlowDeviations:
    factors = np.array([spread_95(d) for d in range(int(degrees.max(initial=0)) + 1)])[degrees]
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = second - offset
        low = np.maximum(second * factors[:, 0] - offset - strangers, 0.0)
        high = second * factors[:, 1] - offset + strangers
        std = np.sqrt(variance)
    heard = (degrees > 0) & (totals[:, COUNT] > 0)
    known = heard & (variance > 0)
    reasons = [
        None if k else Reason.LOST_IN_NOISE if h else Reason.NO_USABLE_CELLS
        for k, h in zip(known.tolist(), heard.tolist(), strict=True)
    ]
    std, low, high = (np.where(known, c, np.nan) for c in (std, np.sqrt(low), np.sqrt(np.maximum(high, 0.0))))
    return FlowDeviations(flow_id, std, low, high, degrees, reasons, f"lds {method}")


@kernel
def _moments(
    first: Int64Array,
    spread: int,
    columns: int,
    delay_sum: Int64Array,
    sent: Int64Array,
    usable: BoolArray,
    agree: BoolArray,
    share: FloatArray,
) -> FloatArray:
    """Sums over a flow's usable cells, and over pairs of neighbours that agree (empty cells do)."""
    totals = np.zeros((first.shape[0], 8))
    for i in range(first.shape[0]):
        own = totals[i]
        for row in range(first.shape[1]):
            for k in range(spread):
                cell = row * columns + (first[i, row] + k) % columns
                before = row * columns + (first[i, row] + k - 1) % columns
                if usable[cell]:
                    own[SUM] += delay_sum[cell]
                    own[COUNT] += sent[cell]
                    own[CELLS] += 1
                    own[LOAD] += sent[cell] / share[cell]
                    own[SQUARES] += float(delay_sum[cell]) ** 2 / sent[cell]
                if k % 2 == 1 and agree[cell] and agree[before] and sent[cell] + sent[before]:
                    own[PAIRS] += 1
                    own[PAIR_COUNT] += sent[cell] + sent[before]
                    own[PAIR_SQUARES] += float(delay_sum[cell] - delay_sum[before]) ** 2
    return totals
