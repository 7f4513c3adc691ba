"""Epochs as they travel: their header, read and checked, beside their bytes; without numpy or a compiler.

Everything here works on the bytes that `epochs.wire` describes, whose counters stay packed: a node spools and sends
epochs by it, a server stores them. What unpacks counters is in `epochs.wire`, and imported when it is asked for.

Guarantee: content is not trusted (`epochs.wire` says how far). Cost: some 10 µs for each epoch, where the CBOR library
is compiled.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from sojourn.core.errors import SojournError, WireError
from sojourn.core.hashing import hash_bytes
from sojourn.epochs.cbor import dumps, load_item, loads
from sojourn.epochs.epoch import MAX_KEYS, Cut, Epoch, KernelClock, Slew, check_names, overlaps
from sojourn.epochs.packing import column_size
from sojourn.sketches.kinds import SKETCHES, parameters_type
from sojourn.sketches.parameters import Parameters, Table

if TYPE_CHECKING:
    from sojourn.core.arrays import Int64Array

VERSION, VERSION_WITH_CUT, VERSION_WITH_LEAD = 1, 2, 3
MAX_EPOCH_BYTES = 64 << 20
# A counter of one bit on the wire takes 64 in memory; what a message may cost is bounded, too.
MAX_COUNTER_BYTES = 4 * MAX_EPOCH_BYTES
MAX_INTEGER = (1 << 63) - 1
BODY_FIELDS = {VERSION: 9, VERSION_WITH_CUT: 10, VERSION_WITH_LEAD: 10}
CUT_FIELDS, CLOCK_FIELDS, CLOCK_FIELDS_WITH_LEAD = 6, 3, 7
SLEW_FIELDS, MAX_SLEW = 3, 1 << 50
KERNEL_BYTES = 64  # from which on hashing by the kernel takes less time than calling it
LARGE_BYTES = 4 << 20  # from which on it takes less time than loading it: no epoch of a metric is as large by default
_KERNELS = "sojourn.core.hash_kernels"
# What an encoded epoch keeps beside its bytes, so that they are not parsed again.
FEW_KEYS, FEW_COUNTER_BYTES = 1000, 1 << 14
BODY_DEPTH = 5  # body, parameters of a segment, part, its parameters, a list of shares

T = TypeVar("T")
_Frame = tuple[int | None, int | None]
_Body = tuple[int, bytes]  # the version of the format, and what is in it


@dataclass(frozen=True, slots=True)
class EncodedEpoch:
    """An epoch as it travels: its header, and its bytes, whose counters and keys nobody has looked at."""

    parameters: Parameters
    node: str
    stream: str
    sequence: int
    first_ns: int | None
    last_ns: int | None
    recorded: int
    key_count: int
    decoded_bytes: int  # of memory that the counters take once they are unpacked
    data: bytes
    # As parsed, or as known to be bytes, unless many.
    few_keys: list[object] | tuple[bytes, ...] | None = attribute(default=None, repr=False, compare=False)
    few_counters: bytes | None = attribute(default=None, repr=False, compare=False)  # as packed, unless many
    cut: Cut | None = None

    @classmethod
    def of(cls, epoch: Epoch | EncodedEpoch) -> EncodedEpoch:
        """An epoch that has just closed, encoded."""
        if isinstance(epoch, EncodedEpoch):
            return epoch
        from sojourn.epochs.wire import encode

        name, frame = (epoch.node, epoch.stream, epoch.sequence), (epoch.first_ns, epoch.last_ns, epoch.recorded)
        memory = epoch.parameters.decoded_bytes
        return cls(epoch.parameters, *name, *frame, len(epoch.keys or ()), memory, encode(epoch), cut=epoch.cut)

    def overlaps(self, from_ns: int, to_ns: int) -> bool:
        """Whether any measurement may lie in ``from_ns … to_ns``."""
        return overlaps(self.first_ns, self.last_ns, from_ns, to_ns)

    def decode(self) -> Epoch:
        """The epoch; counters and keys are checked."""
        counters, keys = self.few_counters, self.few_keys
        if counters is None or keys is None:
            *_, counters, keys = checked_items(self.data)[:9]
        from sojourn.epochs.wire import decoded_epoch

        return decoded_epoch(self, counters, keys)

    def tables(self) -> list[Int64Array]:
        """The counters of each table, a row for each cell, checked as for `decode`, for which a sketch checks more."""
        from sojourn.epochs.wire import unpacked_tables

        return unpacked_tables(self.parameters, self.counters())

    def counters(self) -> bytes:
        """Its counters as they are packed."""
        return self.few_counters or expect(checked_items(self.data)[7], bytes, "counters")

    def keys(self) -> tuple[bytes, ...]:
        """The canonical bytes of its keys, if it lists any; whether they are keys is not checked."""
        return (self.listed() or ()) if self.key_count else ()

    def listed(self) -> tuple[bytes, ...] | None:
        """The same; None where it has no list, which need not be complete then."""
        return key_bytes(checked_items(self.data)[8] if self.few_keys is None else self.few_keys)


AnyEpoch: TypeAlias = Epoch | EncodedEpoch


def check_word(body: bytes) -> int:
    return hash_bytes_fast(body) & 0xFFFFFFFF


def hash_bytes_fast(data: bytes) -> int:
    """XXH64; by the kernel where the plain-Python form would take longer than calling that.

    A process that has no kernels loads them for large data alone, of which plain Python hashes 5 MB/s.
    """
    if len(data) < KERNEL_BYTES or (len(data) < LARGE_BYTES and _KERNELS not in sys.modules):
        return hash_bytes(data)
    import numpy as np

    from sojourn.core.hash_kernels import hash_slice

    return int(hash_slice(np.frombuffer(data, np.uint8), 0, len(data), np.uint64(0)))


def encoded(data: bytes) -> EncodedEpoch:
    """The epoch in `data` as it is: header and check word are checked, counters stay packed."""
    return header_of(body_items(one_body(data)), data)


def encoded_sequence(data: bytes) -> Iterator[EncodedEpoch]:
    """The epochs of a CBOR sequence, each with its own bytes; raises as `read_epochs` does."""
    start = 0
    while start < len(data):
        epoch = epoch_at(data, start)
        yield epoch
        start += len(epoch.data)


def epoch_at(data: bytes, start: int) -> EncodedEpoch:
    """The epoch that begins at a byte, with its own bytes."""
    stream = io.BytesIO(data)
    stream.seek(start)
    with located(start):
        body = checked_body(load_item(stream, "epoch", depth=1))
        if stream.tell() - start > MAX_EPOCH_BYTES:
            raise WireError(f"an epoch exceeds {MAX_EPOCH_BYTES} bytes", where="epoch")
        return header_of(body_items(body), data[start : stream.tell()])


def check_intact(data: bytes) -> None:
    """Refuse bytes that are not one whole epoch as it was encoded; the body is checked, not decoded."""
    one_body(data)


def one_body(data: bytes) -> _Body:
    if len(data) > MAX_EPOCH_BYTES:
        raise WireError(f"{len(data)} bytes exceed {MAX_EPOCH_BYTES}", where="epoch")
    stream = io.BytesIO(data)
    body = checked_body(load_item(stream, "epoch", depth=1))
    if stream.read(1):
        raise WireError("bytes follow the epoch", where="epoch", action="send one epoch at a time")
    return body


def checked_items(data: bytes) -> list[Any]:
    """The items of an epoch's body, which was read strictly when its header was."""
    items: list[Any] = loads(loads(data)[1])
    return items


@contextmanager
def located(start: int) -> Iterator[None]:
    """Errors name the byte at which their epoch begins."""
    try:
        yield
    except WireError as error:
        raise WireError(
            error.what,
            where=f"epoch at byte {start}, {error.where}",
            action=error.action or ("the epochs before it are intact" if start else ""),
        ) from None


def checked_body(outer: object) -> _Body:
    if not isinstance(outer, list) or len(outer) != 3:
        raise WireError("expected [version, body, check]", where="epoch")
    version, body, check = outer
    if type(version) is not int or version not in BODY_FIELDS:
        known = ", ".join(map(str, BODY_FIELDS))
        raise WireError(
            f"version {str(version)[:20]} is unknown",
            where="version",
            action=f"this Sojourn reads versions {known}; update it",
        )
    if not isinstance(body, bytes):
        raise WireError("expected a byte string", where="body")
    if type(check) is not int or check != check_word(body):
        raise WireError(
            "the check does not match the body", where="check", action="the epoch was damaged; send it again"
        )
    return version, body


def body_items(checked: _Body) -> list[object]:
    version, body = checked
    stream = io.BytesIO(body)
    items = load_item(stream, "body", depth=BODY_DEPTH)
    if stream.read(1):
        raise WireError("bytes follow the body", where="body")
    if not isinstance(items, list) or len(items) != BODY_FIELDS[version]:
        raise WireError(f"expected a list of {BODY_FIELDS[version]} fields", where="body")
    return items


def expect(value: object, kind: type[T], where: str) -> T:
    if type(value) is not kind:
        raise WireError(f"expected {kind.__name__}, found {type(value).__name__}", where=where)
    return value


def _integer(value: object, where: str, *, lowest: int = 0) -> int:
    number = expect(value, int, where)
    if not lowest <= number <= MAX_INTEGER:
        raise WireError(f"{str(number)[:40]} is outside {lowest} … 2⁶³ − 1", where=where)
    return number


def header_of(items: list[object], data: bytes) -> EncodedEpoch:
    """All of a body but its counters and keys, whose sizes alone are looked at."""
    kind, mapping, node, stream, sequence, frame, recorded, counters, keys, *rest = items
    mapped = dumps(expect(mapping, dict, "parameters"))
    parameters, expected, memory = _layout(expect(kind, str, "kind"), mapped)
    size = len(expect(counters, bytes, "counters"))
    if size > expected or (size < expected and not rest):
        raise WireError(f"{size} bytes of counters, the parameters call for {expected}", where="counters")
    if memory > MAX_COUNTER_BYTES:
        raise WireError(f"the counters take {memory} bytes of memory, more than {MAX_COUNTER_BYTES}", where="counters")
    count = _integer(recorded, "recorded")
    first_ns, last_ns = _decode_frame(frame)
    cut = _decode_cut(rest[0], (first_ns, last_ns)) if rest else None
    if (first_ns is None) != (count == 0):
        raise WireError("an epoch has a time frame exactly if it has measurements", where="frame")
    node, stream = expect(node, str, "node"), expect(stream, str, "stream")
    as_wire_error(lambda: check_names(node, stream), "epoch")
    number = _integer(sequence, "sequence")
    key_count = 0 if keys is None else len(expect(keys, list, "keys"))
    if key_count > MAX_KEYS:
        raise WireError(f"{key_count} keys exceed {MAX_KEYS}", where="keys")
    if cut is not None and cut.sequences > number + 1:
        raise WireError(f"{cut.sequences} numbers end at {number}", where="sequences")
    few = cast(list[object] | None, keys) if key_count <= FEW_KEYS else None
    packed = cast(bytes, counters) if size <= FEW_COUNTER_BYTES else None
    name, frame_ns = (node, stream, number), (first_ns, last_ns)
    return EncodedEpoch(parameters, *name, *frame_ns, count, key_count, memory, data, few, packed, cut)


@lru_cache(maxsize=1024)
def _layout(kind: str, mapping: bytes) -> tuple[Parameters, int, int]:
    """Parameters, and the bytes of their counters, packed and in memory; epochs of a stream have the same ones."""
    if kind not in SKETCHES:
        raise WireError(f"kind {kind[:40]!r} is unknown", where="kind", action=f"known are {', '.join(SKETCHES)}")
    parameters = parameters_type(kind).from_mapping(loads(mapping))
    return parameters, sum(packed_size(table) for table in parameters.tables()), parameters.decoded_bytes


def _decode_cut(items: object, frame: _Frame) -> Cut:
    if not isinstance(items, list) or len(items) != CUT_FIELDS:
        raise WireError("expected [begins, ends, sequences, continues, missed, clock]", where="cut")
    begins, ends = (None if word is None else _word(word, "cut") for word in items[:2])
    sequences, missed = _integer(items[2], "sequences", lowest=1), _integer(items[4], "missed")
    return Cut(begins, ends, sequences, expect(items[3], bool, "continues"), missed, _decode_clock(items[5], frame))


def _decode_clock(items: object, frame: _Frame) -> KernelClock | None:
    if items is None:
        return None
    if not isinstance(items, list) or len(items) not in (CLOCK_FIELDS, CLOCK_FIELDS_WITH_LEAD):
        raise WireError("expected [synchronised, error_ns, offset_ns, lead_ns, was_set, boot, slew]", where="clock")
    offset = _integer(items[2], "offset_ns", lowest=-MAX_INTEGER)
    told = expect(items[0], bool, "synchronised"), _integer(items[1], "error_ns"), offset
    if len(items) == CLOCK_FIELDS:
        return KernelClock(*told)
    lead = None if items[3] is None else _integer(items[3], "lead_ns", lowest=-MAX_INTEGER)
    was_set, boot = expect(items[4], bool, "was_set"), None if items[5] is None else _integer(items[5], "boot")
    return KernelClock(*told, lead, was_set, boot, _decode_slew(items[6], frame))


def _decode_slew(items: object, frame: _Frame) -> Slew | None:
    """It is of the first and the last stamp."""
    if items is None:
        return None
    first_ns, last_ns = frame
    if not isinstance(items, list) or len(items) != SLEW_FIELDS or first_ns is None or last_ns is None:
        raise WireError("expected [last, change, bend], of an epoch with measurements", where="slew")
    last, change, bend = (expect(item, int, "slew") for item in items)
    if max(abs(last), abs(change), bend) > MAX_SLEW or bend < 0:
        raise WireError(f"{last}, {change} and {bend} are no clock's", where="slew")
    return Slew(first_ns, last_ns, last - change, last, bend)


def _word(value: object, where: str) -> int:
    number = expect(value, int, where)
    if not 0 <= number < 1 << 64:
        raise WireError(f"{str(number)[:40]} is no 64-bit word", where=where)
    return number


def _decode_frame(frame: object) -> tuple[int | None, int | None]:
    if frame is None:
        return None, None
    if not isinstance(frame, list) or len(frame) != 2:
        raise WireError("expected [first_ns, span_ns] or null", where="frame")
    first = _integer(frame[0], "first_ns", lowest=-MAX_INTEGER)
    last = _integer(first + _integer(frame[1], "span_ns"), "span_ns", lowest=-MAX_INTEGER)
    return first, last


def key_bytes(keys: object) -> tuple[bytes, ...] | None:
    if keys is None or isinstance(keys, tuple):
        return keys
    if other := set(map(type, expect(keys, list, "keys"))) - {bytes}:
        raise WireError(f"expected bytes, found {other.pop().__name__}", where="keys")
    return tuple(cast(list[bytes], keys))


def as_wire_error(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except WireError:
        raise
    except SojournError as error:
        raise WireError(error.what, where=where) from None


def packed_size(table: Table) -> int:
    """Bytes of a packed table."""
    return sum(column_size(table.length, field.bits) for field in table.fields)
