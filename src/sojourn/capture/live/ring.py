"""The packet socket (AF_PACKET) and the ring that the kernel writes packets into.

The kernel fills blocks in order and hands each over by setting its status word; a block handed back
(`Ring.release`) is overwritten. Frames are found where they lie, nothing is copied. A VLAN tag that the
kernel (or the card) took out of a frame is put back in its place, as it was on the wire. On demand the kernel writes
before each frame what offloading makes, or made, of it (``struct virtio_net_hdr``); packets that it has no words for
(SCTP's super-packets, and before Linux 6.2 those of UDP) are then not given at all, but counted as dropped.

Cost: some 10 ns per frame to index; the ring itself is all the memory. Every failure that a user can cause or mend is
one `LiveCaptureError`. Constants and layouts are those of ``linux/if_packet.h`` and ``linux/virtio_net.h``, in the
machine's byte order.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import Frames, Offload
from sojourn.capture.filters import ANCILLARY, LINK_ETHERNET, LINK_RAW_IP, FilterProgram
from sojourn.core.arrays import BoolArray, Int64Array, UInt8Array
from sojourn.core.errors import LiveCaptureError
from sojourn.core.kernels import inlined, kernel

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_DROP_MEMBERSHIP, PACKET_RX_RING, PACKET_STATISTICS = 1, 2, 5, 6
PACKET_VERSION, PACKET_RESERVE, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 10, 12, 15, 23
PACKET_MR_PROMISC = 1
TPACKET_V3 = 2
SO_ATTACH_FILTER = 26
SIOCGIFINDEX, SIOCGIFHWADDR, SIOCGIFMTU, SIOCETHTOOL = 0x8933, 0x8927, 0x8921, 0x8946
ETHTOOL_GFLAGS, ETH_FLAG_LRO = 0x25, 1 << 15
VLAN_TAG_BYTES = 4
LINK_HEADERS = 14 + 2 * VLAN_TAG_BYTES
UNLIMITED = 1 << 31
ANCILLARY_VLAN_PRESENT = ANCILLARY + 48
LOOPBACK_HARDWARE = 772

# ARPHRD_ numbers of interfaces → link types; the kernel hands out tunnels' packets from the IP header on.
LINK_OF_HARDWARE = {
    1: LINK_ETHERNET,
    LOOPBACK_HARDWARE: LINK_ETHERNET,  # loopback: the kernel gives it an Ethernet header
    512: LINK_RAW_IP,  # ppp
    519: LINK_RAW_IP,  # rawip, cellular modems
    768: LINK_RAW_IP,  # ipip
    769: LINK_RAW_IP,  # ip6tnl
    776: LINK_RAW_IP,  # sit
    65534: LINK_RAW_IP,  # tun, wireguard
}


@dataclass(frozen=True)
class RingShape:
    """Size of the ring and how long, in milliseconds, the kernel fills a block before handing it over."""

    block_size: int
    blocks: int
    retire_ms: int

    @property
    def size(self) -> int:
        return self.block_size * self.blocks


@dataclass(frozen=True)
class RingCounts:
    """The kernel's counts: packets that passed the filter, drops among them, times the ring was full."""

    seen: int = 0
    dropped: int = 0
    freezes: int = 0

    def __add__(self, other: RingCounts) -> RingCounts:
        return RingCounts(self.seen + other.seen, self.dropped + other.dropped, self.freezes + other.freezes)


def _ioctl(endpoint: socket.socket, request: int, argument: bytes) -> bytes:
    import fcntl  # not everywhere: commands on files import this module, too

    return fcntl.ioctl(endpoint, request, argument)


def open_packet_socket(interface: str) -> socket.socket:
    """A packet socket that receives nothing yet."""
    if not hasattr(socket, "AF_PACKET"):
        raise LiveCaptureError("live capture needs Linux", where=interface, action="read a capture file")
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    except PermissionError:
        raise LiveCaptureError(
            "no permission to capture",
            where=interface,
            action="run as root, or give the interpreter the capability cap_net_raw",
        ) from None


def interface_link(endpoint: socket.socket, interface: str) -> tuple[int, bool]:
    """The link type of the interface, in the socket's network namespace, and whether it is the loopback."""
    name = interface.encode()
    try:
        if not 1 <= len(name) <= 15:
            raise OSError(errno.ENODEV, "no interface has such a name")
        answer = _ioctl(endpoint, SIOCGIFHWADDR, struct.pack("16s24x", name))
    except OSError:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise LiveCaptureError("no such interface", where=interface, action=f"choose one of {names}") from None
    (hardware,) = struct.unpack_from("=H", answer, 16)
    if hardware not in LINK_OF_HARDWARE:
        raise LiveCaptureError(
            f"interfaces of hardware type {hardware} cannot be read",
            where=interface,
            action="capture on an Ethernet, loopback, tun or tunnel interface",
        )
    return LINK_OF_HARDWARE[hardware], hardware == LOOPBACK_HARDWARE


def interface_problem(endpoint: socket.socket, interface: str) -> LiveCaptureError | None:
    """The error that the kernel keeps for the socket, if any; asking clears it."""
    code = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code == 0:
        return None
    if code != errno.ENETDOWN:
        return LiveCaptureError(f"the kernel stopped the capture: {errno.errorcode.get(code, code)}", where=interface)
    try:
        _ask_index(endpoint, interface)
    except OSError:
        return LiveCaptureError("the interface disappeared", where=interface, action="start again when it is back")
    return LiveCaptureError("the interface is down", where=interface, action=f"ip link set {interface} up")


def _ask_index(endpoint: socket.socket, interface: str) -> int:
    answer = _ioctl(endpoint, SIOCGIFINDEX, struct.pack("16s24x", interface.encode()))
    return int(struct.unpack_from("=i", answer, 16)[0])


def interface_index(endpoint: socket.socket, interface: str) -> int:
    """The interface's number in the socket's network namespace."""
    try:
        return _ask_index(endpoint, interface)
    except OSError:
        raise LiveCaptureError("no such interface", where=interface) from None


def longest_frame(endpoint: socket.socket, interface: str) -> int:
    """The longest frame, with two tags, that the interface sends, as far as the kernel tells."""
    try:
        answer = _ioctl(endpoint, SIOCGIFMTU, struct.pack("16s24x", interface.encode()))
    except OSError:
        return UNLIMITED
    return int(struct.unpack_from("=i", answer, 16)[0]) + LINK_HEADERS


def receives_large(endpoint: socket.socket, interface: str) -> bool:
    """Whether the card puts received packets together in a way that cannot be undone (LRO).

    Cards tell packets' mean size, not that of all but the last.
    """
    return bool(ethtool_value(endpoint, interface, ETHTOOL_GFLAGS) & ETH_FLAG_LRO)


def ethtool_value(endpoint: socket.socket, interface: str, command: int) -> int:
    """The answer to one of ethtool's questions that have a number for an answer; 0 where the driver knows of none."""
    asked = ctypes.create_string_buffer(struct.pack("=2I", command, 0), 8)
    try:
        _ioctl(endpoint, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(asked)))
    except OSError:
        return 0
    return int(struct.unpack("=2I", asked.raw)[1])


def map_ring(endpoint: socket.socket, interface: str, shape: RingShape, *, offload: bool) -> mmap.mmap:
    """Have the kernel make a TPACKET_V3 ring with room for a VLAN tag before each frame, and map it.

    With `offload` the kernel tells there what it makes of each frame.
    """
    frame_size = 2048
    request = struct.pack(
        "=7I",
        shape.block_size,
        shape.blocks,
        frame_size,
        shape.size // frame_size,
        shape.retire_ms,
        0,
        0,
    )
    try:
        endpoint.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        endpoint.setsockopt(SOL_PACKET, PACKET_RESERVE, VLAN_TAG_BYTES)
        endpoint.setsockopt(SOL_PACKET, PACKET_VNET_HDR, int(offload))
        endpoint.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
        return mmap.mmap(endpoint.fileno(), shape.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise LiveCaptureError(
            f"{shape.blocks} blocks of {shape.block_size} bytes are refused as a ring: {error.strerror}",
            where=interface,
            action="use fewer or smaller blocks",
        ) from None


class _SockFilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def attach_program(endpoint: socket.socket, program: FilterProgram) -> None:
    """Let the kernel run the program on each packet; what it returns is the snap length."""
    argument = _SockFilterProgram(len(program), program.to_bytes())
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(argument))
    except OSError as error:
        raise LiveCaptureError(
            f"the kernel refuses a filter of {len(program)} instructions: {error.strerror}",
            action="shorten the filter",
        ) from None


def with_tagged_frames(program: FilterProgram, snap_length: int) -> FilterProgram:
    """The program, preceded by: take every frame whose VLAN tag lies beside it, not in its bytes.

    The kernel keeps the outer tag of a received frame apart, so a filter would look for it, and for all
    that follows, at the wrong places. The reader puts the tag back and filters those frames itself.
    """
    instructions = program.instructions()
    prologue = [(0x20, 0, 0, ANCILLARY_VLAN_PRESENT), (0x15, 1, 0, 0), (0x06, 0, 0, snap_length)]
    return FilterProgram.from_instructions([*prologue, *instructions])


def set_promiscuous(endpoint: socket.socket, interface: str, wanted: bool) -> None:
    """Have the interface receive frames for others too, until the socket goes or this is undone."""
    option = PACKET_ADD_MEMBERSHIP if wanted else PACKET_DROP_MEMBERSHIP
    try:
        index = _ask_index(endpoint, interface)
        endpoint.setsockopt(SOL_PACKET, option, struct.pack("=iHH8x", index, PACKET_MR_PROMISC, 0))
    except OSError as error:
        if wanted:  # nothing is left to undo on an interface that has disappeared
            raise LiveCaptureError(f"not promiscuous: {error.strerror}", where=interface) from None


def set_ignore_outgoing(endpoint: socket.socket) -> None:
    """Spare the kernel the copies of sent packets; kernels before 4.20 make them, the reader drops them."""
    with suppress(OSError):
        endpoint.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)


def begin(endpoint: socket.socket, interface: str) -> None:
    """Receive from now on."""
    try:
        endpoint.bind((interface, ETH_P_ALL))
    except OSError as error:
        raise LiveCaptureError(f"cannot be bound to: {error.strerror}", where=interface) from None
    if problem := interface_problem(endpoint, interface):
        raise problem


def take_counts(endpoint: socket.socket) -> RingCounts:
    """The kernel's counts since they were last taken."""
    return RingCounts(*struct.unpack("=3I", endpoint.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)))


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
# What is told before a frame: its bytes, and which of them are the kind and the size of segments.
_TOLD_BYTES, _TOLD_KIND, _TOLD_SEGMENT = 10, 1, 4
_KIND_BITS, _TOLD_TCP_4, _TOLD_TCP_6, _TOLD_UDP = 0x1F, 1, 4, 5  # a higher bit tells of ECN
_OF_TCP, _OF_UDP, _IS_OUTGOING = int(Offload.TCP), int(Offload.UDP), int(Offload.OUTGOING)


class Ring:
    """The mapped ring; blocks are taken and released in order. With `offload`, the kernel tells of it before frames."""

    def __init__(self, mapping: mmap.mmap, shape: RingShape, *, offload: bool = False) -> None:
        self.shape = shape
        self._is_told = offload
        self.bytes: UInt8Array = np.frombuffer(mapping, np.uint8)
        blocks = self.bytes.reshape(shape.blocks, shape.block_size)
        self._headers: NDArray[np.uint32] = blocks[:, :BLOCK_HEADER].view(np.uint32)
        self._next = 0
        self._held = 0

    def is_ready(self) -> bool:
        """Whether the kernel has handed over a block that was not taken yet."""
        return self.holds(1)

    def holds(self, blocks: int) -> bool:
        """Whether so many blocks are ready, or more; a look at one of them tells."""
        if self._held + blocks > self.shape.blocks:
            return False
        return bool(self._headers[(self._next + blocks - 1) % self.shape.blocks, _STATUS] & _OWNED_BY_US)

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
        offload = np.empty(columns.shape[1] if self._is_told else 0, np.int64)
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
            offload,
            tagged,
            ignored,
        )
        data = self.bytes.view()
        data.flags.writeable = False
        offset, captured, length, time_ns = columns[:, :rows]
        told = offload[:rows] if self._is_told else None
        frames = Frames(data, offset, captured, length, time_ns, np.full(rows, link, np.int64), told)
        return frames, tagged[:rows]


def keep(frames: Frames) -> Frames:
    """A copy of the frames that stays valid when the ring moves on."""
    start = np.cumsum(frames.captured) - frames.captured
    data = np.empty(int(frames.captured.sum()), np.uint8)
    gather_bytes(frames.data, frames.offset, frames.captured, data, start)
    kept = frames.select(np.ones(len(frames), np.bool_))
    return replace(kept, data=data, offset=start)


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


@inlined
def told_offload(ring: UInt8Array, halves: NDArray[np.uint16], header: int, frame: int) -> np.int64:
    """What the kernel tells of a frame's offloading, as `Frames.offload` has it."""
    at = frame - _TOLD_BYTES
    kind = ring[at + _TOLD_KIND] & _KIND_BITS
    flags = np.int64(_IS_OUTGOING if ring[header + _PACKET_TYPE] == _TYPE_OUTGOING else 0)
    if kind in (_TOLD_TCP_4, _TOLD_TCP_6):
        flags |= _OF_TCP
    elif kind == _TOLD_UDP:
        flags |= _OF_UDP
    segment = half_at(halves, at + _TOLD_SEGMENT) if kind else np.int64(0)
    return (flags << 16) | segment


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
    offload: Int64Array,
    tagged: BoolArray,
    ignored: Int64Array,
) -> int:
    """Fill the columns with the wanted frames of the blocks (that of offloading if it has room); how many there are."""
    row = 0
    before = PACKET_HEADER + (_TOLD_BYTES if len(offload) else 0)
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
            if frame < header + before or frame + size > end:
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
                if len(offload):  # before the tag is put back, over what is told
                    offload[row] = told_offload(ring, halves, header, frame)
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
