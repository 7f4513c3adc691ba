"""The wire format of an epoch: CBOR (RFC 8949), versioned, self-describing, checked before trusted.

::

    epoch = [version, body, check]          version 1, 2 or 3; body a byte string; check = XXH64(body) mod 2³²
    body  = [kind, parameters, node, stream, sequence, frame, recorded, counters, keys]         of version 1
    body  = [kind, parameters, node, stream, sequence, frame, recorded, counters, keys, cut]    of 2 and 3
    cut   = [begins, ends, sequences, continues, missed, clock]
    clock = null or [synchronised, error_ns, offset_ns]                                         of version 2
    clock = null or [synchronised, error_ns, offset_ns, lead_ns, was_set, boot, slew]           of version 3
    slew  = null or [last, change, bend]

``parameters`` maps the papers' symbols to values, defaults left out (those of a ``segment``, which has several sketches
of the same packets, map a part's name to ``[kind, parameters]``); ``frame`` is ``[first_ns, span_ns]``
or null; ``counters`` holds all tables packed to their bit widths; ``keys`` is a list of
canonical key bytes or null. A file of epochs is a CBOR sequence (RFC 8742): one after the other.

Version 2 is for epochs that end at packets instead of times (`epoch.Cut`). They are cut as often as their packets say,
and may hold few: ``counters`` are then compressed (zlib, RFC 1950) wherever that makes them smaller, which shows in
their length; so bytes fall with packets. Version 3 is for those of them whose stamps are on a lead that is known
(`epoch.KernelClock`): ``boot`` is 32 bits of a hash that tells apart the times that a machine was up, or null;
``slew`` is how its count was steered, in `SLEW_UNIT_NS`: at the last stamp, since the first, and off a straight line.

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
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import IO

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import WireError
from sojourn.core.hash_kernels import hash_slice  # noqa: F401 - hashing is by the kernel wherever counters are unpacked
from sojourn.core.kernels import kernel
from sojourn.core.keys import key_from_bytes
from sojourn.epochs.cbor import dumps, load_item
from sojourn.epochs.encoded import (
    KERNEL_BYTES,
    MAX_COUNTER_BYTES,
    MAX_EPOCH_BYTES,
    VERSION,
    VERSION_WITH_CUT,
    VERSION_WITH_LEAD,
    EncodedEpoch,
    as_wire_error,
    body_items,
    check_intact,
    check_word,
    checked_body,
    encoded,
    encoded_sequence,
    expect,
    hash_bytes_fast,
    header_of,
    key_bytes,
    located,
    one_body,
    packed_size,
)
from sojourn.epochs.epoch import Cut, Epoch, KernelClock
from sojourn.epochs.packing import column_size
from sojourn.sketches.parameters import Parameters, Table
from sojourn.sketches.sketch import AnySketch, new_sketch

# With the names of `epochs.encoded` that go with them.
__all__ = [
    "KERNEL_BYTES",
    "MAX_COUNTER_BYTES",
    "MAX_EPOCH_BYTES",
    "EncodedEpoch",
    "check_intact",
    "decode",
    "decoded_epoch",
    "encode",
    "encoded",
    "encoded_sequence",
    "hash_bytes_fast",
    "load_item",
    "pack_table",
    "packed_size",
    "read_epochs",
    "unpacked_tables",
]

_Tables = tuple[tuple[Table, int, Int64Array], ...]  # with their packed sizes, and their columns as kernels take them


def encode(epoch: Epoch) -> bytes:
    """The epoch as bytes; the same epoch always gives the same bytes."""
    sketch = epoch.sketch
    frame = None
    if epoch.first_ns is not None and epoch.last_ns is not None:
        frame = [epoch.first_ns, epoch.last_ns - epoch.first_ns]
    tables = zip(epoch.parameters.tables(), sketch.arrays, strict=True)
    counters = b"".join(pack_table(table, array) for table, array in tables)
    version, cut = VERSION, list[object]()
    if epoch.cut is not None:
        clock = epoch.cut.clock
        version = VERSION_WITH_LEAD if clock is not None and _is_on_lead(clock) else VERSION_WITH_CUT
        cut = [_cut_items(epoch.cut)]
        compressed = zlib.compress(counters, epoch.parameters.compression)
        counters = min(counters, compressed, key=len)
    body = dumps(
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
    return dumps([version, body, check_word(body)])


def _cut_items(cut: Cut) -> list[object]:
    return [cut.begins, cut.ends, cut.sequences, cut.continues, cut.missed, cut.clock and _clock_items(cut.clock)]


def _is_on_lead(clock: KernelClock) -> bool:
    return clock.lead_ns is not None or clock.was_set


def _clock_items(clock: KernelClock) -> list[object]:
    told: list[object] = [clock.synchronised, clock.error_ns, clock.offset_ns]
    if not _is_on_lead(clock):
        return told
    slew = None if clock.slew is None else [clock.slew.last, clock.slew.last - clock.slew.first, clock.slew.bend]
    return [*told, clock.lead_ns, clock.was_set, clock.boot, slew]


def decode(data: bytes) -> Epoch:
    """The epoch in `data`, all of it and nothing more."""
    items = body_items(one_body(data))
    return decoded_epoch(header_of(items, data), *items[7:9])


def read_epochs(file: IO[bytes]) -> Iterator[Epoch]:
    """The epochs of a file, in order; raises at the first damaged one, naming its byte offset."""
    source = _BoundedReader(file)
    while source.begin():
        with located(source.offset - 1):
            items = body_items(checked_body(load_item(source, "epoch", depth=1)))
            yield decoded_epoch(header_of(items, b""), *items[7:9])


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


def decoded_epoch(header: EncodedEpoch, counters: object, listed: object) -> Epoch:
    """An epoch from its header, counters and keys, which are checked."""
    sketch = _decode_sketch(header.parameters, expect(counters, bytes, "counters"))
    sketch.recorded, sketch.first_ns, sketch.last_ns = header.recorded, header.first_ns, header.last_ns
    as_wire_error(sketch.check, "counters")
    raw = key_bytes(listed)
    keys = None if raw is None else as_wire_error(lambda: tuple(map(key_from_bytes, raw)), "keys")
    # Nobody else has the sketch, and unpacked counters are canonical: no copy is needed.
    name = header.node, header.stream, header.sequence
    return as_wire_error(lambda: Epoch(*name, sketch.freeze(), keys, header.cut), "epoch")


def _decode_sketch(parameters: Parameters, counters: bytes) -> AnySketch:
    sketch = new_sketch(parameters)
    _unpack_tables(_tables(parameters), counters, sketch.arrays)
    return sketch


def unpacked_tables(parameters: Parameters, counters: bytes) -> list[Int64Array]:
    """The counters of each table, checked."""
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
        # What is exactly as long as it may be has yet to reach its end, where it has a check of its own.
        more = reader.decompress(reader.unconsumed_tail, 1)
    except zlib.error as error:
        raise WireError(f"cannot be decompressed ({error})", where="counters") from None
    if len(found) != size or more or not reader.eof or reader.unused_data:
        raise WireError(f"compressed counters are not the {size} bytes that the parameters call for", where="counters")
    return found


_BYTE = np.uint64(255)


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
        packed = np.zeros(column_size(table.length, field.bits), np.uint8)
        _pack(np.ascontiguousarray(field.canonical(array[:, i])), field.bits, packed)
        parts.append(packed.tobytes())
    return b"".join(parts)
