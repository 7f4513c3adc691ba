"""Epochs carry the keys that were new in them, without a flow table; without keys, flows must be named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.files.reader import open_capture
from sojourn.core.errors import InputError, MismatchError, UsageError
from sojourn.core.keys import key_id
from sojourn.epochs.wire import decode, encode
from sojourn.segments.answer import answer_epochs
from sojourn.segments.plan import plan_segment
from sojourn.segments.planning.layout import SEGMENT
from sojourn.segments.record import KeyReports, PointRecorder, epochs_of, every

INTERVAL_NS = 2_000_000_000


def record(path: Path, *, sketch: str = "sample", interval_ns: int = 0, with_keys: bool = True):
    plan = plan_segment(sketch, 128_000, flows=50, loss=0.1)
    with open_capture(path, DecodeOptions(flow_table=False)) as reader:
        reports = KeyReports(reader.keys_at, flows=200) if with_keys else None
        slot_of = every(interval_ns) if interval_ns else None
        recorder = PointRecorder(path.name, SEGMENT, plan.stream, slot_of=slot_of, keys=reports)
        epochs = list(epochs_of(reader, recorder))
    return [decode(encode(epoch)) for epoch in epochs], reports


@pytest.fixture(scope="module")
def ingress(shared_data: Path) -> Path:
    return shared_data / "two-point" / "ingress.pcap.gz"


@pytest.fixture(scope="module")
def egress(shared_data: Path) -> Path:
    return shared_data / "two-point" / "egress.pcap.gz"


@pytest.mark.parametrize("interval_ns", [0, INTERVAL_NS])
def test_every_epoch_names_exactly_the_flows_that_it_saw(ingress: Path, interval_ns: int) -> None:
    epochs, reports = record(ingress, interval_ns=interval_ns)
    with open_capture(ingress) as reader:
        batches = list(reader)
        names = dict(zip(reader.flows.ids.tolist(), reader.flows.keys(), strict=True))
    ids = np.concatenate([batch.flow_id for batch in batches])
    slots = np.concatenate([batch.time_ns for batch in batches]) // (interval_ns or 2**62)
    assert len(epochs) == len(np.unique(slots))
    for epoch in epochs:
        seen = np.unique(ids[slots == epoch.first_ns // (interval_ns or 2**62)]).tolist()
        assert set(epoch.keys) == {names[flow_id] for flow_id in seen}
        assert len(epoch.keys) == len(seen)
    assert reports.reported == sum(len(epoch.keys) for epoch in epochs)
    assert reports.expected_missed < 1e-3
    assert 0 < reports.memory_bits <= 3 * 8 * 6000


def test_a_point_records_one_stream_whatever_its_plan(ingress: Path) -> None:
    for sketch in ("auto", "lds", "colate", "sample", "lda"):
        epochs, _ = record(ingress, sketch=sketch)
        assert [(epoch.stream, epoch.sequence) for epoch in epochs] == [(SEGMENT, 0)]


def test_points_that_recorded_differently_are_not_compared(ingress: Path, egress: Path) -> None:
    one, other = record(ingress, sketch="lds")[0], record(egress, sketch="auto")[0]
    with pytest.raises(MismatchError, match="one holds flows, segment, the other"):
        answer_epochs(one, other)
    with pytest.raises(InputError, match="not one stream of a segment"):
        answer_epochs(one, [*record(egress)[0], *[replace(epoch, stream="other") for epoch in one]])


@pytest.mark.parametrize("sketch", ["lds", "sample"])
def test_without_keys_named_flows_are_answered_and_unnamed_ones_are_asked_for(
    ingress: Path, egress: Path, sketch: str
) -> None:
    silent = [record(path, sketch=sketch, with_keys=False)[0] for path in (ingress, egress)]
    with pytest.raises(UsageError, match="name the flows with --flow, or record both points with --keys"):
        answer_epochs(*silent)
    told = [record(path, sketch=sketch)[0] for path in (ingress, egress)]
    everything = answer_epochs(*told, method="literal")
    answered = everything.whole.flows.flow_id[everything.whole.flows.answered]
    key = everything.keys[int(answered[0])]
    one = answer_epochs(*silent, keys=[key]).whole.flows
    assert one.mean_ns[0] == everything.whole.flows.mean_ns[everything.whole.flows.flow_id == key_id(key)][0]
    half = answer_epochs(told[0], silent[1])
    assert set(half.keys) == {key_id(key) for epoch in told[0] for key in epoch.keys or ()}


def test_a_known_clock_offset_shifts_samples(ingress: Path, egress: Path) -> None:
    told = [record(path)[0] for path in (ingress, egress)]
    plain, shifted = (answer_epochs(*told, offset_ns=offset).whole.flows for offset in (0, 1_000_000))
    both = plain.answered & shifted.answered
    assert both.sum() > 30
    np.testing.assert_allclose(plain.mean_ns[both] - shifted.mean_ns[both], 1_000_000, rtol=1e-9)


def test_keys_are_read_from_the_latest_batch_only(ingress: Path) -> None:
    with open_capture(ingress, DecodeOptions(flow_table=False)) as reader:
        with pytest.raises(UsageError, match="ask while iterating"):
            reader.keys_at(np.array([0]))
        for batch in reader:
            rows = np.array([len(batch) - 1, 0])
            assert [key_id(key) for key in reader.keys_at(rows)] == batch.flow_id[rows].tolist()
            for wrong in ([-1], [len(batch)]):
                with pytest.raises(MismatchError, match="rows beyond"):
                    reader.keys_at(np.array(wrong))
        with pytest.raises(UsageError, match="ask while iterating"):
            reader.keys_at(np.array([0]))
