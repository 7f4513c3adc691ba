"""Summaries of round-trip times per flow and kind: count, mean, deviation, extremes, percentiles.

Guarantee: ``min`` and ``max`` are exact; ``mean`` and ``std`` (of a sample, n − 1) are exact up to
floating-point rounding; a percentile lies within 1/128 (0.79 %) of the sample of that rank (nearest
rank), and is exact below 64 ns. Each power of two is split into 64 equal bins; the middle of a bin is at
most half its width away from what fell into it.

Memory: bounded. 300 bytes per flow, and 256 bytes for each power of two that its samples reach, taken
from a common pool. What finds no room is counted: a sample of a flow beyond the limit is left out, one
whose bins find no room is missing from the percentiles only. Time: O(1) per sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core import hashing
from sojourn.core.arrays import FloatArray, Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import mix, to_range
from sojourn.core.kernels import inlined, kernel
from sojourn.rtt.state import Note, RttSamples, signed

QUANTILES = (0.5, 0.95, 0.99)

_BINS = 64
_BIN_BITS = 6
_OCTAVES = 64 - _BIN_BITS
_GOLDEN = np.uint64(hashing.GOLDEN_GAMMA)

# Columns of a flow's whole numbers and of its fractions.
_FLOW, _KIND, _SAMPLES, _MIN, _MAX, _DELAYED, _SEVERAL = range(7)
_MEAN, _SQUARES = 0, 1
_DELAYED_NOTE, _SEVERAL_NOTE = int(Note.DELAYED), int(Note.COVERS_SEVERAL)
# Reasons for which a sample is not (wholly) in the summaries.
_NO_FLOW, _NO_BINS = 0, 1


@dataclass(frozen=True, slots=True)
class FlowRtt:
    """The round-trip times of one flow direction and kind, in ns; ``flow_id`` is that of the answers."""

    flow_id: int
    kind: int
    samples: int
    min_rtt: int
    mean_rtt: float
    p50_rtt: int
    p95_rtt: int
    p99_rtt: int
    max_rtt: int
    std_rtt: float
    delayed_acks: int
    covering_acks: int


@inlined
def _bin_of(rtt: int) -> tuple[int, int]:
    """The octave of a time and its bin there; octave 0 holds the times below 64 ns as they are."""
    octave = 0
    while (rtt >> octave) >= 2 * _BINS:
        octave += 1
    if octave == 0 and rtt < _BINS:
        return 0, rtt
    return octave + 1, (rtt >> octave) - _BINS


@inlined
def _middle_of(octave: int, position: int) -> int:
    if octave == 0:
        return position
    return ((_BINS + position) << (octave - 1)) + ((1 << (octave - 1)) >> 1)


@inlined
def _find_flow(index: Int64Array, numbers: Int64Array, used: int, flow_id: int, kind: int) -> int:
    """The place in `index` of a flow and kind, or of the gap where it belongs."""
    size = index.shape[0]
    place = signed(to_range(mix(np.uint64(flow_id) ^ (np.uint64(kind) * _GOLDEN)), np.uint64(size)))
    for _ in range(used + 1):
        row = index[place]
        if row < 0 or (numbers[row, _FLOW] == flow_id and numbers[row, _KIND] == kind):
            break
        place += 1
        if place == size:
            place = 0
    return place


@kernel
def _add(
    index: Int64Array,
    numbers: Int64Array,
    fractions: FloatArray,
    pages: Int64Array,
    bins: Int64Array,
    used: Int64Array,
    dropped: Int64Array,
    flow_id: UInt64Array,
    rtt_ns: Int64Array,
    kind: UInt8Array,
    note: UInt8Array,
) -> None:
    """Add samples to their flows' summaries; `used` counts flows and pages of bins."""
    for i in range(len(rtt_ns)):
        rtt = max(rtt_ns[i], 0)
        flow = signed(flow_id[i])
        number = signed(kind[i])
        place = _find_flow(index, numbers, used[0], flow, number)
        row = index[place]
        if row < 0:
            if used[0] == numbers.shape[0]:
                dropped[_NO_FLOW] += 1
                continue
            row = used[0]
            used[0] += 1
            index[place] = row
            numbers[row, _FLOW] = flow
            numbers[row, _KIND] = number
            numbers[row, _MIN] = rtt
            numbers[row, _MAX] = rtt
        numbers[row, _SAMPLES] += 1
        numbers[row, _MIN] = min(numbers[row, _MIN], rtt)
        numbers[row, _MAX] = max(numbers[row, _MAX], rtt)
        numbers[row, _DELAYED] += note[i] == _DELAYED_NOTE
        numbers[row, _SEVERAL] += note[i] == _SEVERAL_NOTE
        away = rtt - fractions[row, _MEAN]
        fractions[row, _MEAN] += away / numbers[row, _SAMPLES]
        fractions[row, _SQUARES] += away * (rtt - fractions[row, _MEAN])
        octave, position = _bin_of(rtt)
        page = pages[row, octave]
        if page == 0:
            if used[1] == bins.shape[0]:
                dropped[_NO_BINS] += 1
                continue
            page = used[1]
            used[1] += 1
            pages[row, octave] = page
        bins[page, position] += 1


@kernel
def _fill_quantiles(
    numbers: Int64Array, pages: Int64Array, bins: Int64Array, shares: FloatArray, found: Int64Array
) -> None:
    """The nearest-rank quantiles of every flow, read from its bins."""
    for row in range(numbers.shape[0]):
        total = 0
        for octave in range(pages.shape[1]):
            if pages[row, octave] > 0:
                for position in range(_BINS):
                    total += bins[pages[row, octave], position]
        for j in range(shares.shape[0]):
            found[row, j] = _at_rank(row, pages, bins, max(1, signed(np.ceil(shares[j] * total))))
            found[row, j] = min(max(found[row, j], numbers[row, _MIN]), numbers[row, _MAX])


@inlined
def _at_rank(row: int, pages: Int64Array, bins: Int64Array, rank: int) -> int:
    seen = 0
    for octave in range(pages.shape[1]):
        page = pages[row, octave]
        if page > 0:
            for position in range(_BINS):
                seen += bins[page, position]
                if seen >= rank:
                    return _middle_of(octave, position)
    return 0


class RttSummaries:
    """Summaries of the samples added so far, for at most ``flows`` flow directions and kinds.

    The pool of bins holds two powers of two per flow on average, or ``pages`` in all; it is address
    space until it is used.
    """

    def __init__(self, flows: int = 1 << 16, pages: int | None = None) -> None:
        pages = 2 * flows if pages is None else pages
        if not (1 <= flows <= 1 << 26 and 1 <= pages <= 1 << 27):
            raise ParameterError(
                f"{flows} flows and {pages} pages", where="rtt summaries", action="use 1 to 2^26 flows"
            )
        self._numbers = np.zeros((flows, 7), np.int64)
        self._fractions = np.zeros((flows, 2), np.float64)
        self._pages: Any = np.zeros((flows, _OCTAVES + 1), np.int32)
        # Page 0 stays unused: a flow's octave without bins points there.
        self._bins: Any = np.zeros((pages + 1, _BINS), np.uint32)
        self._index = np.full(2 * flows, -1, np.int64)
        self._used = np.array([0, 1], np.int64)
        self._dropped = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._used[0])

    @property
    def samples(self) -> int:
        """All samples in the summaries."""
        return int(self._numbers[: len(self), _SAMPLES].sum())

    @property
    def dropped(self) -> dict[str, int]:
        """Samples that found no room, by reason."""
        reasons = ("samples of flows beyond the limit of the summary", "samples missing from the percentiles")
        return {reason: int(n) for reason, n in zip(reasons, self._dropped, strict=True) if n}

    def add(self, samples: RttSamples) -> None:
        _add(
            self._index, self._numbers, self._fractions, self._pages, self._bins, self._used, self._dropped,
            samples.flow_id, samples.rtt_ns, samples.kind, samples.note,
        )  # fmt: skip

    def columns(self) -> dict[str, NDArray[Any]]:
        """The fields of `FlowRtt`, one row per flow direction and kind, in the order of their first samples."""
        numbers, fractions = self._numbers[: len(self)], self._fractions[: len(self)]
        quantiles = np.empty((len(numbers), len(QUANTILES)), np.int64)
        _fill_quantiles(numbers, self._pages, self._bins, np.array(QUANTILES), quantiles)
        freedom = np.maximum(numbers[:, _SAMPLES] - 1, 1)
        deviations = np.sqrt(np.maximum(fractions[:, _SQUARES], 0.0) / freedom)
        ids = numbers[:, _FLOW].copy().view(np.uint64)
        first = ids, numbers[:, _KIND], numbers[:, _SAMPLES], numbers[:, _MIN], fractions[:, _MEAN], *quantiles.T
        columns = *first, numbers[:, _MAX], deviations, numbers[:, _DELAYED], numbers[:, _SEVERAL]
        return dict(zip(FlowRtt.__dataclass_fields__, columns, strict=True))

    def flows(self) -> list[FlowRtt]:
        """The same, row by row."""
        columns = (column.tolist() for column in self.columns().values())
        return [FlowRtt(*row) for row in zip(*columns, strict=True)]
