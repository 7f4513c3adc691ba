"""Sizes of flows in packets and bytes, and their losses, mined from an LDS (LDS §4.3).

Per row the flow's cells are added up, and the smallest sum answers, as in a count-min sketch: never less than the truth
(where a row takes every packet), more by the strangers F in the flow's cells.

Interval: before the answer N is seen, F is the smallest of as many draws as there are rows from the sums that a row's
cells show; sizes are heavy-tailed, a flow of p has weight 1/p² (losses: 1/(1 + l)²), so given N the weight of F is
P(F)/(N − F)². The upper end is N itself, the lower leaves out the most strangers that 95 % of that weight allow. Where
every row samples, the binomial error (Wilson's form) of the sample is added at both ends. Cost: O(cells · log cells +
flows · R · k).

Sanjuàs-Cuxart et al., "Sketching the Delay", §4.3; Cormode and Muthukrishnan, "An Improved Data Stream Summary" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.quantiles import NORMAL_95
from sojourn.sketches.lds import Lds, LdsParameters

__all__ = ["FlowSizes", "estimate_losses", "estimate_sizes"]

SUPPORT = 513
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
    held = sums[np.arange(len(rows)), first[:, rows]].min(axis=1)
    loads = np.quantile(sums, np.linspace(0, 1, min(SUPPORT, sums.size)), method="lower").astype(np.float64)
    survival = (np.arange(len(loads), -1, -1) / len(loads)) ** len(rows)
    strangers = _strangers(loads, survival[:-1] - survival[1:], held.astype(np.float64), least, LEVEL)
    weight = sketch.weights.of(flow_id) if weighted and sketch.weights is not None else 1
    unit = one * weight * (1 - share)
    middle = NORMAL_95**2 / 2 * unit
    low, high = (held + middle + sign * NORMAL_95 * np.sqrt(unit * held + middle**2 / 2) for sign in (-1, 1))
    low = np.clip(low - strangers, 0.0, held)
    return FlowSizes(flow_id, *(column / (share * weight) for column in (held.astype(np.float64), low, high)))


def _row_sums(parameters: LdsParameters, values: Int64Array) -> Int64Array:
    """For the rows that sample most: what a flow whose cells begin at a column would find in them."""
    shares = np.array(parameters.row_shares)
    matrix = values.reshape(parameters.rows, parameters.columns)[shares == shares.max()]
    longer = np.concatenate([matrix, matrix[:, : parameters.spread - 1]], axis=1)
    total = np.concatenate([np.zeros((len(matrix), 1), np.int64), np.cumsum(longer, axis=1)], axis=1)
    sums: Int64Array = total[:, parameters.spread :] - total[:, : -parameters.spread]
    return sums


@kernel
def _strangers(loads: FloatArray, probability: FloatArray, held: FloatArray, least: float, level: float) -> FloatArray:
    """The strangers that are exceeded with probability 1 − level, given what each flow's cells hold."""
    most = np.zeros(len(held))
    for i in range(len(held)):
        total = 0.0
        for j in range(len(loads)):
            if loads[j] > held[i] - least:
                break
            total += probability[j] / (held[i] - loads[j] + 1.0 - least) ** 2
        seen = 0.0
        most[i] = max(held[i] - least, 0.0) if total == 0.0 else 0.0
        for j in range(len(loads)):
            if loads[j] > held[i] - least or seen >= level * total:
                break
            seen += probability[j] / (held[i] - loads[j] + 1.0 - least) ** 2
            most[i] = loads[j]
    return most
