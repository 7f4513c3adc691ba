"""One stream of an agent: a source, the sketch of its current epoch, and the keys seen in it.

Epochs close when their time is over or their sketch is full. The salt goes round `SALTS` values, so that the same
instances collide differently from epoch to epoch, while epochs a round apart can still be merged. Each node has values
of its own: what several nodes measured of the same instances has independent errors, as those who add it up take them.
Open epochs can be asked for at any time (`snapshots`), which changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.errors import UsageError
from sojourn.core.hashing import hash_bytes
from sojourn.core.keys import Key, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.node.agent.configuration import DEFAULT_LIMITS, StreamConfiguration
from sojourn.node.agent.stream_limits import checked_source
from sojourn.node.agent.watched import WatchedSource
from sojourn.segments.record import KeyReports, PointRecorder, every
from sojourn.sketches.bucket_array import BucketArrayParameters

SALTS = 16
# Rounds of salts that nodes choose from; a salt then fits 16 bits.
ROUNDS = 4096
MOST_NAMES = 1 << 18


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
        first_salt = SALTS * (hash_bytes(node.encode()) % ROUNDS)
        self._is_of_values = configuration.parameters.kind == BucketArrayParameters.kind
        self._names: dict[int, Key] = {}
        self._ids: Any = np.empty(0, np.uint64)
        # All that was measured until then is recorded.
        self.until_ns = 0
        self._recorder = PointRecorder(
            node,
            configuration.name,
            configuration.parameters,
            slot_of=every(configuration.epoch_ns),
            keys=KeyReports(self._keys_at, flows=configuration.flows),
            keys_at=self._keys_at,
            salt_of=(lambda sequence: first_salt + sequence % SALTS) if configuration.salted else None,
            first_sequence=first_sequence,
        )

    def _keys_at(self, rows: Int64Array) -> list[Key | None]:
        """The keys of rows of the batch that is recorded, as far as the source has named them."""
        return [self._names.get(i) for i in self._ids[rows].tolist()]

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
                action="use auto, lda, lds, sample or counter_vector for packets, bucket_array for all else",
            )
        self._learn(found.keys)
        self._ids = found.batch.flow_id if isinstance(found.batch, PacketBatch) else found.batch.instance_id
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
