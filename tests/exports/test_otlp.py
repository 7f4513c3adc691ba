"""Readings pushed by OTLP: what a receiver decodes is what was measured, and what it refuses is said."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from query_unit import Unit
from tests.exports.otlp_receiver import Receiver, otlp_receiver
from tests.exports.test_readings import TOTALS
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import InputError, ServerError, SojournError, UsageError
from sojourn.exports.otlp import MOST_ANSWER_BYTES, OtlpPusher, collector_at
from sojourn.exports.readings import BOUNDS_NS, Amount, Readings, SegmentDelays, metric_points, segment_points
from waiting import eventually

COUNTS = (0.0,) * 8 + (3.0, 1.0) + (0.0,) * (len(BOUNDS_NS) - 9)
POINTS = (
    *metric_points("disk_io", "operations", "sum", [Amount(value=120.0, low=60.0, high=180.0, node="n")], 60.0),
    *segment_points(TOTALS, SegmentDelays(counts=COUNTS)),
)
READINGS = Readings(from_ns=10**18, to_ns=10**18 + 60 * 10**9, points=POINTS)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as found:
        yield found


def test_a_receiver_decodes_what_was_measured(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=fleet")
    with OtlpPusher(receiver.url) as pusher:
        pusher.push(READINGS)
    metrics = receiver.metrics()
    (rate,) = metrics["sojourn_node_rate"].gauge.data_points
    assert (rate.as_double, rate.time_unix_nano) == (2.0, READINGS.to_ns)
    assert {one.key: one.value.string_value for one in rate.attributes} == {
        "metric": "disk_io",
        "unit": "operations",
        "node": "n",
    }
    delays = metrics["sojourn_segment_delay_seconds"]
    assert delays.unit == "s"
    assert delays.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    (point,) = delays.histogram.data_points
    assert (point.start_time_unix_nano, point.time_unix_nano) == (READINGS.from_ns, READINGS.to_ns)
    assert list(point.explicit_bounds) == [bound / 1e9 for bound in BOUNDS_NS]
    assert (point.count, point.sum, point.bucket_counts[8], point.bucket_counts[9]) == (80, 0.4, 60, 20)
    assert receiver.headers[-1]["x-tenant"] == "fleet"
    (resource,) = receiver.requests[-1].resource_metrics
    assert {"service.name": "sojourn"}.items() <= {
        a.key: a.value.string_value for a in resource.resource.attributes
    }.items()


@pytest.mark.parametrize("status", [400, 404, 413])
def test_a_refusal_is_told_with_its_reason(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with (
        OtlpPusher(receiver.url) as pusher,
        pytest.raises(ServerError, match=rf"{status}.*is it an OTLP/HTTP receiver"),
    ):
        pusher.push(READINGS)


def test_points_that_were_refused_alone_are_told(receiver: Receiver) -> None:
    receiver.rejected = 3
    with OtlpPusher(receiver.url) as pusher:
        with pytest.raises(ServerError, match=r"refused 3 points \(too old\)"):
            pusher.push(READINGS)
        receiver.rejected = 0
        pusher.push(READINGS)


def test_an_endless_answer_is_not_read(receiver: Receiver) -> None:
    receiver.answer = b"x" * (512 * MOST_ANSWER_BYTES)  # more than sockets hold
    with OtlpPusher(receiver.url) as pusher:
        pusher.push(READINGS)
        eventually(lambda: receiver.was_cut_short)


def test_where_nobody_listens_the_time_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    began = time.monotonic()
    with (
        OtlpPusher(f"http://127.0.0.1:{port}", seconds=2.0) as pusher,
        pytest.raises(ServerError, match=f"{port}.*refused"),
    ):
        pusher.push(READINGS)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://host:4317", "http://", "http://host:x", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address; write http://HOST:4318"):
        collector_at(url)


def test_a_path_of_ones_own_is_kept() -> None:
    assert collector_at("https://host/otlp/v1/metrics") == "https://host/otlp/v1/metrics"
    with pytest.raises(InputError, match="no such file"):
        OtlpPusher("https://host", ca_file=Path("nowhere.pem"))


def test_the_command_pushes_what_the_query_unit_measured(unit: Unit, receiver: Receiver) -> None:
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "--lag", "0s", "--every", "10m", "--once"]
    done = CliRunner().invoke(app, ["export", "otlp", "--to", receiver.url, *here])
    assert done.exit_code == 0, done.output
    (whole,) = [
        point
        for point in receiver.metrics()["sojourn_fleet_rate"].gauge.data_points
        if any(one.value.string_value == "disk_io" for one in point.attributes)
    ]
    assert whole.as_double == pytest.approx((9 + 90) * 4 / 600)
    receiver.status = 404
    failed = CliRunner().invoke(app, ["export", "otlp", "--to", receiver.url, *here])
    assert isinstance(failed.exception, SojournError)
    assert "404" in str(failed.exception)


def test_a_collector_that_is_away_is_tried_again_until_ctrl_c(unit: Unit, receiver: Receiver) -> None:
    receiver.status = 400
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "--lag", "0s", "--every", "5s"]
    command = [sys.executable, "-m", "sojourn", "export", "otlp", "--to", receiver.url, *here]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "Ctrl-C stops" in process.stderr.readline()
        assert "400" in (line := process.stderr.readline()), line
        receiver.status = 200
        assert "it goes on" in process.stderr.readline()
        process.send_signal(2)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
