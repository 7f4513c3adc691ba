"""Round-trip times in bucket arrays: edges, losses, messages of one length; the board's unit records the same."""

from __future__ import annotations

import numpy as np
import pytest

from iotm_worlds import START_NS, message_world
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import ParameterError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.node.unit.rtt_unit import PublishedRttUnit, RttUnit
from sojourn.node.unit.unit import Instance, NodeUnit
from sojourn.papers.iotm.rtt_buckets import PublishedRttRecorder, RttRecorder, choices_of, rtt_parameters
from sojourn.sketches.bucket_array import BucketArrayParameters

SECOND = 10**9


def packets(rows) -> MeasurementBatch:
    """(flow, number, time) rows."""
    return MeasurementBatch.of(
        [r[0] for r in rows], [0] * len(rows), [r[2] for r in rows], np.array([r[1] for r in rows], np.uint64)
    )


def events_in_order(world) -> list[tuple[int, bool, int, int]]:
    """(time, acknowledged?, flow, number) of a world."""
    events = []
    for acknowledged, batch in ((False, world.sent), (True, world.acknowledged)):
        columns = (batch.time_ns.tolist(), batch.instance_id.tolist(), batch.sequence.tolist())
        events += [(time_ns, acknowledged, flow, number) for time_ns, flow, number in zip(*columns, strict=True)]
    return sorted(events)


def test_packets_on_their_way_at_an_edge_spoil_nothing() -> None:
    world = message_world(3, flows=20, minutes=0.5)
    recorder = RttRecorder(rtt_parameters(20, 5), epoch_ns=SECOND)
    epochs = recorder.record(world.sent, world.acknowledged) + recorder.finish()
    assert len(epochs) == 30
    assert all(epoch.usable.all() for epoch in epochs)
    assert recorder.late == recorder.refused == 0
    total_us = sum(int(epoch.round_trips.sum()) for epoch in epochs)
    exact_ns = int(world.acknowledged.time_ns.sum() - world.sent.time_ns.sum())
    assert total_us * 1000 == pytest.approx(exact_ns, abs=1000 * len(world.sent))


def test_a_lost_packet_spoils_one_bucket_of_one_epoch() -> None:
    sent = [(1, 100 * k, START_NS + k * SECOND // 10) for k in range(40)]
    acknowledged = [(flow, number, time_ns + 30_000_000) for flow, number, time_ns in sent if number != 1500]
    recorder = RttRecorder(rtt_parameters(20, 5), epoch_ns=SECOND)
    epochs = recorder.record(packets(sent), packets(acknowledged)) + recorder.finish()
    assert [int((~epoch.usable).sum()) for epoch in epochs] == [0, 1, 0, 0]
    for epoch in epochs:
        count = epoch.sent.column("count")
        assert (epoch.round_trips[epoch.usable] == 30_000 * count[epoch.usable]).all()


def test_numbers_may_wrap_at_an_edge() -> None:
    """Sequence numbers pass 2³² just where the epoch ends, with packets on their way."""
    start = 2**32 - 1000
    sent = [(7, (start + 100 * k) % 2**32, START_NS + k * SECOND // 10) for k in range(20)]
    acknowledged = [(flow, number, time_ns + SECOND // 4) for flow, number, time_ns in sent]
    recorder = RttRecorder(rtt_parameters(20, 5), epoch_ns=SECOND)
    epochs = recorder.record(packets(sent), packets(acknowledged)) + recorder.finish()
    assert len(epochs) == 2
    assert all(epoch.usable.all() for epoch in epochs)
    assert [epoch.sent.recorded for epoch in epochs] == [10, 10]


def test_an_acknowledgement_after_its_epoch_closed_is_counted_as_late() -> None:
    recorder = RttRecorder(rtt_parameters(20, 5), epoch_ns=SECOND)
    closed = recorder.record(packets([(1, 0, START_NS)]), packets([]))
    assert closed == []
    later = START_NS + 2 * SECOND
    closed = recorder.record(packets([(2, 0, later)]), packets([(1, 0, later + 1), (9, 9, later + 2)]))
    assert [epoch.slot for epoch in closed] == [START_NS // SECOND]
    assert recorder.late == 2
    assert not closed[0].usable.all()


def test_what_finds_no_room_is_counted_and_spoils_its_bucket() -> None:
    sent = [(1, k, START_NS + k) for k in range(100)]
    recorder = RttRecorder(rtt_parameters(1, 1, count_bits=4), epoch_ns=SECOND)
    (epoch,) = recorder.record(packets(sent), packets(sent[:5])) + recorder.finish()
    assert recorder.refused == 85
    assert not epoch.usable.any()


@pytest.mark.parametrize("length", [1, 5, 100, 1460])
def test_messages_of_one_length_go_round_evenly(length: int) -> None:
    """Over 200 salts, the fullest of five buckets has at most 1.1 of its share in all but a few."""
    number = (np.arange(3000, dtype=np.uint64) * np.uint64(length) + np.uint64(12345)) & np.uint64(2**32 - 1)
    worst = []
    for salt in range(200):
        parameters = BucketArrayParameters(buckets=20, per_instance=5, spreading="sequence", salt=salt)
        worst.append(np.bincount(choices_of(parameters, number).astype(int), minlength=5).max() / 600)
    assert np.median(worst) < 1.02
    assert np.mean(np.array(worst) < 1.1) > 0.95


def test_as_published_messages_of_one_length_fall_into_one_bucket() -> None:
    sent = [(1, 100 * k, START_NS + k) for k in range(50)]
    recorder = PublishedRttRecorder(BucketArrayParameters(buckets=20, per_instance=5, bits=32), epoch_ns=SECOND)
    recorder.record(packets(sent), packets([(f, n, t + 5_000_000) for f, n, t in sent]))
    ((stamps, counts),) = recorder.epochs.values()
    assert np.count_nonzero(counts.column("sum")) == 1
    assert stamps.column("sum").sum() == 50 * 5


def test_as_published_a_lost_packet_leaves_a_time_stamp_behind() -> None:
    sent = [(1, k, START_NS + k) for k in range(50)]
    recorder = PublishedRttRecorder(BucketArrayParameters(buckets=20, per_instance=5, bits=32), epoch_ns=SECOND)
    recorder.record(packets(sent), packets([(f, n, t + 5_000_000) for f, n, t in sent[1:]]))
    ((stamps, _),) = recorder.epochs.values()
    assert abs(int(stamps.column("sum").sum()) - 49 * 5) > 10_000


def test_the_board_records_what_the_library_does() -> None:
    """The same packets, one at a time, over five epochs with losses: the same bytes."""
    world = message_world(5, flows=8, minutes=5 / 60, loss=0.01)
    recorder = RttRecorder(rtt_parameters(12, 4), epoch_ns=SECOND, salt_of=lambda slot: slot)
    epochs = recorder.record(world.sent, world.acknowledged) + recorder.finish()
    first = START_NS // SECOND

    def new_unit() -> NodeUnit:
        return NodeUnit(12, 4, bits=32, count_bits=16, signed=True, wrap=True, spreading="sequence", salt=first)

    unit, flows, found = RttUnit(new_unit), {}, []
    for time_ns, acknowledged, flow, number in events_in_order(world):
        while first + unit.epoch < time_ns // SECOND:
            found += unit.closing("node", "rtt")
            unit.turn(first + unit.epoch + 1)
        instance = flows.setdefault(flow, Instance(flow))
        (unit.acknowledged if acknowledged else unit.sent)(instance, number, time_ns)
    for _ in range(2):
        found += unit.closing("node", "rtt")
        unit.turn(0)
    expected = [
        encode(Epoch("node", f"rtt.{end}", epoch.slot - first, array))
        for epoch in epochs
        for end, array in (("sent", epoch.sent), ("acknowledged", epoch.acknowledged))
    ]
    assert len(expected) == 10
    assert found == expected


def test_the_board_records_as_published_what_the_library_does() -> None:
    world = message_world(6, flows=5, minutes=1 / 60)
    parameters = BucketArrayParameters(buckets=20, per_instance=5, bits=32)
    recorder = PublishedRttRecorder(parameters, epoch_ns=60 * SECOND)
    recorder.record(world.sent, world.acknowledged)
    ((stamps, counts),) = recorder.epochs.values()
    unit = PublishedRttUnit(
        NodeUnit(20, 5, bits=32, signed=True, wrap=True, spreading="sequence"),
        NodeUnit(20, 5, bits=32, spreading="sequence"),
    )
    flows: dict[int, Instance] = {}
    for time_ns, acknowledged, flow, number in events_in_order(world):
        (unit.acknowledged if acknowledged else unit.sent)(flows.setdefault(flow, Instance(flow)), number, time_ns)
    assert [unit.stamps.held(i) for i in range(20)] == stamps.column("sum").tolist()
    assert [unit.counts.held(i) for i in range(20)] == counts.column("sum").tolist()


def test_lengths_must_be_positive() -> None:
    with pytest.raises(ParameterError, match="positive"):
        RttRecorder(rtt_parameters(20, 5), epoch_ns=0)
