"""What answered runs hold for the clocks is read evenly, however many there are."""

from __future__ import annotations

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
