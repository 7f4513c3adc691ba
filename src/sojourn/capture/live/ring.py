"""The ring that the kernel writes packets into: which blocks are ours, and where the frames lie in them.

The kernel fills blocks in order and hands each over by setting its status word; a block handed back
(`Ring.release`) is overwritten. Frames are found where they lie, nothing is copied. A VLAN tag that the
kernel (or the card) took out of a frame is put back in its place, as it was on the wire.

Cost: some 10 ns per frame to index; the ring itself is all the memory.
Layouts: ``tpacket_block_desc`` and ``tpacket3_hdr`` of ``linux/if_packet.h``, in the machine's byte order.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import Frames
from sojourn.capture.live.packet_socket import RingShape
from sojourn.core.arrays import BoolArray, Int64Array, UInt8Array
from sojourn.core.kernels import inlined, kernel

__all__ = ["AFTER_STOP", "BEFORE_START", "DAMAGED", "DIRECTION", "INCOMING", "OUTGOING", "Ring", "keep"]

# Reasons why a frame is left out: positions in the column that `index_blocks` counts in.
DIRECTION, BEFORE_START, AFTER_STOP, DAMAGED = range(4)
INCOMING, OUTGOING = 1, 2

BLOCK_HEADER, PACKET_HEADER = 48, 68  # the latter with its sockaddr_ll
SMALLEST_PACKET = PACKET_HEADER
_STATUS, _PACKETS = 2, 3  # words of a block's header
_OWNED_BY_KERNEL, _OWNED_BY_US = 0, 1
_FIRST_PACKET = 16
_NEXT, _SECONDS, _NANOSECONDS, _SNAP, _LENGTH, _FLAGS = 0, 4, 8, 12, 16, 20
_MAC, _TCI, _TPID, _PACKET_TYPE = 24, 32, 36, 48 + 10
_TAGGED, _TPID_VALID = 1 << 4, 1 << 6
_TYPE_OUTGOING = 4
_ADDRESSES, _TAG = 12, 4
_TAG_PROTOCOL = 0x8100


class Ring:
    """The mapped ring; blocks are taken and released in order."""

    def __init__(self, mapping: mmap.mmap, shape: RingShape) -> None:
        self.shape = shape
        self.bytes: UInt8Array = np.frombuffer(mapping, np.uint8)
        blocks = self.bytes.reshape(shape.blocks, shape.block_size)
        self._headers: NDArray[np.uint32] = blocks[:, :BLOCK_HEADER].view(np.uint32)
        self._next = 0
        self._held = 0

    def is_ready(self) -> bool:
        """Whether the kernel has handed over a block that was not taken yet."""
        if self._held == self.shape.blocks:
            return False
        return bool(self._headers[self._next, _STATUS] & _OWNED_BY_US)

    def take(self, most: int) -> Int64Array:
        """The numbers of up to `most` blocks that are ready."""
        taken: list[int] = []
        while len(taken) < most and self.is_ready():
            taken.append(self._next)
            self._next = (self._next + 1) % self.shape.blocks
            self._held += 1
        return np.array(taken, np.int64)

    def release(self) -> None:
        """Hand every block taken so far back to the kernel; their frames become invalid."""
        # The GIL's lock, taken and left between reading a status and the bytes, orders the two.
        for back in range(self._held, 0, -1):
            self._headers[(self._next - back) % self.shape.blocks, _STATUS] = _OWNED_BY_KERNEL
        self._held = 0

    def index(
        self,
        blocks: Int64Array,
        *,
        link: int,
        directions: int,
        start_ns: int,
        stop_ns: int,
        ignored: Int64Array,
    ) -> tuple[Frames, BoolArray]:
        """The frames of these blocks, and which of them had their VLAN tag put back."""
        room = np.minimum(self._headers[blocks, _PACKETS], self.shape.block_size // SMALLEST_PACKET)
        columns = np.empty((4, int(room.sum())), np.int64)
        tagged = np.zeros(columns.shape[1], np.bool_)
        rows = index_blocks(
            self.bytes,
            self.bytes.view(np.uint32),
            self.bytes.view(np.uint16),
            blocks,
            self.shape.block_size,
            directions,
            start_ns,
            stop_ns,
            columns[0],
            columns[1],
            columns[2],
            columns[3],
            tagged,
            ignored,
        )
        data = self.bytes.view()
        data.flags.writeable = False
        offset, captured, length, time_ns = columns[:, :rows]
        frames = Frames(data, offset, captured, length, time_ns, np.full(rows, link, np.int64))
        return frames, tagged[:rows]


def keep(frames: Frames) -> Frames:
    """A copy of the frames that stays valid when the ring moves on."""
    start = np.cumsum(frames.captured) - frames.captured
    data = np.empty(int(frames.captured.sum()), np.uint8)
    gather_bytes(frames.data, frames.offset, frames.captured, data, start)
    columns = (frames.captured, frames.length, frames.time_ns, frames.link)
    return Frames(data, start, *(column.copy() for column in columns))


@kernel
def gather_bytes(
    data: UInt8Array, offset: Int64Array, captured: Int64Array, target: UInt8Array, start: Int64Array
) -> None:
    """Copy each frame's bytes to its place in `target`."""
    for row in range(len(offset)):
        source = offset[row]
        target[start[row] : start[row] + captured[row]] = data[source : source + captured[row]]


@inlined
def word_at(words: NDArray[np.uint32], at: int) -> np.int64:
    """The machine's 32-bit number at a byte of the ring; the kernel aligns them."""
    return np.int64(words[at >> 2])


@inlined
def half_at(halves: NDArray[np.uint16], at: int) -> np.int64:
    return np.int64(halves[at >> 1])


@inlined
def put_back_tag(
    ring: UInt8Array, words: NDArray[np.uint32], halves: NDArray[np.uint16], header: int, frame: int
) -> None:
    """Move the two addresses four bytes down and write the tag after them."""
    for index in range(frame, frame + _ADDRESSES):
        ring[index - _TAG] = ring[index]
    known = word_at(words, header + _FLAGS) & _TPID_VALID
    protocol = half_at(halves, header + _TPID) if known else np.int64(_TAG_PROTOCOL)
    control = word_at(words, header + _TCI) & 0xFFFF
    at = frame - _TAG + _ADDRESSES
    ring[at], ring[at + 1] = protocol >> 8, protocol & 0xFF
    ring[at + 2], ring[at + 3] = control >> 8, control & 0xFF


@inlined
def reason_to_skip(
    ring: UInt8Array, header: int, time_ns: np.int64, directions: int, start_ns: int, stop_ns: int
) -> int:
    """Why a packet is not wanted, or -1."""
    direction = OUTGOING if ring[header + _PACKET_TYPE] == _TYPE_OUTGOING else INCOMING
    if not directions & direction:
        return DIRECTION
    if time_ns < start_ns:
        return BEFORE_START
    return AFTER_STOP if time_ns > stop_ns else -1


@kernel
def index_blocks(
    ring: UInt8Array,
    words: NDArray[np.uint32],
    halves: NDArray[np.uint16],
    blocks: Int64Array,
    block_size: int,
    directions: int,
    start_ns: int,
    stop_ns: int,
    offset: Int64Array,
    captured: Int64Array,
    length: Int64Array,
    time_ns: Int64Array,
    tagged: BoolArray,
    ignored: Int64Array,
) -> int:
    """Fill the columns with the wanted frames of the blocks; how many there are."""
    row = 0
    for block in blocks:
        begin = block * block_size
        end = begin + block_size
        packets = min(int(word_at(words, begin + 4 * _PACKETS)), block_size // SMALLEST_PACKET)
        header = begin + word_at(words, begin + _FIRST_PACKET)
        for _ in range(packets):
            if row == len(offset) or header < begin + BLOCK_HEADER or header + PACKET_HEADER > end:
                ignored[DAMAGED] += 1
                break
            frame = header + half_at(halves, header + _MAC)
            size = word_at(words, header + _SNAP)
            if frame < header + PACKET_HEADER or frame + size > end:
                ignored[DAMAGED] += 1
                break
            time = word_at(words, header + _SECONDS) * 1_000_000_000 + word_at(words, header + _NANOSECONDS)
            reason = reason_to_skip(ring, header, time, directions, start_ns, stop_ns)
            if reason >= 0:
                ignored[reason] += 1
            else:
                has_tag = word_at(words, header + _FLAGS) & _TAGGED != 0
                room = frame - _TAG >= header + PACKET_HEADER and size >= _ADDRESSES
                extra = _TAG if has_tag and room else 0
                if extra:
                    put_back_tag(ring, words, halves, header, frame)
                offset[row] = frame - extra
                captured[row] = size + extra
                length[row] = word_at(words, header + _LENGTH) + extra
                time_ns[row] = time
                tagged[row] = extra > 0
                row += 1
            header += word_at(words, header + _NEXT)
    return row
