"""What a source measured, exactly: each instance's sum and count, by its name. The truth beside what a sketch says."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import key_id
from sojourn.sources.source import SourceBatch

__all__ = ["Tally"]


class Tally:
    """Sums and counts of all batches so far."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._sums: Counter[int] = Counter()
        self._counts: Counter[int] = Counter()

    def add(self, found: SourceBatch[MeasurementBatch]) -> None:
        self._names |= {key_id(key): str(key) for key in found.keys}
        ids, positions = np.unique(found.batch.instance_id, return_inverse=True)
        sums = np.zeros(len(ids), np.int64)
        np.add.at(sums, positions, found.batch.value)
        self._sums.update(dict(zip(ids.tolist(), sums.tolist(), strict=True)))
        self._counts.update(dict(zip(ids.tolist(), np.bincount(positions).tolist(), strict=True)))

    def sums(self) -> dict[str, int]:
        return {self._names[instance]: amount for instance, amount in self._sums.items()}

    def counts(self) -> dict[str, int]:
        return {self._names[instance]: count for instance, count in self._counts.items()}
