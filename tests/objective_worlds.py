"""Nodes whose flows have known round trips, recorded as agents record them, epoch after epoch, into a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import FlowKey, Key, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.segments.record import KeyReports, PointRecorder, every
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.store.epochs import EpochStore, StreamRecord

SECOND = 1_000_000_000
PARAMETERS = BucketArrayParameters(buckets=32, per_instance=3, bits=48, count_bits=24)
Draw = Callable[[np.random.Generator, int], np.ndarray]


def flow(number: int, *, port: int = 1883) -> FlowKey:
    """The answers of a server to a client, which the client's round trips are named by."""
    return FlowKey(ip_address("10.0.1.1"), port, ip_address("10.0.0.1"), 10_000 + number, 6)


def gamma(mean_ns: float, *, shape: float = 4.0) -> Draw:
    """Round trips of a queue: skewed, with a deviation of half the mean."""
    return lambda random, count: random.gamma(shape, mean_ns / shape, count)


@dataclass
class RttNode:
    """A node with a stream of round trips, as an agent's `PointRecorder` records them: salted, with lists of keys."""

    store: EpochStore
    name: str = "alpha"
    stream: str = "rtt"
    epoch_ns: int = 60 * SECOND
    parameters: BucketArrayParameters = PARAMETERS
    begin_ns: int = 1_700_000_040 * SECOND  # a multiple of a minute
    seed: int = 1
    sequence: int = 0  # of its first epoch
    _keys: dict[int, Key] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.epochs = 0
        self.truth: list[np.ndarray] = []
        self._ids = np.empty(0, np.uint64)
        self.store.announce(StreamRecord(self.name, self.stream, "rtt", "ns", "flow", "samples"))
        self._recorder = PointRecorder(
            self.name,
            self.stream,
            self.parameters,
            slot_of=every(self.epoch_ns),
            keys=KeyReports(self._keys_at, flows=1000),
            keys_at=self._keys_at,
            salt_of=lambda sequence: sequence % 16,
            first_sequence=self.sequence,
        )

    def _keys_at(self, rows: np.ndarray) -> list[Key | None]:
        return [self._keys[number] for number in self._ids[rows].tolist()]

    def record(self, flows: Sequence[FlowKey], draw: Draw | Sequence[Draw], *, samples: int = 60) -> Epoch:
        """Record one epoch of round trips, about so many of each flow, and close it."""
        draws = [draw] * len(flows) if callable(draw) else list(draw)
        counts = self.random.poisson(samples, len(flows)) + 1
        values = [np.rint(one(self.random, n)).astype(np.int64) for one, n in zip(draws, counts, strict=True)]
        self.truth.append(np.array([each.mean() for each in values]))
        ids = np.repeat(np.array([key_id(key) for key in flows], np.uint64), counts)
        order = self.random.permutation(len(ids))
        times = np.sort(self.random.integers(0, self.epoch_ns, len(ids))) + self.begin_ns + self.epochs * self.epoch_ns
        self._keys.update((key_id(key), key) for key in flows)
        self._ids = ids[order]
        rows = MeasurementBatch(self._ids, np.concatenate(values)[order], times, times.view(np.uint64))
        closed = self._recorder.record(rows)
        self.epochs += 1
        closed += self._recorder.close_before(self.begin_ns + self.epochs * self.epoch_ns + 10 * SECOND)
        (epoch,) = closed
        return epoch

    def send(self, flows: Sequence[FlowKey], draw: Draw | Sequence[Draw], *, samples: int = 60) -> None:
        """Record an epoch, and store it."""
        self.store.add([self.record(flows, draw, samples=samples)])
