"""Targets over filters: expressions in libpcap's language, and programs of the pseudo-machine, over guarded frames."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np

from fuzz.guards import GuardedBytes
from fuzz.seeds import link_frames
from fuzz.target import Target, mutated, require_one_line
from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import MAX_INSTRUCTIONS, VALID_CODES, FilterProgram, Instruction, PacketFilter
from sojourn.core.errors import InputError, UsageError

__all__ = ["EXPRESSIONS", "PROGRAMS"]

_ROOM = GuardedBytes()
_LINKS = (1, 101, 0, 108, 113, 276, 9, 50, 51, 104, 12, 14, 166, 195, 228, 229, 65535)
_CODES = sorted(VALID_CODES)
_WORDS = (
    "host", "port", "net", "src", "dst", "ether", "ip", "ip6", "arp", "tcp", "udp", "icmp", "sctp", "vlan", "mpls",
    "pppoes", "and", "or", "not", "(", ")", "[", "]", ":", "&", "|", "+", "-", "*", "/", "%", "<<", ">>", "=", "!=",
    "<", ">", "<=", ">=", "len", "less", "greater", "portrange", "proto", "gateway", "broadcast", "multicast",
    "inbound", "ifindex", "10.0.0.1", "10.0.0.0/8", "2001:db8::1", "::/0", "80", "1000-2000", "0", "1", "6", "0xff",
    "4294967295", "tcp-syn", "tcpflags", "icmptype", "0:1:2:3:4:5", "protochain", "geneve", "wlan", "type", "lat",
    "ip[0]", "tcp[13]", "ip6[40:4]", "ether[0:2]", "\\tcp", "radio", "stp", "iso", "clnp", "decnet",
)  # fmt: skip
_TEXTS = (
    "udp port 53 or (vlan 7 and ip6)",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "(ip[2:2] - ((ip[0] & 0xf) << 2)) > 100 and not net 10.0.0.0/8",
    "mpls 16 and ip host 10.0.0.2",
    "ip6 proto 17 or portrange 1000-2000",
    "ether proto 0x8100 or len > 200",
    "",
)


def _frames(data: bytes, link: int, lengths: bytes) -> Frames:
    """Frames one behind the other, as long as `lengths` say (the last to the end), against the guard."""
    placed = _ROOM.place(data)
    ends = np.minimum(np.cumsum(np.frombuffer(lengths, np.uint8).astype(np.int64)), len(data))
    ends = np.append(ends, len(data))
    starts = np.append([0], ends[:-1])
    sizes = ends - starts
    return Frames(placed, starts, sizes, sizes + 3, np.zeros_like(sizes), np.full(len(sizes), link, np.int64))


def _run_expression(data: bytes) -> None:
    """Input: link type, expression, a zero byte, frames."""
    if not data:
        return
    text, _, rest = data[1:].partition(b"\0")
    try:
        packet_filter = PacketFilter(text.decode("utf-8", "replace"))
    except UsageError as error:
        require_one_line(error)
        return
    frames = _frames(rest, _LINKS[data[0] % len(_LINKS)], rest[:3])
    found, ignored = packet_filter.apply(frames)
    assert len(found) + sum(ignored.values()) == len(frames)


def _mutate_expression(data: bytes, max_size: int, seed: int) -> bytes:
    """Words of the language put in, taken out or exchanged; or the fuzzer's own mutation."""
    chance = random.Random(seed)
    text, zero, rest = data[1:].partition(b"\0")
    words = text.decode("utf-8", "replace").split()
    way = chance.randrange(5)
    if way == 0 or not data:
        return mutated(data, max_size)
    if way == 1:
        return (data[:1] + text + zero + mutated(rest, len(rest) + 32))[:max_size]
    at = chance.randrange(len(words) + 1)
    taken = chance.choice((0, 0, 1, 1, 2))
    words[at : at + taken] = chance.choices(_WORDS, k=chance.choice((0, 1, 1, 2, 3)))
    return (data[:1] + " ".join(words).encode() + b"\0" + rest)[:max_size]


def _instructions(data: bytes, *, shaped: bool) -> list[Instruction]:
    """Eight bytes each; `shaped` ones have valid codes, and jumps and memory words that exist."""
    rows = [struct.unpack_from("<HBBI", data, at) for at in range(0, len(data) - 7, 8)]
    if not shaped:
        return rows
    found = []
    for number, (code, yes, no, word) in enumerate(rows):
        left = max(1, len(rows) - number)
        chosen, operand = _CODES[code % len(_CODES)], word
        if chosen == 0x05 or chosen & 7 in (2, 3) or chosen & 0xE7 in (0x60, 0x61):
            operand = word % min(left, 16)
        elif chosen & 7 == 4 and chosen & 0xF0 in (0x60, 0x70, 0x30, 0x90):
            operand = word % 31 + 1
        found.append((chosen, yes % left, no % left, operand))
    return [*found, (0x06, 0, 0, 1)]


def _run_program(data: bytes) -> None:
    """Input: choices, number of instructions, the instructions, frames."""
    if len(data) < 3:
        return
    count = min(int.from_bytes(data[1:3], "little") % (MAX_INSTRUCTIONS + 2), (len(data) - 3) // 8)
    link = _LINKS[(data[0] >> 1) % len(_LINKS)]
    try:
        program = FilterProgram.from_instructions(_instructions(data[3 : 3 + 8 * count], shaped=bool(data[0] & 1)))
    except InputError as error:
        require_one_line(error)
        return
    frames = _frames(data[3 + 8 * count :], link, data[3:6])
    accepted = program.accepted(frames, np.ones(len(frames), np.bool_), link=link)
    assert len(accepted) == len(frames)
    again = FilterProgram.from_instructions(struct.iter_unpack("=HBBI", program.to_bytes()))  # type: ignore[arg-type]
    assert again.instructions() == program.instructions()


def _expression_seeds() -> Iterator[bytes]:
    frames = b"".join(link_frames()[1][:4])
    for number, text in enumerate(_TEXTS):
        yield bytes([number]) + text.encode() + b"\0" + frames


def _program_seeds() -> Iterator[bytes]:
    for number, (link, frames) in enumerate(link_frames().items()):
        choices = bytes([(_LINKS.index(link) if link in _LINKS else 0) << 1])
        text = _TEXTS[number % 2]
        program = PacketFilter(text).program(1, snap_length=96).to_bytes()
        yield choices + struct.pack("<H", len(program) // 8) + program + frames[0]
    shaped = b"".join(struct.pack("<HBBI", code, 1, 2, code * 77) for code in range(len(_CODES)))
    yield b"\1" + struct.pack("<H", len(_CODES)) + shaped + frames[0]


EXPRESSIONS = Target("expressions", _run_expression, _expression_seeds, _mutate_expression)
PROGRAMS = Target("programs", _run_program, _program_seeds)
