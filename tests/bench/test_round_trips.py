"""Oracles of round trips are best linear estimators: as dense solutions have them, and better the more they know."""

from __future__ import annotations

import numpy as np
import pytest
from bench.round_trips import ORACLES, RoundTrips, Variation, best_linear, queue_world, table, variation_of

EPOCHS, BUCKETS, FLOWS = 4, 3, 5


def dense(sums: np.ndarray, counted: np.ndarray, known: Variation) -> np.ndarray:
    """By the covariance of all sums and of what each flow's packets add up to, at once."""
    epochs, buckets, flows = counted.shape
    deviation = np.sqrt(known.drift)
    drift = deviation[:, None] * known.together * deviation
    lag = np.abs(np.subtract.outer(np.arange(epochs), np.arange(epochs)))
    # Unknown: each epoch's mean of each flow.
    of_means = known.between * np.kron(np.ones((epochs, epochs)), np.eye(flows))
    of_means += np.kron(known.lasting**lag, drift)
    to_sums = np.zeros((epochs * buckets, epochs * flows))
    to_total = np.zeros((flows, epochs * flows))
    noise, shared = np.zeros(epochs * buckets), np.zeros((flows, epochs * buckets))
    for e in range(epochs):
        place, unknown = slice(e * buckets, (e + 1) * buckets), slice(e * flows, (e + 1) * flows)
        to_sums[place, unknown] = counted[e]
        to_total[:, unknown] = np.diag(counted[e].sum(axis=0))
        noise[place] = counted[e] @ known.packets + 1.0
        shared[:, place] = (counted[e] * known.packets).T
    around = to_sums @ of_means @ to_sums.T + np.diag(noise)
    across = to_total @ of_means @ to_sums.T + shared
    total = counted.sum(axis=(0, 1))
    excess = sums.ravel() - known.centre * counted.sum(axis=2).ravel()
    found: np.ndarray = known.centre + np.linalg.solve(around, across.T).T @ excess / total
    return found


@pytest.mark.parametrize("lasting", [0.0, 0.7])
def test_the_filter_is_the_dense_solution(lasting: float) -> None:
    random = np.random.default_rng(3)
    counted = random.poisson(4.0, (EPOCHS, BUCKETS, FLOWS)).astype(float)
    together = np.where(np.arange(FLOWS)[:, None] % 2 == np.arange(FLOWS) % 2, 0.9, 0.0) + 0.1 * np.eye(FLOWS)
    known = Variation(10.0, 9.0, random.uniform(1, 3, FLOWS), random.uniform(1, 5, FLOWS), lasting, together)
    sums = counted.sum(axis=2) * 10.0 + random.normal(0, 20, (EPOCHS, BUCKETS))
    assert best_linear(sums, counted, known)[0] == pytest.approx(dense(sums, counted, known), rel=1e-9)


def test_an_oracle_that_is_told_more_is_no_further_off_and_knows_it() -> None:
    """Told which flows share a queue, half as far off: of 50 flows in simulated queues, 20 s in 20 epochs."""
    trips = queue_world(7, 20)
    arrays, counted = trips.recorded(20), trips.counted(20)
    sums = np.array([array.column("sum") for array in arrays], float)
    assert (counted.sum(axis=2) == [array.column("count") for array in arrays]).all()
    errors, claims = {}, {}
    for oracle in ORACLES:
        value, deviation = best_linear(sums, counted, variation_of(trips, 20, oracle))
        errors[oracle] = float(np.median(np.abs(value / trips.mean_ns - 1)))
        claims[oracle] = float(np.mean(np.abs(value - trips.mean_ns) < 2 * deviation))
    assert errors["of queues"] < 0.7 * errors["scales"]
    assert claims["of each flow"] > 0.85


def test_epochs_hold_every_round_trip_once() -> None:
    trips = queue_world(8, 5)
    assert isinstance(trips, RoundTrips)
    recorded = trips.recorded(7)
    assert sum(int(array.column("sum").sum()) for array in recorded) == int(trips.trip_ns.sum())


def test_the_table_has_what_decoding_takes_beside_how_close_it_comes() -> None:
    lines = list(table(queue_world(9, 10), [8], [0]))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(line) for line in cells} == {4 + len(ORACLES)}
    assert cells[0][3] == "seconds"
    assert 0 < float(cells[2][3]) < 10
