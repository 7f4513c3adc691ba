"""Cells and samples together: each flow is answered by whichever knows more about it.

A few cells per flow (LDS, decoded jointly) give every flow's size and loss exactly and, where nothing was lost, its
delay exactly. A flow that lost packets has spoiled all its cells: it is answered from the coordinated sample. Where
both answer, the narrower interval wins.

A sampled mean m with error s is then drawn towards the mean M of its like, as far as flows are alike: with τ² the
variance of the flows' means beyond their errors, (m/s² + M/τ²)/(1/s² + 1/τ²) with variance 1/(1/s² + 1/τ²), plus what
M is uncertain by, plus Morris' term for the guess of τ², (1 − B)²·2/(n − 3)·(m − M)² with B = τ²/(τ² + s²). Flows that
differ (τ large) keep their own mean.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.quantiles import NORMAL_95, student_95

__all__ = ["combine", "drawn_together"]

LEAST_FLOWS = 8
TAU_ROUNDS = 30


def combine(cells: FlowDelays, samples: FlowDelays) -> FlowDelays:
    """The better answer for every flow; sizes and losses come from the cells."""
    alike = drawn_together(samples)
    with np.errstate(invalid="ignore"):
        narrower = ~(alike.high_ns - alike.low_ns < cells.high_ns - cells.low_ns)
    use_cells = cells.answered & (narrower | ~alike.answered)
    reasons = [
        None if by_cells or sample is None else cell if cell is not None else sample
        for by_cells, cell, sample in zip(use_cells.tolist(), cells.reason, alike.reason, strict=True)
    ]
    methods = [
        cell if by_cells else sample
        for by_cells, cell, sample in zip(use_cells.tolist(), cells.method_of_flow, alike.method_of_flow, strict=True)
    ]
    columns = {
        name: np.where(use_cells, getattr(cells, name), getattr(alike, name))
        for name in ("mean_ns", "low_ns", "high_ns", "std_ns", "samples")
    }
    return FlowDelays(
        cells.flow_id, **columns, packets=cells.packets, lost=cells.lost, reason=reasons, method="auto", methods=methods
    )


def drawn_together(samples: FlowDelays) -> FlowDelays:
    """The sampled means, each drawn towards the common mean as far as the flows are alike."""
    error = (samples.high_ns - samples.low_ns) / (2 * NORMAL_95)
    with np.errstate(invalid="ignore"):
        uncertain: BoolArray = samples.answered & np.isfinite(error) & (error > 0)
    if uncertain.sum() < LEAST_FLOWS:
        return samples
    mean, square = samples.mean_ns[uncertain], error[uncertain] ** 2
    tau_square = _between_flows(mean, square)
    weight = 1 / (square + tau_square)
    common = float(np.sum(weight * mean) / weight.sum())
    kept = tau_square / (tau_square + square)
    drawn = common + kept * (mean - common)
    moved = (1 - kept) ** 2
    guess = 2 / (len(mean) - 3) * (mean - common) ** 2
    half = student_95(len(mean) - 1) * np.sqrt(kept * square + moved * (1 / weight.sum() + guess))
    columns = {name: getattr(samples, name).copy() for name in ("mean_ns", "low_ns", "high_ns")}
    columns["mean_ns"][uncertain] = drawn
    columns["low_ns"][uncertain] = drawn - half
    columns["high_ns"][uncertain] = drawn + half
    rest = {name: getattr(samples, name) for name in ("flow_id", "std_ns", "samples", "packets", "lost", "reason")}
    return FlowDelays(**rest, **columns, method=samples.method, methods=samples.methods)


def _between_flows(mean: FloatArray, square: FloatArray) -> float:
    """τ²: the variance of the flows' true means, by the equation of Paule and Mandel (bisection)."""
    low, high = 0.0, float(np.var(mean)) * 4 + 1.0
    if _excess(mean, square, low) <= 0:
        return 1e-9 * high
    for _ in range(TAU_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(mean, square, middle) > 0 else (low, middle)
    return (low + high) / 2


def _excess(mean: FloatArray, square: FloatArray, tau_square: float) -> float:
    weight = 1 / (square + tau_square)
    common = np.sum(weight * mean) / weight.sum()
    return float(np.sum(weight * (mean - common) ** 2)) - (len(mean) - 1)
