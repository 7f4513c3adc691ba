"""Flows, round-trip times and packets of capture files: what the sources give is what the capture holds."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.capture.files.reader import open_capture
from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.core.errors import CaptureError, ParameterError, SourceError
from sojourn.core.keys import key_id
from sojourn.rtt.round_trips import RttMeter
from sojourn.sources.registry import AnySource, new_source
from sojourn.sources.traffic import UNNAMED

CAPTURE = "zeek-tcp-timestamps-snap96.pcap"
MANY_FLOWS = "zeek-echo-connections-82k.pcap.gz"


@pytest.fixture(scope="module")
def capture(shared_data: Path) -> str:
    return str(shared_data / "captures" / CAPTURE)


def polled(source: AnySource) -> tuple[Any, list[str]]:
    """All rows and all keys of a source that ends, each key present when its first row is."""
    parts, keys, known = [], [], set()
    while not source.is_ended:
        found = source.poll(time.time_ns())
        parts.append(found.batch)
        keys += [str(key) for key in found.keys]
        known |= {key_id(key) for key in found.keys}
        ids = found.batch.flow_id if isinstance(found.batch, PacketBatch) else found.batch.instance_id
        assert set(ids.tolist()) <= known
    return type(parts[0]).concatenate(parts), keys


@pytest.mark.parametrize(("metric", "column"), [("flow_packets", "packets"), ("flow_bytes", "bytes")])
def test_sums_per_flow_are_those_of_the_flow_table(capture: str, metric: str, column: str) -> None:
    with open_capture(capture) as reader:
        list(reader)
    with new_source(metric, capture=capture) as source:
        batch, keys = polled(source)
    sums: Counter[int] = Counter()
    for flow_id, value in zip(batch.instance_id.tolist(), batch.value.tolist(), strict=True):
        sums[flow_id] += value
    assert dict(sums) == dict(zip(reader.flows.ids.tolist(), getattr(reader.flows, column).tolist(), strict=True))
    assert keys == list(map(str, reader.flows.keys()))
    assert source.ignored == reader.ignored


def test_packets_come_as_the_capture_has_them(capture: str) -> None:
    with open_capture(capture) as reader:
        expected = PacketBatch.concatenate(list(reader))
    with new_source("packets", capture=capture) as source:
        batch, _ = polled(source)
    for name, column in expected.columns().items():
        assert np.array_equal(column, batch.columns()[name])


@pytest.mark.parametrize("name", [CAPTURE, MANY_FLOWS])
def test_round_trip_times_are_those_of_the_meter(shared_data: Path, name: str) -> None:
    capture = str(shared_data / "captures" / name)
    with open_capture(capture) as reader:
        meter = RttMeter()
        samples = [found for _, transport in reader.with_transport() for found in meter.feed(transport)]
        names = {int(i): str(key) for i, key in zip(reader.flows.ids, reader.flows.keys(), strict=True)}
    flow_id = np.concatenate([found.flow_id for found in samples])
    with new_source("rtt", capture=capture) as source:
        batch, keys = polled(source)
    assert len(batch) > 20
    assert np.array_equal(batch.instance_id, flow_id)
    assert np.array_equal(batch.value, np.concatenate([found.rtt_ns for found in samples]))
    assert np.array_equal(batch.time_ns, np.concatenate([found.time_ns for found in samples]))
    # Only flows with samples are named, each once.
    assert sorted(keys) == sorted(names[i] for i in set(flow_id.tolist()))


def test_a_filter_chooses_packets(capture: str) -> None:
    with open_capture(capture) as reader:
        list(reader)
    port = str(reader.flows.key(0)).split(" > ")[0].rpartition(":")[2]
    with new_source("flow_packets", capture=capture, filter=f"src port {port}") as source:
        batch, keys = polled(source)
    assert len(batch) > 0
    assert all(f":{port} > " in key for key in keys)
    assert source.ignored["filtered out"] > 0


def test_flows_beyond_the_limit_are_measured_without_a_key_and_told(shared_data: Path) -> None:
    path = str(shared_data / "captures" / MANY_FLOWS)
    with new_source("flow_packets", capture=path, max_flows=16) as source:
        rows = keys = 0
        while not source.is_ended:
            found = source.poll(time.time_ns())
            rows, keys = rows + len(found), keys + len(found.keys)
    with open_capture(path) as reader:
        list(reader)
    assert rows == reader.ip_packets
    assert 16 <= keys < len(reader.flows)
    assert source.ignored[UNNAMED] > 0


def test_reported_flows_are_forgotten_in_time_and_reported_anew(shared_data: Path) -> None:
    path = str(shared_data / "captures" / MANY_FLOWS)
    with open_capture(path) as reader:
        list(reader)
    with new_source("flow_packets", capture=path, max_flows=1 << 17) as source:
        assert isinstance(polled(source)[0], MeasurementBatch)
        first = len(source._named)
    with new_source("flow_packets", capture=path, max_flows=2 * len(reader.flows) - 2) as source:
        polled(source)
        assert len(source._named) < first == len(reader.flows)


def test_a_source_of_traffic_needs_one_place_to_read_from(capture: str) -> None:
    for options in ({}, {"interface": "eth0", "capture": capture}):
        with pytest.raises(ParameterError, match="one interface or one capture"):
            new_source("rtt", **options)


def test_a_missing_capture_is_told() -> None:
    with pytest.raises(CaptureError, match="/nowhere: cannot be read"), new_source("packets", capture="/nowhere"):
        pass


def test_a_closed_source_cannot_be_polled(capture: str) -> None:
    source = new_source("packets", capture=capture)
    with pytest.raises(SourceError, match="is not open"):
        source.poll(0)
    with source:
        source.poll(0)
    with pytest.raises(SourceError, match="is not open"):
        source.poll(0)
    with source:  # and opened again, it starts again
        assert len(source.poll(0)) > 0
