"""Packet filters in libpcap's language, the same for capture files and for live interfaces.

`PacketFilter` is compiled once per link type by libpcap (the ``pcapy-ng`` wheel carries it; nothing of it captures
packets here) into a classic BPF program, which is checked once and then run over frames (`accepted`) or by the kernel
(`to_bytes`, for ``SO_ATTACH_FILTER``).

Guarantee: a frame is accepted exactly when ``tcpdump EXPRESSION`` accepts it in a file, the `vlan` and `mpls` keywords'
shifting offsets included. A program that was built here only jumps forward and inside itself, touches only its sixteen
memory words and ends in a return, so it halts after at most its own length; a load outside a frame's captured bytes
rejects the frame, as in libpcap.
Cost: compiling takes well under a millisecond, running some nanoseconds per instruction; usual filters execute 5 to 20
per frame. McCanne and Jacobson, "The BSD Packet Filter", §3.3 (the pseudo-machine).
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.core.arrays import BoolArray, Int64Array, UInt8Array
from sojourn.core.errors import InputError, SojournError, UsageError
from sojourn.core.kernels import inlined, kernel

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
MAX_INSTRUCTIONS = 4096  # the Linux kernel's BPF_MAXINSNS
MEMORY_WORDS = 16
ANCILLARY = 0xFFFFF000  # loads from here on ask the kernel, not the packet (SKF_AD_OFF)
_CLASS, _SOURCE_X = 0x07, 0x08
_LD, _LDX, _ST, _STX, _ALU, _JMP, _RET, _MISC = range(8)
_MODE, _SIZE = 0xE0, 0x18
_IMM, _ABS, _IND, _MEM, _LEN, _MSH = 0x00, 0x20, 0x40, 0x60, 0x80, 0xA0
_WORD, _HALF = 0x00, 0x08
_OPERATION = 0xF0
_ADD, _SUB, _MUL, _DIV, _OR, _AND, _LSH, _RSH, _NEG, _MOD, _XOR = range(0x00, 0xB0, 0x10)
_JA, _JEQ, _JGT, _JGE, _JSET = range(0x00, 0x50, 0x10)
_RETURN_A, _TXA = 0x10, 0x80
_MASK = 0xFFFFFFFF
MISSING = np.int64(-1)  # what a register cannot hold: the frame is rejected
_LINK_NULL, _LINK_LOOP = 0, 108
_LITTLE_ENDIAN = sys.byteorder == "little"
_FAMILY_4, _FAMILY_6 = int(socket.AF_INET), int(socket.AF_INET6)
_FAMILIES_6 = (10, 24, 28, 30)  # Linux; NetBSD and OpenBSD; FreeBSD; macOS
_LOADS = {size | mode for size in (_WORD, _HALF, 0x10) for mode in (_ABS, _IND)} | {_IMM, _MEM, _LEN}
_BINARY = {operation | source for operation in range(_ADD, _XOR + 1, 0x10) for source in (0, _SOURCE_X)}
_CONDITIONS = {condition | source for condition in range(_JEQ, _JSET + 1, 0x10) for source in (0, _SOURCE_X)}
VALID_CODES = frozenset(
    {_LD | load for load in _LOADS}
    | {_LDX | _IMM, _LDX | _MEM, _LDX | _LEN, _LDX | _MSH | 0x10, _ST, _STX}
    | {_ALU | operation for operation in _BINARY - {_NEG | _SOURCE_X}}
    | {_JMP | condition for condition in _CONDITIONS | {_JA}}
    | {_RET, _RET | _RETURN_A, _MISC, _MISC | _TXA}
)


@dataclass(frozen=True, eq=False)
class FilterProgram:
    """The instructions as columns; a frame is accepted when the program returns anything but 0."""

    code: Int64Array
    jump_true: Int64Array
    jump_false: Int64Array
    operand: Int64Array

    def __post_init__(self) -> None:
        _check(self.instructions())

    @classmethod
    def from_instructions(cls, instructions: Iterable[Instruction]) -> FilterProgram:
        """
        >>> len(FilterProgram.from_instructions([(0x06, 0, 0, 65535)]))
        1
        """
        rows = np.array(list(instructions), dtype=np.int64).reshape(-1, 4)
        return cls(*(np.ascontiguousarray(column) for column in rows.T))

    def __len__(self) -> int:
        return len(self.code)

    def instructions(self) -> list[Instruction]:
        columns = (self.code, self.jump_true, self.jump_false, self.operand)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @property
    def asks_the_kernel(self) -> bool:
        """Whether it reads what only the kernel knows of a packet, such as its direction."""
        loads = (self.code & _CLASS == _LD) & (self.code & _MODE == _ABS)
        return bool(np.any(loads & (self.operand >= ANCILLARY)))

    def to_bytes(self) -> bytes:
        """The array of ``struct sock_filter`` that the kernel takes."""
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self.instructions())

    def accepted(self, frames: Frames, rows: BoolArray, *, link: int) -> BoolArray:
        """Which of the frames marked in `rows`, all of that link type, the program accepts."""
        result = np.zeros(len(frames), np.bool_)
        program = self.code, self.jump_true, self.jump_false, self.operand
        run_program(*program, frames.data, frames.offset, frames.captured, frames.length, rows, link, result)
        return result


def _check(instructions: Sequence[Instruction]) -> None:
    """Refuse what could loop, leave the program or touch memory that is not there."""
    size = len(instructions)
    if not 1 <= size <= MAX_INSTRUCTIONS:
        raise InputError(
            f"a filter program has {size} instructions",
            action=f"use a filter of 1 to {MAX_INSTRUCTIONS} instructions",
        )
    for index, instruction in enumerate(instructions):
        if problem := _problem(instruction, size - index - 1):
            raise InputError(problem, where=f"filter program, instruction {index}")
    if instructions[-1][0] & _CLASS != _RET:
        raise InputError("the last instruction is no return", where="filter program")


def _problem(instruction: Instruction, following: int) -> str:
    code, jump_true, jump_false, operand = instruction
    kind, operation = code & _CLASS, code & _OPERATION
    if code not in VALID_CODES or not 0 <= operand <= _MASK:
        return f"{instruction} is no instruction"
    if kind == _JMP:
        furthest = operand if operation == _JA else max(jump_true, jump_false)
        if furthest >= following or min(jump_true, jump_false) < 0:
            return "it jumps backwards or out of the program"
    uses_memory = kind in (_ST, _STX) or (kind in (_LD, _LDX) and code & _MODE == _MEM)
    if uses_memory and operand >= MEMORY_WORDS:
        return f"memory word {operand} does not exist"
    constant = kind == _ALU and not code & _SOURCE_X
    if constant and operation in (_DIV, _MOD) and operand == 0:
        return "a division by zero"
    if constant and operation in (_LSH, _RSH) and operand > 31:
        return f"a shift by {operand} bits"
    return ""


REJECT_ALL = FilterProgram.from_instructions([(_RET, 0, 0, 0)])


@inlined
def load_number(data: UInt8Array, start: np.int64, captured: np.int64, position: np.int64, size: int) -> np.int64:
    """The big-endian number of `size` bytes at `position` of a frame, or -1 when it is not there."""
    if position + size > captured:
        return MISSING
    value = np.int64(0)
    for index in range(start + position, start + position + size):
        value = np.int64(value << 8 | data[index])
    return value


@inlined
def calculate(operation: np.int64, left: np.int64, right: np.int64) -> np.int64:
    """`left` operation `right` in 32 bits without a sign; -1 for a division by zero."""
    if operation == _ADD:
        value = left + right
    elif operation == _SUB:
        value = left - right
    elif operation == _MUL:
        value = (left & 0xFFFF) * right + (((left >> 16) * right & 0xFFFF) << 16)
    elif operation == _OR:
        value = left | right
    elif operation == _AND:
        value = left & right
    elif operation == _XOR:
        value = left ^ right
    elif operation == _NEG:
        value = -left
    else:
        return shift_or_divide(operation, left, right)
    return value & _MASK


@inlined
def shift_or_divide(operation: np.int64, left: np.int64, right: np.int64) -> np.int64:
    if operation == _LSH:
        return (left << right) & _MASK if right < 32 else np.int64(0)
    if operation == _RSH:
        return left >> right if right < 32 else np.int64(0)
    if right == 0:
        return MISSING
    return left // right if operation == _DIV else left % right


@inlined
def holds(condition: np.int64, left: np.int64, right: np.int64) -> bool:
    if condition == _JEQ:
        return bool(left == right)
    if condition == _JGT:
        return bool(left > right)
    if condition == _JGE:
        return bool(left >= right)
    return bool(left & right != 0)


@inlined
def family_word(data: UInt8Array, start: np.int64, captured: np.int64, link: int) -> np.int64:
    """What a BSD loopback frame's first word would be, had this machine written it; -1 for other frames.

    The number for IPv6 depends on the system that captured, its byte order on the machine; the compiler
    knows only this one's.
    """
    if link not in (_LINK_NULL, _LINK_LOOP) or captured < 4:
        return MISSING
    word = load_number(data, start, captured, np.int64(0), 4)
    value = word if word <= 0xFFFF else word >> 24 | (word >> 8 & 0xFF00)
    if value in _FAMILIES_6:
        value = np.int64(_FAMILY_6)
    elif value != _FAMILY_4:
        return word
    return value << 24 if link == _LINK_NULL and _LITTLE_ENDIAN else value


@inlined
def load_accumulator(
    code: np.int64,
    operand: np.int64,
    x: np.int64,
    data: UInt8Array,
    start: np.int64,
    captured: np.int64,
    length: np.int64,
    memory: Int64Array,
    family: np.int64,
) -> np.int64:
    """What a load puts into the accumulator; -1 when the frame does not reach that far."""
    mode = code & _MODE
    if family >= 0 and operand == 0 and mode == _ABS and code & _SIZE == _WORD:
        return family
    if mode == _IMM:
        return operand
    if mode == _MEM:
        word: np.int64 = memory[operand]
        return word
    if mode == _LEN:
        return length & _MASK
    position = operand + x if mode == _IND else operand
    width = code & _SIZE
    size = 4 if width == _WORD else (2 if width == _HALF else 1)
    return load_number(data, start, captured, position, size)


@inlined
def load_index(
    code: np.int64,
    operand: np.int64,
    data: UInt8Array,
    start: np.int64,
    captured: np.int64,
    length: np.int64,
    memory: Int64Array,
) -> np.int64:
    """What a load puts into the index register; MSH is the length of an IPv4 header."""
    mode = code & _MODE
    if mode == _IMM:
        return operand
    if mode == _MEM:
        word: np.int64 = memory[operand]
        return word
    if mode == _LEN:
        return length & _MASK
    if operand >= captured:
        return MISSING
    return (np.int64(data[start + operand]) & 0x0F) << 2


@inlined
def run_on_frame(
    code: Int64Array,
    jump_true: Int64Array,
    jump_false: Int64Array,
    operand: Int64Array,
    data: UInt8Array,
    start: np.int64,
    captured: np.int64,
    length: np.int64,
    memory: Int64Array,
    family: np.int64,
) -> bool:
    a = np.int64(0)
    x = np.int64(0)
    at = 0
    while at < len(code):
        op, k = code[at], operand[at]
        kind = op & _CLASS
        source = x if op & _SOURCE_X else k
        if kind == _JMP:
            if op & _OPERATION == _JA:
                at += k
            else:
                at += jump_true[at] if holds(op & _OPERATION, a, source) else jump_false[at]
        elif kind == _LD:
            a = load_accumulator(op, k, x, data, start, captured, length, memory, family)
        elif kind == _LDX:
            x = load_index(op, k, data, start, captured, length, memory)
        elif kind == _ALU:
            a = calculate(op & _OPERATION, a, source)
        elif kind == _RET:
            return bool((a if op & _RETURN_A else k) != 0)
        elif kind == _MISC:
            if op & _TXA:
                a = x
            else:
                x = a
        else:
            memory[k] = a if kind == _ST else x
        if a < 0 or x < 0:
            return False
        at += 1
    return False


@kernel
def run_program(
    code: Int64Array,
    jump_true: Int64Array,
    jump_false: Int64Array,
    operand: Int64Array,
    data: UInt8Array,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    rows: BoolArray,
    link: int,
    accepted: BoolArray,
) -> None:
    """Set `accepted` for the frames of `rows` that the program accepts; a frame outside `data` is not."""
    memory = np.zeros(MEMORY_WORDS, np.int64)
    for row in range(len(offset)):
        start, size = offset[row], captured[row]
        if not rows[row] or start < 0 or size < 0 or start > len(data) - size:
            continue
        memory[:] = 0
        family = family_word(data, start, size, link)
        accepted[row] = run_on_frame(
            code, jump_true, jump_false, operand, data, start, size, length[row], memory, family
        )


LINK_ETHERNET, LINK_RAW_IP = 1, 101
MAX_EXPRESSION = 65536
ACCEPTED_BYTES = 262144

# libpcap's compiler takes its own numbers (DLT_), which differ from the files' for some link types.
_COMPILER_LINK = {LINK_RAW_IP: 12, 11: 11, 100: 11, 106: 19, 50: 50}
_NO_NETMASK = 0xFFFFFFFF
_REJECTS_ALL = "expression rejects all packets"


class PacketFilter:
    """One expression, ready for any link type.

    >>> PacketFilter("udp port 53 or (vlan 7 and ip6)").expression
    'udp port 53 or (vlan 7 and ip6)'
    >>> PacketFilter("port and")
    Traceback (most recent call last):
    sojourn.core.errors.UsageError: filter 'port and': can't parse filter expression: syntax error; ...
    """

    def __init__(self, expression: str) -> None:
        """Check the expression by compiling it for Ethernet, where all of the language works."""
        self.expression = expression.strip()
        self._programs: dict[int, FilterProgram | str] = {}
        program = _compile(self.expression, LINK_ETHERNET, ACCEPTED_BYTES)
        if program.asks_the_kernel:
            raise UsageError(
                "direction and interface are known to the kernel only, not to a frame's bytes",
                where=_place(self.expression),
                action="leave inbound, outbound and ifindex out; a live capture takes a direction",
            )
        self._programs[LINK_ETHERNET] = program

    def __repr__(self) -> str:
        return f"PacketFilter({self.expression!r})"

    def program(self, link: int, *, snap_length: int) -> FilterProgram:
        """The program that accepts at most `snap_length` bytes of a frame of that link type."""
        return _compile(self.expression, link, snap_length)

    def apply(self, frames: Frames) -> tuple[Frames, dict[str, int]]:
        """The frames that match, and how many did not, by reason."""
        accepted = np.zeros(len(frames), np.bool_)
        ignored: dict[str, int] = {}
        for link in np.unique(frames.link).tolist():
            rows: BoolArray = frames.link == link
            program = self._cached_program(link)
            if isinstance(program, str):
                ignored[f"cannot be filtered: {program}"] = int(np.count_nonzero(rows))
                continue
            matching = program.accepted(frames, rows, link=link)
            if rejected := int(np.count_nonzero(rows) - np.count_nonzero(matching)):
                ignored["filtered out"] = ignored.get("filtered out", 0) + rejected
            accepted |= matching
        return select_rows(frames, accepted), ignored

    def _cached_program(self, link: int) -> FilterProgram | str:
        """The program for a link type, or why libpcap has none for it."""
        if link not in self._programs:
            try:
                self._programs[link] = _compile(self.expression, link, ACCEPTED_BYTES)
            except UsageError as error:
                nothing = error.what == _REJECTS_ALL
                self._programs[link] = REJECT_ALL if nothing else error.what
        return self._programs[link]


def select_rows(frames: Frames, rows: BoolArray) -> Frames:
    """Those frames only; their bytes stay where they are."""
    return frames if rows.all() else frames.select(rows)


def _place(expression: str) -> str:
    shown = expression if len(expression) <= 60 else f"{expression[:57]}..."
    return f"filter {shown!r}"


def _compile(expression: str, link: int, snap_length: int) -> FilterProgram:
    try:
        import pcapy
    except ImportError:
        raise SojournError(
            "filters need libpcap's compiler, which is not installed", action="pip install pcapy-ng"
        ) from None
    if len(expression) > MAX_EXPRESSION or "\0" in expression:
        raise UsageError(
            f"not a text of up to {MAX_EXPRESSION} characters",
            where=_place(expression),
            action="shorten it, for example with net A/LEN instead of many hosts",
        )
    try:
        compiled = pcapy.compile(_COMPILER_LINK.get(link, link), snap_length, expression, 1, _NO_NETMASK)
    except (pcapy.PcapError, ValueError) as error:
        raise UsageError(str(error), where=_place(expression), action="write it in tcpdump's filter syntax") from None
    try:
        return FilterProgram.from_instructions(compiled.get_bpf())
    except InputError as error:
        raise UsageError(
            f"its program is refused: {error.what}",
            where=_place(expression),
            action="write it without protochain, or shorter",
        ) from None
