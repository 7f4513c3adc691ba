"""Live capture: the packets of an interface as `Frames`, through a ring shared with the kernel.

::

    with LiveCapture("eth0", filter=PacketFilter("udp")) as capture:
        for frames in capture.chunks(seconds=10):
            ...

Guarantee: every packet between start and stop that the kernel did not count as dropped is delivered, once,
with the kernel's nanosecond time and its VLAN tag in place; what is left out is counted by reason. A
chunk's bytes are valid until the next chunk is asked for (`keep` copies them).
Memory: the ring, 32 MiB by default. Cost: some nanoseconds per frame here, no copy; a chunk is at most a
quarter of the ring, so that the kernel has room while it is worked on.

Segmentation offload shows frames longer than the interface's MTU here, as in every capture on the host; with `offload`
the kernel says what the wire carries of each (`Frames.offload`).

A forwarded packet's ingress is known to the kernel only: a program of a handful of instructions, handed over by
``bpf(2)``, tells. That needs Linux 5.18 or later, with BPF, and root (or ``cap_bpf`` and ``cap_net_admin``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Literal, Self

import numpy as np

from sojourn.capture.decode.frames import Frames
from sojourn.capture.filters import LINK_ETHERNET, REJECT_ALL, FilterProgram, PacketFilter, select_rows
from sojourn.capture.live.ring import (
    AFTER_STOP,
    BEFORE_START,
    DAMAGED,
    DIRECTION,
    INCOMING,
    OUTGOING,
    Ring,
    RingCounts,
    RingShape,
    attach_program,
    begin,
    interface_index,
    interface_link,
    interface_problem,
    longest_frame,
    map_ring,
    open_packet_socket,
    receives_large,
    set_ignore_outgoing,
    set_promiscuous,
    take_counts,
    with_tagged_frames,
)
from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.errors import LiveCaptureError, ParameterError

_SYSTEM_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351, "armv7l": 386, "i686": 357}
_LOAD = 5
_ATTRIBUTES = 128  # the kernel takes zeros beyond what it knows
_SO_ATTACH_BPF = 50
_LICENSE = b"Apache-2.0"
_INGRESS_INDEX, _SEGMENT_SIZE = 36, 176  # of ``struct __sk_buff``
_LOAD_WORD, _MOVE, _JUMP_IF_NOT, _EXIT = 0x61, 0xB7, 0x55, 0x95
EbpfInstruction = tuple[int, int, int, int, int]  # code, target register, source register, offset, operand


class ProgramKind(IntEnum):
    """Where a program runs (``enum bpf_prog_type``)."""

    SOCKET_FILTER = 1
    XDP = 6


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def bpf_call(command: int, attributes: bytes) -> int:
    """The system call itself; what it returns. Failures are the kernel's `OSError`."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(0, f"bpf(2) is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
    result = int(_library().syscall(number, command, buffer, _ATTRIBUTES))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def load_program(kind: ProgramKind, instructions: list[EbpfInstruction]) -> int:
    """Have the kernel check and keep a program; its file descriptor."""
    code = b"".join(struct.pack("=BBhi", c, target | source << 4, o, n) for c, target, source, o, n in instructions)
    program, license_ = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(_LICENSE)
    addresses = (ctypes.addressof(program), ctypes.addressof(license_))
    try:
        return bpf_call(_LOAD, struct.pack("=IIQQ", kind, len(instructions), *addresses))
    except OSError as error:
        raise LiveCaptureError(
            f"the kernel takes no BPF program: {error.strerror}",
            where="bpf",
            action="run as root on Linux 5.18 or later",
        ) from None


def keep_entered_by(endpoint: socket.socket, interface_index: int, snap_length: int) -> None:
    """Let a packet socket see only what entered this machine through an interface, cut to the snap length.

    On an outgoing interface these are the packets forwarded from there; what the machine itself sends entered nowhere.
    """
    _attach_loaded(
        endpoint,
        [
            (_LOAD_WORD, 2, 1, _INGRESS_INDEX, 0),
            (_MOVE, 0, 0, 0, 0),
            (_JUMP_IF_NOT, 2, 0, 1, interface_index),
            (_MOVE, 0, 0, 0, snap_length),
            (_EXIT, 0, 0, 0, 0),
        ],
    )


def keep_headers(endpoint: socket.socket, header_bytes: int, snap_length: int) -> None:
    """Let a packet socket see the first bytes of packets; of super-packets, whose every segment is looked at, all."""
    _attach_loaded(
        endpoint,
        [
            (_LOAD_WORD, 2, 1, _SEGMENT_SIZE, 0),
            (_MOVE, 0, 0, 0, snap_length),
            (_JUMP_IF_NOT, 2, 0, 1, 0),
            (_MOVE, 0, 0, 0, header_bytes),
            (_EXIT, 0, 0, 0, 0),
        ],
    )


def _attach_loaded(endpoint: socket.socket, instructions: list[EbpfInstruction]) -> None:
    program = load_program(ProgramKind.SOCKET_FILTER, instructions)
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
    except OSError as error:
        raise LiveCaptureError(f"the kernel attaches no BPF program: {error.strerror}", where="bpf") from None
    finally:
        os.close(program)


Direction = Literal["in", "out", "both"]
_DIRECTIONS = {"in": INCOMING, "out": OUTGOING, "both": INCOMING | OUTGOING}
_MAX_RING = 1 << 32
_FOREVER = np.iinfo(np.int64).max
_TAGGED_BYTES = 256  # of a frame whose tag must be put back before the filter can judge it
_REASONS = {
    DIRECTION: "other direction",
    BEFORE_START: "before the start",
    AFTER_STOP: "after the stop",
    DAMAGED: "damaged ring block",
}


@dataclass(frozen=True)
class LiveStatistics:
    """Delivered frames, and the kernel's counts up to the stop.

    ``seen`` passed the filter, ``dropped`` of them found the ring full, which happened ``freezes`` times.
    """

    delivered: int
    seen: int
    dropped: int
    freezes: int
    ignored: dict[str, int] = field(default_factory=dict)


class LiveCapture:
    """A capture on one interface; entering the context starts it, leaving gives everything back."""

    def __init__(
        self,
        interface: str,
        *,
        snap_length: int = 262144,
        block_size: int = 1 << 18,
        blocks: int = 128,
        retire_ms: int = 60,
        promiscuous: bool = False,
        direction: Direction = "both",
        filter: PacketFilter | None = None,  # noqa: A002
        entered_by: str = "",
        offload: bool = False,
        header_bytes: int = 0,
    ) -> None:
        """Prepare the ring; packets come from `start` on.

        With `entered_by` (and no filter) only packets that came to this machine through that interface are seen: on
        an outgoing interface, what was forwarded from there.

        With `header_bytes` (and `offload`, and no filter) the kernel copies only so many of each packet, super-packets
        excepted, where it takes a program for that: the ring holds more of them.

        `retire_ms` is how long a packet waits at most before its block is handed over. However little
        traffic there is, a block holds no more than that, so a reader that pauses longer than
        `blocks` · `retire_ms` (7.7 s by default) loses packets.
        """
        _check_parameters(snap_length, block_size, blocks, retire_ms, direction)
        if entered_by and filter is not None:
            raise ParameterError("an ingress and a filter", where=interface, action="give one of them")
        self.interface = interface
        self.snap_length = snap_length
        self._filter = filter
        self._entered_by = entered_by
        self._header_bytes = min(header_bytes, snap_length) if offload else 0
        self._promiscuous = promiscuous
        self._shape = RingShape(block_size, blocks, retire_ms)
        self._counts = RingCounts()
        self._ignored = np.zeros(len(_REASONS), np.int64)
        self._filtered = self._delivered = 0
        self._start_ns, self._stop_ns = 0, _FOREVER
        self._started = self._counts_frozen = False
        self._failure: LiveCaptureError | None = None
        self._counting = threading.Lock()
        self._socket = open_packet_socket(interface)
        try:
            self.link, loopback = interface_link(self._socket, interface)
            # What the loopback sends it also receives: one copy is enough.
            self._directions = INCOMING if loopback else _DIRECTIONS[direction]
            self._tagged_program = self._attach_filter()
            mapped = map_ring(self._socket, interface, self._shape, offload=offload)
            self._ring: Ring | None = Ring(mapped, self._shape, offload=offload)
            self.longest_frame = longest_frame(self._socket, interface)
            self.receives_large = bool(self._directions & INCOMING) and receives_large(self._socket, interface)
            if self._directions == INCOMING:
                set_ignore_outgoing(self._socket)
            self._index(self._ring, np.empty(0, np.int64))  # compile before there are packets to lose
        except BaseException:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLERR)

    def _attach_filter(self) -> FilterProgram | None:
        """Give the kernel the filter; the program for frames whose tag is put back is run here."""
        if self._entered_by:
            index = interface_index(self._socket, self._entered_by)
            keep_entered_by(self._socket, index, self.snap_length)
            return None
        if self._filter is None:
            if self._header_bytes:
                with suppress(LiveCaptureError):
                    keep_headers(self._socket, self._header_bytes, self.snap_length)
                    return None
            accept = FilterProgram.from_instructions([(0x06, 0, 0, self.snap_length)])
            attach_program(self._socket, accept)
            return None
        program = self._filter.program(self.link, snap_length=self.snap_length)
        whole = program
        if self.link == LINK_ETHERNET:
            whole = with_tagged_frames(program, max(self.snap_length, _TAGGED_BYTES))
        attach_program(self._socket, whole)
        return program

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Capture from now on; without effect when already started."""
        start_together([self])

    def stop(self, at_ns: int | None = None) -> None:
        """End the capture at a time (now, when none is given); `chunks` still gives what came before it.

        May be called from a signal handler or another thread.
        """
        self._stop_ns = min(self._stop_ns, time.time_ns() if at_ns is None else at_ns)

    def close(self) -> None:
        """Give the ring back; chunks that are still referred to keep its memory, but get no new packets."""
        if self._ring is None:
            return
        self._update_counts()
        # Frames that someone still holds keep the mapping and so the socket alive: silence it first.
        attach_program(self._socket, REJECT_ALL)
        if self._promiscuous and self._started:
            set_promiscuous(self._socket, self.interface, False)
        self._ring = None
        self._socket.close()

    def statistics(self) -> LiveStatistics:
        """What was delivered, dropped by the kernel and left out so far."""
        if self._ring is not None:
            self._update_counts()
        ignored = {name: int(self._ignored[place]) for place, name in _REASONS.items()}
        ignored["filtered out"] = self._filtered
        counts = self._counts
        present = {name: count for name, count in ignored.items() if count}
        return LiveStatistics(self._delivered, counts.seen, counts.dropped, counts.freezes, present)

    def _update_counts(self) -> None:
        """Add the kernel's counts, until those of the moment of the stop are in; asking twice at once loses none."""
        with self._counting:
            if not self._counts_frozen:
                self._counts += take_counts(self._socket)
                self._counts_frozen = time.time_ns() >= self._stop_ns

    def is_filled(self, share: float) -> bool:
        """Whether that share of the ring, or more, waits to be read; costs a microsecond."""
        return self._ring is not None and self._ring.holds(max(1, int(share * self._shape.blocks)))

    def read(self, timeout: float) -> Frames:
        """The next chunk, empty when nothing came within `timeout` seconds.

        The previous chunk becomes invalid. Once the interface is gone, first come the packets that are
        left, then the `LiveCaptureError`.
        """
        ring = self._ring
        if ring is None or not self._started:
            raise LiveCaptureError("not capturing", where=self.interface, action="use it in a with statement")
        ring.release()
        if not ring.is_ready():
            self._wait(timeout)
        self._update_counts()
        blocks = ring.take(max(1, self._shape.blocks // 4))
        if len(blocks) == 0 and self._failure is not None:
            raise self._failure
        frames, tagged = self._index(ring, blocks)
        if tagged.any():
            frames = self._judge_tagged(frames, tagged)
        self._delivered += len(frames)
        return frames

    def _index(self, ring: Ring, blocks: Int64Array) -> tuple[Frames, BoolArray]:
        return ring.index(
            blocks,
            link=self.link,
            directions=self._directions,
            start_ns=self._start_ns,
            stop_ns=self._stop_ns,
            ignored=self._ignored,
        )

    def _judge_tagged(self, frames: Frames, tagged: BoolArray) -> Frames:
        """Filter the frames that the kernel could not judge, and cut them to the snap length."""
        if self._tagged_program is not None:
            accepted = ~tagged | self._tagged_program.accepted(frames, tagged, link=self.link)
            self._filtered += int(len(frames) - np.count_nonzero(accepted))
            frames = select_rows(frames, accepted)
        return replace(frames, captured=np.minimum(frames.captured, self.snap_length))

    def _wait(self, timeout: float) -> None:
        """Sleep until a block is ready, the time is over or the interface has a problem."""
        events = self._poll.poll(max(0.0, timeout) * 1000)
        if not any(event & select.POLLERR for _, event in events):
            return
        problem = interface_problem(self._socket, self.interface)
        if problem is not None and self._failure is None:
            self._failure = problem
            time.sleep(self._grace_seconds)  # the block that was being filled is handed over in this time

    @property
    def _grace_seconds(self) -> float:
        """How long after a packet's time its block has surely been handed over."""
        return (2 * self._shape.retire_ms + 20) / 1000

    def chunks(
        self, *, seconds: float | None = None, packets: int | None = None, poll_seconds: float = 0.2
    ) -> Iterator[Frames]:
        """Chunks until `stop`, for so many seconds from the start or so many packets.

        A quiet interface gives an empty chunk every `poll_seconds`, so that the caller can do other things.
        """
        if seconds is not None:
            self.stop(self._start_ns + int(seconds * 1e9))
        remaining = _FOREVER if packets is None else packets
        while remaining > 0:
            frames = self.read(self._patience(poll_seconds))
            if len(frames) > remaining:
                self._delivered -= len(frames) - remaining
                frames = select_rows(frames, np.arange(len(frames)) < remaining)
            remaining -= len(frames)
            finished = self._is_drained(len(frames))
            yield frames
            if finished:
                return

    def _patience(self, poll_seconds: float) -> float:
        """How long to wait for a chunk, so as not to sleep through the end."""
        if self._stop_ns == _FOREVER:
            return poll_seconds
        left = (self._stop_ns - time.time_ns()) / 1e9 + self._grace_seconds
        return min(poll_seconds, max(left, 0.001))

    def _is_drained(self, delivered: int) -> bool:
        """Whether nothing from before the stop can come any more."""
        if self._ring is None:
            return True
        if time.time_ns() < self._stop_ns + int(self._grace_seconds * 1e9):
            return False
        return delivered == 0 or not self._ring.is_ready()


def start_together(captures: Sequence[LiveCapture]) -> int:
    """Start all captures; they give the packets from one common moment on, whose time is returned."""
    waiting = [capture for capture in captures if not capture._started]
    for capture in waiting:
        if capture._ring is None:
            raise LiveCaptureError("was closed", where=capture.interface, action="make a new capture")
        if capture._promiscuous:
            set_promiscuous(capture._socket, capture.interface, True)
        begin(capture._socket, capture.interface)
        capture._started = True
    moment = time.time_ns()
    for capture in waiting:
        capture._start_ns = moment
    return moment


def _check_parameters(snap_length: int, block_size: int, blocks: int, retire_ms: int, direction: str) -> None:
    ranges = {
        "snap_length": (snap_length, 14, 262144),
        "block_size": (block_size, mmap.PAGESIZE, 1 << 26),
        "blocks": (blocks, 2, 1 << 16),
        "retire_ms": (retire_ms, 1, 10_000),
    }
    for name, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise ParameterError(f"{name} is {value}", where="live capture", action=f"use {low} to {high}")
    if block_size % mmap.PAGESIZE or block_size * blocks > _MAX_RING:
        raise ParameterError(
            f"{blocks} blocks of {block_size} bytes",
            where="live capture",
            action=f"use blocks of a multiple of {mmap.PAGESIZE} bytes, at most {_MAX_RING} in all",
        )
    if direction not in _DIRECTIONS:
        raise ParameterError(f"direction is {direction!r}", where="live capture", action="use in, out or both")
