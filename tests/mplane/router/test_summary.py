"""Intervals put together give what one measurement of all their packets would."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.mplane.router.epochs import summarise


def measured(
    interval: int, delays: np.ndarray, *, lost: int = 0, dscp: int = 0, half: float = 0.0
) -> SegmentMeasurement:
    mean = float(delays.mean())
    return SegmentMeasurement(
        segment=Segment.inside("a", "r", "b"), dscp=dscp, interval=interval, start_ns=interval, end_ns=interval + 1,
        packets=len(delays) + lost, lost=lost, mean_ns=mean, low_ns=mean - half, high_ns=mean + half,
        std_ns=float(delays.std()), method="lda",
    )  # fmt: skip


def void(interval: int, why: str, *, packets: int = 5) -> SegmentMeasurement:
    return SegmentMeasurement(
        segment=Segment.inside("a", "r", "b"), dscp=0, interval=interval, start_ns=interval, end_ns=interval + 1,
        packets=packets, lost=0, mean_ns=None, low_ns=None, high_ns=None, std_ns=None, method="lda", void=why,
    )  # fmt: skip


def test_a_summary_is_that_of_all_packets() -> None:
    random = np.random.default_rng(2)
    parts = [random.exponential(1000 * (i + 1), 50 * (i + 1)) for i in range(4)]
    (found,) = summarise(measured(i, part, lost=i, half=3.0) for i, part in enumerate(parts))
    whole = np.concatenate(parts)
    assert (found.intervals, found.packets, found.lost) == (4, len(whole) + 6, 6)
    assert found.mean_ns == pytest.approx(whole.mean())
    assert found.std_ns == pytest.approx(whole.std())
    assert found.low_ns is not None
    weights = np.array([len(part) for part in parts]) / len(whole)
    assert found.mean_ns - found.low_ns == pytest.approx(3.0 * np.sqrt((weights**2).sum()))


def test_void_intervals_are_counted_by_reason_and_left_out() -> None:
    delays = np.array([1.0, 3.0])
    group = [measured(0, delays), void(1, "start lost"), void(2, "end lost"), void(3, "start lost")]
    (found,) = summarise(group)
    assert (found.intervals, found.packets, found.mean_ns) == (4, 2, 2.0)
    assert found.void == {"start lost": 2, "end lost": 1}
    (nothing,) = summarise(group[1:])
    assert (nothing.packets, nothing.mean_ns, nothing.std_ns) == (0, None, None)


def test_classes_are_kept_apart() -> None:
    found = summarise([measured(0, np.array([5.0]), dscp=46), measured(0, np.array([1.0]), dscp=0)])
    assert [(one.dscp, one.mean_ns) for one in found] == [(0, 1.0), (46, 5.0)]
