"""Which packets of a point are measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.capture.flows.table import FlowWindows
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import MismatchError

WINDOWS = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)
PACKETS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40)


def windows_of(windows) -> FlowWindows:
    columns = [[low for low, _ in windows.values()], [high for _, high in windows.values()]]
    return FlowWindows(np.array(list(windows), np.uint64), *(np.array(c, np.int64) for c in columns))


@given(WINDOWS, PACKETS)
def test_packets_count_inside_their_flows_window(windows, packets) -> None:
    batch = PacketBatch.of([flow for flow, _ in packets], range(len(packets)), [time for _, time in packets])
    expected = [
        i for i, (flow, time) in enumerate(packets) if flow in windows and windows[flow][0] <= time <= windows[flow][1]
    ]
    assert windows_of(windows).select(batch).packet_id.tolist() == expected


def test_windows_without_bounds_hold_all_packets_of_their_flows() -> None:
    limits = np.iinfo(np.int64)
    unbounded = windows_of({1: (limits.min, limits.max), 2: (limits.min, limits.max)})
    assert unbounded.hold_all(np.array([1, 2], np.uint64))
    assert not unbounded.hold_all(np.array([1, 3], np.uint64))
    assert not windows_of({1: (0, limits.max)}).hold_all(np.array([1], np.uint64))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(MismatchError, match="2 flows, 1 starts"):
        FlowWindows(np.array([1, 2], np.uint64), np.array([0]), np.array([0]))
