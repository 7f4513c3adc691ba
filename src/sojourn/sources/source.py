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
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key, key_id

Granularity = Literal["process", "flow", "node"]
Values = Literal["increments", "samples"]

_GRANULARITIES = ("process", "flow", "node")
_VALUES = ("increments", "samples")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# Ids of reported keys that a source keeps; beyond, all are forgotten and reported anew.
_MOST_KNOWN = 1 << 16


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


B = TypeVar("B", MeasurementBatch, PacketBatch)


@dataclass(frozen=True, eq=False)
class SourceBatch(Generic[B]):
    """What a poll found: rows, and the keys that are new among their instances."""

    batch: B
    keys: tuple[Key, ...] = ()

    def __len__(self) -> int:
        return len(self.batch)


class Source(ABC, Generic[B]):
    """Measures one metric; entering the context opens it, leaving gives everything back."""

    metric: ClassVar[Metric]

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


class ReadingSource(Source[MeasurementBatch]):
    """A source that reads all values when it is polled; a metric of one's own needs only `read`."""

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
        ids = np.array([self._ids[key] for key in values], np.uint64)
        times = np.full(len(ids), now_ns, np.int64)
        return SourceBatch(MeasurementBatch.of(ids, list(values.values()), times), new)
