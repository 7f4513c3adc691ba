"""Pairing kernels against plain-Python models."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.matching.pairing import (
    DUPLICATE,
    LEAST_MARGIN_NS,
    MATCHED,
    SLACK_NS,
    UNMATCHED,
    index_ids,
    pair_packets,
)

MS = 1_000_000
Copies = dict[int, list[tuple[int, int]]]


def copies_of(packets: list[tuple[int, int]]) -> Copies:
    """Per id, (time, row) of its copies, oldest first."""
    found: Copies = defaultdict(list)
    for row, (packet, time) in enumerate(packets):
        found[packet].append((time, row))
    return {packet: sorted(rows) for packet, rows in found.items()}


def model(
    sent: list[tuple[int, int]], got: list[tuple[int, int]], duplicate_ns: int
) -> tuple[dict[int, int], list[int], list[int]]:
    """The documented rules, packet by packet: receiver row → sender row, and both statuses."""
    pairs: dict[int, int] = {}
    statuses = [UNMATCHED] * len(sent), [UNMATCHED] * len(got)
    there, here = copies_of(sent), copies_of(got)
    singles = [here[p][0][0] - there[p][0][0] for p in there if len(there[p]) == 1 and len(here.get(p, [])) == 1]
    for packet in set(there) | set(here):
        copies = [there.get(packet, []), here.get(packet, [])]
        is_single = len(copies[0]) == len(copies[1]) == 1
        low, high = window(singles, is_single)
        kept = [drop_extra(copies[k], len(copies[1 - k]), duplicate_ns, status) for k, status in enumerate(statuses)]
        waiting, last = list(kept[0]), None
        for time, row in kept[1]:
            while waiting and time - waiting[0][0] > high:
                waiting.pop(0)
            if waiting and time - waiting[0][0] >= low:
                last = waiting.pop(0)
                pairs[row] = last[1]
                statuses[0][last[1]] = statuses[1][row] = MATCHED
            elif last is not None and time - last[0] <= high:
                statuses[1][row] = DUPLICATE
    return pairs, *statuses


def window(singles: list[int], is_single: bool) -> tuple[int, int]:
    if not singles:
        return -(1 << 62), 1 << 62
    low, high = min(singles), max(singles)  # fewer than 500: the central 99.8 % are all
    slack = max(SLACK_NS, high - low) if is_single else max(LEAST_MARGIN_NS, (high - low) // 2)
    return low - slack, high + slack


def drop_extra(
    copies: list[tuple[int, int]], others: int, duplicate_ns: int, status: list[int]
) -> list[tuple[int, int]]:
    excess = len(copies) - max(others, 1)
    kept: list[tuple[int, int]] = []
    for copy in copies:
        if kept and excess > 0 and copy[0] - kept[-1][0] <= duplicate_ns:
            status[copy[1]] = DUPLICATE
            excess -= 1
        else:
            kept.append(copy)
    return kept


def batch(packets: list[tuple[int, int]]) -> PacketBatch:
    return PacketBatch.of([0] * len(packets), np.array([p for p, _ in packets], np.uint64), [t for _, t in packets])


# Few ids and few times, so that copies, ties and impossible delays are common; ids use all their bits.
times = st.sampled_from([0, 1, 50, 100, 101, 5 * MS, 6 * MS, 7 * MS, 20 * MS, 90_000 * MS])
ids = st.sampled_from([0, 1, 2, 255, 256, 1 << 32, (1 << 64) - 1, 0x0123456789ABCDEF])
points = st.lists(st.tuples(ids, times), max_size=25)


@given(points, points, st.sampled_from([0, 100, MS]))
def test_pairs_equal_the_plain_model(sent: list, got: list, duplicate_ns: int) -> None:
    found = pair_packets(batch(sent), batch(got), duplicate_ns=duplicate_ns)
    pairs, sender_status, receiver_status = model(sent, got, duplicate_ns)
    assert dict(zip(found.receiver_row.tolist(), found.sender_row.tolist(), strict=True)) == pairs
    assert found.sender_status.tolist() == sender_status
    assert found.receiver_status.tolist() == receiver_status
    assert (np.diff(found.received_ns) >= 0).all()


@given(points, points)
def test_exchanging_the_points_exchanges_the_pairs(sent: list, got: list) -> None:
    ids_once = list(dict(sent).items()), list(dict(got).items())
    there = pair_packets(batch(ids_once[0]), batch(ids_once[1]))
    back = pair_packets(batch(ids_once[1]), batch(ids_once[0]))
    pairs = set(zip(there.sender_row.tolist(), there.receiver_row.tolist(), strict=True))
    assert pairs == set(zip(back.receiver_row.tolist(), back.sender_row.tolist(), strict=True))


def test_a_million_identical_packets_pair_in_linear_time() -> None:
    """A flood of one packet over and over would take hours in anything quadratic."""
    count = 1_000_000
    sent = np.arange(count, dtype=np.int64) * 1_000
    flood = PacketBatch.of(np.zeros(count, np.uint64), np.full(count, 7, np.uint64), sent[::-1])
    found = pair_packets(flood, PacketBatch.of(flood.flow_id, flood.packet_id, flood.time_ns + 300))
    assert len(found) == count
    assert (found.raw_delay_ns == 300).all()


def test_an_absurd_delay_is_not_a_match() -> None:
    count = 1_000
    sent = np.arange(count, dtype=np.int64) * MS
    got = sent + 5 * MS
    got[7] += 3_600_000 * MS
    numbers = np.arange(count)
    found = pair_packets(
        PacketBatch.of(np.zeros(count, np.int64), numbers, sent),
        PacketBatch.of(np.zeros(count, np.int64), numbers, got),
    )
    assert len(found) == count - 1
    assert found.sender_status[7] == found.receiver_status[7] == UNMATCHED


@pytest.mark.parametrize("distinct", [1, 1_023, 1_024, 1_025, 50_000])
def test_ids_are_numbered_in_order_of_appearance(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    pool = rng.integers(0, 1 << 64, distinct, dtype=np.uint64)
    column = pool[rng.integers(0, distinct, 60_000)]
    numbers, found = index_ids(column)
    assert found.tolist() == list(dict.fromkeys(column.tolist()))
    assert np.array_equal(found[numbers], column)


def test_lost_packets_that_are_the_same_as_others_that_arrived_are_counted() -> None:
    """Copies that a capture shows later than a mirror port would: 10 arrived once, 11 twice, 12 not at all."""
    late = 50_000_000
    sender = PacketBatch.of([1] * 6, [10, 10, 11, 11, 12, 12], [0, late, 10, late + 10, 20, late + 20])
    receiver = PacketBatch.of([1] * 3, [10, 11, 11], [1000, 1010, late + 1010])
    pairs = pair_packets(sender, receiver)
    assert pairs.raw_delay_ns.tolist() == [1000, 1000, 1000]
    assert (pairs.shared_ids, pairs.unpaired_copies) == (6, 1)
