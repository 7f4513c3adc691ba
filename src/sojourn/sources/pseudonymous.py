"""A source whose instances go by pseudonyms: what it gives is all that is recorded, written down, sent and answered.

Guarantee: a poll's keys are pseudonyms (`core.pseudonyms`), and its rows have the ids of these, as XXH64 of a clear key
could be found out by trying all addresses. Of the same measurements two nodes with one secret give the same ids.
Packets are told apart by a keyed hash (SipHash-2-4) of their identity, for the same reason: two points of a segment
need one secret. Where a row's instance has not been named (its flow found no room, or was forgotten), the id is a keyed
hash of its own, which fits no key.

Nothing of it is for each packet in Python: a row's id is looked up in a table, by kernels where the source has columns.
Cost: 25 µs for a new process, as much for a new flow between known networks, 80 µs between unknown ones; 0.1 µs for a
plain measurement, 0.01 µs for a packet.
Memory: twice `most_named` of the source in entries of 24 bytes in columns, of 200 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from sojourn.core.keys import Key, key_id
from sojourn.core.measurements import Measurements
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.sources.source import Source, SourceBatch, WrappedSource

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch, PacketBatch
    from sojourn.sources.pseudonym_columns import ColumnIds

B = TypeVar("B", "MeasurementBatch", "PacketBatch")
PLAIN_BYTES, COLUMN_BYTES = 200, 24


class PlainIds:
    """The ids of pseudonyms by those of clear keys, of the `most` that were seen last, and of as many before them."""

    def __init__(self, pseudonyms: Pseudonyms, most: int) -> None:
        self._pseudonyms, self._most = pseudonyms, most
        self._known: dict[int, int] = {}
        self._earlier: dict[int, int] = {}

    def learn(self, ids: Iterable[tuple[int, int]]) -> None:
        """Know some instances by both their ids."""
        for clear, hidden in ids:
            if len(self._known) >= self._most:
                self._known, self._earlier = {}, self._known
            self._known[clear] = hidden

    def of(self, clear: int) -> int:
        """The id to record an instance under."""
        found = self._known.get(clear)
        if found is None:
            found = self._earlier.get(clear)
            if found is None:
                return self._pseudonyms.unknown_id(clear)
            self.learn([(clear, found)])  # who is measured is not forgotten
        return found


class PseudonymousSource(WrappedSource[B]):
    """Another source, of which only pseudonyms are given."""

    def __init__(self, source: Source[B], pseudonyms: Pseudonyms) -> None:
        super().__init__(source)
        self._pseudonyms = pseudonyms
        self._plain = PlainIds(pseudonyms, source.most_named)
        self._columns: ColumnIds | None = None

    def open(self) -> None:
        self._plain = PlainIds(self._pseudonyms, self.most_named)
        self._columns = None
        if self.has_columns:
            self._in_columns().rehearse()  # before there are packets to lose
        self._source.open()

    def _in_columns(self) -> ColumnIds:
        if self._columns is None:
            from sojourn.sources.pseudonym_columns import ColumnIds

            self._columns = ColumnIds(self._pseudonyms, self.most_named)
        return self._columns

    def poll(self, now_ns: int) -> SourceBatch[B]:
        found = self._source.poll(now_ns)
        keys: tuple[Key, ...] = tuple(map(self._pseudonyms.key, found.keys))
        ids = zip(map(key_id, found.keys), map(key_id, keys), strict=True)
        if isinstance(found.rows, Measurements):
            self._plain.learn(ids)
            rows = found.rows
            hidden = [self._plain.of(number) for number in rows.instance_id]
            return SourceBatch(Measurements(hidden, rows.value, rows.time_ns, rows.sequence), keys)
        columns = self._in_columns()
        columns.learn(list(ids))
        batch: Any = found.rows
        return SourceBatch(columns.renamed(batch), keys)

    @property
    def memory_bytes(self) -> int:
        own = 2 * self.most_named * (COLUMN_BYTES if self.has_columns else PLAIN_BYTES)
        return super().memory_bytes + own
