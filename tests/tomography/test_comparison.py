"""Baselines against the truth: the same figures as their own evaluations, in the order that is known of them."""

from __future__ import annotations

from collection_worlds import simulated
from sojourn.tomography.bounds.constraints import ConstraintOptions
from sojourn.tomography.comparison import evaluate, evaluate_baselines, published, published_bounds
from sojourn.tomography.delays.estimate import WindowOptions


def test_figures_are_those_of_the_baselines_themselves() -> None:
    trace, truth = simulated(60, 47)
    figures = evaluate_baselines(trace, truth, ConstraintOptions(), WindowOptions())
    bounds = published_bounds(trace)
    expected = evaluate(trace, bounds, published(trace, bounds).arrival_ns, truth)
    assert figures["published_mae_ms"] == expected.mae_ms
    assert figures["published_displacement"] == expected.displacement < figures["tracing_displacement"]


def test_the_window_reaches_the_published_method() -> None:
    trace, truth = simulated(100, 48)
    usual, short = (
        evaluate_baselines(trace, truth, ConstraintOptions(), WindowOptions(periods=periods))["published_mae_ms"]
        for periods in (4.0, 0.7)
    )
    assert usual < short
