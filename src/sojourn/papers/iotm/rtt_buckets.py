"""Round-trip times of flows in bucket arrays, recorded by batches; what `node.unit.rtt_unit` does one packet at a
time.

Guarantee (`RttRecorder`): packets sent and packets acknowledged are kept in two arrays with a count each, under a salt
of the epoch's own. Both times of a packet are in the epoch in which it was sent: an acknowledgement of a number before
its flow's first of an epoch belongs to the epoch before, which stays open for one more. So a bucket whose two counts
agree holds exactly the sum of its round trips, and a lost packet spoils one bucket of one epoch.

A packet's number, hashed, chooses the bucket: sequence numbers that grow by the same length for each message would
all fall on one residue modulo m. The hash is a product, so that such numbers go round the buckets evenly.

`PublishedRttRecorder` adds and subtracts time stamps in one array, chosen by the number modulo m, and counts packets
sent in another; what is lost, or on its way at an edge, leaves whole time stamps behind.

Memory: two arrays of n × (b + c) bits, twice while an epoch waits for its last acknowledgements. Time: two hashes per
packet. Shahzad and Ganji, "IoTm", §IV-B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

NUMBER_FUNCTION = 1 << 23
_NUMBER = np.uint64(hashing.HALF_MASK)
_HALF = np.uint64(32)
_LATER = np.uint64(1 << 31)


def rtt_parameters(buckets: int, per_instance: int, *, bits: int = 32, count_bits: int = 16) -> BucketArrayParameters:
    """Arrays for time stamps: they count, wrap, and choose by the packet's number."""
    return BucketArrayParameters(
        buckets=buckets,
        per_instance=per_instance,
        bits=bits,
        count_bits=count_bits,
        signed=True,
        wrap=True,
        spreading="sequence",
    )


def choices_of(parameters: BucketArrayParameters, number: UInt64Array) -> UInt64Array:
    """j by packets' numbers, modulo 2³²: the number times an odd word of the epoch, reduced to a range.

    Numbers in equal steps go round evenly, whatever the step; others are as good as drawn.
    """
    word = np.uint64(hashing.salt_for(NUMBER_FUNCTION, parameters.salt) & hashing.HALF_MASK | 1)
    turned = ((number & _NUMBER) * word) & _NUMBER
    return (turned * np.uint64(parameters.per_instance)) >> _HALF


@dataclass(frozen=True, eq=False)
class RttEpoch:
    """The two arrays of one time slot."""

    slot: int
    sent: BucketArray
    acknowledged: BucketArray

    @property
    def round_trips(self) -> Int64Array:
        """The sum of round trips in each bucket, in the recorder's unit; meaningless where not `usable`."""
        field = self.sent.parameters.tables()[0].fields[0]
        return field.combine(self.acknowledged.column("sum"), self.sent.column("sum"), -1)

    @property
    def usable(self) -> BoolArray:
        """The buckets in which as many packets were acknowledged as sent."""
        usable: BoolArray = self.sent.column("count") == self.acknowledged.column("count")
        return usable


@dataclass(frozen=True, eq=False)
class _Firsts:
    """Flows that sent in a slot, by id, with the number of the first packet."""

    flow: UInt64Array
    number: UInt64Array

    def started(self, flow: UInt64Array, number: UInt64Array) -> tuple[BoolArray, BoolArray]:
        """(which flows sent in the slot, which packets are not before their flow's first of it)."""
        if not len(self.flow):
            none = np.zeros(len(flow), np.bool_)
            return none, none
        at = np.minimum(np.searchsorted(self.flow, flow), len(self.flow) - 1)
        known = self.flow[at] == flow
        return known, known & (((number - self.number[at]) & _NUMBER) < _LATER)

    def extended(self, flow: UInt64Array, number: UInt64Array) -> _Firsts:
        new = ~self.started(flow, number)[0]
        unique, first = np.unique(flow[new], return_index=True)
        flows = np.concatenate([self.flow, unique])
        order = np.argsort(flows)
        return _Firsts(flows[order], np.concatenate([self.number, number[new][first]])[order])


_NOBODY = _Firsts(np.empty(0, np.uint64), np.empty(0, np.uint64))


def _by_slot(batch: MeasurementBatch, epoch_ns: int) -> list[tuple[int, MeasurementBatch]]:
    slots = batch.time_ns // epoch_ns
    return [(int(slot), batch.select(slots == slot)) for slot in np.unique(slots)]


class RttRecorder:
    """One stream of packets sent and acknowledged, from batches to epochs of fixed length.

    ``salt_of`` gives the salt of a slot; ``late`` counts acknowledgements whose epoch was closed, ``refused`` what
    found its array full.
    """

    def __init__(
        self,
        parameters: BucketArrayParameters,
        *,
        epoch_ns: int,
        unit_ns: int = 1000,
        salt_of: Callable[[int], int] = lambda slot: slot & hashing.MASK,
    ) -> None:
        if epoch_ns <= 0 or unit_ns <= 0:
            raise ParameterError(f"epochs of {epoch_ns} ns in units of {unit_ns} ns", action="use positive lengths")
        self.parameters, self.epoch_ns, self.unit_ns, self._salt_of = parameters, epoch_ns, unit_ns, salt_of
        self.late = self.refused = 0
        self._open: dict[int, RttEpoch] = {}
        self._firsts: dict[int, _Firsts] = {}

    def record(self, sent: MeasurementBatch, acknowledged: MeasurementBatch) -> list[RttEpoch]:
        """Record what happened next, each batch in the order of time; the epochs that this closed.

        ``sequence`` holds packets' numbers. No packet may be acknowledged in an earlier call than it is sent in.
        """
        for slot, rows in _by_slot(sent, self.epoch_ns):
            firsts = self._firsts.get(slot, _NOBODY)
            self._firsts[slot] = firsts.extended(rows.instance_id, rows.sequence & _NUMBER)
            self._put(self._epoch(slot).sent, rows)
        for slot, rows in _by_slot(acknowledged, self.epoch_ns):
            self._acknowledge(slot, rows)
        newest = max(self._open, default=0)
        return [self._close(slot) for slot in sorted(self._open) if slot < newest - 1]

    def _epoch(self, slot: int) -> RttEpoch:
        if slot not in self._open:
            parameters = replace(self.parameters, salt=self._salt_of(slot))
            self._open[slot] = RttEpoch(slot, BucketArray(parameters), BucketArray(parameters))
        return self._open[slot]

    def _acknowledge(self, slot: int, rows: MeasurementBatch) -> None:
        number = rows.sequence & _NUMBER
        _, in_this = self._firsts.get(slot, _NOBODY).started(rows.instance_id, number)
        _, in_last = self._firsts.get(slot - 1, _NOBODY).started(rows.instance_id, number)
        before = in_last & ~in_this
        self.late += int((~in_this & ~before).sum())
        for chosen, at in ((in_this, slot), (before, slot - 1)):
            if chosen.any():
                self._put(self._epoch(at).acknowledged, rows.select(chosen))

    def _put(self, array: BucketArray, rows: MeasurementBatch) -> None:
        choice = choices_of(array.parameters, rows.sequence)
        stamped = MeasurementBatch(rows.instance_id, rows.time_ns // self.unit_ns, rows.time_ns, choice)
        self.refused += _record_what_fits(array, stamped)

    def _close(self, slot: int) -> RttEpoch:
        self._firsts.pop(slot, None)
        return self._open.pop(slot)

    def finish(self) -> list[RttEpoch]:
        """Close what is open, oldest first."""
        return [self._close(slot) for slot in sorted(self._open)]


class PublishedRttRecorder:
    """As published: time stamps ± in one array, packets sent counted in the other; an epoch per slot of time.

    ``epochs`` maps a slot to its (stamps, counts).
    """

    def __init__(
        self, parameters: BucketArrayParameters, *, epoch_ns: int, unit_ns: int = 1_000_000, salt: int = 0
    ) -> None:
        self._stamps = replace(parameters, signed=True, wrap=True, count_bits=0, spreading="sequence", salt=salt)
        self._counts = replace(self._stamps, signed=False, wrap=False)
        self.epoch_ns, self.unit_ns = epoch_ns, unit_ns
        self.refused = 0
        self.epochs: dict[int, tuple[BucketArray, BucketArray]] = {}

    def record(self, sent: MeasurementBatch, acknowledged: MeasurementBatch) -> None:
        """Record what happened next; ``sequence`` holds packets' numbers."""
        for sign, batch in ((-1, sent), (1, acknowledged)):
            for slot, rows in _by_slot(batch, self.epoch_ns):
                if slot not in self.epochs:
                    self.epochs[slot] = BucketArray(self._stamps), BucketArray(self._counts)
                stamps, counts = self.epochs[slot]
                if sign < 0:
                    self.refused += _record_what_fits(counts, replace(rows, value=np.ones(len(rows), np.int64)))
                self.refused += _record_what_fits(stamps, replace(rows, value=sign * (rows.time_ns // self.unit_ns)))


def _record_what_fits(array: BucketArray, rows: MeasurementBatch) -> int:
    """Record all rows that find room; how many did not."""
    refused = 0
    while len(rows):
        taken = array.record_batch(rows)
        if taken == len(rows):
            break
        refused += 1
        rows = rows.select(slice(taken + 1, None))
    return refused
