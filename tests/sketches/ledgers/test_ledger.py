"""The ledger: the newest packets are there, the oldest are forgotten, and it is known which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.sketches.ledgers.ledger import BLOCK, Ledger


def packets(first: int, count: int) -> PacketBatch:
    ids = np.arange(first, first + count)
    return PacketBatch(ids.astype(np.uint64) % 7, ids.astype(np.uint64), 10 * ids, np.zeros(count, np.int64))


def test_a_stretch_of_time_is_answered_in_full() -> None:
    ledger = Ledger(2 * BLOCK)
    ledger.append(packets(0, 6000))
    found = ledger.between(1000, 40_000)
    assert found is not None
    assert found.packet_id.tolist() == list(range(100, 4001))
    assert found.flow_id.tolist() == [i % 7 for i in range(100, 4001)]


@given(st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=8))
@settings(deadline=None)
def test_the_newest_are_held_and_the_forgotten_are_refused(sizes: list[int]) -> None:
    ledger, total = Ledger(2 * BLOCK), 0
    for size in sizes:
        ledger.append(packets(total, size))
        total += size
    assert min(total, BLOCK + 1) <= ledger.held <= min(total, 2 * BLOCK)
    oldest = total - ledger.held
    assert ledger.forgotten_ns == (10 * (oldest - 1) if oldest else -(2**63))
    found = ledger.between(10 * oldest, 10 * total)
    assert found is not None
    assert found.packet_id.tolist() == list(range(oldest, total))
    if oldest:
        assert ledger.between(10 * (oldest - 1), 10 * total) is None


def test_ten_times_the_rate_takes_no_more_memory() -> None:
    ledger = Ledger(10_000)
    before = ledger.memory_bytes
    for start in range(0, 200_000, 10_000):
        ledger.append(packets(start, 10_000))
    assert ledger.memory_bytes == before
    assert ledger.between(0, 100) is None
    newest = ledger.between(10 * 195_000, 10 * 200_000)
    assert newest is not None
    assert len(newest) == 5000


def test_packets_out_of_order_are_found_by_their_times() -> None:
    ledger = Ledger(4 * BLOCK)
    mixed = packets(0, 3 * BLOCK).select(np.random.default_rng(1).permutation(3 * BLOCK))
    ledger.append(mixed)
    found = ledger.between(500, 50_000)
    assert found is not None
    assert sorted(found.packet_id.tolist()) == list(range(50, 5001))


def test_no_ledger_has_no_packets_or_too_many() -> None:
    for packets_ in (0, 2**40):
        with pytest.raises(ParameterError, match="packets"):
            Ledger(packets_)
