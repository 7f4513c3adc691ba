"""A plug-in metric of a known rate: so many measurements per second, of fifty processes in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sojourn.core.keys import ProcessKey, key_id
from sojourn.core.measurements import Measurements
from sojourn.sources.source import Metric, Source, SourceBatch

if TYPE_CHECKING:
    from sojourn.core.arrays import MeasurementBatch

__all__ = ["Steady"]

PROCESSES = 50


class Steady(Source["MeasurementBatch"]):
    """Increments of 1, evenly spread over the time since the last poll."""

    metric: ClassVar[Metric] = Metric("steady", "operations", "process", "increments")
    has_columns = False

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._keys = tuple(ProcessKey(f"worker-{i}", i + 1) for i in range(PROCESSES))
        self._ids = [key_id(key) for key in self._keys]
        self._given = self._start_ns = 0

    def open(self) -> None:
        self._given = self._start_ns = 0

    def close(self) -> None:
        """Nothing to give back."""

    def poll(self, now_ns: int) -> SourceBatch[MeasurementBatch]:
        if not self._start_ns:
            self._start_ns = now_ns
            return SourceBatch(Measurements([], [], []), self._keys)
        due = (now_ns - self._start_ns) * self._per_second // 10**9
        numbers = range(self._given, due)
        self._given = max(self._given, due)
        times = [self._start_ns + number * 10**9 // max(self._per_second, 1) for number in numbers]
        ids = [self._ids[number % PROCESSES] for number in numbers]
        return SourceBatch(Measurements(ids, [1] * len(ids), times, list(numbers)), ())
