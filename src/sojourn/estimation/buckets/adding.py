"""Epochs of bucket arrays, read with what a range query needs of them and added up as they come.

Guarantee: what is added up is, to the last count, what merging the epochs one by one gives (`epochs.merging`), whatever
the widths of their counters: sums are of 64 bits, and a `SketchFullError` says where these are not enough. An epoch is
checked as its decoding does, before anything is added.
Cost: 40 µs an epoch of 64 buckets and 20 keys, of which 27 are its header's; names of instances are made once. Memory:
one epoch, the sums, and the latest `MOST_NAMES` names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import MismatchError, SketchFullError, SojournError, WireError
from sojourn.core.kernels import kernel
from sojourn.core.keys import Key, key_from_bytes, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

MOST_NAMES = 1 << 16
WIDEST = 64

Names = tuple[tuple[int, str], ...]  # ids and texts of instances


@dataclass(frozen=True, slots=True, eq=False)
class BucketEpoch:
    """An epoch's header, its buckets (a row each: sum and, if they count, count) and the instances that it lists."""

    header: Epoch | EncodedEpoch
    parameters: BucketArrayParameters
    buckets: Int64Array
    names: Names | None

    def epoch(self) -> Epoch:
        """The epoch itself, without its keys."""
        header = self.header
        return _epoch(header, self.parameters, self.buckets, (header.recorded, header.first_ns, header.last_ns))


def read_buckets(epoch: Epoch | EncodedEpoch) -> BucketEpoch:
    """The buckets of an epoch; a `WireError` where they or its keys are damaged, a `MismatchError` where it has none.

    Only bucket arrays can be asked for sums and means.
    """
    parameters = epoch.parameters
    if not isinstance(parameters, BucketArrayParameters):
        raise MismatchError(
            f"a stream of {parameters.kind} is not asked for sums and means",
            where=epoch.stream,
            action="estimate two points' epochs with `sojourn estimate`",
        )
    if parameters.wrap:
        raise MismatchError(
            "its buckets wrap: they hold time stamps, not values",
            where=epoch.stream,
            action="ask for round trips where both ends' epochs are",
        )
    if isinstance(epoch, Epoch):
        keys = None if epoch.keys is None else tuple((key_id(key), str(key)) for key in epoch.keys)
        return BucketEpoch(epoch, parameters, epoch.sketch.arrays[0], keys)
    return BucketEpoch(epoch, parameters, epoch.tables()[0], _names(epoch))


def _names(epoch: EncodedEpoch) -> Names | None:
    keys = epoch.listed()
    try:
        return None if keys is None else tuple(map(_name, keys))
    except WireError:
        raise
    except SojournError as error:
        raise WireError(error.what, where="keys") from None


@lru_cache(maxsize=MOST_NAMES)
def _name(key: bytes) -> tuple[int, str]:
    found: Key = key_from_bytes(key)
    return key_id(found), str(found)


@dataclass(slots=True, eq=False)
class _Sum:
    last: Epoch | EncodedEpoch
    buckets: Int64Array
    recorded: int
    first_ns: int
    last_ns: int


class BucketSums:
    """Epochs added up, those of one stream and salt together, in the order in which they came first."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, BucketArrayParameters], _Sum] = {}

    def has(self, epoch: BucketEpoch) -> bool:
        """Whether the epoch needs no memory beyond what is taken: it is added to others."""
        return _place(epoch) in self._sums

    def add(self, epoch: BucketEpoch) -> None:
        """Add an epoch that has measurements."""
        header = epoch.header
        if header.first_ns is None or header.last_ns is None:
            return
        place = _place(epoch)
        found = self._sums.get(place)
        if found is None:
            self._sums[place] = _Sum(header, epoch.buckets.copy(), header.recorded, header.first_ns, header.last_ns)
            return
        over = _add(found.buckets, epoch.buckets)
        if over >= 0:
            raise SketchFullError(
                f"the sums of bucket {over} would leave {WIDEST} bits", where=header.stream, action="ask for less time"
            )
        found.recorded += header.recorded
        found.first_ns, found.last_ns = min(found.first_ns, header.first_ns), max(found.last_ns, header.last_ns)
        if header.sequence > found.last.sequence:
            found.last = header

    def epochs(self) -> list[Epoch]:
        """The sums, as an epoch each."""
        return [
            _epoch(found.last, place[2], found.buckets, (found.recorded, found.first_ns, found.last_ns))
            for place, found in self._sums.items()
        ]


def _place(epoch: BucketEpoch) -> tuple[str, str, BucketArrayParameters]:
    return epoch.header.node, epoch.header.stream, _widest(epoch.parameters)


@lru_cache(maxsize=1024)
def _widest(parameters: BucketArrayParameters) -> BucketArrayParameters:
    """The same parameters with the widest counters: those of epochs that can be merged are equal."""
    return replace(parameters, bits=WIDEST, count_bits=WIDEST if parameters.count_bits else 0)


def _epoch(
    header: Epoch | EncodedEpoch,
    parameters: BucketArrayParameters,
    buckets: Int64Array,
    frame: tuple[int, int | None, int | None],
) -> Epoch:
    sketch = BucketArray(parameters)
    sketch.arrays[0][:] = buckets
    sketch.recorded, sketch.first_ns, sketch.last_ns = frame
    return Epoch(header.node, header.stream, header.sequence, sketch.freeze(), ())


@kernel
def _add(sums: Int64Array, buckets: Int64Array) -> int:
    """Add buckets to sums, all or none: the first bucket that would leave 64 bits, −1 if none would."""
    for i in range(sums.shape[0]):
        for j in range(sums.shape[1]):
            left, right = sums[i, j], buckets[i, j]
            # Two's complement: a sum has left its range exactly if it has the sign of neither part.
            if ((left ^ (left + right)) & (right ^ (left + right))) < 0:
                return i
    for i in range(sums.shape[0]):
        for j in range(sums.shape[1]):
            sums[i, j] += buckets[i, j]
    return -1
