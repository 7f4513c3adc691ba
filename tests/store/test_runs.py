"""Answered runs: what they hold for the clocks is read evenly, and the latest is the one that was answered last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sojourn.store.epochs import open_store
from sojourn.store.runs import Pair, RunRow, RunStore


def run(number: int) -> RunRow:
    """A run of a second, which its clock's bytes name."""
    return RunRow(
        start_ns=number,
        end_ns=number + 1,
        follows=number > 0,
        sent=1,
        received=1,
        flows=1,
        size_bytes=1,
        lost=0,
        raw_mean_ns=1.0,
        least_raw_ns=1,
        raw_p99_ns=1.0,
        clock=str(number).encode(),
        data=b"",
        reason="it took too long" if number % 10 == 9 else None,
    )


@pytest.mark.parametrize(("most", "every"), [(90, 1), (89, 2), (30, 3), (10, 9)])
def test_of_more_clocks_than_are_wanted_every_nth_is_read(tmp_path: Path, most: int, every: int) -> None:
    store = open_store(tmp_path)
    runs = RunStore(store)
    (pair,) = runs.pairs([Pair(from_node="a", from_stream="s", to_node="b", to_stream="r")])
    runs.add(pair.number, [run(number) for number in range(100)], until=(100, 100), now_ns=0)
    answered = [number for number in range(100) if number % 10 != 9]
    found = runs.clocks([pair.number], 0, 100, most=most)
    assert [int(one) for one in found] == answered[every - 1 :: every]
    assert len(found) <= most
    store.close()


def test_the_last_run_is_the_one_that_was_answered_last_whatever_the_sender_s_clock_said(tmp_path: Path) -> None:
    """It was set back by an hour after the fifth."""
    store = open_store(tmp_path)
    runs = RunStore(store)
    (pair,) = runs.pairs([Pair(from_node="a", from_stream="s", to_node="b", to_stream="r")])
    starts = [number + 3_600 * 10**9 * (number < 5) for number in range(8)]
    rows = [replace(run(number), start_ns=at, end_ns=at + 1) for number, at in enumerate(starts)]
    runs.add(pair.number, rows, until=(8, 8), now_ns=0)
    assert [one.clock for one in runs.latest(pair.number, limit=4)] == [b"7", b"6", b"5", b"4"]
    last = runs.last(pair.number)
    assert last is not None
    assert last.clock == b"7"
    store.close()
