"""Readings: bounded in number whatever a fleet is, under names that are declared once."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import InputError, UsageError
from sojourn.exports.prometheus import OPENMETRICS, exposition
from sojourn.exports.readings import (
    BOUNDS_NS,
    FAMILIES,
    LEFT_OUT,
    MOST_METRICS,
    Amount,
    ReadingLimits,
    Readings,
    SegmentDelays,
    Window,
    export_points,
    metric_points,
    segment_points,
)

TOTALS = {
    "segment": "ab",
    "from": "a",
    "to": "b",
    "runs": 3,
    "first_ns": 10**9,
    "last_ns": 11 * 10**9,
    "sent": 100,
    "received": 80,
    "lost": 20,
    "loss": 0.2,
    "mean_ns": 5_000_000,
    "worst_p99_ns": 9_000_000,
    "clock": "followed",
}


def fullest(limits: ReadingLimits) -> Readings:
    """As many readings as the limits allow."""
    points = []
    for number in range(MOST_METRICS):
        amounts = [Amount(value=1.0, low=0.5, high=2.0)]
        amounts += [Amount(value=1.0, low=0.5, high=2.0, node=f"n{i}") for i in range(limits.nodes)]
        amounts += [Amount(value=1.0, low=0.5, high=2.0, node="n0", key=f"k{i}") for i in range(limits.top)]
        points += metric_points(f"m{number}", "bytes", "sum", amounts, 60.0)
    delays = SegmentDelays(counts=(1.0,) * (len(BOUNDS_NS) + 1))
    for number in range(limits.segments):
        points += segment_points({**TOTALS, "segment": f"s{number}"}, delays)
    points += export_points(60, {}, [f"m{i}" for i in range(MOST_METRICS)] + ["segments"])
    return Readings(from_ns=0, to_ns=60, points=tuple(points))


@pytest.mark.parametrize("limits", [ReadingLimits(), ReadingLimits(top=0, nodes=3, segments=7)])
def test_the_largest_number_of_series_is_what_is_stated(limits: ReadingLimits) -> None:
    readings = fullest(limits)
    assert readings.series == limits.most_series
    lines = [line for line in exposition(readings)[0].decode().splitlines() if line and not line.startswith("#")]
    assert len(lines) == limits.most_series
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)


def test_more_than_anybody_should_keep_is_refused() -> None:
    assert ReadingLimits(top=100, nodes=1000, segments=1000).most_series < 100_000
    for much in ({"top": 101}, {"nodes": 1001}, {"segments": 1001}, {"top": -1}):
        with pytest.raises(UsageError, match="is not among 0 … "):
            ReadingLimits(**much)
    for window in ({"window_ns": 0}, {"window_ns": 2 * 3600 * 10**9}, {"lag_ns": -1}):
        with pytest.raises(UsageError, match="is not among"):
            Window(**window)


amounts = st.builds(
    Amount,
    value=st.floats(0, 1e12),
    low=st.floats(-math.inf, 1e12),
    high=st.floats(0, math.inf),
    node=st.sampled_from(["n", 'ö\n"\\']),
    key=st.sampled_from([None, "mosquitto[3]", '10.0.0.1:5 > "x\\']),
)


@given(
    found=st.lists(amounts, max_size=4, unique_by=lambda one: (one.node, one.key)),
    stat=st.sampled_from(["sum", "mean"]),
)
def test_what_travels_as_json_is_what_it_was(found: list[Amount], stat: str) -> None:
    points = list(chain(metric_points("rtt", "ns", stat, found, 60.0), segment_points(TOTALS, SegmentDelays())))  # type: ignore[arg-type]
    readings = Readings(from_ns=1, to_ns=2, points=tuple(points))
    assert Readings.from_dict(readings.to_dict(), where="test") == readings
    assert len({point.key for point in points}) == len(points)
    assert all(math.isfinite(point.value or 0.0) for point in points)
    assert all(set(point.labels) == set(FAMILIES[point.name].labels) for point in points)


def test_of_sums_there_are_rates_and_times_are_in_seconds() -> None:
    (value, low, high) = metric_points("cpu", "ns", "sum", [Amount(value=6e9, low=3e9, high=9e9)], 60.0)
    assert (value.name, value.value, value.labels) == ("sojourn_fleet_rate", 0.1, {"metric": "cpu", "unit": "seconds"})
    assert (low.value, high.value) == (0.05, pytest.approx(0.15))
    (mean, *_) = metric_points("rtt", "ns", "mean", [Amount(value=6e9, low=6e9, high=6e9, node="n", key="k")], 60.0)
    assert (mean.name, mean.value) == ("sojourn_instance_mean", 6.0)


def test_sampled_delays_stand_for_all_packets_that_arrived() -> None:
    counts = (0.0,) * 8 + (3.0, 1.0) + (0.0,) * (len(BOUNDS_NS) - 9)
    (delays, *_) = segment_points(TOTALS, SegmentDelays(counts=counts))
    assert (delays.name, sum(delays.counts), delays.value) == ("sojourn_segment_delay_seconds", 80.0, 0.4)
    text = exposition(Readings(from_ns=0, to_ns=1, points=(delays,)))[0].decode()
    assert "# TYPE sojourn_segment_delay_seconds gaugehistogram" in text
    assert 'sojourn_segment_delay_seconds_bucket{from="a",le="+Inf",segment="ab",to="b"} 80.0' in text
    assert 'sojourn_segment_delay_seconds_gsum{from="a",segment="ab",to="b"} 0.4' in text


def test_unknown_losses_and_delays_have_no_reading() -> None:
    unknown = {**TOTALS, "lost": None, "loss": None, "mean_ns": None, "worst_p99_ns": None, "clock": "unknown"}
    found = {
        point.name.removeprefix("sojourn_segment_"): point.value for point in segment_points(unknown, SegmentDelays())
    }
    assert found == {"sent_packets": 100.0, "covered_seconds": 10.0, "clock_known": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        {"points": None},
        {"points": [{"name": "sojourn_fleet_rate", "labels": {}, "value": 1.0, "counts": None}]},
        {"points": [{"name": "sojourn_export_window_seconds", "labels": {}, "value": "x", "counts": None}]},
        {"points": [{"name": "sojourn_export_window_seconds", "labels": {}, "value": 1.0, "counts": [1.0]}]},
        {"bounds_seconds": [1.0]},
        {"bounds_seconds": None},
    ],
)
def test_what_is_no_reading_is_an_error_of_one_line(change: dict[str, object]) -> None:
    good = Readings(from_ns=0, to_ns=1, points=tuple(export_points(60, {}, []))).to_dict()
    with pytest.raises(InputError):
        Readings.from_dict({**good, **change}, where="test")


def test_names_of_a_later_version_are_left_out() -> None:
    good = Readings(from_ns=0, to_ns=1, points=tuple(export_points(60, {}, []))).to_dict()
    good["points"].append({"name": "sojourn_of_tomorrow", "labels": {}, "value": 1.0, "counts": None})
    assert len(Readings.from_dict(good, where="test").points) == 1 + len(LEFT_OUT)


def test_both_formats_are_given_as_asked_for() -> None:
    readings = Readings(from_ns=0, to_ns=1, points=tuple(export_points(60, {}, [])))
    for accepted, is_openmetrics in ((OPENMETRICS, True), ("text/plain", False), ("", False), ("*/*", False)):
        body, media_type = exposition(readings, accepted)
        assert media_type.startswith("application/openmetrics-text") is is_openmetrics
        assert body.endswith(b"# EOF\n") is is_openmetrics
