"""Metrics of traffic, from an interface (as root) or a capture file: packets, packets and bytes per flow, round trips.

Guarantee: every packet that the kernel did not drop is given once, with its own time; drops and what is no IP packet
are counted by reason. A packet may come one poll late: the kernel hands packets over in blocks, after 60 ms at most.
Of a capture file, each poll gives the next window (some MB).
Packets that offloading put together are counted as those of the wire, which the kernel tells (`decode.segmentation`).
Where it does not, `packets` fails with the command that turns offloading off: their identities would match nowhere.
A thread empties the ring of an interface that is busier than polls are frequent, until 262,144 rows wait; only then, or
where packets come faster than they can be decoded, does the kernel drop some.

Cost: decoding, about 0.15 µs per packet; 0.27 µs with round trips; looking at the ring, 0.1 % of a core. Memory: the
ring (32 MiB unless `ring_bytes` says otherwise), 8 MiB of rows, 14 MB of tables for round trips, and 150 bytes for each
of at most `max_flows` flows whose keys are remembered as reported; when half of these are taken, all are forgotten, and
keys are reported anew.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.capture.decode.transport import TransportBatch
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.capture.files.source import WINDOW_BYTES
from sojourn.capture.filters import PacketFilter
from sojourn.capture.flows.table import FlowTable
from sojourn.capture.live.interface import Direction
from sojourn.capture.live.reader import DEFAULT_RING_BYTES, LiveReader, rehearsal
from sojourn.core.arrays import Int64Array, MeasurementBatch, PacketBatch, UInt64Array
from sojourn.core.errors import CaptureError, ParameterError, SourceError
from sojourn.core.keys import Key
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.sources.source import B, Metric, Source, SourceBatch

DEFAULT_MAX_FLOWS = 1 << 16
FLOW_BYTES = 150
UNNAMED = "measurements of flows whose keys found no room"
# A ring is looked at so often, more often where some of it waits already: up to 9 Gbit/s fit. It is emptied before a
# poll asks for it once an eighth of it waits.
LOOK_SECONDS, BUSY_LOOK_SECONDS, BUSY, FILLED = 0.1, 0.025, 1 / 32, 1 / 8
# Rows that may wait for a poll; more stay in the ring.
MOST_ROWS, ROW_BYTES = 1 << 18, 32
Decoded = tuple[PacketBatch, TransportBatch | None]


class TrafficSource(Source[B]):
    """Traffic of one interface or one capture file; a subclass says what is measured of it."""

    _with_transport = False
    _is_identified = False  # packets are told apart, and have to be those of the wire
    _rows_type: ClassVar[Any] = MeasurementBatch

    def __init__(
        self,
        interface: str = "",
        *,
        capture: str = "",
        filter: str = "",  # noqa: A002
        direction: Direction = "both",
        promiscuous: bool = False,
        max_flows: int = DEFAULT_MAX_FLOWS,
        ring_bytes: int = DEFAULT_RING_BYTES,
    ) -> None:
        """An interface's name, or a capture's path; the filter is in tcpdump's syntax."""
        if bool(interface) == bool(capture):
            raise ParameterError(
                "one interface or one capture is needed", where=self.metric.name, action="give interface= or capture="
            )
        self._interface, self._capture = interface, capture
        self._filter = PacketFilter(filter) if filter else None
        self._direction, self._promiscuous, self._ring_bytes = direction, promiscuous, ring_bytes
        self._reader: LiveReader | CaptureReader | None = None
        self._decoded: Iterator[Decoded] = iter(())
        self._is_open = self._is_ended = False
        self._named = FlowTable(max_flows)
        self._unnamed = self._missed = 0
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._reading: threading.Thread | None = None
        self._parts: list[B] = []
        self._keys: list[Key] = []
        self._failure: Exception | None = None

    @abstractmethod
    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[B, UInt64Array]:
        """What is measured of some packets, and the flow of each row."""

    def open(self) -> None:
        is_split = self._is_identified or (bool(self._interface) and not self._with_transport)
        options = DecodeOptions(flow_table=False, wire=WireSizes() if is_split else None)
        self._measure(*rehearsal())  # compile before there are packets to lose
        self._reader = self._open_reader(options)
        self._is_open, self._is_ended = True, False
        self._named, self._unnamed, self._missed = FlowTable(self._named.max_flows), 0, 0
        self._require_the_wires_packets()
        if self._with_transport:
            self._decoded = iter(self._reader.with_transport())
        else:
            self._decoded = ((batch, None) for batch in self._reader)
        self._parts, self._keys, self._failure = [], [], None
        if isinstance(self._reader, LiveReader):
            self._closing.clear()
            self._reader.start()
            name = f"reading {self._interface}"
            self._reading = threading.Thread(target=self._keep_up, args=(self._reader,), name=name, daemon=True)
            self._reading.start()

    def _open_reader(self, options: DecodeOptions) -> LiveReader | CaptureReader:
        if not self._interface:
            try:
                _require_file(self._capture)
                return open_capture(self._capture, options, packet_filter=self._filter)
            except OSError as error:
                raise CaptureError(f"cannot be read: {error.strerror}", where=self._capture) from None
        return LiveReader(
            self._interface,
            options,
            packet_filter=self._filter,
            direction=self._direction,
            promiscuous=self._promiscuous,
            poll_seconds=0.0,
            ring_bytes=self._ring_bytes,
        )

    def _require_the_wires_packets(self) -> None:
        """Fail rather than give packets that no other point can have seen."""
        reader = self._reader
        if self._is_identified and isinstance(reader, LiveReader) and (problem := reader.offload_problem):
            raise SourceError(problem, where=self._interface, action=reader.offloading_off)

    @property
    def memory_bytes(self) -> int:
        buffered = self._ring_bytes + MOST_ROWS * ROW_BYTES if self._interface else WINDOW_BYTES
        return buffered + FLOW_BYTES * self._named.max_flows

    @property
    def most_named(self) -> int:
        return self._named.max_flows

    def close(self) -> None:
        self._closing.set()
        if self._reading is not None:
            self._reading.join()
        if self._is_open and self._reader is not None:
            self._reader.close()
        self._is_open, self._reading = False, None

    def poll(self, now_ns: int) -> SourceBatch[B]:
        with self._lock:
            if self._failure is None:
                self._drain(now_ns)
            if self._failure is not None and not self._parts:
                raise self._failure
            found = SourceBatch(self._rows_type.concatenate(self._parts), tuple(self._keys))
            self._parts, self._keys = [], []
            return found

    def _keep_up(self, reader: LiveReader) -> None:
        """Empty a ring that fills faster than it is polled, as far as there is room; beyond, the kernel drops."""
        pause = LOOK_SECONDS
        while not self._closing.wait(pause) and self._failure is None:
            pause = BUSY_LOOK_SECONDS if reader.capture.is_filled(BUSY) else LOOK_SECONDS
            if reader.capture.is_filled(FILLED) and sum(map(len, self._parts)) < MOST_ROWS:
                with self._lock:
                    self._drain(time.time_ns())

    def _drain(self, now_ns: int) -> None:
        """Measure what waits, for the poll to come; what fails is raised by the poll that has nothing else to give."""
        try:
            for packets, transport in self._waiting(now_ns):
                self._require_the_wires_packets()
                rows, flow_id = self._measure(packets, transport)
                self._keys += self._new_keys(flow_id, packets)
                self._parts.append(rows)
        except Exception as error:
            self._failure = error
        if isinstance(self._reader, LiveReader):
            self._missed = self._reader.dropped

    def _waiting(self, now_ns: int) -> Iterator[Decoded]:
        """Batches that are there; what is sent after `now_ns` can wait, lest a busy interface keeps us here."""
        reader = self._reader
        if not self._is_open or reader is None:
            raise SourceError("is not open", where=self.metric.name, action="use it in a with statement")
        while not self._is_ended:
            before = reader.packets
            decoded = next(self._decoded, None)
            if decoded is None:
                self._is_ended = True
                return
            if len(decoded[0]):
                yield decoded
            is_drained = reader.packets == before
            is_late = len(decoded[0]) > 0 and int(decoded[0].time_ns[-1]) >= now_ns
            if is_drained or is_late or isinstance(reader, CaptureReader):
                return

    def _new_keys(self, flow_id: UInt64Array, packets: PacketBatch) -> list[Key]:
        """The keys of flows that have rows for the first time."""
        table = self._named
        unsized: Int64Array = np.zeros(len(flow_id), np.int64)
        new = table.update(flow_id, unsized, unsized)
        self._unnamed += table.overflow_packets
        table.overflow_packets = 0
        if 2 * len(table) > table.max_flows:
            self._named = FlowTable(table.max_flows)
        if not len(new) or self._reader is None:
            return []
        return list(self._reader.keys_at(_rows_of(flow_id, new, packets)))

    @property
    def ignored(self) -> dict[str, int]:
        counts = {} if self._reader is None else {r: n for r, n in self._reader.ignored.items() if n}
        return counts | ({UNNAMED: self._unnamed} if self._unnamed else {})

    @property
    def warnings(self) -> list[str]:
        return [] if self._reader is None else self._reader.warnings

    @property
    def missed(self) -> int:
        """Packets that the kernel had no room for, since the source was opened and until the latest poll."""
        return self._missed

    @property
    def is_ended(self) -> bool:
        return self._is_ended


def _require_file(path: str) -> None:
    """Refuse what is no file: opening or reading a pipe or a device may wait for ever, or change something."""
    if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
        what = "is stdin" if path == "-" else "is a pipe, a device or a directory"
        raise CaptureError(f"cannot be polled: it {what}", where=path, action="give a capture file")


def _rows_of(flow_id: UInt64Array, chosen: Int64Array, packets: PacketBatch) -> Int64Array:
    """A packet of the flow of each chosen row."""
    if flow_id is packets.flow_id:
        return chosen
    order = np.argsort(packets.flow_id, kind="stable")
    return order[np.searchsorted(packets.flow_id, flow_id[chosen], sorter=order)]


class InterfacePackets(TrafficSource[PacketBatch]):
    """Packets with flow id, packet id, time and size."""

    metric: ClassVar[Metric] = Metric("packets", "packets", "flow", "increments")
    _rows_type = PacketBatch
    _is_identified = True

    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[PacketBatch, UInt64Array]:
        del transport
        return packets, packets.flow_id


class _PerPacket(TrafficSource[MeasurementBatch]):
    @abstractmethod
    def _values(self, packets: PacketBatch) -> Int64Array:
        """What each packet counts for."""

    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[MeasurementBatch, UInt64Array]:
        del transport
        rows = MeasurementBatch(packets.flow_id, self._values(packets), packets.time_ns, packets.packet_id)
        return rows, packets.flow_id


class FlowPackets(_PerPacket):
    """Packets of each flow."""

    metric: ClassVar[Metric] = Metric("flow_packets", "packets", "flow", "increments")

    def _values(self, packets: PacketBatch) -> Int64Array:
        return np.ones(len(packets), np.int64)


class FlowBytes(_PerPacket):
    """Bytes of each flow."""

    metric: ClassVar[Metric] = Metric("flow_bytes", "bytes", "flow", "increments")

    def _values(self, packets: PacketBatch) -> Int64Array:
        return packets.size_bytes


METER_BYTES = 14 << 20


class FlowRtt(TrafficSource[MeasurementBatch]):
    """Round-trip times of each flow, as they are completed."""

    metric: ClassVar[Metric] = Metric("rtt", "ns", "flow", "samples")
    _with_transport = True

    def __init__(
        self,
        interface: str = "",
        *,
        capture: str = "",
        filter: str = "",  # noqa: A002
        promiscuous: bool = False,
        max_flows: int = DEFAULT_MAX_FLOWS,
        ring_bytes: int = DEFAULT_RING_BYTES,
        options: RttOptions | None = None,
    ) -> None:
        """As `TrafficSource`, always of both directions; `options` says which kinds of samples are wanted."""
        limits: dict[str, Any] = {"max_flows": max_flows, "ring_bytes": ring_bytes}
        super().__init__(interface, capture=capture, filter=filter, promiscuous=promiscuous, **limits)
        self._options = options
        self._meter = RttMeter(options)

    def open(self) -> None:
        super().open()
        self._meter = RttMeter(self._options)  # what was rehearsed is no traffic

    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[MeasurementBatch, UInt64Array]:
        del packets
        samples = self._meter.feed(transport) if transport is not None else ()
        rows = MeasurementBatch.concatenate(
            [MeasurementBatch(s.flow_id, s.rtt_ns, s.time_ns, s.time_ns.view(np.uint64)) for s in samples]
        )
        return rows, rows.instance_id

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + METER_BYTES

    @property
    def ignored(self) -> dict[str, int]:
        return super().ignored | self._meter.ignored
