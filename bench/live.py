"""Live: the highest rate that a command takes from an interface without a drop, beside tcpdump on the same traffic.

A sender in a namespace of its own writes numbered UDP packets of 1 024 flows, 64 bytes of frame each, by `sendmmsg` on
a packet socket; the kernel carries them on the sender's core as far as the capture's ring, and the capture has the
other core. A rate counts when the kernel dropped none in `SECONDS` seconds; the highest is found by halving between one
that does and one that does not. "≥" is all that the sender could send. Both have rings of the same size.

``python -m bench.live INTERFACE ADDRESS RATE SECONDS FRAME`` is the sender; it prints the packets sent a second.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.timing import SOJOURN

if TYPE_CHECKING:
    from sojourn.lab.namespaces import Host, Network

__all__ = ["processor_seconds", "sender", "table", "tcpdump"]

SECONDS, TRIALS = 4.0, 6
BATCH, FLOWS, FRAME, NUMBER = 256, 1024, 64, 56
LEAST_SLEEP_SECONDS = 0.0005
RING_MIB = 32
UNPACED = 1e9
CAPTURE_SECONDS = 30.0
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
DROPPED = re.compile(r"the kernel dropped ([\d,]+) of|(\d+) packets dropped by kernel")
NOTE = (
    f"Two cores: the sender with the kernel's forwarding on one, the capture on the other; {SECONDS:g} s at each rate, "
    f"frames of {FRAME} bytes, rings of {RING_MIB} MiB. — : both took all that could be sent."
)


class _Message(ctypes.Structure):
    """mmsghdr of sendmmsg(2) on 64 bits."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("sent", ctypes.c_uint32),
    )


def _frames(link: bytes, source: str, destination: str, size: int, flows: int) -> np.ndarray:
    """UDP frames whose ports make flows; the eight bytes at `NUMBER` are for a number."""
    frames = np.zeros((flows, size), np.uint8)
    length = size - 14
    for flow, frame in enumerate(frames):
        network = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(destination)
        )
        total = sum(struct.unpack(">10H", network))
        checksum = 0xFFFF - (total % 0xFFFF or 0xFFFF)
        network = network[:10] + checksum.to_bytes(2, "big") + network[12:]
        transport = struct.pack(">HHHH", 10_000 + flow, 7_777, length - 20, 0)
        header = link + network + transport
        frame[: len(header)] = np.frombuffer(header, np.uint8)
    return frames


def _messages(frames: np.ndarray) -> ctypes.Array[_Message]:
    flows = len(frames)
    parts = (ctypes.c_uint64 * (2 * flows))()
    for flow in range(flows):
        parts[2 * flow : 2 * flow + 2] = [frames[flow].ctypes.data, frames.shape[1]]
    messages = (_Message * flows)()
    for flow, message in enumerate(messages):
        message.parts, message.part_count = ctypes.addressof(parts) + 16 * flow, 1
    messages.kept = parts  # type: ignore[attr-defined]
    return messages


def send(
    interface: str,
    link: bytes,
    addresses: tuple[str, str],
    rate: float,
    seconds: float,
    *,
    size: int = FRAME,
    flows: int = FLOWS,
) -> float:
    """Send at a rate, evenly but for batches; how many packets a second left."""
    frames = _frames(link, *addresses, size, flows)
    numbers = frames[:, NUMBER : NUMBER + 8].view(">u8")[:, 0]
    messages = _messages(frames)
    batch = int(min(BATCH, max(1, rate / 100)))
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as endpoint:
        endpoint.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        endpoint.bind((interface, 0))
        sent, start = 0, time.perf_counter()
        while (now := time.perf_counter() - start) < seconds:
            if (ahead := sent / rate - now) > 0:
                if ahead > LEAST_SLEEP_SECONDS:
                    time.sleep(ahead / 2)
                continue
            at = sent % flows
            count = min(batch, flows - at)
            numbers[at : at + count] = np.arange(sent, sent + count)
            first = ctypes.byref(messages, at * ctypes.sizeof(_Message))
            gone = libc.sendmmsg(endpoint.fileno(), first, count, 0)
            if gone < 0 and ctypes.get_errno() != errno.ENOBUFS:  # the other end takes no more at the moment
                raise SystemExit(f"sendmmsg: {os.strerror(ctypes.get_errno())}")
            sent += max(gone, 0)
        return sent / (time.perf_counter() - start)


@dataclass(frozen=True)
class Taken:
    """A rate without a drop, the share of its core that the capture used for it, and whether more could be sent."""

    rate: float
    share: float
    is_all: bool

    def __str__(self) -> str:
        return f"{'≥ ' if self.is_all else ''}{self.rate:,.0f}"


def table() -> list[str]:
    """Packets per second without a drop: ours, tcpdump's, and the ratio."""
    from sojourn.lab.namespaces import two_hosts

    lines = [
        "| | × tcpdump | packets/s without a drop | of its core | tcpdump -w /dev/null | of its core |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ring = ["-B", f"{RING_MIB}MiB"]
    with two_hosts() as network:
        peer = _highest(network, network.receiver, [tcpdump("eth0")])
        for name, more in (("flows", []), ("record", ["-w", os.devnull])):
            command = [*SOJOURN, name, "-i", "eth0", *ring, *more]
            lines.append(_row(f"sojourn {name} -i", _highest(network, network.receiver, [command]), peer))
    with two_hosts(router=True) as network:
        assert network.router is not None
        peer = _highest(network, network.router, [tcpdump("left"), tcpdump("right")])
        command = [*SOJOURN, "measure", "-i", "left", "-i", "right", *ring]
        lines.append(_row("sojourn measure -i -i, of a router", _highest(network, network.router, [command]), peer))
    return lines


def tcpdump(interface: str) -> list[str]:
    # As root it would give what it writes to, the device, to a user of its own.
    return ["tcpdump", "-Z", "root", "-n", "-i", interface, "-B", str(RING_MIB * 1024), "-w", os.devnull]


def _row(name: str, own: Taken, peer: Taken) -> str:
    ratio = "—" if own.is_all and peer.is_all else f"{own.rate / max(peer.rate, 1):.2f}"
    return f"| {name} | {ratio} | {own} | {own.share:.0%} | {peer} | {peer.share:.0%} |"


def _highest(network: Network, host: Host, captures: list[list[str]]) -> Taken:
    """The highest rate that all captures together took without a drop."""
    most, share, dropped = _trial(network, host, captures, UNPACED)
    if not dropped:
        return Taken(most, share, is_all=True)
    best, high = Taken(0.0, 0.0, is_all=False), most
    for _ in range(TRIALS):
        rate, share, dropped = _trial(network, host, captures, (best.rate + high) / 2)
        if dropped:
            high = min(high, rate)
        elif rate > best.rate:
            best = Taken(rate, share, is_all=False)
    return best


def _trial(network: Network, host: Host, captures: list[list[str]], rate: float) -> tuple[float, float, int]:
    """Send at a rate while captures run: the rate reached, the captures' share of a core, and packets dropped."""
    with _running(host, captures) as processes:
        before, start = sum(processor_seconds(process.pid) for process in processes), time.perf_counter()
        sent = float(network.sender.run("taskset", "-c", "0", *sender(network, rate, SECONDS)).split()[-1])
        taken = sum(processor_seconds(process.pid) for process in processes) - before
        share = taken / min(SECONDS, time.perf_counter() - start)
    said = [process.communicate()[1] for process in processes]
    dropped = [int((a or b).replace(",", "")) for text in said for a, b in DROPPED.findall(text)]
    return sent, share, sum(dropped)


def processor_seconds(pid: int) -> float:
    """User and system time of a process and all its threads, by the kernel's clock of it (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def _running(host: Host, captures: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Captures on the last core, from when all of them receive until they are interrupted."""
    core = str((os.cpu_count() or 1) - 1)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(host.within("taskset", "-c", core, *command), **pipes) for command in captures]
    expected = sum(max(1, command.count("-i")) for command in captures)
    deadline = time.monotonic() + CAPTURE_SECONDS
    try:
        while _receiving(host) < expected:
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                raise SystemExit(f"{' '.join(captures[0])} does not capture")
            time.sleep(0.05)
        time.sleep(0.5)
        yield processes
        time.sleep(0.5)
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)


def _receiving(host: Host) -> int:
    rows = [line.split() for line in host.run("cat", "/proc/net/packet").splitlines()[1:]]
    return sum(row[3] == "0003" and row[5] == "1" for row in rows)


def sender(network: Network, rate: float, seconds: float, *, size: int = FRAME, flows: int = FLOWS) -> list[str]:
    """The command that sends to the receiver."""
    numbers = map(str, (rate, seconds, size, flows))
    return [sys.executable, "-m", "bench.live", "eth0", network.receiver.address, *numbers]


def _own_link(interface: str, destination: str) -> tuple[bytes, str]:
    """The Ethernet header towards an address, and this host's own address: as the kernel would fill them in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        endpoint.connect((destination, 9))
        endpoint.send(b"")  # resolves the next hop
        own = endpoint.getsockname()[0]
    route = subprocess.run(
        ["ip", "route", "get", destination], check=True, capture_output=True, text=True
    ).stdout.split()
    hop = route[route.index("via") + 1] if "via" in route else destination
    subprocess.run(["ping", "-c", "1", hop], check=True, capture_output=True)
    known = subprocess.run(["ip", "neigh", "show", hop], check=True, capture_output=True, text=True).stdout.split()
    to = bytes.fromhex(known[known.index("lladdr") + 1].replace(":", ""))
    mine = bytes.fromhex(Path(f"/sys/class/net/{interface}/address").read_text().strip().replace(":", ""))
    return to + mine + b"\x08\x00", own


if __name__ == "__main__":
    port, address, wanted, lasting, length, many = sys.argv[1:]
    header, me = _own_link(port, address)
    print(send(port, header, (me, address), float(wanted), float(lasting), size=int(length), flows=int(many)))
