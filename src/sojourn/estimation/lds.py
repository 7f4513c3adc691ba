"""LDS without the key list: the least loaded of a flow's usable cells, and those within α of it, answer.

A cell's load is its count divided by its row's sampling share (the multi-bank form, §4.2); cells with a load
of at most (1 + α) times the smallest, α = 0.1, are added up and divided.

Read literally, the rule picks rows that sample rarely for their luckiest cells, and the answer rests on two
or three packets. ``score="guarded"`` (the default) ranks cells by (N + 2√N + 2)/p, an upper bound of the load that may
have left N samples (a flow of weight w: N + 2√(wN) + 2w); ``score="published"`` ranks by N/p. Without sampling both
choose the same cells.

The same cells give a flow's size and loss (§4.3): per row the sum over its cells, of which the smallest is the
least disturbed; both can only be too large.
 Interval: the answer is off by φ · (mean of the strangers − mean of the flow), φ = F/N the strangers' share of the
chosen cells. Neither is known, but the sketch shows how both are distributed (`RowLoads`):

- strangers load a cell as any cell of a row is loaded, and the answer comes from the least loaded of the flow's
  rows: before N is seen, F is the smallest of as many draws from the cells' loads. Sizes of flows are heavy-
  tailed, so that a flow of p packets has weight 1/p²: given N, the weight of F is P(F) · (N − F)⁻², and E[φ²] is
  a weighted mean over the loads below N;
- the mean of strangers together spreads as the means of cells do, with variance τ_c²; the mean of a flow of p packets
  with τ² + σ²/p, as the means of the less loaded half of the cells do, in which few flows meet: least squares of
  their squares on 1/N.

So the error's variance is E[φ²·(τ_c² + τ² + σ²/(N − F))].

Sanjuàs-Cuxart et al., "Sketching the Delay", §2.3.4, Fig. 6, §4.2, §4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import MOST_DEGREES, NORMAL_95, FlowDelays, Reason, student_95
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.order_statistics import quantile_of_sorted
from sojourn.sketches.lds import Lds

ALPHA = 0.1  # §2.3.4
LIGHT = 0.5  # the less loaded half of the cells, in which few flows meet
SUPPORT = 257  # quantiles that represent all cells' loads, so that a flow costs the same in any sketch

# Columns of `_sum_up`'s result.
SUM, COUNT, LOAD, CHOSEN, SQUARES, ROWS, SEEN, COPIES, OWN_SQUARES, OWN_CELLS = range(10)


def estimate_lds(
    sender: Lds,
    receiver: Lds,
    flow_id: UInt64Array,
    *,
    score: Literal["guarded", "published"] = "guarded",
    alpha: float = ALPHA,
) -> FlowDelays:
    """The mean delay, size and loss of each flow; O(cells · log cells + flows · R · k)."""
    return estimate_cells(sender, cell_difference(sender, receiver), flow_id, score=score, alpha=alpha)


def estimate_cells(
    sender: Lds,
    cells: CellDifference,
    flow_id: UInt64Array,
    *,
    score: Literal["guarded", "published"] = "guarded",
    alpha: float = ALPHA,
) -> FlowDelays:
    """The same from cells that are compared already."""
    share = np.repeat(sender.parameters.row_shares, sender.parameters.columns)
    load = cells.sent / share
    loads = _row_loads(cells, load, share)
    parameters = sender.parameters
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    weight = np.ones(len(flow_id), np.int64) if sender.weights is None else sender.weights.of(flow_id)
    guard = np.zeros(len(flow_id)) if score == "published" else weight.astype(np.float64)
    columns = _Columns(parameters.spread, parameters.columns, cells.delay_sum, cells.sent, cells.usable, share)
    totals = _sum_up(first, columns, guard, alpha)
    sizes = _sizes(first, columns, cells.sent)
    lost = _sizes(first, columns, cells.sent - cells.received)
    answer = _answer(flow_id, totals, sizes, lost, loads, "lds" if score == "guarded" else "lds published")
    # In packets again; samples stay what the cells count, strangers and weights included.
    std = answer.std_ns / np.sqrt(weight)
    return replace(answer, std_ns=std, packets=answer.packets / weight, lost=answer.lost / weight)


def _row_loads(cells: CellDifference, load: FloatArray, share: FloatArray) -> RowLoads:
    """Loads and spread as the rows that sample most show them (of all rows, if losses left those nothing)."""
    frequent = share == share.max()
    shown = frequent if (frequent & cells.usable).sum() > 2 else np.ones_like(frequent)
    return RowLoads.of(load[shown], cells.delay_sum[shown], cells.sent[shown], cells.usable[shown])


class _Columns(NamedTuple):
    """The cells of all rows one after the other, as the kernels read them."""

    spread: int
    per_row: int
    delay_sum: Int64Array
    sent: Int64Array
    usable: BoolArray
    share: FloatArray


@inlined
def _score(sent: int, share: float, guard: float) -> float:
    """The load that a count may stand for; `guard` is what one packet counts for (0: the load as it is)."""
    return float((sent + 2.0 * np.sqrt(sent * guard) + 2.0 * guard) / share)


@inlined
def _least_score(first: Int64Array, cells: _Columns, guard: float) -> tuple[float, int]:
    """The smallest score of a flow's usable cells, and how many rows have any."""
    least, rows = np.inf, 0
    for row in range(first.shape[0]):
        seen = False
        for k in range(cells.spread):
            cell = row * cells.per_row + (first[row] + k) % cells.per_row
            if cells.usable[cell]:
                seen = True
                least = min(least, _score(cells.sent[cell], cells.share[cell], guard))
        rows += seen
    return least, rows


@kernel
def _sum_up(first: Int64Array, cells: _Columns, guard: FloatArray, alpha: float) -> FloatArray:
    """Per flow: add up the cells within α of the smallest score, then all usable cells' squares around the mean."""
    totals = np.zeros((first.shape[0], 10))
    for i in range(first.shape[0]):
        own = totals[i]
        least, own[ROWS] = _least_score(first[i], cells, guard[i])
        if own[ROWS] == 0:
            continue
        for row in range(first.shape[1]):
            in_row = 0
            for k in range(cells.spread):
                cell = row * cells.per_row + (first[i, row] + k) % cells.per_row
                if cells.usable[cell] and _score(cells.sent[cell], cells.share[cell], guard[i]) <= (1 + alpha) * least:
                    own[SUM] += cells.delay_sum[cell]
                    own[LOAD] += cells.sent[cell] / cells.share[cell]
                    own[CHOSEN] += 1
                    in_row += cells.sent[cell]
            own[COUNT] += in_row
            own[SEEN] = max(own[SEEN], in_row)
            own[COPIES] += in_row > 0
        _add_squares(own, first[i], cells, guard[i], (1 + alpha) * least)
    return totals


@inlined
def _add_squares(own: FloatArray, first: Int64Array, cells: _Columns, guard: float, highest_score: float) -> None:
    mean = own[SUM] / own[COUNT]
    for row in range(first.shape[0]):
        for k in range(cells.spread):
            cell = row * cells.per_row + (first[row] + k) % cells.per_row
            if cells.usable[cell]:
                square = (cells.delay_sum[cell] - mean * cells.sent[cell]) ** 2 / cells.sent[cell]
                own[OWN_SQUARES] += square
                own[OWN_CELLS] += 1
                if _score(cells.sent[cell], cells.share[cell], guard) <= highest_score:
                    own[SQUARES] += square


@kernel
def _sizes(first: Int64Array, cells: _Columns, values: Int64Array) -> FloatArray:
    """Per flow the smallest row sum of its cells, over the rows that sample most (§4.3)."""
    sizes = np.full(first.shape[0], np.inf)
    most = cells.share.max()
    for i in range(first.shape[0]):
        for row in range(first.shape[1]):
            if cells.share[row * cells.per_row] < most:
                continue
            total = 0.0
            for k in range(cells.spread):
                total += values[row * cells.per_row + (first[i, row] + k) % cells.per_row] / most
            sizes[i] = min(sizes[i], total)
    return sizes


def _answer(
    flow_id: UInt64Array, totals: FloatArray, sizes: FloatArray, lost: FloatArray, loads: RowLoads, method: str
) -> FlowDelays:
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = totals[:, SUM] / totals[:, COUNT]
        load = totals[:, LOAD] / totals[:, CHOSEN]
        std = np.sqrt(totals[:, OWN_SQUARES] / (totals[:, OWN_CELLS] - 1))
        samples = np.nan_to_num(totals[:, COUNT] / totals[:, COPIES]).round().astype(np.int64)
    half = np.hypot(
        NORMAL_95 * loads.errors(load, totals[:, ROWS].astype(np.int64)), _sampling_half(totals, sizes, loads)
    )
    silent = np.isnan(mean)
    reasons = [
        None if not none else Reason.NO_USABLE_CELLS if size > 0 else Reason.UNKNOWN_INSTANCE
        for none, size in zip(silent.tolist(), sizes.tolist(), strict=True)
    ]
    std[(totals[:, OWN_CELLS] < 3) | silent] = np.nan
    return FlowDelays(flow_id, mean, mean - half, mean + half, std, samples, sizes, lost, reasons, method)


def _sampling_half(totals: FloatArray, sizes: FloatArray, loads: RowLoads) -> FloatArray:
    """Half the interval of a mean over only some of the flow's packets."""
    with np.errstate(divide="ignore", invalid="ignore"):
        unseen = np.clip(1 - totals[:, SEEN] / np.maximum(sizes, totals[:, SEEN]), 0, 1)
        few = totals[:, CHOSEN] < 3
        own = totals[:, SQUARES] / (totals[:, CHOSEN] - 1)
        variance = np.where(few, loads.delay_variance, own)
        error = np.sqrt(variance / totals[:, SEEN] * unseen)
    degrees = np.where(few, MOST_DEGREES, np.minimum(totals[:, CHOSEN] - 1, MOST_DEGREES)).astype(np.int64)
    half: FloatArray = np.where(unseen > 0, _student_table()[np.maximum(degrees, 1)] * error, 0.0)
    return half


@cache
def _student_table() -> FloatArray:
    """Student's quantiles up to the most degrees."""
    return np.array([student_95(degrees) for degrees in range(MOST_DEGREES + 1)])


@dataclass(frozen=True, eq=False)
class RowLoads:
    """How loaded cells are, and how far flows and strangers spread: τ_c², τ² and σ².

    ``loads`` are quantiles of the cells' loads, at most `SUPPORT`, evenly spaced from the lightest to the heaviest.
    """

    loads: FloatArray
    strangers: float
    between: float
    within: float
    delay_variance: float

    @classmethod
    def of(cls, loads: FloatArray, delay_sum: Int64Array, count: Int64Array, usable: BoolArray) -> RowLoads:
        """From the cells of the rows with the largest share; O(cells · log cells)."""
        levels = np.linspace(0, 1, min(SUPPORT, len(loads)))
        support = np.sort(loads)[((len(loads) - 1) * levels).astype(np.int64)]
        sums, counts = delay_sum[usable].astype(np.float64), count[usable].astype(np.float64)
        if not len(counts):
            return cls(support, np.inf, np.inf, np.inf, np.inf)
        grand = sums.sum() / counts.sum()
        square = (sums / counts - grand) ** 2
        light = counts <= quantile_of_sorted(np.sort(counts), LIGHT)
        between, within = _components(square[light], counts[light])
        variance = float(np.mean((sums - grand * counts) ** 2 / counts))
        return cls(support, float(np.mean(square)), between, within, variance)

    def errors(self, load: FloatArray, rows: Int64Array) -> FloatArray:
        """The deviations, due to strangers, of answers from cells with these loads, each the best of its rows."""
        if not np.isfinite(self.strangers):
            return np.full(len(load), np.nan)
        return self._roots(load, rows, self.strangers + self.between, self.within)

    def shares(self, load: FloatArray, rows: Int64Array) -> FloatArray:
        """√E[φ²] of such answers: the strangers' part."""
        return self._roots(load, rows, 1.0, 0.0)

    @property
    def mean_spread(self) -> float:
        """How far the means of a large flow and of its strangers lie apart."""
        return float(np.sqrt(self.strangers + self.between))

    def _roots(self, load: FloatArray, rows: Int64Array, spread: float, within: float) -> FloatArray:
        roots = np.empty(len(load))
        for number in np.unique(rows):
            mine = rows == number
            weight = self._weight(max(int(number), 1))
            roots[mine] = np.sqrt(_squared_errors(self.loads, weight, load[mine], spread, within))
        return roots

    def _weight(self, rows: int) -> FloatArray:
        """The probability of each load to be the smallest of `rows` draws."""
        survival: FloatArray = (np.arange(len(self.loads), -1, -1) / len(self.loads)) ** rows
        return survival[:-1] - survival[1:]


def _components(square: FloatArray, count: FloatArray) -> tuple[float, float]:
    """τ² and σ², neither negative: least squares of `square` ≈ τ² + σ²/N, each relative to what it is expected at."""
    inverse = 1 / count
    weight = 1 / (inverse + inverse.mean()) ** 2
    centre = np.average(inverse, weights=weight)
    level = float(np.average(square, weights=weight))
    spread = float(np.sum(weight * (inverse - centre) ** 2))
    slope = float(np.sum(weight * (inverse - centre) * square)) / spread if spread > 0 else 0.0
    within = min(max(slope, 0.0), level / centre)
    return level - within * centre, within


@kernel
def _squared_errors(
    loads: FloatArray, probability: FloatArray, load: FloatArray, spread: float, within: float
) -> FloatArray:
    """E[φ²·(spread + σ²/(N − F))] of each load."""
    squares = np.empty(len(load))
    for i in range(len(load)):
        total = weighted = 0.0
        for j in range(len(loads)):
            if loads[j] > load[i] - 1:
                break
            own = load[i] - loads[j]
            weight = probability[j] / own**2
            total += weight
            weighted += weight * (loads[j] / load[i]) ** 2 * (spread + within / own)
        alone = 0.0 if loads[0] == 0 else spread + within
        squares[i] = weighted / total if total > 0 else alone
    return squares
