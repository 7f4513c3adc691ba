"""How far a literal delay sketch can be off: the share of strangers in the cells it answered from.

A flow's answer is the mean of its chosen cells, so its error is φ · (mean of the strangers − mean of the
flow), φ the strangers' share. Neither is known, but the sketch shows how both are distributed:

- strangers load a cell as any cell of a row is loaded; the answer comes from the least loaded of the flow's
  rows, so the number F of strangers is the smallest of as many draws from the cells' loads, and
  E[φ²] = E[min(1, F/N)²] is a sum over the sorted loads;
- the means of flows (and of strangers together) spread as the means of cells do, with variance τ².

So the error's deviation is √(2·E[φ²])·τ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array

__all__ = ["RowLoads"]


@dataclass(frozen=True, eq=False)
class RowLoads:
    """The sorted loads of the cells of unsampled (or least sampled) rows, and the spread of cell means."""

    loads: FloatArray
    mean_spread: float
    delay_variance: float
    _tails: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loads: FloatArray, delay_sum: Int64Array, count: Int64Array, usable: BoolArray) -> RowLoads:
        """From the cells of the rows with the largest share; O(cells · log cells)."""
        sums, counts = delay_sum[usable].astype(np.float64), count[usable].astype(np.float64)
        if not len(counts):
            return cls(np.sort(loads), np.inf, np.inf)
        grand = sums.sum() / counts.sum()
        spread = float(np.sqrt(np.mean((sums / counts - grand) ** 2)))
        variance = float(np.mean((sums - grand * counts) ** 2 / counts))
        return cls(np.sort(loads), spread, variance)

    def error(self, *, load: float, rows: int) -> float:
        """The deviation, due to strangers, of an answer from a cell with this load, best of `rows`."""
        if load <= 0:
            return self.mean_spread
        survival, squares = self._tail(max(rows, 1))
        below = int(np.searchsorted(self.loads, load))
        share = squares[below] / load**2 + survival[below]
        return float(np.sqrt(2 * min(share, 1.0))) * self.mean_spread

    def _tail(self, rows: int) -> tuple[FloatArray, FloatArray]:
        """P(F ≥ i-th load) and E[F²; F below the i-th load] for the smallest F of `rows` draws."""
        if rows not in self._tails:
            size = len(self.loads)
            survival = (np.arange(size, -1, -1) / size) ** rows
            squares = np.concatenate([[0.0], np.cumsum((survival[:-1] - survival[1:]) * self.loads**2)])
            self._tails[rows] = (survival, squares)
        return self._tails[rows]
