"""Readings in Prometheus' text format and in OpenMetrics, as the scraper asks.

Delays of a window are a *gauge histogram*: its buckets do not grow for ever, so `histogram_quantile` takes them as they
are, without `rate`. In the older text format it is called a histogram, as that has no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sojourn.exports.readings import BOUNDS_NS, SECOND_NS, Readings

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_BOUNDS = [*(repr(bound / SECOND_NS) for bound in BOUNDS_NS), "+Inf"]


class _Collected(Collector):
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for name, family, points in self._readings.by_family():
            if family.is_histogram:
                delays = GaugeHistogramMetricFamily(name, family.text, labels=family.labels, unit=family.unit)
                for point in points:
                    buckets = list(zip(_BOUNDS, accumulate(point.counts), strict=True))
                    delays.add_metric([point.labels[label] for label in family.labels], buckets, point.value)
                yield delays
                continue
            gauge = GaugeMetricFamily(name, family.text, labels=family.labels, unit=family.unit)
            for point in points:
                gauge.add_metric([point.labels[label] for label in family.labels], float(point.value or 0.0))
            yield gauge


def exposition(readings: Readings, accepted: str = OPENMETRICS) -> tuple[bytes, str]:
    """The readings in the format that a header ``Accept`` asks for, and its media type."""
    encode, media_type = choose_encoder(accepted)
    return encode(_Collected(readings)), media_type
