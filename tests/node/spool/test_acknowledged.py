"""What was acknowledged is known after a restart, back to the last gap, and not a number more."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from query_unit import make_epoch

from sojourn.node.spool.acknowledged import joined
from sojourn.node.spool.spool import Spool


def opened(directory: Path) -> Spool:
    return Spool(directory, limit_bytes=1 << 20)


def acknowledge(spool: Spool, *numbers: int) -> None:
    for number in numbers:
        spool.put(make_epoch(number, stream="disk", time_ns=number + 1))
    entries = spool.oldest(len(numbers), most_bytes=1 << 20)
    assert [entry.sequence for entry in entries] == sorted(numbers)
    spool.acknowledge(spool.mark_sent(entries))


def test_numbers_without_a_gap_are_remembered_across_restarts(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    assert spool.acknowledged("disk") is None
    acknowledge(spool, 3, 4, 5)
    assert spool.acknowledged("disk") == (3, 5)
    assert spool.acknowledged("other") is None
    spool.close()
    spool = opened(tmp_path)
    acknowledge(spool, 6)
    assert spool.acknowledged("disk") == (3, 6), "what was there is not overwritten, asked for or not"
    acknowledge(spool, 9, 10)
    assert spool.acknowledged("disk") == (9, 10), "7 and 8 may never have been sent"
    spool.close()
    assert opened(tmp_path).acknowledged("disk") == (9, 10)


def test_what_is_given_up_was_not_acknowledged(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(make_epoch(0, stream="disk"))
    assert spool.give_up_oldest() == 1
    assert spool.acknowledged("disk") is None
    spool.close()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_joined_numbers_were_all_acknowledged(numbers: list[int]) -> None:
    span = None
    for number in numbers:
        span = joined(span, (number, number))
    assert span is not None
    assert set(range(span[0], span[1] + 1)) <= set(numbers)
    assert span[1] == max(numbers)
