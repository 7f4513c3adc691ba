"""What the agents of the demonstration watch: a network of real routers (root), or two points of a recording.

Guarantee: packets are real where there are routers (iperf3 through FRRouting's network of namespaces), and generated
ones from capture files where there are none; `says` tells which. A bottleneck appears some time after the traffic
began; `slow_since_ns` says when.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from sojourn.lab.demo.recording import INTERFACE, RECEIVER, SENDER, SLOW_NS, begin_of, write_recording
from sojourn.lab.demo.relay import relayed
from sojourn.lab.fleet import SOJOURN, Fleet, agent, ending_with_us
from sojourn.lab.namespaces import Bottleneck
from sojourn.lab.routed.network import RoutedLab, routed_lab
from sojourn.lab.routed.traffic import MAX_SECONDS, Traffic, flowing
from sojourn.mplane.planning.topology import TopologyBuilder

ROUTERS = ("r1", "r2", "r3")
SENDING, RECEIVING = "h1", "h2"
# 1.0 Mbit/s of data in all: a link of 1.15 Mbit/s is nearly full with its headers. 15 kB take 100 ms there.
DATAGRAMS = Traffic(rate=200_000, seconds=MAX_SECONDS, data_bytes=400, streams=3)
STREAMS = Traffic(rate=200_000, seconds=MAX_SECONDS, tcp=True, streams=2)
SLOW = Bottleneck(1_150_000, burst_bytes=3_000, queue_bytes=15_000)
# Fast enough to open connections and fill epochs; long enough to compare with.
QUIET_SECONDS = 12.0


class Piece(NamedTuple):
    """A segment, from where to where, and where that is in words."""

    name: str
    sender: str
    receiver: str
    where: str
    both_directions: bool = True


class Stage(ABC):
    """Agents, and the packets that they see."""

    says: str  # what is shown, honestly
    whole: Piece  # the whole way
    pieces: tuple[Piece, ...]  # all segments, the whole way included
    slow_since_ns: int | None = None

    @property
    def parts(self) -> tuple[Piece, ...]:
        """The segments that the whole way is made of, itself where it has no parts."""
        return tuple(piece for piece in self.pieces if piece is not self.whole) or (self.whole,)

    @abstractmethod
    def set_up(self, fleet: Fleet, stack: ExitStack) -> None:
        """Build what there is to build, and start agents; all ends with the stack."""

    @abstractmethod
    def begin(self) -> None:
        """Have packets flow, until the stack ends: both ends of every segment record."""

    @abstractmethod
    def advance(self) -> None:
        """Have the bottleneck appear, if it is time; called again and again."""


class Routers(Stage):
    """Three routers in a row, a host at either end, an agent on each router, and traffic between the hosts."""

    says = "three routers in network namespaces, iperf3 between two hosts"
    whole = Piece("r1-r3", "r1:to-r2:out", "r3:to-r2:in", "from r1 to r3")
    pieces = (
        whole,
        Piece("r1-r2", "r1:to-r2:out", "r2:to-r1:in", "between r1 and r2"),
        Piece("in-r2", "r2:to-r1:in", "r2:to-r3:out", "inside r2", both_directions=False),
        Piece("r2-r3", "r2:to-r3:out", "r3:to-r2:in", "between r2 and r3"),
    )

    def __init__(self) -> None:
        self._lab: RoutedLab | None = None
        self._stack: ExitStack | None = None
        self._began = 0.0

    def set_up(self, fleet: Fleet, stack: ExitStack) -> None:
        builder = TopologyBuilder("demo")
        for name in ROUTERS:
            builder.add_router(name, 0)
        for ends in itertools.pairwise(ROUTERS):
            for one, other in (ends, ends[::-1]):
                builder.add_link(one, other, "10", line=0)
        topology = builder.finish()
        lab = stack.enter_context(routed_lab(topology, hosts={SENDING: ROUTERS[0], RECEIVING: ROUTERS[-1]}))
        port = int(fleet.url.rpartition(":")[2])
        stack.enter_context(relayed(port, lab.routers))
        for router in lab.routers:  # while their routing converges
            stack.enter_context(agent(fleet, router.name, host=router, waits=False))
        lab.wait_converged()
        self._lab, self._stack = lab, stack

    def begin(self) -> None:
        assert self._lab is not None
        assert self._stack is not None
        for traffic in (DATAGRAMS, STREAMS):
            ends = self._lab.host(SENDING), self._lab.host(RECEIVING)
            self._stack.enter_context(flowing(*ends, traffic, prefix=ending_with_us()))
        self._began = time.monotonic()

    def advance(self) -> None:
        if self._lab is not None and self.slow_since_ns is None and time.monotonic() - self._began > QUIET_SECONDS:
            self._lab.set_bottleneck("r2", "r3", SLOW)
            self.slow_since_ns = time.time_ns()


class Replayed(Stage):
    """Two agents that read a recording of two points, at its pace."""

    says = "generated packets from two capture files, replayed at their pace"
    whole = Piece(
        f"{SENDER}-{RECEIVER}", f"{SENDER}:{INTERFACE}", f"{RECEIVER}:{INTERFACE}", f"from {SENDER} to {RECEIVER}"
    )
    pieces = (whole,)

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "recording"
        self._slow_from_ns = 0

    def set_up(self, fleet: Fleet, stack: ExitStack) -> None:
        self.recording = write_recording(self._folder)
        program = (SOJOURN[0], "-m", "sojourn.lab.demo.replaying_agent", str(self._folder))
        for node in (SENDER, RECEIVER):
            stack.enter_context(agent(fleet, node, program=(*program, node), waits=False))

    def begin(self) -> None:
        now_ns = time.time_ns()
        unfinished = self._folder / "begin.new"
        unfinished.write_text(str(now_ns))
        unfinished.replace(begin_of(self._folder))
        self._slow_from_ns = now_ns + SLOW_NS

    def advance(self) -> None:
        if 0 < self._slow_from_ns <= time.time_ns():
            self.slow_since_ns = self._slow_from_ns
