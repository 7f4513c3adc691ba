"""The packet socket under a live capture: Linux's AF_PACKET options, each as one function.

Constants and layouts are those of ``linux/if_packet.h``. Every failure that a user can cause or mend
becomes one `LiveCaptureError`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from sojourn.capture.filters.language import LINK_ETHERNET, LINK_RAW_IP
from sojourn.capture.filters.program import ANCILLARY, FilterProgram
from sojourn.core.errors import LiveCaptureError

__all__ = [
    "RingCounts",
    "RingShape",
    "attach_program",
    "begin",
    "interface_index",
    "interface_link",
    "interface_problem",
    "map_ring",
    "open_packet_socket",
    "set_ignore_outgoing",
    "set_promiscuous",
    "take_counts",
    "with_tagged_frames",
]

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_DROP_MEMBERSHIP, PACKET_RX_RING, PACKET_STATISTICS = 1, 2, 5, 6
PACKET_VERSION, PACKET_RESERVE, PACKET_IGNORE_OUTGOING = 10, 12, 23
PACKET_MR_PROMISC = 1
TPACKET_V3 = 2
SO_ATTACH_FILTER = 26
SIOCGIFINDEX, SIOCGIFHWADDR = 0x8933, 0x8927

VLAN_TAG_BYTES = 4
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
        answer = fcntl.ioctl(endpoint, SIOCGIFHWADDR, struct.pack("16s24x", name))
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
    answer = fcntl.ioctl(endpoint, SIOCGIFINDEX, struct.pack("16s24x", interface.encode()))
    return int(struct.unpack_from("=i", answer, 16)[0])


def interface_index(endpoint: socket.socket, interface: str) -> int:
    """The interface's number in the socket's network namespace."""
    try:
        return _ask_index(endpoint, interface)
    except OSError:
        raise LiveCaptureError("no such interface", where=interface) from None


def map_ring(endpoint: socket.socket, interface: str, shape: RingShape) -> mmap.mmap:
    """Have the kernel make a TPACKET_V3 ring with room for a VLAN tag before each frame, and map it."""
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
