"""One stream of an agent: a source, the sketch of its current epoch, and the keys seen in it.

Epochs close when their time is over or their sketch is full. The salt goes round `SALTS` values, so that the same
instances collide differently from epoch to epoch, while epochs a round apart can still be merged. Each node has values
of its own: what several nodes measured of the same instances has independent errors, as those who add it up take them.
Open epochs can be asked for at any time (`snapshots`), which changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from sojourn.core.arrays import PacketBatch, UInt64Array
from sojourn.core.errors import UsageError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import Key, key_id
from sojourn.epochs.epoch import MAX_KEYS, Epoch
from sojourn.epochs.recorder import Recorder, every
from sojourn.node.agent.configuration import DEFAULT_LIMITS, StreamConfiguration
from sojourn.node.agent.stream_limits import checked_source
from sojourn.node.agent.watched import WatchedSource
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.registry import AnySketch, new_sketch

__all__ = ["SALTS", "AgentStream"]

SALTS = 16
# Rounds of salts that nodes choose from; a salt then fits 16 bits.
ROUNDS = 4096
MOST_NAMES = 1 << 18


class _SeenKeys:
    """The keys of one epoch: the instances that had a measurement, by the names that the stream knows."""

    def __init__(self, names: dict[int, Key]) -> None:
        self._names = names
        self._ids: set[int] = set()

    def see(self, batch: Any) -> None:
        ids: UInt64Array = batch.flow_id if isinstance(batch, PacketBatch) else batch.instance_id
        self._ids.update(np.unique(ids).tolist())

    def keys(self) -> tuple[Key, ...]:
        known = sorted(self._ids & self._names.keys())
        return tuple(self._names[i] for i in known[:MAX_KEYS])


class AgentStream:
    """Polls its source and hands out closed epochs; used from one thread at a time."""

    def __init__(
        self,
        node: str,
        configuration: StreamConfiguration,
        *,
        first_sequence: int = 0,
        most_bytes: int = DEFAULT_LIMITS.per_stream,
    ) -> None:
        self.configuration = configuration
        source, self.memory_bytes = checked_source(configuration, most_bytes=most_bytes)
        self.source = WatchedSource(source, name=configuration.name)
        self._first_salt = SALTS * (hash_bytes(node.encode()) % ROUNDS)
        self._is_of_values = configuration.parameters.kind == BucketArrayParameters.kind
        self._names: dict[int, Key] = {}
        # All that was measured until then is recorded.
        self.until_ns = 0
        self._recorder = Recorder(
            node,
            configuration.name,
            self._new_sketch,
            slot_of=every(configuration.epoch_ns),
            keys_for=lambda: _SeenKeys(self._names),
            first_sequence=first_sequence,
        )

    def _new_sketch(self, sequence: int) -> AnySketch:
        parameters = self.configuration.parameters
        if self.configuration.salted:
            salted: Any = {"salt": self._first_salt + sequence % SALTS}
            parameters = replace(parameters, **salted)
        return new_sketch(parameters)

    @property
    def next_sequence(self) -> int:
        """The number of the next epoch, of this stream or of one that goes on after it."""
        return self._recorder.sequence

    def take(self, seconds: float) -> list[Epoch] | None:
        """Record what the source answers to `source.ask`; the epochs that are complete, None if it takes longer."""
        answered = self.source.take(seconds)
        if answered is None:
            return None
        found, now_ns = answered
        if len(found) and isinstance(found.batch, PacketBatch) == self._is_of_values:
            kind, what = self.configuration.parameters.kind, "values" if self._is_of_values else "packets"
            raise UsageError(
                f"a {kind} records {what}, which metric {self.configuration.metric} does not give",
                where=f"stream {self.configuration.name}",
                action="use lda, lds, sample or counter_vector for packets, bucket_array for all else",
            )
        self._learn(found.keys)
        self.until_ns = now_ns
        return [*self._recorder.record(found.batch), *self._recorder.close_before(now_ns)]

    def _learn(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._names[key_id(key)] = key
        while len(self._names) > MOST_NAMES:
            del self._names[next(iter(self._names))]

    def snapshots(self) -> list[Epoch]:
        """The epochs under construction, as they are now."""
        return self._recorder.snapshots()

    def finish(self) -> list[Epoch]:
        """Close what is open and has measurements."""
        return [epoch for epoch in self._recorder.finish() if epoch.recorded]
