"""Small programs that the kernel runs on packets, put together here and handed over by ``bpf(2)``.

Classic filters (`filter_program`) see a packet's bytes and little else. These see what the kernel knows of it: a
forwarded packet's ingress. No compiler is needed: a program is a handful of instructions.
Needs Linux 5.18 or later, with BPF, and root (or the capabilities ``cap_bpf`` and ``cap_net_admin``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from enum import IntEnum
from functools import cache

from sojourn.core.errors import LiveCaptureError

__all__ = ["ProgramKind", "bpf_call", "keep_entered_by", "load_program"]

_SYSTEM_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351, "armv7l": 386, "i686": 357}
_LOAD = 5
_ATTRIBUTES = 128  # the kernel takes zeros beyond what it knows
_SO_ATTACH_BPF = 50
_LICENSE = b"Apache-2.0"

_INGRESS_INDEX = 36  # of ``struct __sk_buff``
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
    program = load_program(
        ProgramKind.SOCKET_FILTER,
        [
            (_LOAD_WORD, 2, 1, _INGRESS_INDEX, 0),
            (_MOVE, 0, 0, 0, 0),
            (_JUMP_IF_NOT, 2, 0, 1, interface_index),
            (_MOVE, 0, 0, 0, snap_length),
            (_EXIT, 0, 0, 0, 0),
        ],
    )
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
    except OSError as error:
        raise LiveCaptureError(f"the kernel attaches no BPF program: {error.strerror}", where="bpf") from None
    finally:
        os.close(program)
