"""The wire format of an epoch: CBOR (RFC 8949), versioned, self-describing, checked before trusted.

::

    epoch = [version, body, check]          version 1 or 2; body a byte string; check = XXH64(body) mod 2³²
    body  = [kind, parameters, node, stream, sequence, frame, recorded, counters, keys]         of version 1
    body  = [kind, parameters, node, stream, sequence, frame, recorded, counters, keys, cut]    of version 2
    cut   = [begins, ends, sequences, continues, missed, clock]    clock = [synchronised, error_ns, offset_ns] or null

``parameters`` maps the papers' symbols to values, defaults left out (those of a ``segment``, which has several sketches
of the same packets, map a part's name to ``[kind, parameters]``); ``frame`` is ``[first_ns, span_ns]``
or null; ``counters`` holds all tables packed to their bit widths; ``keys`` is a list of
canonical key bytes or null. A file of epochs is a CBOR sequence (RFC 8742): one after the other.

Version 2 is for epochs that end at packets instead of times (`epoch.Cut`). They are cut as often as their packets say,
and may hold few: ``counters`` are then compressed (zlib, RFC 1950) wherever that makes them smaller, which shows in
their length; so bytes fall with packets.

Decoding never trusts content: at most `MAX_EPOCH_BYTES`, no tags, no indefinite lengths, no nesting beyond
what the format has; the size of `counters` is derived from validated parameters and compared before any
counter is allocated, and the memory that they take is bounded (`MAX_COUNTER_BYTES`). Whatever is wrong ends
in a `WireError` that names the field.

An epoch is encoded once, where it closes, and travels as an `EncodedEpoch`: its header, read and checked, beside the
bytes as they came. Spool, sender, server and store pass those on untouched; counters (up to 64 times the memory of
their bytes) and keys are decoded where they are answered. What counters take is known from the parameters, so that a
reader can refuse an epoch, or take one after the other.

Counters are packed as little-endian bits, a column starting at a byte: value i of a column occupies bits
``i·b … (i+1)·b − 1`` of the column's bytes, lowest bit first; spare bits of the last byte are zero. O(n·b/8).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import lru_cache
from typing import IO, Any, TypeVar, cast

import cbor2
import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import SojournError, WireError
from sojourn.core.hash_kernels import hash_slice
from sojourn.core.hashing import hash_bytes
from sojourn.core.kernels import kernel
from sojourn.core.keys import key_from_bytes
from sojourn.epochs.epoch import MAX_KEYS, Cut, Epoch, KernelClock, check_names, overlaps
from sojourn.sketches.parameters import Parameters, Table
from sojourn.sketches.sketch import SKETCHES, AnySketch, new_sketch, sketch_type

VERSION, VERSION_WITH_CUT = 1, 2
COMPRESSION = 1  # the fastest: what is there to gain are zeros
MAX_EPOCH_BYTES = 64 << 20
# A counter of one bit on the wire takes 64 in memory; what a message may cost is bounded, too.
MAX_COUNTER_BYTES = 4 * MAX_EPOCH_BYTES
MAX_INTEGER = (1 << 63) - 1
BODY_FIELDS = {VERSION: 9, VERSION_WITH_CUT: 10}
CUT_FIELDS, CLOCK_FIELDS = 6, 3
KERNEL_BYTES = 64  # from which on hashing by the kernel takes less time than calling it
# What an encoded epoch keeps beside its bytes, so that they are not parsed again.
FEW_KEYS, FEW_COUNTER_BYTES = 1000, 1 << 14
BODY_DEPTH = 5  # body, parameters of a segment, part, its parameters, a list of shares

T = TypeVar("T")
_Tables = tuple[tuple[Table, int, Int64Array], ...]  # with their packed sizes, and their columns as kernels take them
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
    few_keys: list[object] | None = attribute(default=None, repr=False, compare=False)  # as parsed, unless many
    few_counters: bytes | None = attribute(default=None, repr=False, compare=False)  # as packed, unless many
    cut: Cut | None = None

    @classmethod
    def of(cls, epoch: Epoch) -> EncodedEpoch:
        """An epoch that has just closed, encoded."""
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
            *_, counters, keys = _checked_items(self.data)[:9]
        return _decoded(self, counters, keys)

    def tables(self) -> list[Int64Array]:
        """The counters of each table, a row for each cell, checked as for `decode`, for which a sketch checks more."""
        packed = self.few_counters or _expect(_checked_items(self.data)[7], bytes, "counters")
        return _unpacked_tables(self.parameters, packed)

    def keys(self) -> tuple[bytes, ...]:
        """The canonical bytes of its keys, if it lists any; whether they are keys is not checked."""
        return (self.listed() or ()) if self.key_count else ()

    def listed(self) -> tuple[bytes, ...] | None:
        """The same; None where it has no list, which need not be complete then."""
        return _key_bytes(_checked_items(self.data)[8] if self.few_keys is None else self.few_keys)


def encode(epoch: Epoch) -> bytes:
    """The epoch as bytes; the same epoch always gives the same bytes."""
    sketch = epoch.sketch
    frame = None
    if epoch.first_ns is not None and epoch.last_ns is not None:
        frame = [epoch.first_ns, epoch.last_ns - epoch.first_ns]
    tables = zip(epoch.parameters.tables(), sketch.arrays, strict=True)
    counters = b"".join(pack_table(table, array) for table, array in tables)
    version, cut = VERSION, []
    if epoch.cut is not None:
        version, cut = VERSION_WITH_CUT, [_cut_items(epoch.cut)]
        compressed = zlib.compress(counters, COMPRESSION)
        counters = min(counters, compressed, key=len)
    body = cbor2.dumps(
        [
            epoch.parameters.kind,
            epoch.parameters.to_mapping(),
            epoch.node,
            epoch.stream,
            epoch.sequence,
            frame,
            epoch.recorded,
            counters,
            None if epoch.keys is None else [key.to_bytes() for key in epoch.keys],
            *cut,
        ]
    )
    return cbor2.dumps([version, body, _check(body)])


def _cut_items(cut: Cut) -> list[object]:
    clock = cut.clock and [cut.clock.synchronised, cut.clock.error_ns, cut.clock.offset_ns]
    return [cut.begins, cut.ends, cut.sequences, cut.continues, cut.missed, clock]


def _check(body: bytes) -> int:
    return hash_bytes_fast(body) & 0xFFFFFFFF


def hash_bytes_fast(data: bytes) -> int:
    """XXH64; by the kernel where the plain-Python form would take longer than calling that."""
    if len(data) < KERNEL_BYTES:
        return hash_bytes(data)
    return int(hash_slice(np.frombuffer(data, np.uint8), 0, len(data), np.uint64(0)))


def decode(data: bytes) -> Epoch:
    """The epoch in `data`, all of it and nothing more."""
    items = _body_items(_one_body(data))
    return _decoded(_header(items, data), *items[7:9])


def encoded(data: bytes) -> EncodedEpoch:
    """The epoch in `data` as it is: header and check word are checked, counters stay packed."""
    return _header(_body_items(_one_body(data)), data)


def encoded_sequence(data: bytes) -> Iterator[EncodedEpoch]:
    """The epochs of a CBOR sequence, each with its own bytes; raises as `read_epochs` does."""
    stream = io.BytesIO(data)
    while (start := stream.tell()) < len(data):
        with _located(start):
            body = _checked_body(load_item(stream, "epoch", depth=1))
            if stream.tell() - start > MAX_EPOCH_BYTES:
                raise WireError(f"an epoch exceeds {MAX_EPOCH_BYTES} bytes", where="epoch")
            yield _header(_body_items(body), data[start : stream.tell()])


def check_intact(data: bytes) -> None:
    """Refuse bytes that are not one whole epoch as it was encoded; the body is checked, not decoded."""
    _one_body(data)


def _one_body(data: bytes) -> _Body:
    if len(data) > MAX_EPOCH_BYTES:
        raise WireError(f"{len(data)} bytes exceed {MAX_EPOCH_BYTES}", where="epoch")
    stream = io.BytesIO(data)
    body = _checked_body(load_item(stream, "epoch", depth=1))
    if stream.read(1):
        raise WireError("bytes follow the epoch", where="epoch", action="send one epoch at a time")
    return body


def _checked_items(data: bytes) -> list[Any]:
    """The items of an epoch's body, which was read strictly when its header was."""
    items: list[Any] = cbor2.loads(cbor2.loads(data)[1])
    return items


def read_epochs(file: IO[bytes]) -> Iterator[Epoch]:
    """The epochs of a file, in order; raises at the first damaged one, naming its byte offset."""
    source = _BoundedReader(file)
    while source.begin():
        with _located(source.offset - 1):
            items = _body_items(_checked_body(load_item(source, "epoch", depth=1)))
            yield _decoded(_header(items, b""), *items[7:9])


@contextmanager
def _located(start: int) -> Iterator[None]:
    """Errors name the byte at which their epoch begins."""
    try:
        yield
    except WireError as error:
        raise WireError(
            error.what,
            where=f"epoch at byte {start}, {error.where}",
            action=error.action or ("the epochs before it are intact" if start else ""),
        ) from None


class _BoundedReader(io.RawIOBase):
    """A file that refuses to give one epoch more than `MAX_EPOCH_BYTES`."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._peeked = b""
        self._left = 0
        self.offset = 0

    def begin(self) -> bool:
        """Start a new epoch; false at the end of the file."""
        self._peeked = self._file.read(1)
        self.offset += len(self._peeked)
        self._left = MAX_EPOCH_BYTES
        return bool(self._peeked)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > self._left:
            raise WireError(f"an epoch exceeds {MAX_EPOCH_BYTES} bytes", where="epoch")
        data = self._peeked[:size]
        self._peeked = self._peeked[size:]
        if len(data) < size:
            more = self._file.read(size - len(data))
            self.offset += len(more)
            data += more
        self._left -= len(data)
        return data

    def seekable(self) -> bool:
        """No: then the decoder reads exactly what it needs, and the next epoch stays in the file."""
        return False


def _reject_tag(*_: object) -> object:
    raise WireError("CBOR tags are not part of the format", where="message")


# Every tag that the library would otherwise interpret on its own.
_TAGS = (*range(6), *range(25, 38), *range(43, 44), 52, 54, 100, 256, *range(258, 262), 1004, 43000, 55799)
_STRICT: Any = {
    "tag_hook": _reject_tag,
    "semantic_decoders": dict.fromkeys(_TAGS, _reject_tag),
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
    "strict_hashable_types": True,
}


def load_item(stream: object, where: str, *, depth: int, what: str = "an epoch") -> object:
    """One CBOR item, by the strictest reading the library has."""
    try:
        return cbor2.load(stream, max_depth=depth, **_STRICT)  # type: ignore[arg-type]
    except cbor2.CBORDecodeEOF:
        raise WireError("the data ends early", where=where, action="send all of it") from None
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise WireError(f"not the CBOR of {what} ({str(error)[:80]})", where=where) from None


def _checked_body(outer: object) -> _Body:
    if not isinstance(outer, list) or len(outer) != 3:
        raise WireError("expected [version, body, check]", where="epoch")
    version, body, check = outer
    if type(version) is not int or version not in BODY_FIELDS:
        known = " and ".join(map(str, BODY_FIELDS))
        raise WireError(
            f"version {str(version)[:20]} is unknown",
            where="version",
            action=f"this Sojourn reads versions {known}; update it",
        )
    if not isinstance(body, bytes):
        raise WireError("expected a byte string", where="body")
    if type(check) is not int or check != _check(body):
        raise WireError(
            "the check does not match the body", where="check", action="the epoch was damaged; send it again"
        )
    return version, body


def _body_items(checked: _Body) -> list[object]:
    version, body = checked
    stream = io.BytesIO(body)
    items = load_item(stream, "body", depth=BODY_DEPTH)
    if stream.read(1):
        raise WireError("bytes follow the body", where="body")
    if not isinstance(items, list) or len(items) != BODY_FIELDS[version]:
        raise WireError(f"expected a list of {BODY_FIELDS[version]} fields", where="body")
    return items


def _expect(value: object, kind: type[T], where: str) -> T:
    if type(value) is not kind:
        raise WireError(f"expected {kind.__name__}, found {type(value).__name__}", where=where)
    return value


def _integer(value: object, where: str, *, lowest: int = 0) -> int:
    number = _expect(value, int, where)
    if not lowest <= number <= MAX_INTEGER:
        raise WireError(f"{str(number)[:40]} is outside {lowest} … 2⁶³ − 1", where=where)
    return number


def _header(items: list[object], data: bytes) -> EncodedEpoch:
    """All of a body but its counters and keys, whose sizes alone are looked at."""
    kind, mapping, node, stream, sequence, frame, recorded, counters, keys, *rest = items
    cut = _decode_cut(rest[0]) if rest else None
    mapped = cbor2.dumps(_expect(mapping, dict, "parameters"))
    parameters, expected, memory = _layout(_expect(kind, str, "kind"), mapped)
    size = len(_expect(counters, bytes, "counters"))
    if size > expected or (size < expected and cut is None):
        raise WireError(f"{size} bytes of counters, the parameters call for {expected}", where="counters")
    if memory > MAX_COUNTER_BYTES:
        raise WireError(f"the counters take {memory} bytes of memory, more than {MAX_COUNTER_BYTES}", where="counters")
    count = _integer(recorded, "recorded")
    first_ns, last_ns = _decode_frame(frame)
    if (first_ns is None) != (count == 0):
        raise WireError("an epoch has a time frame exactly if it has measurements", where="frame")
    node, stream = _expect(node, str, "node"), _expect(stream, str, "stream")
    _as_wire_error(lambda: check_names(node, stream), "epoch")
    number = _integer(sequence, "sequence")
    key_count = 0 if keys is None else len(_expect(keys, list, "keys"))
    if key_count > MAX_KEYS:
        raise WireError(f"{key_count} keys exceed {MAX_KEYS}", where="keys")
    if cut is not None and cut.sequences > number + 1:
        raise WireError(f"{cut.sequences} numbers end at {number}", where="sequences")
    few = cast(list[object] | None, keys) if key_count <= FEW_KEYS else None
    packed = cast(bytes, counters) if size <= FEW_COUNTER_BYTES else None
    name, frame_ns = (node, stream, number), (first_ns, last_ns)
    return EncodedEpoch(parameters, *name, *frame_ns, count, key_count, memory, data, few, packed, cut)


def _decoded(header: EncodedEpoch, counters: object, listed: object) -> Epoch:
    sketch = _decode_sketch(header.parameters, _expect(counters, bytes, "counters"))
    sketch.recorded, sketch.first_ns, sketch.last_ns = header.recorded, header.first_ns, header.last_ns
    _as_wire_error(sketch.check, "counters")
    raw = _key_bytes(listed)
    keys = None if raw is None else _as_wire_error(lambda: tuple(map(key_from_bytes, raw)), "keys")
    # Nobody else has the sketch, and unpacked counters are canonical: no copy is needed.
    name = header.node, header.stream, header.sequence
    return _as_wire_error(lambda: Epoch(*name, sketch.freeze(), keys, header.cut), "epoch")


@lru_cache(maxsize=1024)
def _layout(kind: str, mapping: bytes) -> tuple[Parameters, int, int]:
    """Parameters, and the bytes of their counters, packed and in memory; epochs of a stream have the same ones."""
    if kind not in SKETCHES:
        raise WireError(f"kind {kind[:40]!r} is unknown", where="kind", action=f"known are {', '.join(SKETCHES)}")
    parameters = sketch_type(kind).parameters_type.from_mapping(cbor2.loads(mapping))
    return parameters, sum(packed_size(table) for table in parameters.tables()), parameters.decoded_bytes


def _decode_sketch(parameters: Parameters, counters: bytes) -> AnySketch:
    sketch = new_sketch(parameters)
    _unpack_tables(_tables(parameters), counters, sketch.arrays)
    return sketch


def _unpacked_tables(parameters: Parameters, counters: bytes) -> list[Int64Array]:
    tables = _tables(parameters)
    arrays = [np.empty((table.length, len(table.fields)), np.int64) for table, *_ in tables]
    _unpack_tables(tables, counters, arrays)
    return arrays


def _unpack_tables(tables: _Tables, counters: bytes, arrays: Sequence[Int64Array]) -> None:
    packed = np.frombuffer(_decompressed(counters, sum(size for _, size, _ in tables)), np.uint8)
    offset = 0
    for (table, size, columns), array in zip(tables, arrays, strict=True):
        if fault := _unpack(packed[offset : offset + size], columns, array):
            what = "bits after the last counter are set" if fault > 0 else "a count exceeds 2⁶³ − 1"
            raise WireError(what, where=f"{table.name}.{table.fields[abs(fault) - 1].name}")
        offset += size


@lru_cache(maxsize=1024)
def _tables(parameters: Parameters) -> _Tables:
    """The tables with what unpacking takes: epochs of a stream have the same ones."""
    return tuple((table, packed_size(table), _columns(table)) for table in parameters.tables())


def _columns(table: Table) -> Int64Array:
    """Of each field: its bits, whether values are read as two's complement, and whether they are counts."""
    return np.array([[field.bits, field.is_centred, field.is_counted] for field in table.fields], np.int64)


def _decompressed(counters: bytes, size: int) -> bytes:
    """The packed counters; never more than their size is made of what came."""
    if len(counters) == size:
        return counters
    try:
        reader = zlib.decompressobj()
        found = reader.decompress(counters, size)
    except zlib.error as error:
        raise WireError(f"cannot be decompressed ({error})", where="counters") from None
    # What is exactly as long as it may be has yet to reach its end.
    if len(found) != size or reader.decompress(reader.unconsumed_tail, 1) or not reader.eof or reader.unused_data:
        raise WireError(f"compressed counters are not the {size} bytes that the parameters call for", where="counters")
    return found


def _decode_cut(items: object) -> Cut:
    if not isinstance(items, list) or len(items) != CUT_FIELDS:
        raise WireError("expected [begins, ends, sequences, continues, missed, clock]", where="cut")
    begins, ends = (None if word is None else _word(word, "cut") for word in items[:2])
    sequences, missed = _integer(items[2], "sequences", lowest=1), _integer(items[4], "missed")
    return Cut(begins, ends, sequences, _expect(items[3], bool, "continues"), missed, _decode_clock(items[5]))


def _decode_clock(items: object) -> KernelClock | None:
    if items is None:
        return None
    if not isinstance(items, list) or len(items) != CLOCK_FIELDS:
        raise WireError("expected [synchronised, error_ns, offset_ns]", where="clock")
    offset = _integer(items[2], "offset_ns", lowest=-MAX_INTEGER)
    return KernelClock(_expect(items[0], bool, "synchronised"), _integer(items[1], "error_ns"), offset)


def _word(value: object, where: str) -> int:
    number = _expect(value, int, where)
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


def _key_bytes(keys: object) -> tuple[bytes, ...] | None:
    if keys is None:
        return None
    if other := set(map(type, _expect(keys, list, "keys"))) - {bytes}:
        raise WireError(f"expected bytes, found {other.pop().__name__}", where="keys")
    return tuple(cast(list[bytes], keys))


def _as_wire_error(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except WireError:
        raise
    except SojournError as error:
        raise WireError(error.what, where=where) from None


_BYTE = np.uint64(255)


def _column_size(length: int, bits: int) -> int:
    return (length * bits + 7) // 8


def packed_size(table: Table) -> int:
    """Bytes of a packed table."""
    return sum(_column_size(table.length, field.bits) for field in table.fields)


@kernel
def _pack(column: Int64Array, bits: int, packed: UInt8Array) -> None:
    position = 0
    for i in range(len(column)):
        value = np.uint64(column[i])
        remaining = bits
        while remaining > 0:
            offset = position & 7
            taken = min(8 - offset, remaining)
            part = value & np.uint64((1 << taken) - 1)
            packed[position >> 3] |= np.uint8((part << np.uint64(offset)) & _BYTE)
            value >>= np.uint64(taken)
            position += taken
            remaining -= taken


@kernel
def _unpack(packed: UInt8Array, columns: Int64Array, array: Int64Array) -> int:
    """Fill the columns of a table; 0, or the number (from 1) of a column with bits after its last value, or less one
    with a count that is negative."""
    position = 0
    for k in range(len(columns)):
        bits, is_counted = columns[k, 0], columns[k, 2]
        unused = np.int64(64 - bits if columns[k, 1] else 0)
        lowest = np.int64(0)
        for i in range(len(array)):
            value = np.uint64(0)
            filled = 0
            while filled < bits:
                offset = position & 7
                taken = min(8 - offset, bits - filled)
                part = (np.uint64(packed[position >> 3]) >> np.uint64(offset)) & np.uint64((1 << taken) - 1)
                value |= part << np.uint64(filled)
                position += taken
                filled += taken
            array[i, k] = np.int64(value << np.uint64(unused)) >> unused
            lowest = min(lowest, array[i, k])
        if position & 7:
            if packed[position >> 3] >> (position & 7):
                return k + 1
            position += 8 - (position & 7)
        if is_counted and lowest < 0:
            return -1 - k
    return 0


def pack_table(table: Table, array: Int64Array) -> bytes:
    """All columns of a table, one after the other."""
    parts = []
    for i, field in enumerate(table.fields):
        packed = np.zeros(_column_size(table.length, field.bits), np.uint8)
        _pack(np.ascontiguousarray(field.canonical(array[:, i])), field.bits, packed)
        parts.append(packed.tobytes())
    return b"".join(parts)
