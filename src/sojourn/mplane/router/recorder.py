"""Recording inside a router: an LDA at each end of every ingress–egress pair and class, delimited by messages.

::

    with RouterRecorder("r2", interfaces, settings) as recorder:
        while ...:
            epochs = recorder.step()

Every interval, Start and End pass through the router in each pair and class (`control_messages`); what the taps saw
goes to the pair's recorder (`segment`); an interval that is over becomes two epochs (`epochs`). Packets to and from the
router itself belong to no pair.

An ingress tap looks up where its packets are forwarded; an egress tap sees the packets of one ingress only, which the
kernel filters. Both delay packets until everything before a time has surely been handed over, so that taps can be
processed side by side in time order. A packet is tapped at the egress after its queue: queueing shows as delay inside
the router.

Guarantee: an epoch is given once its interval is over at both ends; one whose messages or packets were missed is void.
Memory: a ring per interface and per ordered pair, two open LDAs per pair and class. Cost: decoding, about 0.2 µs per
packet. It changes nothing on the router: no rules, no marks, no routes.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Self

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.frames import Frames
from sojourn.capture.live.interface import LiveCapture, start_together
from sojourn.capture.live.reader import HANDED_OVER_NS, RETIRE_MS, rehearsal
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt8Array
from sojourn.core.errors import LiveCaptureError, ParameterError
from sojourn.core.units import plural
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.mplane.router.control_messages import ControlKind, Injector, MessageWriter
from sojourn.mplane.router.epochs import MOST_DSCP, MS_NS, RouterStream, Side, Void, void_epoch
from sojourn.mplane.router.forwarding import NOWHERE, RouteLookup, RouterInterface, keying_of_routes
from sojourn.mplane.router.segment import DATA, ClosedInterval, SegmentRecorder, mark_of
from sojourn.sketches.lda import LdaParameters

BLOCK_BYTES = 1 << 16
SNAP_BYTES = 128  # two tags, and the bytes of a packet's identity
_MOST_READS = 64

NOT_MEASURED = "of a class that is not measured"
NOT_FORWARDED = "to the router itself, to no measured interface, or with no hops left"


@dataclass(frozen=True, eq=False)
class Seen:
    """Packets of a tap; ``egress`` is an interface's number where the tap knows it."""

    batch: PacketBatch
    dscp: UInt8Array
    egress: Int64Array

    def select(self, rows: BoolArray) -> Seen:
        return Seen(self.batch.select(rows), self.dscp[rows], self.egress[rows])

    @classmethod
    def concatenate(cls, parts: list[Seen]) -> Seen:
        return cls(
            PacketBatch.concatenate([part.batch for part in parts]),
            np.concatenate([part.dscp for part in parts]),
            np.concatenate([part.egress for part in parts]),
        )


NOTHING = Seen(PacketBatch.of([], [], []), np.empty(0, np.uint8), np.empty(0, np.int64))


class Tap:
    """What leaves by an interface of what entered by another."""

    side = "egress"

    def __init__(self, interface: str, entered_by: str, options: DecodeOptions, *, ring_bytes: int) -> None:
        self.interface, self.entered_by = interface, entered_by
        self._ring_bytes = ring_bytes
        self._options = options
        self._decoder = Decoder(options)
        self._waiting: list[Seen] = []
        self._dropped = 0
        self._longest = 0
        self._is_broken = False
        self.packets = 0
        self.ignored: Counter[str] = Counter()
        none: Int64Array = np.empty(0, np.int64)
        self._decoder.decode_forwarding(Frames(np.zeros(1, np.uint8), none, none, none, none, none))  # compiles
        self.capture = self._open()

    def _open(self) -> LiveCapture:
        return LiveCapture(
            self.interface,
            snap_length=SNAP_BYTES,
            block_size=BLOCK_BYTES,
            blocks=self._ring_bytes // BLOCK_BYTES,
            retire_ms=RETIRE_MS,
            direction="out" if self.entered_by else "in",
            entered_by=self.entered_by,
        )

    def close(self) -> None:
        self.capture.close()

    def read(self) -> str | None:
        """Take what the ring has. If packets were missed since last time: why, or "" where that was reported before.

        A tap whose interface failed (such as one that went down) is opened again as soon as that succeeds.
        """
        try:
            if self._is_broken:
                self.capture.close()
                self.capture = self._open()
                self.capture.start()
                self._dropped, self._is_broken = 0, False
                return f"{self.interface}: is captured again"
            dropped = self._read_ring()
        except LiveCaptureError as error:
            reason, self._is_broken = "" if self._is_broken else str(error), True
            return reason
        return f"{self.interface}: the kernel had no room for {plural(dropped, 'packet')}" if dropped else None

    def _read_ring(self) -> int:
        """Take what is there; how many packets found no room since last time."""
        for _ in range(_MOST_READS):
            frames = self.capture.read(0.0)
            if not len(frames):
                break
            self._longest = max(self._longest, int(frames.length.max()))
            self._waiting.append(self._decoded(frames))
        dropped = self.capture.statistics().dropped
        new, self._dropped = dropped - self._dropped, dropped
        return new

    def _decoded(self, frames: Frames) -> Seen:
        batch, forwarding = self._decoder.decode_forwarding(frames)
        self.packets += len(batch)
        return Seen(batch, forwarding.dscp, np.zeros(len(batch), np.int64))

    @property
    def left_out(self) -> dict[str, int]:
        """Packets that belong to no segment, by reason."""
        return {reason: n for reason, n in (self._decoder.ignored | self.ignored).items() if n}

    @property
    def warnings(self) -> list[str]:
        """What makes the two sides see different packets."""
        if self._longest <= self.capture.longest_frame:
            return []
        return [
            f"{self.interface}: packets of up to {self._longest:,} bytes were put together by offloading and need not "
            f"leave so; ethtool -K {self.interface} gro off gso off tso off lro off"
        ]

    def take(self, until_ns: int) -> Seen:
        """The packets before a time, once, in the order of the ring."""
        if not self._waiting:
            return NOTHING
        seen = Seen.concatenate(self._waiting)
        due = seen.batch.time_ns < until_ns
        self._waiting = [] if due.all() else [seen.select(~due)]
        return seen.select(due)


class IngressTap(Tap):
    """What enters by an interface, with where it will leave."""

    side = "ingress"

    def __init__(
        self, interface: str, options: DecodeOptions, routes: RouteLookup, dscps: tuple[int, ...], *, ring_bytes: int
    ) -> None:
        self._routes = routes
        self._dscps = dscps
        super().__init__(interface, "", options, ring_bytes=ring_bytes)

    def _decoded(self, frames: Frames) -> Seen:
        batch, forwarding = self._decoder.decode_forwarding(frames)
        lasting = forwarding.hops_left > 1
        egress = np.full(len(batch), NOWHERE, np.int64)
        for dscp in self._dscps:
            rows = np.flatnonzero((forwarding.dscp == dscp) & lasting)
            if len(rows):
                egress[rows] = self._ask(batch, frames, rows, dscp)
        self.packets += len(batch)
        self.ignored[NOT_MEASURED] += int(np.count_nonzero(~np.isin(forwarding.dscp, self._dscps)))
        return Seen(batch, forwarding.dscp, egress)

    def _ask(self, batch: PacketBatch, frames: Frames, rows: Int64Array, dscp: int) -> Int64Array:
        return self._routes.egress(
            batch.flow_id[rows], dscp, lambda chosen: self._decoder.keys_at(frames, rows[chosen])
        )


LEAST_INTERVAL_NS = 100 * MS_NS
PAUSE_NS = 100 * MS_NS
LEAST_BLOCKS = 16  # a block is at most 60 ms: room for a second

# Bank by bank for little loss, some and much: 18 KB.
DEFAULT_LDA = LdaParameters(rows=512, shares=(1.0, 0.1, 0.01))


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """What is recorded; ``max_delay_ns`` is how long a message may take before it counts as lost."""

    dscps: tuple[int, ...] = (0,)
    interval_ns: int = 1_000_000_000
    max_delay_ns: int = 2_000_000_000
    parameters: LdaParameters = DEFAULT_LDA
    ring_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        if self.interval_ns < LEAST_INTERVAL_NS or self.interval_ns % MS_NS:
            raise ParameterError(
                f"an interval of {self.interval_ns} ns", where="router", action="use whole milliseconds, 100 or more"
            )
        if not self.dscps or len(set(self.dscps)) < len(self.dscps) or not set(self.dscps) <= set(range(MOST_DSCP + 1)):
            raise ParameterError(f"classes {self.dscps}", where="router", action="give different numbers from 0 to 63")
        if self.ring_bytes < LEAST_BLOCKS * BLOCK_BYTES:
            raise ParameterError(
                f"a ring of {self.ring_bytes} bytes", where="router", action=f"use {LEAST_BLOCKS * BLOCK_BYTES} or more"
            )
        if not 0 < self.max_delay_ns <= self.parameters.max_delay_ns:
            raise ParameterError(f"a delay of {self.max_delay_ns} ns", where="router", action="use up to 10 s")


@dataclass
class RouterCounts:
    """What was done so far."""

    packets: int = 0
    intervals: int = 0
    idle: int = 0
    void: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _MeasuredSegment:
    """One pair and class, with the messages that may still be under way."""

    ingress: RouterInterface
    egress: RouterInterface
    dscp: int
    recorder: SegmentRecorder
    writer: MessageWriter
    messages: dict[int, int] = field(default_factory=dict)  # packet id → mark

    def marks(self, seen: Seen) -> Int64Array:
        """The marks of the messages of this segment among a tap's packets."""
        marks = np.full(len(seen.batch), DATA, np.int64)
        known = np.array(list(self.messages), np.uint64)
        for row in np.flatnonzero(np.isin(seen.batch.packet_id, known)).tolist():
            marks[row] = self.messages[int(seen.batch.packet_id[row])]
        return marks

    def forget(self, number: int) -> None:
        self.messages = {i: mark for i, mark in self.messages.items() if mark >> 2 != number}


class RouterRecorder:
    """Records all segments between the interfaces given; a context manager, used from one thread."""

    def __init__(self, node: str, interfaces: list[RouterInterface], settings: RouterSettings) -> None:
        self._node, self._settings = node, settings
        self.counts = RouterCounts()
        self.reports: list[str] = []  # what went wrong since somebody looked
        self._stack = ExitStack()
        self._interfaces = interfaces
        self._entering: dict[str, IngressTap] = {}
        self._leaving: dict[tuple[str, str], Tap] = {}
        self._segments = [
            self._segment(ingress, egress, dscp)
            for ingress, egress in permutations(interfaces, 2)
            for dscp in settings.dscps
        ]
        self._named: dict[str, None] = {}
        self._number: int | None = None
        self._begins = 0

    def _segment(self, ingress: RouterInterface, egress: RouterInterface, dscp: int) -> _MeasuredSegment:
        writer = MessageWriter(hardware=ingress.hardware, source=ingress.peer, destination=egress.peer, dscp=dscp)
        recorder = SegmentRecorder(self._settings.parameters, max_delay_ns=self._settings.max_delay_ns)
        RouterStream(ingress.neighbour, egress.neighbour, dscp, self._settings.interval_ns, Side.INGRESS)
        return _MeasuredSegment(ingress, egress, dscp, recorder, writer)

    def __enter__(self) -> Self:
        with self._stack as stack:
            settings = self._settings
            options = DecodeOptions(keying=keying_of_routes(), flow_table=False)
            _rehearse(options, settings)
            self._injector = stack.enter_context(Injector())
            self._routes = {i.name: stack.enter_context(RouteLookup(i.index)) for i in self._interfaces}
            self._entering = {
                i.name: IngressTap(
                    i.name, options, self._routes[i.name], settings.dscps, ring_bytes=settings.ring_bytes
                )
                for i in self._interfaces
            }
            self._leaving = {
                (one.name, other.name): Tap(other.name, one.name, options, ring_bytes=settings.ring_bytes)
                for one, other in permutations(self._interfaces, 2)
            }
            for tap in self._taps():
                stack.callback(tap.close)
            start_together([tap.capture for tap in self._taps()])
            self._begins = time.time_ns() // settings.interval_ns + 1
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _taps(self) -> list[Tap]:
        return [*self._entering.values(), *self._leaving.values()]

    @property
    def next_ns(self) -> int:
        """When there is something to do again."""
        number = self._begins if self._number is None else self._number + 1
        return min(number * self._settings.interval_ns, time.time_ns() + PAUSE_NS)

    def step(self) -> list[Epoch]:
        """Send the messages that are due and work on what the taps have; the epochs of intervals that are over."""
        number = time.time_ns() // self._settings.interval_ns
        if number >= self._begins and (self._number is None or number > self._number):
            self._change_interval(number)
        return self._work()

    def finish(self) -> list[Epoch]:
        """End the open interval and wait until it is over at both ends."""
        self._change_interval(None)
        epochs: list[Epoch] = []
        while not all(segment.recorder.is_idle for segment in self._segments):
            epochs += self._work()
            time.sleep(PAUSE_NS / 1e9)
        return epochs

    def _change_interval(self, number: int | None) -> None:
        for segment in self._segments:
            if self._number is not None:
                self._send(segment, ControlKind.END, self._number)
            if number is not None:
                self._send(segment, ControlKind.START, number)
        self._number = number

    def _send(self, segment: _MeasuredSegment, kind: ControlKind, number: int) -> None:
        message = segment.writer.write(kind, number)
        segment.messages[message.packet_id] = mark_of(kind, number)
        segment.recorder.sent(kind, number, time.time_ns())
        try:
            self._injector.inject(segment.ingress.name, message.frame)
        except LiveCaptureError as error:
            self.reports.append(str(error))

    @property
    def left_out(self) -> Counter[str]:
        """Packets that entered and belong to no segment, by reason."""
        total: Counter[str] = Counter()
        for tap in self._entering.values():
            total.update(tap.left_out)
        return total

    @property
    def warnings(self) -> list[str]:
        """What a user should know of how the interfaces are set up."""
        return sorted({text for tap in self._taps() for text in tap.warnings})

    def _work(self) -> list[Epoch]:
        until_ns = time.time_ns() - HANDED_OVER_NS
        self._read()
        for name, entering in self._entering.items():
            self._enter(name, entering, entering.take(until_ns))
        left = {pair: leaving.take(until_ns) for pair, leaving in self._leaving.items()}
        for segment in self._segments:
            seen = left[segment.ingress.name, segment.egress.name]
            if (rows := seen.dscp == segment.dscp).any():
                chosen = seen.select(rows)
                segment.recorder.leave(chosen.batch, segment.marks(chosen))
        return [epoch for segment in self._segments for epoch in self._close(segment, until_ns)]

    def _read(self) -> None:
        """Empty the rings; what they missed, and routes that changed, spoil what is open."""
        for tap in self._taps():
            if (missed := tap.read()) is not None:
                if missed:
                    self.reports.append(missed)
                ingress = tap.entered_by or tap.interface
                egress = tap.interface if tap.entered_by else None
                self._spoil(ingress, egress, Void.EGRESS_DROPS if tap.entered_by else Void.INGRESS_DROPS)
        for name, routes in self._routes.items():
            if routes.has_changed():
                self._spoil(name, None, Void.ROUTE_CHANGED)

    def _spoil(self, ingress: str, egress: str | None, void: Void) -> None:
        for segment in self._segments:
            if segment.ingress.name == ingress and egress in (None, segment.egress.name):
                segment.recorder.spoil(void)

    def _enter(self, name: str, tap: IngressTap, seen: Seen) -> None:
        """Give each segment of an ingress its packets and messages."""
        if not len(seen.batch):
            return
        measured = np.zeros(len(seen.batch), np.bool_)
        for segment in self._segments:
            if segment.ingress.name != name:
                continue
            marks = segment.marks(seen)
            rows = (seen.egress == segment.egress.index) & (seen.dscp == segment.dscp) | (marks != DATA)
            measured |= rows
            self.counts.packets += int(np.count_nonzero(rows & (marks == DATA)))
            if rows.any():
                segment.recorder.enter(seen.batch.select(rows), marks[rows])
        left_out = ~measured & np.isin(seen.dscp, self._settings.dscps)
        tap.ignored[NOT_FORWARDED] += int(np.count_nonzero(left_out))

    def _close(self, segment: _MeasuredSegment, until_ns: int) -> list[Epoch]:
        epochs: list[Epoch] = []
        for interval in segment.recorder.closed(until_ns):
            segment.forget(interval.number)
            self.counts.intervals += 1
            if interval.is_idle:
                self.counts.idle += 1
                continue
            if interval.void is not None:
                self.counts.void[str(interval.void)] += 1
            epochs += self._epochs(segment, interval)
        return epochs

    def stream_names(self) -> set[str]:
        """The streams that epochs came in so far."""
        return set(self._named)

    def _epochs(self, segment: _MeasuredSegment, interval: ClosedInterval) -> list[Epoch]:
        ends = (segment.ingress.neighbour, segment.egress.neighbour, segment.dscp, self._settings.interval_ns)
        ingress, egress = RouterStream(*ends, Side.INGRESS), RouterStream(*ends, Side.EGRESS)
        first = Epoch(self._node, ingress.name, interval.number, interval.ingress)
        if interval.void is not None:
            second = void_epoch(self._node, egress.voided(interval.void), interval.number)
        else:
            second = Epoch(self._node, egress.name, interval.number, interval.egress)
        self._named |= {first.stream: None, second.stream: None}
        return [first, second]


def _rehearse(options: DecodeOptions, settings: RouterSettings) -> None:
    """Work on a made-up packet: compile what real ones need before there are any to lose."""
    batch, _ = rehearsal(options)
    recorder = SegmentRecorder(settings.parameters, max_delay_ns=settings.max_delay_ns)
    recorder.sent(ControlKind.START, 0, 0)
    for work in (recorder.enter, recorder.leave):
        work(batch, np.array([mark_of(ControlKind.START, 0)]))
        work(batch, np.array([DATA]))
    recorder.sent(ControlKind.END, 0, 0)
    for interval in recorder.closed(1 << 62):
        encode(Epoch("rehearsal", "rehearsal", 0, interval.ingress))
