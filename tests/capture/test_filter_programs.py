"""The interpreter agrees with the Linux kernel's on random programs, and refuses unsafe ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_pcap import frames_of

from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import MAX_INSTRUCTIONS, VALID_CODES, FilterProgram, Instruction
from sojourn.capture.live.ring import attach_program
from sojourn.core.errors import InputError, LiveCaptureError

small = st.integers(0, 40)
any_word = st.one_of(small, st.integers(0, 0xFFFFFFFF), st.sampled_from([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
memory = st.integers(0, 15)


def one(code: int, operand: st.SearchStrategy[int]) -> st.SearchStrategy[list[Instruction]]:
    return operand.map(lambda k: [(code, 0, 0, k)])


def two(first: int, second: int, k: st.SearchStrategy[int]) -> st.SearchStrategy[list[Instruction]]:
    return st.tuples(small, k).map(lambda ks: [(first, 0, 0, ks[0]), (second, 0, 0, ks[1])])


STRAIGHT = st.one_of(
    *(one(code, small) for code in (0x20, 0x28, 0x30, 0xB1)),  # ld, ldh, ldb [k]; ldx 4*([k]&0xf)
    *(two(0x01, code, small) for code in (0x40, 0x48, 0x50)),  # ldx #small; ld, ldh, ldb [x+k]
    *(one(code, any_word) for code in (0x00, 0x01, 0x80, 0x81)),  # immediates and the length
    *(one(code, memory) for code in (0x60, 0x61, 0x02, 0x03)),  # memory
    *(one(0x04 | op | source, any_word) for op in range(0, 0x60, 0x10) for source in (0, 8) if op != 0x30),
    *(one(0x04 | op | source, st.integers(1, 0xFFFFFFFF)) for op in (0x30, 0x90) for source in (0, 8)),
    *(one(0x04 | op, st.integers(0, 31)) for op in (0x60, 0x70)),  # shifts by a constant
    *(one(code, any_word) for code in (0x84, 0xA4, 0xAC, 0x07, 0x87)),  # neg, xor, tax, txa
)


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Programs whose jumps stay inside; they end in `ret a` and `ret #0`, `ret #n`."""
    body: list[Instruction] = []
    for piece in draw(st.lists(STRAIGHT, min_size=1, max_size=12)):
        body += piece
        if draw(st.integers(0, 3)) == 0:
            code = 0x05 | draw(st.sampled_from([0x10, 0x20, 0x30, 0x40])) | draw(st.sampled_from([0, 8]))
            body.append((code, draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(any_word)))
    ends = [(0x16, 0, 0, 0), (0x06, 0, 0, 0), (0x06, 0, 0, draw(st.integers(1, 99)))]
    return [*body, *ends]


@pytest.fixture(scope="module")
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


def passes_the_kernel(line: tuple[socket.socket, socket.socket], packet: bytes) -> bool:
    sender, receiver = line
    sender.send(packet)
    try:
        receiver.recv(1)
    except BlockingIOError:
        return False
    return True


@settings(max_examples=400)
@given(program=programs(), packets=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8))
def test_random_programs_accept_what_the_kernel_accepts(
    line: tuple[socket.socket, socket.socket], program: list[Instruction], packets: list[bytes]
) -> None:
    checked = FilterProgram.from_instructions(program)
    try:
        attach_program(line[1], checked)
    except LiveCaptureError:
        assume(False)  # the kernel also refuses to read memory that was not written
    frames = frames_of(packets)
    ours = checked.accepted(frames, np.ones(len(frames), np.bool_), link=1)
    assert ours.tolist() == [passes_the_kernel(line, packet) for packet in packets]


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(sorted(VALID_CODES)), st.integers(-1, 0x1FF)),
            st.integers(-1, 4),
            st.integers(-1, 4),
            st.one_of(any_word, st.integers(-2, 1 << 33)),
        ),
        max_size=8,
    )
)
def test_any_list_of_numbers_is_refused_or_runs_to_an_end(instructions: list[Instruction]) -> None:
    try:
        program = FilterProgram.from_instructions(instructions)
    except InputError:
        return
    frames = frames_of([b"", b"\xff" * 7, bytes(range(64))])
    assert len(program.accepted(frames, np.ones(3, np.bool_), link=1)) == 3


@pytest.mark.parametrize(
    ("instructions", "said"),
    [
        ([], "0 instructions"),
        ([(0x06, 0, 0, 1)] * (MAX_INSTRUCTIONS + 1), "4097 instructions"),
        ([(0x00, 0, 0, 1)], "no return"),
        ([(0x15, 5, 0, 1), (0x06, 0, 0, 1)], "out of the program"),
        ([(0x05, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 1)], "out of the program"),
        ([(0x60, 0, 0, 16), (0x06, 0, 0, 1)], "memory word 16"),
        ([(0x34, 0, 0, 0), (0x06, 0, 0, 1)], "division by zero"),
        ([(0x64, 0, 0, 32), (0x06, 0, 0, 1)], "shift by 32"),
        ([(0xFF, 0, 0, 0), (0x06, 0, 0, 1)], "no instruction"),
    ],
)
def test_an_unsafe_program_is_refused(instructions: list[Instruction], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FilterProgram.from_instructions(instructions)


def test_a_division_by_a_zero_register_rejects_the_frame() -> None:
    program = FilterProgram.from_instructions([(0x00, 0, 0, 9), (0x3C, 0, 0, 0), (0x06, 0, 0, 1)])
    assert not program.accepted(frames_of([b"abc"]), np.ones(1, np.bool_), link=1).any()


def test_an_index_that_overflows_32_bits_is_no_byte_of_the_frame() -> None:
    program = FilterProgram.from_instructions([(0x01, 0, 0, 0xFFFFFFFF), (0x50, 0, 0, 2), (0x06, 0, 0, 1)])
    assert not program.accepted(frames_of([b"abcd"]), np.ones(1, np.bool_), link=1).any()


def test_frames_that_lie_outside_the_data_are_rejected() -> None:
    def column(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    zeros = column(0, 0, 0, 0)
    places = column(0, -1, 8, 2**62), column(8, 4, 4, 2**62)
    frames = Frames(np.zeros(10, np.uint8), *places, zeros, zeros, link=zeros + 1)
    program = FilterProgram.from_instructions([(0x30, 0, 0, 3), (0x06, 0, 0, 1)])
    assert program.accepted(frames, np.ones(4, np.bool_), link=1).tolist() == [True, False, False, False]
