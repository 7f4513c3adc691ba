"""LDS as published: the least loaded of the flow's usable cells, and those within α of it, answer.

A cell's load is its count divided by its row's sampling share (the multi-bank form, §4.2); cells with a load
of at most (1 + α) times the smallest, α = 0.1, are added up and divided.

Read literally, the rule picks rows that sample rarely for their luckiest cells, and the answer rests on two
or three packets. ``score="guarded"`` (the default) ranks cells by (N + 2√N + 2)/p, the load that the count
may really stand for (a flow of weight w: N + 2√(wN) + 2w); ``score="published"`` ranks by N/p. Without sampling the two
choose alike.

The same cells give a flow's size and loss (§4.3): per row the sum over its cells, of which the smallest is the
least disturbed; both can only be too large.

Sanjuàs-Cuxart et al., "Sketching the Delay", §2.3.4, Fig. 6, §4.2, §4.3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Reason
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import inlined, kernel
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.published.collisions import RowLoads
from sojourn.estimation.quantiles import NORMAL_95, student_95
from sojourn.sketches.lds import Lds

__all__ = ["ALPHA", "estimate_lds"]

ALPHA = 0.1
MOST_DEGREES = 1000

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
    cells = cell_difference(sender, receiver)
    share = np.repeat(sender.parameters.row_shares, sender.parameters.columns)
    load = cells.sent / share
    loads = _row_loads(cells, load, share)
    parameters = sender.parameters
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    weight = np.ones(len(flow_id), np.int64) if sender.weights is None else sender.weights.of(flow_id)
    guard = np.zeros(len(flow_id)) if score == "published" else weight.astype(np.float64)
    totals = _sum_up(
        first, parameters.spread, parameters.columns, cells.delay_sum, cells.sent, cells.usable, share, guard, alpha
    )
    sizes = _sizes(first, parameters.spread, parameters.columns, cells.sent, share)
    lost = _sizes(first, parameters.spread, parameters.columns, cells.sent - cells.received, share)
    answer = _answer(flow_id, totals, sizes, lost, loads, "lds" if score == "guarded" else "lds published")
    return _unweighted(answer, weight)


def _unweighted(answer: FlowDelays, weight: Int64Array) -> FlowDelays:
    """In packets again; samples stay what the cells count, strangers and weights included."""
    return replace(
        answer, std_ns=answer.std_ns / np.sqrt(weight), packets=answer.packets / weight, lost=answer.lost / weight
    )


def _row_loads(cells: CellDifference, load: FloatArray, share: FloatArray) -> RowLoads:
    """Loads and spread as the rows that sample most show them (of all rows, if losses left those nothing)."""
    frequent = share == share.max()
    shown = frequent if (frequent & cells.usable).sum() > 2 else np.ones_like(frequent)
    return RowLoads.of(load[shown], cells.delay_sum[shown], cells.sent[shown], cells.usable[shown])


@inlined
def _score(sent: int, share: float, guard: float) -> float:
    """The load that a count may stand for; `guard` is what one packet counts for (0: the load as it is)."""
    return float((sent + 2.0 * np.sqrt(sent * guard) + 2.0 * guard) / share)


@inlined
def _least_score(
    first: Int64Array,
    spread: int,
    columns: int,
    sent: Int64Array,
    usable: BoolArray,
    share: FloatArray,
    guard: float,
) -> tuple[float, int]:
    """The smallest score of a flow's usable cells, and how many rows have any."""
    least, rows = np.inf, 0
    for row in range(first.shape[0]):
        seen = False
        for k in range(spread):
            cell = row * columns + (first[row] + k) % columns
            if usable[cell]:
                seen = True
                least = min(least, _score(sent[cell], share[cell], guard))
        rows += seen
    return least, rows


@kernel
def _sum_up(
    first: Int64Array,
    spread: int,
    columns: int,
    delay_sum: Int64Array,
    sent: Int64Array,
    usable: BoolArray,
    share: FloatArray,
    guard: FloatArray,
    alpha: float,
) -> FloatArray:
    """Per flow: add up the cells within α of the smallest score, then all usable cells' squares around the mean."""
    totals = np.zeros((first.shape[0], 10))
    for i in range(first.shape[0]):
        own = totals[i]
        least, own[ROWS] = _least_score(first[i], spread, columns, sent, usable, share, guard[i])
        if own[ROWS] == 0:
            continue
        for row in range(first.shape[1]):
            in_row = 0
            for k in range(spread):
                cell = row * columns + (first[i, row] + k) % columns
                if usable[cell] and _score(sent[cell], share[cell], guard[i]) <= (1 + alpha) * least:
                    own[SUM] += delay_sum[cell]
                    own[LOAD] += sent[cell] / share[cell]
                    own[CHOSEN] += 1
                    in_row += sent[cell]
            own[COUNT] += in_row
            own[SEEN] = max(own[SEEN], in_row)
            own[COPIES] += in_row > 0
        _add_squares(own, first[i], spread, columns, delay_sum, sent, usable, share, guard[i], (1 + alpha) * least)
    return totals


@inlined
def _add_squares(
    own: FloatArray,
    first: Int64Array,
    spread: int,
    columns: int,
    delay_sum: Int64Array,
    sent: Int64Array,
    usable: BoolArray,
    share: FloatArray,
    guard: float,
    highest_score: float,
) -> None:
    mean = own[SUM] / own[COUNT]
    for row in range(first.shape[0]):
        for k in range(spread):
            cell = row * columns + (first[row] + k) % columns
            if usable[cell]:
                square = (delay_sum[cell] - mean * sent[cell]) ** 2 / sent[cell]
                own[OWN_SQUARES] += square
                own[OWN_CELLS] += 1
                if _score(sent[cell], share[cell], guard) <= highest_score:
                    own[SQUARES] += square


@kernel
def _sizes(first: Int64Array, spread: int, columns: int, values: Int64Array, share: FloatArray) -> FloatArray:
    """Per flow the smallest row sum of its cells, over the rows that sample most (§4.3)."""
    sizes = np.full(first.shape[0], np.inf)
    most = share.max()
    for i in range(first.shape[0]):
        for row in range(first.shape[1]):
            if share[row * columns] < most:
                continue
            total = 0.0
            for k in range(spread):
                total += values[row * columns + (first[i, row] + k) % columns] / most
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
    quantile = np.array([student_95(d) for d in range(MOST_DEGREES + 1)])
    half: FloatArray = np.where(unseen > 0, quantile[np.maximum(degrees, 1)] * error, 0.0)
    return half
