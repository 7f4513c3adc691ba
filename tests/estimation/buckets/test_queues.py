"""Means of round trips through real queues (Lindley's recursion, no law that the decoder assumes) in few buckets."""

from __future__ import annotations

import tracemalloc

import numpy as np
from bench.round_trips import RoundTrips, queue_world

from sojourn.core.estimates import Estimate
from sojourn.estimation.buckets.queries import estimate_means_jointly
from sojourn.estimation.buckets.rtt import METHOD


def errors_and_coverage(world: RoundTrips, epochs: int) -> tuple[np.ndarray, list[bool], set[str]]:
    answers = estimate_means_jointly(world.recorded(epochs), world.ids, unit="ns")
    pairs = list(zip(answers, world.mean_ns, strict=True))
    errors = [abs(a.value / t - 1) if isinstance(a, Estimate) else 1.0 for a, t in pairs]
    known = [(a, t) for a, t in pairs if isinstance(a, Estimate)]
    return np.array(errors), [a.contains(t) for a, t in known], {a.method for a, _ in known}


def test_queues_that_drift_are_decoded_from_short_epochs_and_intervals_hold() -> None:
    """Three worlds of 50 flows: 35 % of them within 7 % in 16 epochs, 59 % in 160; 300 intervals, 95 % expected."""
    few, many, inside, methods = [], [], [], set()
    for seed in range(60, 63):
        world = queue_world(seed)
        for epochs, errors in ((16, few), (160, many)):
            found, covers, method = errors_and_coverage(world, epochs)
            errors.append(found)
            inside += covers
            methods |= method
    assert np.mean(np.array(many) <= 0.07) >= 0.5 > np.mean(np.array(few) <= 0.07)
    assert np.median(many) < 0.8 * np.median(few)
    assert np.mean(inside) >= 0.90
    assert methods == {METHOD}


def test_a_thousand_epochs_are_decoded_within_what_a_query_may_take() -> None:
    """As many as are planned for two minutes, each under a salt of its own; spread out together they took 196 MB."""
    world = queue_world(60, 20)
    arrays = world.recorded(1024)
    estimate_means_jointly(arrays[:16], world.ids, unit="ns")  # loads kernels
    tracemalloc.start()
    try:
        answers = estimate_means_jointly(arrays, world.ids, unit="ns")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(isinstance(answer, Estimate) for answer in answers)
    assert peak < 64e6
