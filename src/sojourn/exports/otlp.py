"""Readings pushed to an OpenTelemetry collector: OTLP over HTTP, by the OpenTelemetry SDK's exporter.

Numbers are gauges; delays of segments are histograms of *delta* temporality, from the window's begin to its end, so
that windows that do not overlap add up.

Guarantee: `push` returns when the collector has taken all points, and raises with its reason where it has not; of an
answer no more than `MOST_ANSWER_BYTES` is read. The exporter tries again by itself, within the time given.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sojourn import __version__
from sojourn.core.errors import InputError, ServerError, UsageError
from sojourn.exports.readings import BOUNDS_NS, SECOND_NS, Family, Point, Readings

PATH = "/v1/metrics"
MOST_ANSWER_BYTES = 64 << 10
MOST_REASON = 300
_UNITS = {"seconds": "s", "ratio": "1", "packets": "{packet}"}
_LOG = "opentelemetry.exporter.otlp"


class _Reasons(logging.Handler):
    """What the exporter says of a failure, instead of a line for each try on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())[:MOST_REASON]


def collector_at(url: str, *, where: str = "--to") -> str:
    """The address that metrics are posted to; the usual path where the URL has none.

    >>> collector_at("http://127.0.0.1:4318")
    'http://127.0.0.1:4318/v1/metrics'
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError(f"{url[:100]!r} is no address", where=where, action="write http://HOST:4318")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"


class OtlpPusher:
    """A way to one collector; a context manager."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, ca_file: Path | None = None, seconds: float = 10.0
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http import Compression
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError:
            raise UsageError(
                "pushing by OTLP needs the OpenTelemetry SDK", action="install it with: pip install 'sojourn[otlp]'"
            ) from None
        if ca_file is not None and not ca_file.is_file():
            raise InputError("no such file", where=str(ca_file))
        self.address = collector_at(url)
        self._session = _session()
        self._reasons = _Reasons()
        logger = logging.getLogger(_LOG)
        logger.addHandler(self._reasons)
        logger.propagate = False
        self._exporter = OTLPMetricExporter(
            endpoint=self.address,
            headers=dict(headers) if headers else None,
            certificate_file=None if ca_file is None else str(ca_file),
            timeout=seconds,
            compression=Compression.Gzip,
            session=self._session,
        )

    def __enter__(self) -> OtlpPusher:
        return self

    def __exit__(self, *_: object) -> None:
        self._exporter.shutdown()
        logging.getLogger(_LOG).removeHandler(self._reasons)

    def push(self, readings: Readings) -> None:
        """Hand all readings to the collector, or a `ServerError`."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._reasons.last = ""
        self._session.refused = self._session.trouble = ""
        if self._exporter.export(metrics_data(readings)) is not MetricExportResult.SUCCESS:
            what = self._session.trouble or self._reasons.last or "the collector did not take the readings"
            raise ServerError(what.rstrip("."), where=self.address, action="is it an OTLP/HTTP receiver, and running?")
        if self._session.refused:
            raise ServerError(self._session.refused, where=self.address, action="look at the collector's limits")


def _session() -> Any:
    """An HTTP session that reads short answers alone, and knows what was wrong with the last one."""
    import requests
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    class Session(requests.Session):
        refused = trouble = ""

        def send(self, request: requests.PreparedRequest, **how: Any) -> requests.Response:
            try:
                response = super().send(request, **{**how, "stream": True, "allow_redirects": False})
                with response:
                    body = response.raw.read(MOST_ANSWER_BYTES, decode_content=False)
            except OSError as error:  # all that requests raises is one
                cause = getattr(error.args[0], "reason", error) if error.args else error
                self.trouble = f"cannot be reached ({str(cause).rpartition(': ')[2][:MOST_REASON]})"
                raise
            self.trouble = ""
            response._content = body
            if response.ok and body:
                try:
                    partial = ExportMetricsServiceResponse.FromString(body).partial_success
                except Exception:  # an answer that is none of OTLP's is no refusal
                    return response
                if partial.rejected_data_points:
                    words = " ".join(partial.error_message.split())[:MOST_REASON]
                    self.refused = f"refused {partial.rejected_data_points} points ({words})"
            return response

    return Session()


def metrics_data(readings: Readings) -> Any:
    """The readings as the SDK's data."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(name, family, points, readings) for name, family, points in readings.by_family()]
    scope = ScopeMetrics(scope=InstrumentationScope("sojourn", __version__), metrics=metrics, schema_url="")
    resource = Resource({"service.name": "sojourn", "service.version": __version__})
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(name: str, family: Family, points: list[Point], readings: Readings) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
    )

    span = readings.from_ns, readings.to_ns
    data: Gauge | Histogram
    if family.is_histogram:
        bounds = [bound / SECOND_NS for bound in BOUNDS_NS]
        delays = [
            HistogramDataPoint(
                dict(point.labels),
                *span,
                count=sum(counts),
                sum=point.value or 0.0,
                bucket_counts=counts,
                explicit_bounds=bounds,
                min=float("inf"),
                max=float("-inf"),
            )
            for point in points
            for counts in [[round(count) for count in point.counts]]
        ]
        data = Histogram(delays, AggregationTemporality.DELTA)
    else:
        data = Gauge([NumberDataPoint(dict(p.labels), *span, value=p.value or 0.0) for p in points])
    return Metric(name=name, description=family.text, unit=_UNITS.get(family.unit, ""), data=data)
