"""Mutations that keep a capture readable: one packet or block changes, lengths and their copies are made right again.

Half of all mutations are the fuzzer's own, anywhere in the input; those damage the structure, these get past it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from fuzz.target import mutated

__all__ = ["mutate_capture"]

_PREFIX = 2
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_PCAP_ORDERS = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
_FILE_HEADER, _PACKET_HEADER = 24, 16


def mutate_capture(data: bytes, max_size: int, seed: int) -> bytes:
    """One packet (or block) of the capture behind the two bytes of choices mutated, copied, removed or moved."""
    chance = random.Random(seed)
    capture = data[_PREFIX:]
    if chance.random() < 0.5 or len(capture) < _FILE_HEADER + 4:
        return mutated(data, max_size)
    if capture[:4] == _PCAPNG:
        pieces = _blocks(capture)
        rebuilt = b"".join(_change(pieces, chance, _mutated_block))
    elif order := _PCAP_ORDERS.get(capture[:4]):
        records = _records(capture, order)
        changed = _change(records, chance, lambda record: _mutated_record(record, order))
        rebuilt = capture[:_FILE_HEADER] + b"".join(changed)
    else:
        return mutated(data, max_size)
    return (data[:_PREFIX] + rebuilt)[:max_size]


def _change(pieces: list[bytes], chance: random.Random, changed: Callable[[bytes], bytes]) -> list[bytes]:
    """The pieces with one of them changed, or out of its place."""
    if not pieces:
        return pieces
    at = chance.randrange(len(pieces))
    action = chance.randrange(8)
    if action == 0:
        return [*pieces[:at], pieces[at], *pieces[at:]]
    if action == 1:
        return pieces[:at] + pieces[at + 1 :]
    if action == 2:
        other = chance.randrange(len(pieces))
        pieces[at], pieces[other] = pieces[other], pieces[at]
        return pieces
    pieces[at] = changed(pieces[at])
    return pieces


def _records(capture: bytes, order: str) -> list[bytes]:
    """Packets with their headers; what follows the last whole one is left out."""
    records, at = [], _FILE_HEADER
    while at + _PACKET_HEADER <= len(capture):
        (size,) = struct.unpack_from(order + "I", capture, at + 8)
        end = at + _PACKET_HEADER + size
        if end > len(capture):
            break
        records.append(capture[at:end])
        at = end
    return records


def _mutated_record(record: bytes, order: str) -> bytes:
    """A packet with other bytes (or another time), its captured length right and its own length not below."""
    body = mutated(record[:8] + record[_PACKET_HEADER:], len(record) + 64)
    time, packet = body[:8].ljust(8, b"\0"), body[8:]
    (wire,) = struct.unpack_from(order + "I", record, 12)
    return time + struct.pack(order + "II", len(packet), max(wire, len(packet))) + packet


def _blocks(capture: bytes) -> list[bytes]:
    """Blocks, each with the byte order of its section in front of it; a damaged rest is one block."""
    blocks, at, order = [], 0, "<"
    while at + 12 <= len(capture):
        if capture[at : at + 4] == _PCAPNG:
            order = ">" if capture[at + 8 : at + 12] == b"\x1a\x2b\x3c\x4d" else "<"
        (size,) = struct.unpack_from(order + "I", capture, at + 4)
        if size < 12 or at + size > len(capture):
            break
        blocks.append(capture[at : at + size])
        at += size
    return [*blocks, capture[at:]] if at < len(capture) else blocks


def _mutated_block(block: bytes) -> bytes:
    """A block whose body changed, and both its lengths with it; its byte order is told by its length's."""
    if len(block) < 12:
        return mutated(block, len(block) + 16)
    order = "<" if struct.unpack_from("<I", block, 4)[0] == len(block) else ">"
    body = mutated(block[8:-4], len(block) + 64)
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return block[:4] + length + body + length
