"""What estimators have in common that learn from the flows at hand: from how many, on which grid, beside which prior.

A distribution of flows is a mixture of components on a grid, whose weights maximise the likelihood of what was observed
(expectation maximisation). Why these constants have their values: docs/maths/constants.md.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array

# Flows to learn from: more tell no more.
LEARN_FLOWS = 2_000
# Flows' worth of weight on what a distribution began with: a few flows must not rule out what they do not show.
KEPT_FLOWS = 1.0
# Of a component, in steps of the grid: neighbours overlap so that sums of them are smooth.
WIDTH = 0.6
# γ of σ² ∝ mean^γ: packets that vary alike, as Poisson's do, or by a factor.
POWERS = (0.0, 1.0, 2.0)
# Sizes of flows: every integer up to here, then geometric steps.
INTEGERS, RATIO = 8, 1.35
# Edges of the classes of sizes, in packets.
SIZE_CLASSES = (10, 100, 1_000, 10_000)


def classes_of(size: FloatArray) -> Int64Array:
    """The class of each size."""
    return np.searchsorted(SIZE_CLASSES, size, side="right")


def learning_rows(flows: int) -> Int64Array:
    """Some of so many flows, in order; all of them up to `LEARN_FLOWS`."""
    if flows <= LEARN_FLOWS:
        return np.arange(flows)
    return np.sort(np.random.default_rng(0).choice(flows, LEARN_FLOWS, replace=False))
