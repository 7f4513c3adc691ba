"""The one interface of everything that is measured on a node: open, poll, close.

::

    with new_source("cpu") as source:
        while True:
            time.sleep(1)
            found = source.poll(time.time_ns())
            recorder.record(found.batch)
            directory.add(found.keys)

Guarantee: a poll gives what was measured since the poll before (the first: since `open`), once. The key of an instance
is in `keys` of the poll that first has a measurement of it; it may come again (after a process number was used anew,
after a flow was forgotten), which is harmless. What could not be measured is counted in `ignored`, by reason; what a
user should know is in `warnings`.
Cost: each source says its own; `docs/sources.md` has them in a table.

`SelectedInstances` gives only instances whose key's text fits a pattern: ``mosquitto[*]``, ``10.0.0.*``,
``* > 10.0.0.2:1883 tcp``. ``*`` stands for any text, ``?`` for one character; all else stands for itself, brackets too.
A pattern describes the whole text. Matching takes time linear in the text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from sojourn.core.errors import ParameterError
from sojourn.core.keys import MAX_TEXT, Key, key_id
from sojourn.core.measurements import Measurements, plain

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch, PacketBatch, UInt64Array

Granularity = Literal["process", "flow", "node"]
Values = Literal["increments", "samples"]

_GRANULARITIES = ("process", "flow", "node")
_VALUES = ("increments", "samples")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# Ids of reported keys that a source keeps; beyond, all are forgotten and reported anew.
_MOST_KNOWN = 1 << 16
MOST_NAMED = 1 << 17


@dataclass(frozen=True)
class Metric:
    """What a source measures.

    ``unit`` is a word such as ``operations``, ``bytes``, ``ns`` or ``packets``. Values are ``increments`` where their
    sum answers a question (operations, CPU time), ``samples`` where their mean does (resident memory, round-trip time).
    """

    name: str
    unit: str
    granularity: Granularity
    values: Values

    def __post_init__(self) -> None:
        for what, text in (("metric", self.name), ("unit", self.unit)):
            if not _NAME.fullmatch(text):
                raise ParameterError(
                    f"{text[:40]!r} cannot be the name of a {what}", action="use a-z, 0-9 and _, at most 40 of them"
                )
        choices = (("granularity", self.granularity, _GRANULARITIES), ("values", self.values, _VALUES))
        for what, chosen, possible in choices:
            if chosen not in possible:
                raise ParameterError(
                    f"{what} is {chosen!r}", where=self.name, action=f"use one of {', '.join(possible)}"
                )


B = TypeVar("B", "MeasurementBatch", "PacketBatch")


@dataclass(frozen=True, eq=False)
class SourceBatch(Generic[B]):
    """What a poll found: rows, and the keys that are new among their instances.

    Rows are plain or columns of numpy, as the source has them (`Source.has_columns`), and are asked for as either.
    """

    rows: B | Measurements
    keys: tuple[Key, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def batch(self) -> B:
        """The rows as columns."""
        if isinstance(self.rows, Measurements):
            plain_rows: Any = self.rows
            made: B = plain_rows.columns()
            return made
        return self.rows

    @property
    def is_of_packets(self) -> bool:
        """Whether the rows are packets instead of measurements."""
        return hasattr(self.rows, "packet_id")

    @property
    def measurements(self) -> Measurements:
        """The rows, which are no packets, as plain measurements."""
        rows: Any = self.rows
        return rows if isinstance(rows, Measurements) else plain(rows)


class Source(ABC, Generic[B]):
    """Measures one metric; entering the context opens it, leaving gives everything back."""

    metric: ClassVar[Metric]
    # Many rows a poll, as columns for kernels; False: plain ones, which need neither numpy nor a compiler.
    has_columns: bool = True

    @abstractmethod
    def open(self) -> None:
        """Measure from now on; a `SourceError` (or `LiveCaptureError`) where that is not possible."""

    @abstractmethod
    def poll(self, now_ns: int) -> SourceBatch[B]:
        """The measurements since the last poll; never waits. `now_ns` is the time of those without their own."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; without effect when nothing is open."""

    @property
    def memory_bytes(self) -> int:
        """The memory that the source may come to take for what its options say, such as the size of a table."""
        return 0

    @property
    def most_named(self) -> int:
        """How many instances it may have named at once: what another one has, it names again before it measures it."""
        return MOST_NAMED

    @property
    def missed(self) -> int:
        """How many packets passed since `open` that the kernel had no room for."""
        return 0

    @property
    def ignored(self) -> dict[str, int]:
        """How often something could not be measured since `open`, by reason; absent reasons did not occur."""
        return {}

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the measurements so far, one line each."""
        return []

    @property
    def is_ended(self) -> bool:
        """Whether nothing can come any more, as at the end of a capture file."""
        return False

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReadingSource(Source["MeasurementBatch"]):
    """A source that reads all values when it is polled; a metric of one's own needs only `read`."""

    has_columns = False

    def __init__(self) -> None:
        self._ids: dict[Key, int] = {}
        self._ignored: Counter[str] = Counter()

    @abstractmethod
    def read(self, now_ns: int) -> Mapping[Key, int]:
        """The values of now (samples), or what was added since the last call (increments)."""

    def open(self) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to give back."""

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self._ignored)

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        values = self.read(now_ns)
        if len(self._ids) > _MOST_KNOWN:
            self._ids.clear()
        new = tuple(key for key in values if key not in self._ids)
        self._ids.update((key, key_id(key)) for key in new)
        ids = [self._ids[key] for key in values]
        return SourceBatch(Measurements.of(ids, values.values(), [now_ns] * len(ids)), new)


MOST_PATTERNS = 100
MOST_INSTANCES = 1 << 20
NOT_SELECTED = "measurements of instances that were not asked for"
NO_ROOM = "instances that were asked for, beyond the limit"


class InstancePatterns:
    """Patterns of which one must match.

    >>> from sojourn.core.keys import ProcessKey
    >>> InstancePatterns(["mosquitto[*]"]).match(ProcessKey("mosquitto", 812))
    True
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        if not 1 <= len(self.patterns) <= MOST_PATTERNS:
            raise ParameterError(f"{len(self.patterns)} patterns", action=f"give 1 to {MOST_PATTERNS}")
        for pattern in self.patterns:
            if not 1 <= len(pattern) <= MAX_TEXT:
                raise ParameterError(f"a pattern of {len(pattern)} characters", action=f"use 1 to {MAX_TEXT}")
        # A bracket is part of a process's key: kept from being read as a set of characters.
        self._compiled = [re.compile(translate(pattern.replace("[", "[[]"))) for pattern in self.patterns]

    def match(self, key: Key | str) -> bool:
        """Whether a key's text fits one of the patterns."""
        text = str(key)
        return any(compiled.match(text) for compiled in self._compiled)


class WrappedSource(Source[B]):
    """Another source, of which something is changed: what is not, is as that one says."""

    def __init__(self, source: Source[Any]) -> None:
        self.metric = source.metric  # type: ignore[misc] # each wraps another
        self.has_columns = source.has_columns
        self._source = source

    def close(self) -> None:
        self._source.close()

    @property
    def memory_bytes(self) -> int:
        return self._source.memory_bytes

    @property
    def most_named(self) -> int:
        return self._source.most_named

    @property
    def missed(self) -> int:
        return self._source.missed

    @property
    def ignored(self) -> dict[str, int]:
        return self._source.ignored

    @property
    def warnings(self) -> list[str]:
        return self._source.warnings

    @property
    def is_ended(self) -> bool:
        return self._source.is_ended


class SelectedInstances(WrappedSource[B]):
    """A source of which only the instances that fit some patterns are given."""

    def __init__(self, source: Source[B], patterns: InstancePatterns) -> None:
        super().__init__(source)
        self._patterns = patterns
        self._ids: set[int] = set()
        self._column: UInt64Array | None = None
        self._left_out = self._no_room = 0

    def open(self) -> None:
        self._ids.clear()
        self._column = None
        self._left_out = self._no_room = 0
        self._source.open()

    def poll(self, now_ns: int) -> SourceBatch[B]:
        found = self._source.poll(now_ns)
        keys = tuple(key for key in found.keys if self._patterns.match(key))
        if keys:
            self._add({key_id(key) for key in keys})
        rows = self._wanted(found.rows)
        self._left_out += len(found) - len(rows)
        return SourceBatch(rows, keys)

    def _wanted(self, rows: B | Measurements) -> B | Measurements:
        if isinstance(rows, Measurements):
            return rows.select([row for row, number in enumerate(rows.instance_id) if number in self._ids])
        import numpy as np

        batch: Any = rows
        ids = batch.instance_id if hasattr(batch, "instance_id") else batch.flow_id
        return rows.select(np.isin(ids, self._columns_of_ids()))

    def _columns_of_ids(self) -> UInt64Array:
        """The ids as a column, made anew when there are more."""
        import numpy as np

        if self._column is None or len(self._column) != len(self._ids):
            self._column = np.fromiter(self._ids, np.uint64, len(self._ids))
        return self._column

    def _add(self, ids: set[int]) -> None:
        new = sorted(ids - self._ids)
        room = MOST_INSTANCES - len(self._ids)
        self._no_room += max(0, len(new) - room)
        self._ids.update(new[:room])

    @property
    def ignored(self) -> dict[str, int]:
        own = {NOT_SELECTED: self._left_out, NO_ROOM: self._no_room}
        return super().ignored | {reason: count for reason, count in own.items() if count}
