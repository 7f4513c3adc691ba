"""How far a literal delay sketch can be off: the share of strangers in the cells it answered from.

A flow's answer is the mean of its chosen cells, so its error is φ · (mean of the strangers − mean of the
flow), φ = F/N the strangers' share. Neither is known, but the sketch shows how both are distributed:

- strangers load a cell as any cell of a row is loaded, and the answer comes from the least loaded of the flow's
  rows: before N is seen, F is the smallest of as many draws from the cells' loads. Sizes of flows are heavy-
  tailed, so that a flow of p packets has weight 1/p²: given N, the weight of F is P(F) · (N − F)⁻², and E[φ²] is
  a weighted mean over the loads below N;
- the mean of strangers together spreads as the means of cells do, with variance τ_c²; the mean of a flow as the
  means of the least loaded quarter of the cells, in which one flow is alone or nearly so, τ_f².

So the error's variance is E[φ²]·(τ_f² + τ_c²).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array

__all__ = ["RowLoads"]

LIGHT = 0.25
SUPPORT = 257


@dataclass(frozen=True, eq=False)
class RowLoads:
    """How loaded cells are, and how far flows and strangers spread, √(τ_f² + τ_c²).

    ``loads`` are quantiles of the cells' loads, at most `SUPPORT`, evenly spaced from the lightest to the heaviest.
    """

    loads: FloatArray
    mean_spread: float
    delay_variance: float
    _weights: dict[int, FloatArray] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loads: FloatArray, delay_sum: Int64Array, count: Int64Array, usable: BoolArray) -> RowLoads:
        """From the cells of the rows with the largest share; O(cells · log cells)."""
        support = np.quantile(loads, np.linspace(0, 1, min(SUPPORT, len(loads))), method="lower")
        sums, counts = delay_sum[usable].astype(np.float64), count[usable].astype(np.float64)
        if not len(counts):
            return cls(support, np.inf, np.inf)
        grand = sums.sum() / counts.sum()
        square = (sums / counts - grand) ** 2
        light = counts <= np.quantile(counts, LIGHT)
        spread = float(np.sqrt(np.mean(square) + np.mean(square[light])))
        variance = float(np.mean((sums - grand * counts) ** 2 / counts))
        return cls(support, spread, variance)

    def error(self, *, load: float, rows: int) -> float:
        """The deviation, due to strangers, of an answer from a cell with this load, best of `rows`."""
        strangers = self.loads[self.loads <= load - 1]
        if not len(strangers):
            return self.mean_spread if self.loads[0] > 0 else 0.0
        weight = self._weight(max(rows, 1))[: len(strangers)] / (load - strangers) ** 2
        share = float(np.sum(weight * (strangers / load) ** 2) / weight.sum())
        return float(np.sqrt(share)) * self.mean_spread

    def _weight(self, rows: int) -> FloatArray:
        """The probability of each load to be the smallest of `rows` draws."""
        if rows not in self._weights:
            survival = (np.arange(len(self.loads), -1, -1) / len(self.loads)) ** rows
            self._weights[rows] = survival[:-1] - survival[1:]
        return self._weights[rows]
