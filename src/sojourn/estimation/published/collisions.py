"""How far a literal delay sketch can be off: the share of strangers in the cells it answered from.

A flow's answer is the mean of its chosen cells, so its error is φ · (mean of the strangers − mean of the
flow), φ = F/N the strangers' share. Neither is known, but the sketch shows how both are distributed:

- strangers load a cell as any cell of a row is loaded, and the answer comes from the least loaded of the flow's
  rows: before N is seen, F is the smallest of as many draws from the cells' loads. Sizes of flows are heavy-
  tailed, so that a flow of p packets has weight 1/p²: given N, the weight of F is P(F) · (N − F)⁻², and E[φ²] is
  a weighted mean over the loads below N;
- the mean of strangers together spreads as the means of cells do, with variance τ_c²; the mean of a flow of p packets
  with τ² + σ²/p, as the means of the less loaded half of the cells do, in which few flows meet: least squares of
  their squares on 1/N.

So the error's variance is E[φ²·(τ_c² + τ² + σ²/(N − F))].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import kernel

__all__ = ["RowLoads"]

LIGHT = 0.5
SUPPORT = 257


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
        support = np.quantile(loads, np.linspace(0, 1, min(SUPPORT, len(loads))), method="lower")
        sums, counts = delay_sum[usable].astype(np.float64), count[usable].astype(np.float64)
        if not len(counts):
            return cls(support, np.inf, np.inf, np.inf, np.inf)
        grand = sums.sum() / counts.sum()
        square = (sums / counts - grand) ** 2
        light = counts <= np.quantile(counts, LIGHT)
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
