"""The picture of a capture: columns of time and classes of delays, however packets come in batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import Int64Array
from sojourn.matching.consumers import LostColumns, MatchedColumns
from sojourn.matching.over_time.timeline import CLASSES, COLUMNS, Timeline, TimelineTotals

START = 1_794_712_577 * 10**9
MS = 10**6


def match_of(received: int, lost: int) -> Any:
    """What `TimelineTotals` asks of a match."""
    return SimpleNamespace(aggregate=SimpleNamespace(received=received, lost=lost))


def fed(flow: Int64Array, sent_ns: Int64Array, delay_ns: Int64Array, cuts: list[int]) -> TimelineTotals:
    totals = TimelineTotals()
    for rows in np.split(np.arange(len(flow)), sorted(cuts)):
        totals.take_matched(MatchedColumns(flow[rows], flow[rows], sent_ns[rows], delay_ns[rows]))
    return totals


def same(one: Timeline, other: Timeline) -> bool:
    mine, theirs = one.columns(), other.columns()
    return one.width_ns == other.width_ns and all(
        np.allclose(mine[name], theirs[name], rtol=1e-12, equal_nan=True) for name in mine
    )


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_a_column_has_the_packets_that_were_sent_in_it_whatever_the_batches(
    packets: list[tuple[int, int]], cuts: list[int]
) -> None:
    sent, delay = (np.array([START + at for at, _ in packets]), np.array([length for _, length in packets]))
    flow = np.arange(len(packets)) % 3
    found = fed(flow, sent, delay, cuts).timeline(match_of(len(packets), 0))
    assert found is not None
    assert same(found, fed(flow, sent, delay, []).timeline(match_of(len(packets), 0)))  # type: ignore[arg-type]
    assert len(found.start_ns) <= COLUMNS
    assert len(found.edges_ns) - 1 <= CLASSES
    for start, received, mean, row in zip(
        found.start_ns, found.received, found.delays["mean_ns"], found.packets, strict=True
    ):
        own = delay[(sent >= start) & (sent < start + found.width_ns)]
        assert received == len(own)
        assert not len(own) or mean == pytest.approx(own.mean(), rel=1e-12)
        assert row.tolist() == np.histogram(own, found.edges_ns)[0].tolist()
        # The histogram's last class has its right edge, too; ours has no packet there.
        assert not (own >= found.edges_ns[-1]).any()


def test_percentiles_are_within_a_bucket() -> None:
    delay = np.random.default_rng(3).lognormal(16, 1, 5000).astype(np.int64)
    found = fed(np.zeros(5000, np.int64), np.full(5000, START), delay, []).timeline(match_of(5000, 0))
    assert found is not None
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        true = np.quantile(delay, share)
        assert found.delays[f"{name}_ns"][0] == pytest.approx(true, rel=1 / 128)
        assert found.delays[f"{name}_low_ns"][0] <= true <= found.delays[f"{name}_high_ns"][0]


def test_packets_of_the_other_way_are_kept_apart() -> None:
    flow, sent = np.array([0, 1, 0, 1]), START + np.arange(4) * MS
    totals = fed(flow, sent, np.array([5, -7, -1, -9]) * MS, [])  # one of flow 0 by a clock that errs
    ahead = totals.timeline(match_of(2, 0))
    assert ahead is not None
    assert ahead.received.sum() == 2
    assert totals.timeline(match_of(3, 0)) is None


def test_losses_are_counted_when_they_were_sent_and_left_open_where_they_are_not_all() -> None:
    totals = fed(np.array([0, 1]), START + np.array([0, 9]) * MS, np.array([MS, -MS]), [])
    lost = np.array([0, 1, 2]), np.zeros(3, np.int64), START + np.array([1, 2, 300]) * MS
    totals.take_lost(LostColumns(*lost))
    found = totals.timeline(match_of(1, 2))
    assert found is not None
    assert found.lost is not None
    assert [(start - START) // MS for start in found.start_ns[found.lost > 0]] == [0, 300]
    assert found.columns()["sent"].sum() == 3
    assert "sent" not in totals.timeline(match_of(1, 7)).columns()  # type: ignore[union-attr]


def test_nothing_received_is_no_picture() -> None:
    assert TimelineTotals().timeline(match_of(0, 0)) is None


def test_packets_that_come_late_and_were_sent_earlier_have_their_place() -> None:
    sent = START + np.array([0, -5000, 40_000, -60_000]) * MS
    delay = np.array([1, 2, 3, 4]) * MS
    found = fed(np.zeros(4, np.int64), sent, delay, [1, 2, 3]).timeline(match_of(4, 0))
    assert found is not None
    assert found.width_ns == 512 * MS
    assert found.received.sum() == 4
