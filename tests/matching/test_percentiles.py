"""Percentiles against numpy's on the same delays, in worlds with tails, several modes, few values and wrong clocks."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import Int64Array
from sojourn.core.estimates import LEVELS
from sojourn.matching.consumers import MatchedColumns
from sojourn.matching.percentiles import RELATIVE_ERROR, FlowPercentiles, bounds_of, code_of

FLOWS = 300


def world(name: str, seed: int = 5) -> tuple[Int64Array, Int64Array]:
    """Flows of 1 to some thousand packets, and a delay for each packet."""
    chance = np.random.default_rng(seed)
    sizes = np.minimum(chance.zipf(1.5, FLOWS), 5000)
    flow = np.repeat(np.arange(FLOWS), sizes)
    chance.shuffle(flow)
    count = len(flow)
    delays = {
        "heavy tail": lambda: 1e6 * (1 + chance.pareto(1.1, count)),
        "two modes": lambda: np.where(chance.random(count) < 0.97, 2e5, 8e7) * chance.lognormal(0, 0.05, count),
        "quantised": lambda: 1000 * chance.integers(1, 6, count),
        "wrong clock": lambda: chance.normal(0, 1e6, count),
        "nanoseconds": lambda: chance.integers(0, 70, count),
        "constant": lambda: np.full(count, 12_345_678),
    }[name]()
    return flow, np.asarray(delays).astype(np.int64)


def counted(flow: Int64Array, delay_ns: Int64Array, batches: int = 7) -> FlowPercentiles:
    consumer = FlowPercentiles()
    for rows in np.array_split(np.arange(len(flow)), batches):
        consumer.take_matched(MatchedColumns(flow[rows], rows, rows, delay_ns[rows]))
    return consumer


WORLDS = ("heavy tail", "two modes", "quantised", "wrong clock", "nanoseconds", "constant")


@pytest.mark.parametrize("name", WORLDS)
def test_percentiles_are_numpys_within_the_stated_error(name: str) -> None:
    flow, delay_ns = world(name)
    consumer = counted(flow, delay_ns)
    columns = consumer.columns(np.arange(FLOWS))
    totals = consumer.totals(np.arange(FLOWS))
    for level, share in LEVELS.items():
        truth = np.array([np.quantile(delay_ns[flow == k], share) for k in range(FLOWS)])
        # Between a negative and a positive delay the errors of the two count, not that of their mean.
        span = np.array([np.abs(delay_ns[flow == k]).max() for k in range(FLOWS)])
        allowed = np.where((truth > 0) & (name != "wrong clock"), np.abs(truth), span) * RELATIVE_ERROR + 0.5
        assert (np.abs(columns[f"{level}_ns"] - truth) <= allowed).all()
        assert (columns[f"{level}_low_ns"] - 1e-6 * span <= truth).all()
        assert (truth <= columns[f"{level}_high_ns"] + 1e-6 * span).all()
        whole = np.quantile(delay_ns, share)
        assert totals[f"{level}_low_ns"] <= whole <= totals[f"{level}_high_ns"]


def test_answers_do_not_depend_on_batches_and_lie_between_the_extremes() -> None:
    flow, delay_ns = world("heavy tail")
    asked = np.array([3, 5, 250, 9999])
    whole, parts = counted(flow, delay_ns, 1).columns(asked), counted(flow, delay_ns, 400).columns(asked)
    for name, column in whole.items():
        np.testing.assert_array_equal(column, parts[name])
    assert np.isnan(whole["p50_ns"][3])
    assert whole["p999_ns"][0] <= delay_ns[flow == 3].max()
    assert whole["p50_low_ns"][0] >= delay_ns[flow == 3].min()


def test_some_flows_together_are_as_if_they_were_one() -> None:
    flow, delay_ns = world("two modes")
    asked = np.array([1, 2, 7, 500])
    totals = counted(flow, delay_ns).totals(asked)
    alone = counted(np.zeros(int(np.isin(flow, asked).sum()), np.int64), delay_ns[np.isin(flow, asked)]).columns(
        np.array([0])
    )
    assert totals == {name: column[0].item() for name, column in alone.items()}
    assert counted(flow, delay_ns).totals(np.array([500]))["p50_ns"] is None


def test_a_histogram_holds_every_packet_in_its_bucket() -> None:
    flow, delay_ns = world("wrong clock")
    buckets = counted(flow, delay_ns).histogram(np.array([4]))
    mine = np.sort(delay_ns[flow == 4])
    inside = np.searchsorted(mine, buckets["to_ns"], "right") - np.searchsorted(mine, buckets["from_ns"], "left")
    np.testing.assert_array_equal(inside, buckets["packets"])
    assert buckets["packets"].sum() == len(mine)


def test_buckets_follow_each_other_without_a_gap_and_are_narrow() -> None:
    places = np.concatenate([-(2 ** np.arange(40, 0, -1)), np.arange(-300, 300), 2 ** np.arange(1, 61)])
    least, largest = bounds_of(code_of(places))
    assert ((least <= places) & (places <= largest)).all()
    np.testing.assert_array_equal(code_of(largest + 1) > code_of(places), True)
    assert ((largest - least) / 2 <= RELATIVE_ERROR * np.maximum(np.abs(places), 1)).all()


def test_memory_grows_with_flows_and_not_with_packets() -> None:
    chance = np.random.default_rng(1)
    sizes = []
    for times in (1, 16):
        consumer = FlowPercentiles()
        for _ in range(times):
            flow = chance.integers(0, 1000, 50_000)
            delay_ns = (1e6 * chance.lognormal(0, 0.5, len(flow))).astype(np.int64)
            consumer.take_matched(MatchedColumns(flow, flow, flow, delay_ns))
        sizes.append(consumer.memory_bytes)
    assert sizes[1] <= 4 * sizes[0] <= 64 << 20
