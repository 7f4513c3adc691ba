"""`MetricRecorder`: one stream of measurements in, encoded epochs out, by the node unit's own code.

What `segments.record.PointRecorder` does with columns and kernels for packets, this does without numpy, SciPy or a
compiler, so that an agent of metrics fits a gateway. Guarantee: the same measurements give the same epochs, byte for
byte (`node.unit.unit` the buckets, here what is around them): a measurement that does not fit closes its epoch and
begins the next; the two latest time slots stay open, and what comes later still gets an epoch of its own. Every key of
an epoch is listed with it, in the order in which instances appeared: nothing is missed, where a key reporter's filter
would miss one in ten thousand.

Memory: 8 bytes for each counter of an open epoch, some 500 bytes for each instance in it. Cost: 2 µs for each
measurement once its instance has been seen in the epoch, on one core.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sojourn.core.errors import ParameterError
from sojourn.core.keys import Key, key_id
from sojourn.core.measurements import Measurements
from sojourn.epochs.encoded import EncodedEpoch, hash_bytes_fast
from sojourn.epochs.epoch import MAX_KEYS, MAX_SEQUENCE, check_names
from sojourn.epochs.packing import pack_column
from sojourn.node.unit.unit import Instance, NodeUnit, Packed
from sojourn.sketches.bucket_parameters import BucketArrayParameters
from sojourn.sources.source import SourceBatch

OPEN_SLOTS = 2
MOST_NAMES = 1 << 18
_ABSENT = -1


class _Wide(Packed):
    """Numbers that lie apart while they are worked with, and are packed when they are sent: a host has the memory."""

    def __init__(self, length: int, bits: int) -> None:
        self.length, self.bits = length, bits
        self._mask = (1 << bits) - 1
        self.numbers = array("Q", bytes(8 * length))

    @property
    def data(self) -> bytes:  # type: ignore[override] # made when it is asked for
        return pack_column(self.numbers, self.bits)

    def get(self, i: int) -> int:
        return self.numbers[i]

    def put(self, i: int, value: int) -> None:
        self.numbers[i] = value & self._mask

    def clear(self) -> None:
        self.numbers = array("Q", bytes(8 * self.length))


class _Placed(Instance):
    """An instance of one epoch that remembers where its buckets are."""

    __slots__ = ("places",)

    def __init__(self, instance_id: int, per_instance: int) -> None:
        super().__init__(instance_id)
        self.places = array("q", (_ABSENT,)) * per_instance


class _HostUnit(NodeUnit):
    """The node unit of one epoch, on a host: memory for time."""

    most_buckets = 1 << 28

    def packed(self, length: int, bits: int) -> Packed:
        return _Wide(length, bits)

    def hash_bytes(self, data: bytes) -> int:
        return hash_bytes_fast(data)

    def bucket(self, instance: Instance, j: int) -> int:
        places = instance.places  # type: ignore[attr-defined]
        if places[j] == _ABSENT:
            places[j] = super().bucket(instance, j)
        return int(places[j])


@dataclass(eq=False)
class _Open:
    """An epoch under construction: its number, parameters, unit, instances, and the canonical bytes of keys."""

    sequence: int
    parameters: BucketArrayParameters
    unit: NodeUnit
    instances: dict[int, _Placed] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)

    def instance(self, instance_id: int) -> _Placed:
        """An instance, made where it is new."""
        found = self.instances.get(instance_id)
        if found is None:
            found = self.instances[instance_id] = _Placed(instance_id, self.parameters.per_instance)
        return found


class KnownKeys(dict[int, Key]):
    """What instances are called by their ids; of the latest `MOST_NAMES`."""

    def learn(self, keys: Iterable[Key]) -> None:
        """Remember what a poll named."""
        for key in keys:
            self[key_id(key)] = key
        while len(self) > MOST_NAMES:
            del self[next(iter(self))]


class MetricRecorder:
    """One stream, from measurements to epochs of a fixed length; ``sequence`` is the number of the next."""

    def __init__(
        self,
        node: str,
        stream: str,
        parameters: BucketArrayParameters,
        *,
        epoch_ns: int,
        salt_of: Callable[[int], int] | None = None,
        first_sequence: int = 0,
    ) -> None:
        check_names(node, stream)
        self.node, self.stream, self.parameters = node, stream, parameters
        self.sequence = first_sequence
        self._epoch_ns, self._salt_of = epoch_ns, salt_of
        self._open: dict[int, _Open] = {}
        self._names = KnownKeys()

    def record(self, found: SourceBatch[Any]) -> list[EncodedEpoch]:
        """Record what a poll found; the epochs that it closed."""
        self._names.learn(found.keys)
        rows = found.measurements
        closed: list[EncodedEpoch] = []
        slots: dict[int, list[int]] = {}
        for row, time_ns in enumerate(rows.time_ns):
            slots.setdefault(time_ns // self._epoch_ns, []).append(row)
        for slot in sorted(slots):
            self._record_part(rows, slots[slot], slot, closed)
            while len(self._open) > OPEN_SLOTS:
                closed.append(self._close(min(self._open)))
        return closed

    def _record_part(self, rows: Measurements, chosen: list[int], slot: int, closed: list[EncodedEpoch]) -> None:
        begun = self._begin(slot)
        for row in chosen:
            if self._insert(begun, rows, row):
                continue
            if begun.unit.recorded:
                closed.append(self._close(slot))
                begun = self._begin(slot)
            if not self._insert(begun, rows, row):
                raise ParameterError(
                    "a measurement does not fit even an empty sketch", where=self.stream, action="use wider counters"
                )

    def _insert(self, begun: _Open, rows: Measurements, row: int) -> bool:
        number = rows.instance_id[row]
        sequence = 0 if rows.sequence is None else rows.sequence[row]
        if not begun.unit.insert(begun.instance(number), rows.value[row], rows.time_ns[row], sequence):
            return False
        if number not in begun.keys and number in self._names and len(begun.keys) < MAX_KEYS:
            begun.keys[number] = self._names[number].to_bytes()
        return True

    def _begin(self, slot: int) -> _Open:
        if slot not in self._open:
            if self.sequence > MAX_SEQUENCE:
                raise ParameterError(f"sequence {self.sequence} is outside 0 … 2⁶³ − 1", where="epoch")
            p = self.parameters
            if self._salt_of is not None:
                p = replace(p, salt=self._salt_of(self.sequence))
            sizes: dict[str, Any] = {"bits": p.bits, "count_bits": p.count_bits, "signed": p.signed, "wrap": p.wrap}
            unit = _HostUnit(p.buckets, p.per_instance, **sizes, spreading=p.spreading, salt=p.salt)
            self._open[slot] = _Open(self.sequence, p, unit)
            self.sequence += 1
        return self._open[slot]

    def _close(self, slot: int) -> EncodedEpoch:
        return self._encoded(self._open.pop(slot))

    def _encoded(self, begun: _Open) -> EncodedEpoch:
        unit, keys = begun.unit, list(begun.keys.values())
        data = unit.snapshot(self.node, self.stream, sequence=begun.sequence, keys=keys)
        first, last = (unit.first_ns, unit.last_ns) if unit.recorded else (None, None)
        name, memory = (self.node, self.stream, begun.sequence), begun.parameters.decoded_bytes
        return EncodedEpoch(begun.parameters, *name, first, last, unit.recorded, len(keys), memory, data)

    def snapshots(self) -> list[EncodedEpoch]:
        """The epochs under construction as they are now, oldest first; recording goes on."""
        return [self._encoded(begun) for _, begun in sorted(self._open.items()) if begun.unit.recorded]

    def close_before(self, time_ns: int) -> list[EncodedEpoch]:
        """Close the slots that ended before a time, oldest first."""
        current = time_ns // self._epoch_ns
        return [self._close(slot) for slot in sorted(self._open) if slot < current]

    def finish(self) -> list[EncodedEpoch]:
        """Close what is open and has measurements, oldest first."""
        return [epoch for slot in sorted(self._open) if (epoch := self._close(slot)).recorded]

    def rehearse(self) -> None:
        """There is nothing to compile."""

    @property
    def ledger(self) -> None:
        """None is kept of measurements."""

    def flow_packets(self, asked: object, now_ns: int) -> None:
        """No packet is known."""

    def watch(self) -> bool:
        """No other point cuts measurements anywhere."""
        return False

    def looks(self, now_ns: int) -> list[EncodedEpoch]:  # noqa: ARG002 - as that of packets
        """None: `watch` says so."""
        return []
