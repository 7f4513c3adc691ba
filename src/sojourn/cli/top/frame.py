"""What `sojourn top` shows at one moment, wherever it comes from: flows with numbers, and what they come to.

Numbers are columns (NaN where there is none), so that a hundred thousand flows cost nothing but those that are shown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array, rows_of

TREND = 16  # so many moments are remembered
# The numbers of a flow, by the names of the JSON output.
NUMBERS = (
    "packets_per_second",
    "bits_per_second",
    "packets",
    "samples",
    "mean_ns",
    "low_ns",
    "high_ns",
    "p99_ns",
    "lost",
    "loss",
)
_COUNTS = {"packets", "samples", "lost"}


class Sort(StrEnum):
    """What flows are the largest by."""

    DELAY = "delay"
    P99 = "p99"
    LOSS = "loss"
    RATE = "rate"


@dataclass(frozen=True, eq=False)
class Frame:
    """What was measured up to ``end_ns``, over ``span_ns``: one row for each flow.

    ``names`` gives the fields that name a flow; ``total`` are the numbers of all flows together; ``notes`` are what a
    reader has to know about these numbers, or what to do where there are none.
    """

    end_ns: int
    span_ns: int
    ids: UInt64Array
    columns: Mapping[str, FloatArray]
    names: Callable[[int], Mapping[str, Any]]
    total: Mapping[str, float | None]
    notes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> FloatArray:
        return self.columns[name] if name in self.columns else np.full(len(self), math.nan)

    def sort_name(self, sort: Sort) -> str:
        """The column that a sort is by: where bytes are not known, the rate is that of packets.

        >>> Frame(0, 1, np.zeros(0, np.uint64), {}, dict, {}).sort_name(Sort.RATE)
        'packets_per_second'
        """
        rate = "bits_per_second" if "bits_per_second" in self.columns else "packets_per_second"
        return {Sort.DELAY: "mean_ns", Sort.P99: "p99_ns", Sort.LOSS: "loss", Sort.RATE: rate}[sort]

    def order(self, sort: Sort, limit: int | None = None) -> Int64Array:
        """The rows with the largest values first, those without one last; among equals, the busier first."""
        values = self.column(self.sort_name(sort))
        known = ~np.isnan(values)
        busy = self.column("packets_per_second")
        order: Int64Array = np.lexsort((-busy, np.where(known, -values, 0), ~known))
        return order[:limit]

    def rows(self, order: Int64Array) -> Iterator[dict[str, Any]]:
        """Flows as plain values: None where there is no number."""
        given = [name for name in NUMBERS if name in self.columns]
        for row in order.tolist():
            numbers = {name: plain_number(name, float(self.columns[name][row])) for name in given}
            yield {**self.names(int(self.ids[row])), **numbers}


def plain_number(name: str, value: float | None) -> float | int | None:
    """A number of the JSON output: counts and times are whole, what is not known is None.

    >>> plain_number("mean_ns", 12.6), plain_number("loss", 0.25), plain_number("lost", float("nan"))
    (13, 0.25, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return round(value) if name.endswith("_ns") or name in _COUNTS else value


class FrameSource(Protocol):
    """Where frames come from."""

    @property
    def title(self) -> str:
        """What is watched."""

    @property
    def delays(self) -> str:
        """What the delays of this source are."""

    @property
    def sorts(self) -> Sequence[Sort]:
        """What flows can be sorted by, the usual one first."""

    def frames(self) -> Generator[Frame, None, None]:
        """Frames as they are measured, until `stop`."""

    def stop(self) -> None:
        """End soon; may be called from another thread, or a signal handler."""


@dataclass(eq=False)
class History:
    """The latest frames, and how flows fared in them."""

    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=TREND))

    def trends(self, name: str, ids: UInt64Array) -> FloatArray:
        """A row for each flow: its values in the remembered frames, oldest first."""
        found = np.full((len(ids), len(self.frames)), math.nan)
        for k, frame in enumerate(self.frames):
            rows = rows_of(frame.ids, ids)
            known = rows >= 0
            found[known, k] = frame.column(name)[rows[known]]
        return found


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: FloatArray) -> str:
    """Values as bars from 0 to the largest, blanks where there is none; as wide as the history is long.

    >>> sparkline(np.array([math.nan, 0, 1, 4]))
    '             ▁▂█'
    """
    known = values[~np.isnan(values)]
    largest = float(known.max(initial=0.0))
    heights = np.zeros(len(values)) if largest <= 0 else np.nan_to_num(values) / largest
    places = np.clip(np.ceil(heights * len(_BARS)) - 1, 0, len(_BARS) - 1).astype(int).tolist()
    bars = [" " if math.isnan(value) else _BARS[place] for value, place in zip(values.tolist(), places, strict=True)]
    return "".join(bars).rjust(TREND)
