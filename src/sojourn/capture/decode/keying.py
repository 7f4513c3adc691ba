"""Which packets make one flow: five-tuple, host pair, destination, destination prefix, VLAN and five-tuple.

`FlowKeying` is the choice as a user writes it; the kernels turn located packets into canonical key bytes
(exactly those of `sojourn.core.keys`) and into flow ids, the XXH64 of these bytes.
Cost: 5 ns per IPv4 five-tuple, 10 to 20 ns for the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sojourn.capture.decode.rows import MAX_TAGS, Located
from sojourn.core import keys
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import hash_at, hash_flow_4
from sojourn.core.kernels import inlined, kernel
from sojourn.core.memory_kernels import address_of, byte_at, little_32, put_byte, signed

__all__ = ["KEY_BYTES", "FlowKeying", "Keying", "flow_ids", "key_bytes"]

KEY_BYTES = 48  # the longest canonical key: 1 + 37 bytes of an IPv6 flow and 4 tags of 2


class Keying(IntEnum):
    """How packets are put together into flows."""

    FIVE_TUPLE = 0
    HOST_PAIR = 1
    DESTINATION = 2
    VLAN_FIVE_TUPLE = 3


_NAMES = {
    "five-tuple": Keying.FIVE_TUPLE,
    "host-pair": Keying.HOST_PAIR,
    "dest": Keying.DESTINATION,
    "vlan+five-tuple": Keying.VLAN_FIVE_TUPLE,
}
_PREFIX = re.compile(r"prefix/(\d{1,3})(?:,(\d{1,3}))?")


@dataclass(frozen=True)
class FlowKeying:
    """A keying and, for destinations, how many leading bits of the address count."""

    mode: Keying = Keying.FIVE_TUPLE
    prefix_4: int = 32
    prefix_6: int = 128

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_4 <= 32 or not 0 <= self.prefix_6 <= 128:
            raise ParameterError(
                f"prefix lengths {self.prefix_4} and {self.prefix_6}",
                action="use 0–32 (IPv4) and 0–128 (IPv6)",
            )

    @classmethod
    def parse(cls, text: str) -> FlowKeying:
        """From text; ``prefix/LEN`` serves both IP versions, ``prefix/LEN,LEN6`` tells them apart.

        >>> FlowKeying.parse("prefix/24,48")
        FlowKeying(mode=<Keying.DESTINATION: 2>, prefix_4=24, prefix_6=48)
        """
        if text in _NAMES:
            return cls(_NAMES[text])
        if match := _PREFIX.fullmatch(text):
            first = int(match.group(1))
            second = int(match.group(2)) if match.group(2) else first
            return cls(Keying.DESTINATION, first if match.group(2) else min(first, 32), second)
        raise ParameterError(f"{text!r} is no flow key", action=f"use {', '.join(_NAMES)} or prefix/LEN")


_FIVE_TUPLE, _HOST_PAIR = int(Keying.FIVE_TUPLE), int(Keying.HOST_PAIR)
_DESTINATION, _VLAN_FIVE_TUPLE = int(Keying.DESTINATION), int(Keying.VLAN_FIVE_TUPLE)
# First canonical byte by keying and IP version.
_KINDS = np.array(
    [
        [keys.KIND_FLOW_4, keys.KIND_FLOW_6],
        [keys.KIND_PAIR_4, keys.KIND_PAIR_6],
        [keys.KIND_DESTINATION_4, keys.KIND_DESTINATION_6],
        [keys.KIND_VLAN_FLOW_4, keys.KIND_VLAN_FLOW_6],
    ],
    np.uint8,
)


@inlined
def _copy(data: int, start: int, size: int, out: int, at: int) -> int:
    for i in range(size):
        put_byte(out, at + i, byte_at(data, start + i))
    return at + size


@inlined
def _write_destination(data: int, start: int, size: int, prefix: int, out: int) -> int:
    """Prefix length and address; the bits behind the prefix are zeroed."""
    put_byte(out, 1, prefix)
    for i in range(size):
        kept = min(max(prefix - 8 * i, 0), 8)
        put_byte(out, 2 + i, byte_at(data, start + i) & (0xFF00 >> kept))
    return 2 + size


@kernel
def _write_key(data: int, row: np.void, mode: int, prefix_4: int, prefix_6: int, is_reverse: bool, out: int) -> int:
    """The canonical bytes of a packet's key into `out` (48 bytes); returns how many."""
    is_4 = row["version"] == 4
    size = 4 if is_4 else 16
    source = row["ip"] + (12 if is_4 else 8)
    destination = source + size
    if is_reverse:
        source, destination = destination, source
    put_byte(out, 0, signed(_KINDS[mode, 0 if is_4 else 1]))
    if mode == _DESTINATION:
        return _write_destination(data, destination, size, prefix_4 if is_4 else prefix_6, out)
    at = _copy(data, source, size, out, 1)
    at = _copy(data, destination, size, out, at)
    if mode == _HOST_PAIR:
        return at
    ports = signed(row["ports"])
    if is_reverse:
        ports = (ports >> 16) | ((ports & 0xFFFF) << 16)
    for i in range(4):
        put_byte(out, at + i, ports >> (24 - 8 * i))
    put_byte(out, at + 4, signed(row["protocol"]))
    at += 5
    if mode == _VLAN_FIVE_TUPLE:
        for i in range(MAX_TAGS):
            tag = signed((row["vlans"] >> np.uint64(16 * i)) & np.uint64(0xFFFF))
            if tag == 0:
                break
            put_byte(out, at, (tag >> 8) & 0x0F)
            put_byte(out, at + 1, tag)
            at += 2
    return at


@inlined
def _swap_32(value: np.uint64) -> np.uint64:
    value = ((value & np.uint64(0x00FF00FF)) << np.uint64(8)) | ((value >> np.uint64(8)) & np.uint64(0x00FF00FF))
    return ((value & np.uint64(0xFFFF)) << np.uint64(16)) | (value >> np.uint64(16))


@inlined
def _five_tuple_id_4(data: int, row: np.void, is_reverse: bool) -> np.uint64:
    source = np.uint64(little_32(data, row["ip"] + 12))
    destination = np.uint64(little_32(data, row["ip"] + 16))
    ports = _swap_32(np.uint64(row["ports"]))
    if is_reverse:
        source, destination = destination, source
        ports = ((ports & np.uint64(0xFFFF)) << np.uint64(16)) | (ports >> np.uint64(16))
    return hash_flow_4(source, destination, ports, np.uint64(row["protocol"]))


@kernel
def flow_ids(
    buffer: UInt8Array,
    rows: Located,
    mode: int,
    prefix_4: int,
    prefix_6: int,
    is_reverse: bool,
    scratch: UInt8Array,
    ids: UInt64Array,
) -> None:
    """The flow id of every row, or with `is_reverse` that of the opposite direction."""
    data = address_of(buffer)
    key = address_of(scratch)
    for i in range(rows.shape[0]):
        row = rows[i]
        if mode == _FIVE_TUPLE and row["version"] == 4:
            ids[i] = _five_tuple_id_4(data, row, is_reverse)
        else:
            size = _write_key(data, row, mode, prefix_4, prefix_6, is_reverse, key)
            ids[i] = hash_at(key, size, np.uint64(0))


@kernel
def key_bytes(
    buffer: UInt8Array,
    rows: Located,
    chosen: Int64Array,
    mode: int,
    prefix_4: int,
    prefix_6: int,
    keys: UInt8Array,
    sizes: UInt8Array,
) -> None:
    """The canonical bytes (rows of 48) and their number, of the packets `chosen`."""
    data = address_of(buffer)
    out = address_of(keys)
    for i in range(chosen.shape[0]):
        row = rows[chosen[i]]
        sizes[i] = _write_key(data, row, mode, prefix_4, prefix_6, False, out + i * KEY_BYTES)
