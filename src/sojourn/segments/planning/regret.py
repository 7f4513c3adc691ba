"""The layout that a wrong guess harms least: predicted errors of layouts, and a minimax over plausible traffic.

A layout is made for traffic that is guessed: so many flows, so much loss, so many packets. What is right for one
traffic may be many times worse than necessary in another. Of the layouts that would be right for one of the
`plausible_cases` around the guess, `least_regret` takes the one whose *regret* (its predicted error over the least of
any) is least where it is largest; but only of those that are at most `PREMIUM` worse than the best if the guess is
right.

The laws of `predicted_errors` are fits of measured errors, off by a fifth, typically (docs/maths/auto.md).

Cost: O(layouts × cases), a millisecond for 45 of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray

# What is closer than that is close enough: no layout is worse elsewhere in order to be closer still.
CLOSE = 0.01
PREMIUM = 1.15
PLAUSIBLE_LOSS = 0.2  # more is lost only if somebody says so
# Flows of so many packets are those that errors are counted of; where flows are smaller on average, most packets are
# of the few that are as large. The typical one grows less than the mean does.
LARGE_FLOW, TYPICAL_FLOW, TYPICAL_POWER = 150, 200, 0.75
PRIOR = 0.48  # the error of answering with the mean of all, for means that differ by ten
LDS_ROWS = 4


class Case(NamedTuple):
    """A kind of traffic: flows, the share of packets that is lost, packets of a flow on average."""

    flows: float
    loss: float
    size: float


class Split(NamedTuple):
    """What a layout has of each kind of part: cells of whole flows, counters, slots of a sample; and how many counters
    a flow has."""

    cells: int = 0
    counters: int = 0
    sample: int = 0
    per_flow: int = 1


def plausible_cases(guess: Case, doubt: float) -> list[Case]:
    """The guess, then what else may be true: each number larger or smaller by the factor, the loss in steps of half
    of that."""
    ends, steps = (1.0, 1 / doubt, doubt), (1.0, 1 / doubt, doubt**-0.5, doubt**0.5, doubt)
    most = max(guess.loss, PLAUSIBLE_LOSS)
    return [
        Case(max(guess.flows * flows, 1.0), min(guess.loss * loss, most), max(guess.size * size, 1.0))
        for flows, loss, size in product(ends, steps, ends)
    ]


def least_regret(splits: Sequence[Split], cases: Sequence[Case]) -> int:
    """Which of the splits to take; the first case is the guess."""
    errors = predicted_errors(splits, cases)
    regret = errors / errors.min(axis=0)
    # Among splits of one worst regret, the one that is better on the whole.
    worst = regret.max(axis=1) + 0.1 * np.log(regret).mean(axis=1)
    return int(np.argmin(np.where(regret[:, 0] <= PREMIUM, worst, np.inf)))


def predicted_errors(splits: Sequence[Split], cases: Sequence[Case]) -> FloatArray:
    """A row per split, a column per case: the geometric mean of flows' errors, of which none counts below `CLOSE`."""
    exact, counters, sample, per_flow = np.array(splits, np.float64).T[:, :, None]
    flows, loss, size = np.array(cases, np.float64).T
    large = flows * np.minimum(1.0, size / LARGE_FLOW)
    lost = loss * TYPICAL_FLOW * np.maximum(size / LARGE_FLOW, 1.0) ** TYPICAL_POWER  # of a large flow
    spread = _spread_error(counters / large, per_flow, lost / per_flow, lost)
    drawn = _sample_error(sample / large, np.maximum(size, LARGE_FLOW))
    lossy: FloatArray = 1 / PRIOR**2 + 1 / spread**2 + 1 / drawn**2
    # Cells of whole flows tell nothing of a flow that lost packets.
    rows, none = np.full((1, 1), LDS_ROWS), np.zeros((1, 1))
    whole: FloatArray = lossy + 1 / _spread_error(exact / large, rows, none, lost) ** 2
    lossless = np.exp(-0.9 * lost**0.8)  # sizes differ: most lose less than the mean
    solved = lossless * _solved_share(exact / flows, loss * size)
    error: FloatArray = np.exp(
        solved * np.log(CLOSE)
        + (lossless - solved) * np.log(np.hypot(whole**-0.5, CLOSE))
        + (1 - lossless) * np.log(np.hypot(lossy**-0.5, CLOSE))
    )
    return error


def _solved_share(per_flow: FloatArray, lost: FloatArray) -> FloatArray:
    """The share of flows without loss that cells of whole flows know exactly: most from 1.25 cells per flow on, more
    where lossy flows spoil those of others."""
    needed = 1.25 * (1 + 0.25 * lost**0.6)
    solved: FloatArray = 1 / (1 + (needed / np.maximum(per_flow, 1e-9)) ** 8)
    return solved


def _spread_error(per_flow: FloatArray, used: FloatArray, own: FloatArray, lost: FloatArray) -> FloatArray:
    """What counters are off by: `per_flow` of them for each flow, which is in `used`, each with `own` of its losses.

    Losses of strangers, who lose as much, do less harm.
    """
    per_flow = np.maximum(per_flow, 1e-9)
    spoiled = (1 + 1.2 * own + 0.8 * own**1.5) * (1 + 0.085 * lost / per_flow)
    error: FloatArray = 0.02 * (used / per_flow) ** 0.5 * (1 + 1.4 / per_flow) * spoiled
    return error


def _sample_error(per_flow: FloatArray, size: FloatArray) -> FloatArray:
    """What a sample is off by that has so many packets per flow; groups share slots out evenly, so that a flow of
    less than usual size is known better than the mean."""
    per_flow = np.maximum(per_flow, 1e-9)
    error: FloatArray = 0.29 * np.sqrt(np.maximum(1 - per_flow / (0.5 * size), 1e-4) / per_flow)
    return error
