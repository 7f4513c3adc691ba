"""Choosing instances by patterns on the text of their keys: ``mosquitto[*]``, ``10.0.0.*``, ``* > 10.0.0.2:1883 tcp``.

``*`` stands for any text, ``?`` for one character; all else stands for itself, brackets too. A pattern describes the
whole text. Matching takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

import numpy as np

from sojourn.core.arrays import BoolArray, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.keys import MAX_TEXT, Key, key_id
from sojourn.sources.source import B, Source, SourceBatch

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


class SelectedInstances(Source[B]):
    """A source of which only the instances that fit some patterns are given."""

    def __init__(self, source: Source[B], patterns: InstancePatterns) -> None:
        self.metric = source.metric  # type: ignore[misc] # each wraps another
        self._source: Source[B] = source
        self._patterns = patterns
        self._ids: UInt64Array = np.empty(0, np.uint64)
        self._left_out = self._no_room = 0

    def open(self) -> None:
        self._ids = np.empty(0, np.uint64)
        self._left_out = self._no_room = 0
        self._source.open()

    def close(self) -> None:
        self._source.close()

    def poll(self, now_ns: int) -> SourceBatch[B]:
        found = self._source.poll(now_ns)
        keys = tuple(key for key in found.keys if self._patterns.match(key))
        if keys:
            self._add(np.array([key_id(key) for key in keys], np.uint64))
        batch = found.batch
        ids = batch.flow_id if isinstance(batch, PacketBatch) else batch.instance_id
        wanted: BoolArray = np.isin(ids, self._ids)
        self._left_out += int(len(wanted) - np.count_nonzero(wanted))
        return SourceBatch(batch.select(wanted), keys)

    def _add(self, ids: UInt64Array) -> None:
        together = np.union1d(self._ids, ids)
        self._no_room += max(0, len(together) - MOST_INSTANCES)
        self._ids = together[:MOST_INSTANCES]

    @property
    def memory_bytes(self) -> int:
        return self._source.memory_bytes

    @property
    def ignored(self) -> dict[str, int]:
        own = {NOT_SELECTED: self._left_out, NO_ROOM: self._no_room}
        return self._source.ignored | {reason: count for reason, count in own.items() if count}

    @property
    def warnings(self) -> list[str]:
        return self._source.warnings

    @property
    def is_ended(self) -> bool:
        return self._source.is_ended
