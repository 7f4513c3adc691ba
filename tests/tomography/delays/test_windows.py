"""Windows: every packet is kept once, and has its surroundings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError
from sojourn.tomography.delays.estimate import WindowOptions, windows


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=200),
    st.integers(1, 5_000),
    st.floats(0.5, 10),
    st.floats(0.1, 1),
)
def test_every_packet_is_kept_exactly_once_and_solved_where_it_is_kept(
    times: list[int], period: int, periods: float, ratio: float
) -> None:
    t0 = np.array(times, np.int64)
    found = list(windows(t0, period, WindowOptions(periods=periods, ratio=ratio)))
    kept = np.concatenate([window.kept for window in found])
    assert sorted(kept.tolist()) == list(range(len(t0)))
    for window in found:
        assert set(window.kept.tolist()) <= set(window.packets.tolist())


def test_what_is_kept_lies_in_the_middle() -> None:
    t0 = np.arange(0, 100_000, 10)
    found = list(windows(t0, 1_000, WindowOptions(periods=4, ratio=0.5)))
    inner = found[3]
    assert t0[inner.kept].min() - t0[inner.packets].min() == 1_000
    assert t0[inner.packets].max() - t0[inner.kept].max() == 1_000
    assert len(inner.kept) == len(inner.packets) // 2


def test_there_are_no_more_windows_than_packets_however_long_the_silence() -> None:
    t0 = np.array([0, 10, 10**18], np.int64)
    assert len(list(windows(t0, 10**10, WindowOptions()))) == 2
    assert len(list(windows(t0, 1, WindowOptions()))) == 3


@pytest.mark.parametrize("wrong", [{"periods": 0}, {"ratio": 0}, {"ratio": 1.5}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        WindowOptions(**wrong)
