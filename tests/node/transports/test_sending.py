"""Sending to a real query unit: no epoch that it refuses keeps the others from arriving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit

from mosquitto_broker import Broker
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.node.spool.file import State, insert, spooled
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.transport import RefusedError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

SMALL = LIMITS.batch_epochs * 5


@pytest.fixture
def unit(tmp_path: Path, broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", broker=broker)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(Spool(tmp_path / "spool", limit_bytes=64 << 20)) as made:
        yield made


class Sending:
    """A sender and what it reported."""

    def __init__(self, spool: Spool, unit: Unit) -> None:
        self.reports: list[str] = []
        self.sender = SpoolSender(spool, unit.transport(), lock=threading.RLock(), report=self.reports.append)


def large_epoch(sequence: int, size_bytes: int) -> Epoch:
    sketch = BucketArray(BucketArrayParameters(buckets=size_bytes // 8, per_instance=2, bits=64))
    sketch.record(7, 5, 10**9)
    return Epoch("alpha", "disk", sequence, sketch, ())


def stored(unit: Unit) -> list[int]:
    return sorted(epoch.sequence for epoch in unit.store.epochs("alpha", "disk", 0, 2**62))


def test_epochs_that_are_too_large_are_set_aside_and_all_others_arrive(unit: Unit, spool: Spool) -> None:
    """The largest exceeds the query unit's limit by so much that it answers before all of it was sent."""
    for sequence in range(SMALL):
        spool.put(make_epoch(sequence))
    for sequence, size in ((3, 150_000), (40, 30 << 20)):
        spool.remove([entry for entry in spool.oldest(SMALL, most_bytes=10**9) if entry.sequence == sequence])
        spool.put(large_epoch(sequence, size))
    sending = Sending(spool, unit)
    sending.sender.send_waiting()
    assert stored(unit) == [sequence for sequence in range(SMALL) if sequence not in (3, 40)]
    assert len(sending.reports) == 2
    assert all("is set aside" in line and "(413)" in line for line in sending.reports)
    assert len(spool) == 0
    spool.put(make_epoch(SMALL))
    sending.sender.send_waiting()
    assert SMALL in stored(unit)
    assert len(sending.reports) == 2, "reported once, and not sent again"


def test_an_epoch_that_the_query_unit_cannot_read_is_set_aside(unit: Unit, spool: Spool) -> None:
    body = cbor2.dumps(["later_kind", {}, "alpha", "disk", 2, None, 0, b"", None])
    data = cbor2.dumps([1, body, hash_bytes(body) & 0xFFFFFFFF])
    for sequence in range(6):
        entry = spooled(EncodedEpoch.of(make_epoch(sequence)), State.WAITING)
        if sequence == 2:
            entry = replace(entry, data=data, size_bytes=len(data))
        with spool._file.transaction() as connection:
            insert(connection, entry)
    sending = Sending(spool, unit)
    sending.sender.send_waiting()
    assert stored(unit) == [0, 1, 3, 4, 5]
    (line,) = sending.reports
    assert "epoch 2 of disk" in line
    assert "later_kind" in line


def test_who_refuses_everything_does_not_have_everything_set_aside(unit: Unit, spool: Spool) -> None:
    for sequence in range(20):
        spool.put(make_epoch(sequence))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sojourn.server.ingest.intake.checked_name", _refuse_everything)
        sending = Sending(spool, unit)
        with pytest.raises(RefusedError):
            sending.sender.send_waiting()
        assert len(spool) >= 16
    sending.sender.send_waiting()
    assert len(stored(unit)) >= 16
    assert len(spool) == 0


def test_another_epoch_with_the_number_keeps_its_place_and_a_checkpoint_of_it_is_no_conflict(
    unit: Unit, spool: Spool
) -> None:
    unit.store.add([make_epoch(sequence, values=(9, 9, 9)) for sequence in (0, 1)])
    spool.put(make_epoch(0))
    with spool._file.transaction() as connection:
        insert(connection, replace(spooled(EncodedEpoch.of(make_epoch(1)), State.SENT), resumed=True))
    sending = Sending(spool, unit)
    sending.sender.send_waiting()
    aside, arrived = sorted(sending.reports)
    assert "epoch 1 of disk" in aside
    assert "had arrived whole" in aside
    assert "epoch 0 of disk" in arrived
    assert "another one has its number" in arrived
    assert len(spool) == 0
    assert {e.recorded for e in unit.store.epochs("alpha", "disk", 0, 2**62)} == {3}


def _refuse_everything(*_: object) -> None:
    from fastapi import HTTPException

    raise HTTPException(400, "nothing is good enough")
