"""Metrics recorded by the node unit's code: byte for byte the epochs that columns and kernels give."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from sojourn.core.arrays import MeasurementBatch
from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key, ProcessKey, key_id
from sojourn.core.measurements import Measurements
from sojourn.epochs.encoded import EncodedEpoch, encoded
from sojourn.epochs.wire import encode
from sojourn.node.agent.metric_recorder import MetricRecorder
from sojourn.segments.record import KeyReports, PointRecorder, every
from sojourn.sketches.bucket_array import SPREADINGS, BucketArrayParameters
from sojourn.sources.source import SourceBatch

EPOCH_NS = 1000
KEYS = tuple(ProcessKey(f"worker-{i}", i) for i in range(12))
Row = tuple[int, int, int, int]  # of which key, the value, the time, the sequence


class ByColumns:
    """The same stream as `MetricRecorder`'s, recorded into the sketch of numpy and kernels."""

    def __init__(self, parameters: BucketArrayParameters, *, salts: int | None, first: int) -> None:
        self._ids: list[int] = []
        self._names = {key_id(key): key for key in KEYS}
        self._recorder = PointRecorder(
            "node",
            "stream",
            parameters,
            slot_of=every(EPOCH_NS),
            keys=KeyReports(self._keys_at, flows=1000),
            keys_at=self._keys_at,
            salt_of=None if salts is None else lambda sequence: 7 + sequence % salts,
            first_sequence=first,
        )

    def _keys_at(self, rows) -> list[Key | None]:
        return [self._names.get(self._ids[row]) for row in rows.tolist()]

    def record(self, batch: MeasurementBatch) -> list[bytes]:
        self._ids = batch.instance_id.tolist()
        return [encode(epoch) for epoch in self._recorder.record(batch)]

    def snapshots(self) -> list[bytes]:
        return [encode(epoch) for epoch in self._recorder.snapshots()]

    def close_before(self, time_ns: int) -> list[bytes]:
        return [encode(epoch) for epoch in self._recorder.close_before(time_ns)]

    def finish(self) -> list[bytes]:
        return [encode(epoch) for epoch in self._recorder.finish() if epoch.recorded]


def recorders(
    parameters: BucketArrayParameters, *, salts: int | None = None, first: int = 0
) -> tuple[MetricRecorder, ByColumns]:
    salt_of = None if salts is None else lambda sequence: 7 + sequence % salts
    plain = MetricRecorder("node", "stream", parameters, epoch_ns=EPOCH_NS, salt_of=salt_of, first_sequence=first)
    return plain, ByColumns(parameters, salts=salts, first=first)


def plain_rows(rows: list[Row]) -> Measurements:
    ids = [key_id(KEYS[which]) for which, *_ in rows]
    return Measurements(ids, [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


def as_bytes(epochs: list[EncodedEpoch]) -> list[bytes]:
    """Their bytes; what is known of each beside them is what its bytes say."""
    for epoch in epochs:
        header = encoded(epoch.data)
        assert replace(header, few_keys=None, few_counters=None) == epoch
    return [epoch.data for epoch in epochs]


def compare(plain: MetricRecorder, columns: ByColumns, polls: list[list[Row]]) -> None:
    """Poll after poll, and what is left in the end."""
    for rows in polls:
        batch = plain_rows(rows)
        try:
            closed = plain.record(SourceBatch(batch, KEYS))
        except ParameterError as error:
            with pytest.raises(ParameterError, match=error.what):
                columns.record(batch.columns())
            break
        assert as_bytes(closed) == columns.record(batch.columns())
        assert as_bytes(plain.snapshots()) == columns.snapshots()
        latest = max((row[2] for row in rows), default=0)
        assert as_bytes(plain.close_before(latest)) == columns.close_before(latest)
    assert as_bytes(plain.finish()) == columns.finish()


def rows(low: int, high: int):
    row = st.tuples(st.integers(0, len(KEYS) - 1), st.integers(low, high), st.integers(-1, 4500), own.WORDS)
    return st.lists(st.lists(row, max_size=30), max_size=4)


@given(own.any_bucket_array(), rows(-300, 3000), st.none() | st.integers(1, 5), st.integers(0, 2**62))
def test_epochs_are_those_of_columns_byte_for_byte(parameters, polls, salts, first: int) -> None:
    """Of all widths, spreadings and salts; times out of order; full, wrapped and refused."""
    compare(*recorders(parameters, salts=salts, first=first), polls)


@given(own.any_bucket_array(), rows(-(2**63), 2**63 - 1))
def test_so_are_those_of_values_that_fill_64_bits(parameters, polls) -> None:
    compare(*recorders(parameters), polls)


@pytest.mark.parametrize("spreading", SPREADINGS)
@pytest.mark.parametrize(
    "shape", [{"bits": 40, "count_bits": 24}, {"bits": 16}, {"bits": 20, "signed": True, "wrap": True}]
)
def test_a_day_of_polls_is_recorded_alike(spreading: str, shape: dict) -> None:
    """More than fit: some epochs close before their time."""
    random_ = random.Random(16)
    parameters = BucketArrayParameters(buckets=64, per_instance=4, spreading=spreading, **shape)
    polls = [
        [
            (
                random_.randrange(len(KEYS)),
                random_.randrange(9000),
                250 * poll + random_.randrange(250),
                random_.getrandbits(32),
            )
            for _ in range(40)
        ]
        for poll in range(60)
    ]
    compare(*recorders(parameters, salts=16, first=5), polls)


def test_a_large_array_finds_the_same_places() -> None:
    """Beyond the 65,536 buckets that a board's machine code can place."""
    parameters = BucketArrayParameters(buckets=100_003, per_instance=3, bits=17, count_bits=9, salt=2**63 + 5)
    compare(*recorders(parameters), [[(k % len(KEYS), k, 1 + k, k) for k in range(200)]])


def test_an_instance_without_a_name_is_recorded_and_not_listed() -> None:
    plain, _ = recorders(BucketArrayParameters(buckets=8, per_instance=2))
    plain.record(SourceBatch(Measurements([1, key_id(KEYS[0])], [5, 6], [10, 11]), KEYS[:1]))
    (epoch,) = plain.finish()
    assert (epoch.recorded, epoch.keys()) == (2, (KEYS[0].to_bytes(),))
