"""A wire that loses, delays, reorders and doubles packets: a process that passes frames between two interfaces.

``python -m sojourn.lab.chain.forwarder NEAR FAR SEED DISTURBANCE`` (the last as JSON) prints ``ready``, forwards each
way until it is asked to end, and prints what it did: ``[{"packets", "lost", "late", "doubled", "missed"}, …]``, one for
each direction. It takes the place of the kernel's netem, which not every kernel has.

Guarantee: what becomes of the n-th IP packet of a direction depends on the seed, the direction and n alone, so the
same packets meet the same fate. A packet leaves no earlier than its delay says; packets of equal delay keep their
order. Other frames (ARP) and multicast pass at once: without neighbours there is no network to disturb. What the kernel
could not hand over is counted as ``missed``.
Cost: 10 to 15 µs of one core per packet, what the kernel does with it included. Memory: the frames that are delayed,
and 32 MiB at each interface for those that nobody has taken yet.
"""

from __future__ import annotations

import heapq
import itertools
import json
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sojourn.core.errors import ParameterError, SojournError
from sojourn.lab.namespaces import Host, HostProcess
from sojourn.lab.traffic import lose_in_bursts

BLOCK = 1 << 14
LONGEST_FRAME = 1 << 16
BUFFER_BYTES = 32 << 20
AT_ONCE = 64
LOOK_SECONDS = 0.1
MOST_DELAY_NS = 60_000_000_000
_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_IGNORE_OUTGOING = 263, 6, 23
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_IP = (b"\x08\x00", b"\x86\xdd")

Fate = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What a wire does to the packets of each direction; the shares are of all packets.

    Losses come in runs of `burst` packets on average (Gilbert's model), or independently where that is 0. A `late`
    packet takes up to `late_ns` longer, evenly distributed, than the others' `delay_ns`.
    """

    delay_ns: int = 0
    loss: float = 0.0
    burst: float = 0.0
    late: float = 0.0
    late_ns: int = 50_000_000
    doubled: float = 0.0

    def __post_init__(self) -> None:
        is_share = all(0 <= share < 1 for share in (self.loss, self.late, self.doubled))
        is_delay = all(0 <= delay <= MOST_DELAY_NS for delay in (self.delay_ns, self.late_ns))
        if not (is_share and is_delay and (self.burst == 0 or self.burst >= 1)):
            raise ParameterError(
                f"{self}", where="disturbance", action="use shares below 1, delays up to 60 s and bursts of 1 or more"
            )


def fates(disturbance: Disturbance, seed: int, direction: int) -> Iterator[Fate]:
    """For one packet after the other, how long each of its copies takes; none where it is lost."""
    for block in itertools.count():
        yield from _block(disturbance, np.random.default_rng([seed, direction, block]))


def _block(disturbance: Disturbance, random: np.random.Generator) -> list[Fate]:
    if disturbance.burst:
        lost = lose_in_bursts(random, BLOCK, loss=disturbance.loss, burst=disturbance.burst)
    else:
        lost = random.uniform(size=BLOCK) < disturbance.loss
    is_late = random.uniform(size=BLOCK) < disturbance.late
    late_ns = (random.uniform(size=BLOCK) * disturbance.late_ns).astype(np.int64)
    delay = disturbance.delay_ns + np.where(is_late, late_ns, 0)
    doubled = random.uniform(size=BLOCK) < disturbance.doubled
    rows = zip(lost.tolist(), delay.tolist(), doubled.tolist(), strict=True)
    return [() if gone else (after,) * (1 + twice) for gone, after, twice in rows]


@dataclass
class Counts:
    """What became of the packets of one direction."""

    packets: int = 0
    lost: int = 0
    late: int = 0
    doubled: int = 0
    missed: int = 0

    def add(self, fate: Fate, usual_ns: int) -> None:
        self.packets += 1
        self.lost += not fate
        self.late += bool(fate) and fate[0] > usual_ns
        self.doubled += len(fate) > 1


class Forwarder:
    """Frames between two packet sockets; what waits is ordered by when it is due."""

    def __init__(self, ports: tuple[socket.socket, socket.socket], disturbance: Disturbance, *, seed: int) -> None:
        self._ports = ports
        self._usual_ns = disturbance.delay_ns
        self._fates = tuple(fates(disturbance, seed, direction) for direction in range(2))
        self._waiting: list[tuple[int, int, socket.socket, bytes]] = []
        self._numbers = itertools.count()
        self.counts = (Counts(), Counts())
        self.is_over = False

    def run(self) -> None:
        """Forward until `is_over`; what waits then is lost."""
        while not self.is_over:
            self._send_due()
            seconds = LOOK_SECONDS
            if self._waiting:
                seconds = min(seconds, max(0.0, (self._waiting[0][0] - time.monotonic_ns()) / 1e9))
            # A timeout of microseconds, which poll and epoll do not have.
            readable, _, _ = select.select(self._ports, (), (), seconds)
            for direction, port in enumerate(self._ports):
                if port in readable:
                    self._take(direction)
        for counts, port in zip(self.counts, self._ports, strict=True):
            counts.missed = struct.unpack("=II", port.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]

    def _send_due(self) -> None:
        now = time.monotonic_ns()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(self._waiting)
            port.send(frame)

    def _take(self, direction: int) -> None:
        """Some frames that came at a port; the others wait, so that those that are due are not held up."""
        port, other = self._ports[direction], self._ports[1 - direction]
        following, counts = self._fates[direction], self.counts[direction]
        for _ in range(AT_ONCE):
            try:
                frame = port.recv(LONGEST_FRAME, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if frame[12:14] not in _IP or frame[0] & 1:
                other.send(frame)
                continue
            fate = next(following)
            counts.add(fate, self._usual_ns)
            now = time.monotonic_ns()
            for after in fate:
                heapq.heappush(self._waiting, (now + after, next(self._numbers), other, frame))


def _open_port(interface: str) -> socket.socket:
    """A packet socket with room for a burst; it does not see what is sent by itself."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        port.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.bind((interface, _ALL_PROTOCOLS))
    return port


class RunningForwarder:
    """A forwarder's process."""

    def __init__(self, running: HostProcess) -> None:
        self._running = running
        self._counts: tuple[Counts, Counts] | None = None

    def finish(self) -> tuple[Counts, Counts]:
        """End it; what became of the packets from near to far, and of those back."""
        if self._counts is None:
            self._running.process.send_signal(signal.SIGTERM)
            printed, _ = self._running.process.communicate(timeout=60)
            rows: list[dict[str, Any]] = json.loads(printed)
            self._counts = (Counts(**rows[0]), Counts(**rows[1]))
        return self._counts


@contextmanager
def forwarder(host: Host, ports: tuple[str, str], disturbance: Disturbance, *, seed: int) -> Iterator[RunningForwarder]:
    """Forward between two ports of a host until the context ends."""
    command = (sys.executable, "-m", "sojourn.lab.chain.forwarder", *ports, str(seed), json.dumps(asdict(disturbance)))
    for port in ports:
        host.run("ip", "link", "set", port, "promisc", "on")
    with host.start(*command, stdout=subprocess.PIPE) as running:
        if running.process.stdout is None or running.process.stdout.readline() != "ready\n":
            raise SojournError("did not start", where=f"forwarder at {host.name}")
        yield RunningForwarder(running)


def main(near: str, far: str, seed: str, disturbance: str) -> None:
    with _open_port(near) as one, _open_port(far) as other:
        running = Forwarder((one, other), Disturbance(**json.loads(disturbance)), seed=int(seed))

        def end(*_: object) -> None:
            running.is_over = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        print("ready", flush=True)
        running.run()
    print(json.dumps([asdict(counts) for counts in running.counts]))


if __name__ == "__main__":
    main(*sys.argv[1:])
