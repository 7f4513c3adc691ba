"""How many cells an LDS needs, as its paper says: few flows may meet a large collision.

A flow has only *small collisions* in a cell when strangers bring at most x packets there. Flow sizes T being Pareto, a
stranger is that large with P = Pr[T > x], and with C cells in R rows, k per flow and row, n flows:

- all of the flow's R·k cells are hit with probability (n·k·R·P/C)^{R·k} = 1 − Q (§3.2; §3.1 is k = 1);
- for a wanted 1 − Q ≤ ε it is best to have R = max(1, −ln ε/k) rows, which needs C = e·n·P·(−ln ε) cells;
- a virtual LDA that has to survive L losses samples with k/L.

The approximation counts single large strangers only. At the optimum eight or so flows share a cell and many small ones
add up to a large one: large collisions are then two to four times as frequent as promised (docs/maths/sizing.md).

x = (wanted error) × (flow size): what strangers bring is then at most that share of the flow's packets. It bounds the
error only if strangers' means differ by no more than the flow's own mean.

Slips in the paper: Q(R) is printed with nP/CR where substituting C/R gives n·P·R/C (its q(z, R) has it right); 1/e is
given as 0.63; §4.2 says L/k for the sampling rate, while its experiments use k/L.

`fit_pareto` fits sizes by maximum likelihood as what they are, whole packets: Pr[T ≥ t] = (t/t_min)^−a.

Sanjuàs-Cuxart et al., "Sketching the Delay", §3 and §4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import ParameterError

CHI_SQUARE_95 = 3.841
KOLMOGOROV_95 = 1.358
LEAST_SHAPE, MOST_SHAPE = 1e-3, 50.0
STEPS = 80


@dataclass(frozen=True)
class ParetoFit:
    """Flow sizes as a Pareto law from `least` packets on; `distance` is Kolmogorov and Smirnov's."""

    shape: float
    low: float
    high: float
    least: int
    flows: int
    distance: float

    def tail(self, packets: float) -> float:
        """Pr[T > packets]."""
        return float(min(1.0, ((math.floor(packets) + 1) / self.least) ** -self.shape))

    @property
    def is_plausible(self) -> bool:
        """Whether so many flows of this law would often be as far from it as these (5 % test)."""
        return self.distance <= KOLMOGOROV_95 / math.sqrt(self.flows)


def fit_pareto(packets: Int64Array) -> ParetoFit:
    """The most likely shape with its 95 % likelihood interval; O(flows · log flows).

    >>> fit = fit_pareto(np.array([1] * 500 + [2] * 167 + [3] * 83 + [4] * 50 + [5] * 200))
    >>> fit.low < fit.shape < fit.high
    True
    """
    sizes, count = np.unique(packets[packets > 0], return_counts=True)
    if len(sizes) < 2:
        raise ParameterError(
            "a Pareto law needs flows of different sizes", where="lds sizing", action="give more flows"
        )
    least = int(sizes[0])

    def likelihood(shape: float) -> float:
        start = -shape * np.log(sizes / least)
        step = np.log(-np.expm1(-shape * np.log1p(1 / sizes)))
        return float(np.sum(count * (start + step)))

    shape = _highest(likelihood)
    limit = likelihood(shape) - CHI_SQUARE_95 / 2
    low = _crossing(likelihood, limit, inside=shape, outside=LEAST_SHAPE)
    high = _crossing(likelihood, limit, inside=shape, outside=MOST_SHAPE)
    flows = int(count.sum())
    above: FloatArray = 1 - np.cumsum(count) / flows
    distance = float(np.max(np.abs(above - ((sizes + 1) / least) ** -shape)))
    return ParetoFit(shape, low, high, least, flows, distance)


def _highest(function: Callable[[float], float]) -> float:
    """Where a single-peaked function is highest, by thirds."""
    low, high = LEAST_SHAPE, MOST_SHAPE
    for _ in range(STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (first, high) if function(first) < function(second) else (low, second)
    return (low + high) / 2


def _crossing(function: Callable[[float], float], level: float, *, inside: float, outside: float) -> float:
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if function(middle) > level else (inside, middle)
    return inside


@dataclass(frozen=True)
class LdsSizing:
    """Rows, columns and the probability Q of only small collisions."""

    rows: int
    columns: int
    spread: int
    small_collisions: float


def small_collisions(cells: float, *, flows: float, tail: float, rows: int, spread: int = 1) -> float:
    """Q(Rk) = 1 − (n·k·R·P/C)^{R·k}, 0 where the approximation has left its range.

    >>> round(small_collisions(500, flows=1000, tail=0.04375, rows=4), 4)
    0.985
    """
    return max(0.0, 1 - float(flows * spread * rows * tail / cells) ** (rows * spread))


def published_lds(flows: float, *, tail: float, miss: float, spread: int = 1) -> LdsSizing:
    """The fewest cells for which all but a share `miss` (ε) of large flows have only small collisions.

    >>> sizing = published_lds(1000, tail=0.04375, miss=0.015)
    >>> sizing.rows, sizing.columns, round(sizing.small_collisions, 4)
    (4, 126, 0.9855)
    """
    if not (flows >= 1 and 0 < tail <= 1 and 0 < miss < 1 and spread >= 1):
        raise ParameterError(
            f"{flows:g} flows, tail {tail:g}, miss {miss:g}, spread {spread}",
            where="lds sizing",
            action="give flows, and a tail and a miss between 0 and 1",
        )
    rows = max(1, round(-math.log(miss) / spread))
    cells = flows * spread * rows * tail * miss ** (-1 / (rows * spread))
    columns = max(1, spread, math.ceil(cells / rows - 1e-9))
    q = small_collisions(rows * columns, flows=flows, tail=tail, rows=rows, spread=spread)
    return LdsSizing(rows, columns, spread, q)
