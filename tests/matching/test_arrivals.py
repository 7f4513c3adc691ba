"""Jitter and reordering as packets come, against the definitions applied to the whole list of arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.matching.arrivals import FlowArrivals
from sojourn.matching.consumers import MatchedColumns

FLOWS = 40


def world(seed: int, *, spread_ns: float, loss: float, ties: bool = False) -> MatchedColumns:
    """Packets of many flows whose delays differ by so much, in order of arrival."""
    chance = np.random.default_rng(seed)
    count = 20_000
    flow = chance.integers(0, FLOWS, count)
    sent_ns = np.sort(chance.integers(0, 10**9, count))
    if ties:
        sent_ns = sent_ns // 10**6 * 10**6
    number = np.empty(count, np.int64)
    for k in range(FLOWS):
        number[flow == k] = np.arange((flow == k).sum())
    delay_ns = (1e6 + spread_ns * chance.exponential(1, count)).astype(np.int64)
    kept = chance.random(count) >= loss
    order = np.flatnonzero(kept)[np.argsort((sent_ns + delay_ns)[kept], kind="stable")]
    return MatchedColumns(flow[order], number[order], sent_ns[order], delay_ns[order])


def jitter_of(delay_ns: Int64Array) -> float:
    jitter = 0.0
    for before, after in zip(delay_ns[:-1].tolist(), delay_ns[1:].tolist(), strict=True):
        jitter += (abs(after - before) - jitter) / 16
    return jitter


def extents_of(number: Int64Array) -> list[int]:
    """RFC 4737 word for word: since the first arrival with a larger number."""
    extents = []
    for i in range(1, len(number)):
        larger = np.flatnonzero(number[:i] > number[i])
        if len(larger):
            extents.append(i - int(larger[0]))
    return extents


def taken(packets: MatchedColumns, batches: int, kept_runs: int = 1 << 12) -> FlowArrivals:
    consumer = FlowArrivals(kept_runs=kept_runs)
    for rows in np.array_split(np.arange(len(packets)), batches):
        parts = (column[rows] for column in (packets.flow, packets.number, packets.sent_ns, packets.delay_ns))
        consumer.take_matched(MatchedColumns(*parts))
    return consumer


@pytest.mark.parametrize(("spread_ns", "loss"), [(1e4, 0.0), (2e6, 0.2), (2e8, 0.2), (2e8, 0.0)])
def test_jitter_and_extents_are_those_of_the_definitions(spread_ns: float, loss: float) -> None:
    packets = world(3, spread_ns=spread_ns, loss=loss)
    consumer = taken(packets, 9)
    columns = consumer.columns(np.arange(FLOWS))
    truth: list[list[int]] = []
    jitters: FloatArray = np.zeros(FLOWS)
    for k in range(FLOWS):
        mine = packets.flow == k
        truth.append(extents_of(packets.number[mine]))
        jitters[k] = jitter_of(packets.delay_ns[mine])
    np.testing.assert_array_equal(columns["reordered"], [len(extents) for extents in truth])
    np.testing.assert_array_equal(columns["reorder_extent"], [max(extents, default=0) for extents in truth])
    np.testing.assert_allclose(columns["jitter_ns"], jitters)
    totals = consumer.totals(np.arange(FLOWS))
    assert totals["reordered"] == sum(map(len, truth))
    weights = np.bincount(packets.flow, minlength=FLOWS)
    assert totals["jitter_ns"] == pytest.approx((jitters * weights).sum() / weights.sum())


def test_batches_do_not_matter() -> None:
    packets = world(4, spread_ns=2e7, loss=0.1)
    whole, parts = (taken(packets, batches).columns(np.arange(FLOWS + 5)) for batches in (1, 700))
    for name, column in whole.items():
        np.testing.assert_array_equal(column, parts[name])
    assert np.isnan(whole["jitter_ns"][-1])


def test_packets_of_one_instant_are_in_order_whichever_comes_first() -> None:
    packets = world(5, spread_ns=1.0, loss=0.0, ties=True)
    shuffled = MatchedColumns(packets.flow, packets.number[::-1].copy(), packets.sent_ns * 0, packets.delay_ns)
    assert taken(shuffled, 3).totals(np.arange(FLOWS))["reordered"] == 0


def test_with_too_few_runs_kept_extents_are_lower_bounds_and_the_count_stays_exact() -> None:
    packets = world(6, spread_ns=2e8, loss=0.3)
    asked = np.arange(FLOWS)
    whole, few = (taken(packets, 3, kept_runs=runs).columns(asked) for runs in (1 << 12, 8))
    np.testing.assert_array_equal(whole["reordered"], few["reordered"])
    assert (few["reorder_extent"] <= whole["reorder_extent"]).all()
    assert (few["reorder_extent"] >= (few["reordered"] > 0)).all()
