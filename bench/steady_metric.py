"""A plug-in metric of a known rate: so many measurements per second, of fifty processes in turn."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import ProcessKey, key_id
from sojourn.sources.source import Metric, Source, SourceBatch

__all__ = ["Steady"]

PROCESSES = 50


class Steady(Source[MeasurementBatch]):
    """Increments of 1, evenly spread over the time since the last poll."""

    metric: ClassVar[Metric] = Metric("steady", "operations", "process", "increments")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._keys = tuple(ProcessKey(f"worker-{i}", i + 1) for i in range(PROCESSES))
        self._ids = np.array([key_id(key) for key in self._keys], np.uint64)
        self._given = self._start_ns = 0

    def open(self) -> None:
        self._given = self._start_ns = 0

    def close(self) -> None:
        """Nothing to give back."""

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        if not self._start_ns:
            self._start_ns = now_ns
            return SourceBatch(MeasurementBatch.of([], [], []), self._keys)
        due = (now_ns - self._start_ns) * self._per_second // 10**9
        number = np.arange(self._given, due)
        self._given = max(self._given, due)
        times = self._start_ns + number * 10**9 // max(self._per_second, 1)
        ids = self._ids[number % PROCESSES]
        return SourceBatch(MeasurementBatch(ids, np.ones(len(ids), np.int64), times, number.astype(np.uint64)), ())
