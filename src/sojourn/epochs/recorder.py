"""`Recorder`: records batches and closes an epoch whenever the sketch is full or its time is over.

Nothing is lost at an edge: a batch that does not fit is split, the front goes into the old epoch and the rest into
the next. With time slots, the two latest slots stay open, because captures are not in time order; a packet that is
later still gets an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key
from sojourn.epochs.epoch import Epoch
from sojourn.sketches.registry import AnySketch

__all__ = ["EpochKeys", "Recorder", "every"]

OPEN_SLOTS = 2

SlotOf = Callable[[Int64Array], Int64Array]


class EpochKeys(Protocol):
    """What an epoch's measurements are shown to, to tell in the end which keys they had."""

    def see(self, batch: Any) -> None: ...
    def keys(self) -> tuple[Key, ...]: ...


def every(length_ns: int) -> SlotOf:
    """Slots of a fixed length, from the Unix epoch on."""
    if length_ns <= 0:
        raise ParameterError(f"epoch length {length_ns} ns", action="use a positive length")
    return lambda time_ns: time_ns // length_ns


class Recorder:
    """One stream of one node, from measurements to epochs.

    ``sketch_for`` makes the empty sketch of an epoch from its sequence number, so that each epoch may have its own
    salt. ``slot_of`` says in which time slot a measurement belongs; ``keys_for`` makes what
    collects the keys to report with an epoch (none are reported without).
    """

    def __init__(
        self,
        node: str,
        stream: str,
        sketch_for: Callable[[int], AnySketch],
        *,
        slot_of: SlotOf | None = None,
        keys_for: Callable[[], EpochKeys] | None = None,
        first_sequence: int = 0,
    ) -> None:
        self.node, self.stream = node, stream
        self.sequence = first_sequence
        self._sketch_for = sketch_for
        self._slot_of = slot_of
        self._keys_for = keys_for
        self._open: dict[int, tuple[int, AnySketch, EpochKeys | None]] = {}

    def record(self, batch: Any) -> list[Epoch]:
        """Record a batch; the epochs that it closed."""
        closed: list[Epoch] = []
        for part, slot in self._by_slot(batch):
            self._record_part(part, slot, closed)
            while len(self._open) > OPEN_SLOTS:
                closed.append(self._close(min(self._open)))
        return closed

    def _by_slot(self, batch: Any) -> Iterable[tuple[Any, int]]:
        """The batch cut where its time slots change."""
        if self._slot_of is None or not len(batch):
            return [(batch, 0)]
        slots = self._slot_of(batch.time_ns)
        if (slots == slots[0]).all():
            return [(batch, int(slots[0]))]
        order = np.argsort(slots, kind="stable")
        starts = [0, *(np.flatnonzero(np.diff(slots[order])) + 1).tolist()]
        ends = [*starts[1:], len(batch)]
        return [
            (batch.select(order[start:end]), int(slots[order[start]])) for start, end in zip(starts, ends, strict=True)
        ]

    def _begin(self, slot: int) -> tuple[AnySketch, EpochKeys | None]:
        if slot not in self._open:
            keys = self._keys_for() if self._keys_for is not None else None
            self._open[slot] = (self.sequence, self._sketch_for(self.sequence), keys)
            self.sequence += 1
        return self._open[slot][1:]

    def _record_part(self, part: Any, slot: int, closed: list[Epoch]) -> None:
        while len(part):
            sketch, keys = self._begin(slot)
            taken = sketch.record_batch(part)
            if keys is not None and taken:
                keys.see(part if taken == len(part) else part.select(slice(0, taken)))
            if taken == len(part):
                return
            if not sketch.recorded:
                raise ParameterError(
                    "a measurement does not fit even an empty sketch", where=self.stream, action="use wider counters"
                )
            closed.append(self._close(slot))
            part = part.select(slice(taken, None))

    def _close(self, slot: int) -> Epoch:
        sequence, sketch, keys = self._open.pop(slot)
        return Epoch(self.node, self.stream, sequence, sketch, None if keys is None else keys.keys())

    def snapshots(self) -> list[Epoch]:
        """The epochs under construction as they are now, oldest first; recording goes on."""
        return [
            Epoch(self.node, self.stream, sequence, sketch, None if keys is None else keys.keys())
            for _, (sequence, sketch, keys) in sorted(self._open.items())
            if sketch.recorded
        ]

    def close_before(self, time_ns: int) -> list[Epoch]:
        """Close the slots that ended before a time, oldest first; without slots nothing does."""
        if self._slot_of is None:
            return []
        current = int(self._slot_of(np.array([time_ns], np.int64))[0])
        return [self._close(slot) for slot in sorted(self._open) if slot < current]

    def finish(self) -> list[Epoch]:
        """Close what is open, oldest first; an empty epoch if nothing was ever recorded."""
        if not self._open and not self.sequence:
            self._begin(0)
        return [self._close(slot) for slot in sorted(self._open)]
