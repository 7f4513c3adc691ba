"""The flow table counts as a dictionary would, grows, and keeps to its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_builders import ethernet, frames_of, ipv4, udp

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.flows.table import FlowTable
from sojourn.core.errors import ParameterError
from sojourn.core.keys import key_id

Columns = list[tuple[int, int, int]]


def update(table: FlowTable, rows: Columns) -> list[int]:
    """Feed (id, time, size) rows; the positions of new flows."""
    ids = np.array([row[0] for row in rows], np.uint64)
    times = np.array([row[1] for row in rows], np.int64)
    return table.update(ids, times, np.array([row[2] for row in rows], np.int64)).tolist()


def model(rows: Columns) -> dict[int, tuple[int, int, int, int]]:
    flows: dict[int, tuple[int, int, int, int]] = {}
    for number, time, size in rows:
        packets, total, first, last = flows.get(number, (0, 0, time, time))
        flows[number] = (packets + 1, total + size, min(first, time), max(last, time))
    return flows


def contents(table: FlowTable) -> dict[int, tuple[int, int, int, int]]:
    columns = (table.packets, table.bytes, table.first_ns, table.last_ns)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(table.ids.tolist(), values, strict=True))


rows = st.lists(
    st.tuples(st.integers(0, 9) | st.integers(0, 2**64 - 1), st.integers(-(2**60), 2**60), st.integers(0, 10**6)),
    max_size=60,
)


@given(chunks=st.lists(rows, max_size=4))
def test_counts_equal_a_dictionarys(chunks: list[Columns]) -> None:
    table = FlowTable()
    seen: dict[int, None] = {}
    for chunk in chunks:
        new = [chunk[at][0] for at in update(table, chunk)]
        fresh = dict.fromkeys(number for number, _, _ in chunk if number not in seen)
        assert new == list(fresh)
        seen |= fresh
    assert contents(table) == model([row for chunk in chunks for row in chunk])
    assert table.ids.tolist() == list(seen)


def test_it_grows_within_one_update_and_stays_linear() -> None:
    rng = np.random.default_rng(3)
    chunk = [(int(n), 1, 2) for n in rng.integers(0, 2**63, 30_000)]
    table = FlowTable()
    assert len(update(table, chunk + chunk)) == 30_000
    assert set(table.packets.tolist()) == {2}


def test_flows_beyond_the_bound_are_counted_apart() -> None:
    table = FlowTable(max_flows=3)
    update(table, [(n % 5, 0, 1) for n in range(20)])
    assert (len(table), table.packets.tolist(), table.overflow_packets) == (3, [4, 4, 4], 8)
    with pytest.raises(ParameterError):
        FlowTable(max_flows=0)


def test_every_flow_gives_back_its_key() -> None:
    frames = [ethernet(ipv4(udp(source=n // 3), source=f"10.0.{n // 300}.1")) for n in range(6000)]
    decoder = Decoder()
    for start in range(0, 6000, 1000):
        decoder.decode(frames_of(frames[start : start + 1000]))
    keys = decoder.flows.keys()
    assert len(keys) == 2000
    assert [key_id(key) for key in keys] == decoder.flows.ids.tolist()


def test_the_table_can_be_left_out() -> None:
    decoder = Decoder(DecodeOptions(flow_table=False))
    assert len(decoder.decode(frames_of([ethernet(ipv4(udp()))]))) == 1
    assert len(decoder.flows) == 0
