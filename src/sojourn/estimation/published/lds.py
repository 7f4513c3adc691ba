"""What the LDS paper reads from cells beside mean delays: sizes, losses and deviations (§4.3); and SDS (§2.2).
 **Sizes and losses.** Per row the flow's cells are added up, and the smallest sum answers, as in a count-min sketch:
never less than the truth (where a row takes every packet), more by the strangers F in the flow's cells. Interval:
before the answer N is seen, F is the smallest of as many draws as there are rows from the sums that a row's cells
show; sizes are heavy-tailed, a flow of p has weight 1/p² (losses: 1/(1 + l)²), so given N the weight of F is P(F)/(N
− F)². The upper end is N itself, the lower leaves out the most strangers that 95 % of that weight allow. Where every
row samples, the binomial error of the sample (Wilson's form) is added at both ends.
 **Deviations.** In each row, neighbouring cells of the flow's virtual LDA are subtracted, which gives every packet a
random sign, so that cross terms cancel in expectation (LDA, Eq. 5): F = Σ(D₂ − D₁)²/Σ(N₂ + N₁) over the pairs of
usable cells, σ² = F − μ². It needs spread ≥ 2; a flow has at most R·⌊k/2⌋ pairs, so the answer is rough, as the paper
says. Where σ is small against μ, F − μ² is the difference of two large numbers and may be negative: no answer.
``centred`` is the better one of the same cells: σ² = Σ(D − μN)²/N ÷ (cells − 1); `estimate_lds` gives it as
``std_ns``. Interval: F (or the centred sum) is chi-square with as many degrees as pairs (cells − 1); strangers' share
of the cells widens it by its expected size times what a stranger may add.

**SDS.** The flow's cell with the fewest packets answers: exactly when the flow is alone in it; otherwise the answer
leans towards the strangers, and `RowLoads` bounds how far.

Cost: O(cells · log cells + flows · R · k).

Sanjuàs-Cuxart et al., "Sketching the Delay", §2.2, §4.3; Kompella et al., "Router Support for Fine-Grained Latency
Measurements", §III-E; Cormode and Muthukrishnan, "An Improved Data Stream Summary" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import NORMAL_95, FlowDelays, Reason, spread_95
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.lds import RowLoads
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.sds import Sds

SUPPORT = 513  # quantiles that represent all row sums
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class FlowSizes:
    """One row per asked flow: the published answer and its 95 % interval, in packets or bytes."""

    flow_id: UInt64Array
    value: FloatArray
    low: FloatArray
    high: FloatArray


def estimate_sizes(sketch: Lds, flow_id: UInt64Array, *, unit: Literal["packets", "bytes"] = "packets") -> FlowSizes:
    """What each flow sent, seen at one point; bytes need ``byte_bits`` and do not depend on weights."""
    values = sketch.column("count" if unit == "packets" else "bytes")
    one = 1.0 if unit == "packets" else float(values.sum()) / max(int(sketch.column("count").sum()), 1)
    return _sizes(sketch, values, flow_id, least=1.0, one=one, weighted=unit == "packets")


def estimate_losses(sender: Lds, receiver: Lds, flow_id: UInt64Array) -> FlowSizes:
    """The packets that each flow lost between two points."""
    cells = cell_difference(sender, receiver)
    return _sizes(sender, np.maximum(cells.sent - cells.received, 0), flow_id, least=0.0, one=1.0, weighted=True)


def _sizes(
    sketch: Lds, values: Int64Array, flow_id: UInt64Array, *, least: float, one: float, weighted: bool
) -> FlowSizes:
    """`least` is the smallest value a flow may have (it sent something, but need not have lost anything), `one` what a
    packet adds.
    """
    parameters = sketch.parameters
    share = max(parameters.row_shares)
    sums = _row_sums(parameters, values)
    first = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    rows = np.flatnonzero(np.array(parameters.row_shares) == share)
    found = sums[np.arange(len(rows)), first[:, rows]].min(axis=1)
    loads = np.quantile(sums, np.linspace(0, 1, min(SUPPORT, sums.size)), method="lower").astype(np.float64)
    survival = (np.arange(len(loads), -1, -1) / len(loads)) ** len(rows)
    strangers = _most_strangers(loads, survival[:-1] - survival[1:], found.astype(np.float64), least, LEVEL)
    weight = sketch.weights.of(flow_id) if weighted and sketch.weights is not None else 1
    unit = one * weight * (1 - share)
    middle = NORMAL_95**2 / 2 * unit
    low, high = (found + middle + sign * NORMAL_95 * np.sqrt(unit * found + middle**2 / 2) for sign in (-1, 1))
    low = np.clip(low - strangers, 0.0, found)
    return FlowSizes(flow_id, *(column / (share * weight) for column in (found.astype(np.float64), low, high)))


def _row_sums(parameters: LdsParameters, values: Int64Array) -> Int64Array:
    """For the rows that sample most: what a flow whose cells begin at a column would find in them."""
    shares = np.array(parameters.row_shares)
    matrix = values.reshape(parameters.rows, parameters.columns)[shares == shares.max()]
    longer = np.concatenate([matrix, matrix[:, : parameters.spread - 1]], axis=1)
    total = np.concatenate([np.zeros((len(matrix), 1), np.int64), np.cumsum(longer, axis=1)], axis=1)
    sums: Int64Array = total[:, parameters.spread :] - total[:, : -parameters.spread]
    return sums


@kernel
def _most_strangers(
    loads: FloatArray, probability: FloatArray, found: FloatArray, least: float, level: float
) -> FloatArray:
    """The strangers that are exceeded with probability 1 − level, given the smallest row sum of each flow."""
    most = np.zeros(len(found))
    for i in range(len(found)):
        total = 0.0
        for j in range(len(loads)):
            if loads[j] > found[i] - least:
                break
            total += probability[j] / (found[i] - loads[j] + 1.0 - least) ** 2
        seen = 0.0
        most[i] = max(found[i] - least, 0.0) if total == 0.0 else 0.0
        for j in range(len(loads)):
            if loads[j] > found[i] - least or seen >= level * total:
                break
            seen += probability[j] / (found[i] - loads[j] + 1.0 - least) ** 2
            most[i] = loads[j]
    return most


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
    strangers = _added_variance(cells.delay_sum, cells.sent, cells.usable, share, load, offset)
    return _deviations(flow_id, second, offset, np.maximum(degrees, 0).astype(np.int64), strangers, totals, method)


def _added_variance(
    delay_sum: Int64Array, sent: Int64Array, usable: BoolArray, share: FloatArray, load: FloatArray, offset: FloatArray
) -> FloatArray:
    """What strangers may add to a variance: 1.96·√E[φ²] times the variance of all delays and of cells' means.

    Pairs suffer more: a stranger whose cells begin between the two is in one of them only, which adds φ²·N·μ². All
    cells of the flow count, not the best row's, so strangers are as many as in any one row.
    """
    loads = RowLoads.of(sent / share, delay_sum, sent, usable)
    if not np.isfinite(loads.mean_spread) or loads.mean_spread == 0:
        return np.zeros(len(load))
    known = np.nan_to_num(load, nan=1.0)
    part = np.nan_to_num(loads.shares(known, np.ones(len(load), np.int64)))
    variance = NORMAL_95 * part * (loads.delay_variance + loads.mean_spread**2)
    added: FloatArray = variance + NORMAL_95 * part**2 * known * np.nan_to_num(offset)
    return added


def _deviations(
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


def estimate_sds(sketch: Sds, flow_id: UInt64Array) -> FlowDelays:
    """The mean delay of each flow; O(cells · log cells + flows · R)."""
    parameters = sketch.parameters
    sums, counts = sketch.column("sum"), sketch.column("count")
    loads = RowLoads.of(counts.astype(np.float64), sums, counts, counts > 0)
    columns = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    cells = columns + np.arange(parameters.rows) * parameters.columns
    fewest = cells[np.arange(len(flow_id)), np.argmin(counts[cells], axis=1)]
    count = counts[fewest].astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean = sums[fewest] / count
    half = NORMAL_95 * loads.errors(count, np.full(len(flow_id), parameters.rows))
    unknown = np.full(len(flow_id), np.nan)
    reasons = [None if n else Reason.UNKNOWN_INSTANCE for n in count.tolist()]
    return FlowDelays(flow_id, mean, mean - half, mean + half, unknown, counts[fewest], count, unknown, reasons, "sds")
