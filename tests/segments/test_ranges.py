"""What is taken off delays before they are recorded: nothing that a few late packets could choose."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.segments.ranges import DelayRange, finer, surveyed_range
from sojourn.sketches.sample import MOST_SLOTS, SampleParameters

SECOND = 1_000_000_000


def delays(*seconds: float) -> np.ndarray:
    return (np.array(seconds) * SECOND).astype(np.int64)


def test_delays_in_range_have_no_base() -> None:
    assert surveyed_range(delays(0.1, 0.2, 9)) == DelayRange(longest_ns=9 * SECOND)


def test_one_late_packet_among_short_delays_chooses_no_base() -> None:
    """What is left would be negative for half of the flows, and flows ten times apart could not be told as such."""
    found = surveyed_range(delays(0.001, 0.002, 0.02, 30))
    assert found.base_ns == 0
    assert found.spread_ns >= 30 * SECOND


def test_delays_that_are_all_long_are_told_from_the_shortest() -> None:
    found = surveyed_range(delays(100, 100.5, 101, 140))
    assert found.base_ns == 100 * SECOND
    assert found.spread_ns >= 40 * SECOND
    assert surveyed_range(delays(-40, -39, -38)).base_ns == -40 * SECOND


def test_delays_that_are_far_apart_on_both_sides_are_centred() -> None:
    assert surveyed_range(delays(-3000, 5, 3000)).base_ns == 5 * SECOND


@pytest.mark.parametrize("slots", [MOST_SLOTS, MOST_SLOTS - 100])
def test_a_sample_of_short_delays_grows_no_further_than_samples_do(slots: int) -> None:
    fitted = finer(SampleParameters(slots=slots, groups=1 << 18), 1_000_000)
    assert isinstance(fitted, SampleParameters)
    assert fitted.slots == MOST_SLOTS
    assert fitted.time_bits < 40
