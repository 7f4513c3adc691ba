"""LDS as published: the least loaded of the flow's usable cells, and those within α of it, answer.

A cell's load is its count divided by its row's sampling share (the multi-bank form, §4.2); cells with a load
of at most (1 + α) times the smallest, α = 0.1, are added up and divided.

Read literally, the rule picks rows that sample rarely for their luckiest cells, and the answer rests on two
or three packets. ``score="guarded"`` (the default) ranks cells by (N + 2√N + 2)/p, the load that the count
may really stand for; ``score="published"`` ranks by N/p. Without sampling the two choose alike.

Sanjuàs-Cuxart et al., "Sketching the Delay", §2.3.4, Fig. 6, §4.2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.collisions import RowLoads
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.quantiles import NORMAL_95, student_95
from sojourn.sketches.lds import Lds

__all__ = ["ALPHA", "estimate_lds"]

ALPHA = 0.1


def estimate_lds(
    sender: Lds,
    receiver: Lds,
    flow_id: UInt64Array,
    *,
    score: Literal["guarded", "published"] = "guarded",
) -> list[Answer]:
    """The mean delay of each flow; O(cells · log cells + flows · R · k)."""
    cells = cell_difference(sender, receiver)
    share = np.repeat(sender.parameters.row_shares, sender.parameters.columns)
    load = cells.sent / share
    scores = load if score == "published" else (cells.sent + 2 * np.sqrt(cells.sent) + 2) / share
    loads = _row_loads(cells, load, share)
    method = "lds" if score == "guarded" else "lds published"
    return [_answer(sender, own, cells, scores, share, loads, method) for own in _own_cells(sender, flow_id)]


def _row_loads(cells: CellDifference, load: FloatArray, share: FloatArray) -> RowLoads:
    """Loads and spread as the rows that sample most show them (of all rows, if losses left those nothing)."""
    frequent = share == share.max()
    shown = frequent if (frequent & cells.usable).sum() > 2 else np.ones_like(frequent)
    return RowLoads.of(load[shown], cells.delay_sum[shown], cells.sent[shown], cells.usable[shown])


def _own_cells(sketch: Lds, flow_id: UInt64Array) -> Int64Array:
    """All cells of each flow's virtual LDAs: flows × rows × k."""
    parameters = sketch.parameters
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    columns = (first[:, :, None] + np.arange(parameters.spread)) % parameters.columns
    return columns + (np.arange(parameters.rows) * parameters.columns)[None, :, None]


def _answer(
    sketch: Lds,
    own: Int64Array,
    cells: CellDifference,
    scores: FloatArray,
    share: FloatArray,
    loads: RowLoads,
    method: str,
) -> Answer:
    usable: BoolArray = cells.usable[own]
    if not usable.any():
        held = cells.sent[own].any()
        return Unanswered(Reason.NO_USABLE_CELLS if held else Reason.UNKNOWN_INSTANCE)
    candidates = own[usable]
    chosen = candidates[scores[candidates] <= (1 + ALPHA) * scores[candidates].min()]
    sums, counts = cells.delay_sum[chosen].astype(np.float64), cells.sent[chosen].astype(np.float64)
    total = float(counts.sum())
    mean = float(sums.sum()) / total
    rows = int(usable.any(axis=1).sum())
    strangers = loads.error(load=float(np.mean(counts / share[chosen])), rows=rows)
    sampling, degrees = _sampling_error(own, cells, share, chosen, mean, loads)
    half = float(np.hypot(NORMAL_95 * strangers, student_95(degrees) * sampling))
    return Estimate.around(mean, half, samples=round(total / _copies(chosen, sketch)), method=method)


def _copies(chosen: Int64Array, sketch: Lds) -> int:
    """How many rows the chosen cells lie in: the same packets are in each."""
    return len(np.unique(chosen // sketch.parameters.columns))


def _sampling_error(
    own: Int64Array,
    cells: CellDifference,
    share: FloatArray,
    chosen: Int64Array,
    mean: float,
    loads: RowLoads,
) -> tuple[float, int]:
    """The deviation of a mean over only some of the flow's packets, and its degrees of freedom."""
    size = float((cells.sent[own] / share[own]).sum(axis=1).min())
    counts = cells.sent[chosen].astype(np.float64)
    per_row = [counts[np.isin(chosen, row)].sum() for row in own]
    packets = float(max(per_row))
    unseen = max(0.0, 1 - packets / max(size, packets))
    if unseen == 0:
        return 0.0, 1000
    if len(chosen) < 3:
        return float(np.sqrt(loads.delay_variance / packets * unseen)), 1000
    excess = cells.delay_sum[chosen] - mean * counts
    variance = float(np.sum(excess**2 / counts)) / (len(chosen) - 1)
    return float(np.sqrt(variance / packets * unseen)), len(chosen) - 1
