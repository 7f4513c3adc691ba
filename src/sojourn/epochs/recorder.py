"""`Recorder`: records batches and closes an epoch whenever the sketch is full or its time is over.

Nothing is lost at an edge: a batch that does not fit is split, the front goes into the old epoch and the
rest into the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key
from sojourn.epochs.epoch import Epoch
from sojourn.sketches.registry import AnySketch

__all__ = ["Recorder"]


class Recorder:
    """One stream of one node, from measurements to epochs.

    ``sketch_for`` makes the empty sketch of an epoch from its sequence number, so that each epoch may
    have its own salt. With ``length_ns`` an epoch also ends at multiples of that length since the Unix
    epoch; measurements are then expected in time order up to what one batch holds.
    """

    def __init__(
        self,
        node: str,
        stream: str,
        sketch_for: Callable[[int], AnySketch],
        *,
        length_ns: int = 0,
        first_sequence: int = 0,
    ) -> None:
        if length_ns < 0:
            raise ParameterError(f"epoch length {length_ns} ns is negative", action="use 0 for no limit")
        self.node, self.stream = node, stream
        self.sequence = first_sequence
        self._sketch_for = sketch_for
        self._length_ns = length_ns
        self._slot: int | None = None
        self.sketch = sketch_for(first_sequence)

    def record(self, batch: Any) -> list[Epoch]:
        """Record a batch; the epochs that it closed."""
        closed: list[Epoch] = []
        for part, slot in self._by_slot(batch):
            if self._slot is not None and slot != self._slot and self.sketch.recorded:
                closed.append(self.close())
            self._slot = slot
            self._record_part(part, closed)
        return closed

    def _by_slot(self, batch: Any) -> Iterable[tuple[Any, int]]:
        """The batch cut where its time slots change."""
        if not self._length_ns or not len(batch):
            return [(batch, 0)]
        slots = batch.time_ns // self._length_ns
        order = np.argsort(slots, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(slots[order])) + 1).tolist(), len(batch)]
        return [(batch.select(order[start:end]), int(slots[order[start]])) for start, end in itertools.pairwise(edges)]

    def _record_part(self, part: Any, closed: list[Epoch]) -> None:
        while taken := self.sketch.record_batch(part):
            if taken == len(part):
                return
            closed.append(self.close())
            part = part.select(slice(taken, None))
        if len(part) and self.sketch.recorded:
            closed.append(self.close())
            self._record_part(part, closed)
        elif len(part):
            raise ParameterError(
                "a measurement does not fit even an empty sketch",
                where=self.stream,
                action="use wider counters",
            )

    def close(self, keys: tuple[Key, ...] | None = None) -> Epoch:
        """End the current epoch, empty or not, and start the next."""
        epoch = Epoch(self.node, self.stream, self.sequence, self.sketch, keys)
        self.sequence += 1
        self.sketch = self._sketch_for(self.sequence)
        return epoch
