"""Traffic for the tests of round-trip times: rows written by hand, and captures as tshark reads them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import numpy as np

from sojourn.capture.decode.transport import ACK, HAS_SACK, HAS_TIMESTAMPS, TransportBatch
from sojourn.core.keys import FlowKey, key_id
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, Note, RttLimits

CLIENT, SERVER = ("10.0.0.1", 50_000), ("10.0.0.2", 80)
MS = 1_000_000
# Tables that are quick to make and large enough for what tests write by hand.
SMALL = RttLimits(connections=1 << 12, pending=1 << 14)
TSHARK_FIELDS = [
    "frame.time_epoch", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "tcp.srcport", "tcp.dstport",
    "tcp.flags", "tcp.seq_raw", "tcp.ack_raw", "tcp.len", "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr", "tcp.analysis.ack_rtt",
]  # fmt: skip


@dataclass(frozen=True)
class Packet:
    """One row of a `TransportBatch`, with what tshark says about it."""

    time_ns: int
    src: tuple[str, int] = CLIENT
    dest: tuple[str, int] = SERVER
    protocol: int = 6
    flags: int = ACK
    seq: int = 0
    ack: int = 0
    length: int = 0
    tsval: int | None = None
    tsecr: int = 0
    sack: int | None = None
    payload: bytes = b""
    ack_rtt: int | None = None

    @property
    def key(self) -> FlowKey:
        return FlowKey(ip_address(self.src[0]), self.src[1], ip_address(self.dest[0]), self.dest[1], self.protocol)

    @property
    def flow(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return self.src, self.dest

    @property
    def reverse(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return self.dest, self.src


@functools.cache
def _id(src: tuple[str, int], dest: tuple[str, int], protocol: int) -> int:
    return key_id(FlowKey(ip_address(src[0]), src[1], ip_address(dest[0]), dest[1], protocol))


def flow_id(packet: Packet) -> int:
    return _id(packet.src, packet.dest, packet.protocol)


def batch_of(packets: Sequence[Packet], *, snap: int | None = None) -> TransportBatch:
    """Columns of `packets`; at most `snap` bytes of each payload are present."""
    present = [p.payload[:snap] for p in packets]
    offsets = np.cumsum([0, *map(len, present)])[:-1]
    extra = [(HAS_TIMESTAMPS if p.tsval is not None else 0) | (HAS_SACK if p.sack is not None else 0) for p in packets]

    def column(values: Iterable[int], dtype: type) -> np.ndarray:
        return np.array(list(values), dtype)

    return TransportBatch(
        data=np.frombuffer(b"".join(present), np.uint8).copy(),
        time_ns=column((p.time_ns for p in packets), np.int64),
        flow_id=column((flow_id(p) for p in packets), np.uint64),
        reverse_id=column((_id(p.dest, p.src, p.protocol) for p in packets), np.uint64),
        protocol=column((p.protocol for p in packets), np.uint8),
        src_port=column((p.src[1] for p in packets), np.uint16),
        dest_port=column((p.dest[1] for p in packets), np.uint16),
        flags=column((p.flags | e for p, e in zip(packets, extra, strict=True)), np.uint16),
        seq=column((p.seq % 2**32 for p in packets), np.uint32),
        ack=column((p.ack % 2**32 for p in packets), np.uint32),
        tsval=column(((p.tsval or 0) % 2**32 for p in packets), np.uint32),
        tsecr=column((p.tsecr % 2**32 for p in packets), np.uint32),
        sack_high=column(((p.sack or 0) % 2**32 for p in packets), np.uint32),
        payload_offset=np.asarray(offsets, np.int64),
        payload_bytes=column((len(p.payload) or p.length for p in packets), np.int64),
        payload_captured=column(map(len, present), np.int64),
    )


@dataclass(frozen=True)
class Sample:
    """A sample as the tests compare it: when it was completed, whose answer, how long."""

    time_ns: int
    flow_id: int
    rtt: int
    kind: Kind
    note: Note = Note.NONE


def samples_of(
    packets: Sequence[Packet],
    *kinds: Kind,
    meter: RttMeter | None = None,
    chunk: int = 1 << 20,
    snap: int | None = None,
) -> list[Sample]:
    """What the meter reads from `packets`, fed in chunks."""
    meter = meter or RttMeter(RttOptions(kinds=frozenset(kinds), limits=SMALL))
    found = []
    for start in range(0, len(packets), chunk):
        for s in meter.feed(batch_of(packets[start : start + chunk], snap=snap)):
            found += [Sample(t, f, r, Kind(k), Note(n)) for t, f, r, _, k, n in s.rows()]
    return found


def nanoseconds(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0")[:9])


def read_with_tshark(path: Path, display_filter: str = "tcp") -> list[Packet]:
    """The TCP segments of a capture, read by tshark alone."""
    command = ["tshark", "-n", "-r", str(path), "-Y", display_filter, "-T", "fields", "-E", "separator=|"]
    command += ["-E", "occurrence=a", "-E", "aggregator=,"]
    for field in TSHARK_FIELDS:
        command += ["-e", field]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return [_segment(dict(zip(TSHARK_FIELDS, line.split("|"), strict=True))) for line in run.stdout.splitlines()]


def _segment(row: dict[str, str]) -> Packet:
    ack = int(row["tcp.ack_raw"] or 0)
    return Packet(
        time_ns=nanoseconds(row["frame.time_epoch"]),
        src=(row["ip.src"] or row["ipv6.src"], int(row["tcp.srcport"])),
        dest=(row["ip.dst"] or row["ipv6.dst"], int(row["tcp.dstport"])),
        flags=int(row["tcp.flags"], 16) & 0x1F,
        seq=int(row["tcp.seq_raw"]),
        ack=ack,
        length=int(row["tcp.len"] or 0),
        tsval=int(row["tcp.options.timestamp.tsval"]) if row["tcp.options.timestamp.tsval"] else None,
        tsecr=int(row["tcp.options.timestamp.tsecr"] or 0),
        ack_rtt=nanoseconds(row["tcp.analysis.ack_rtt"]) if row["tcp.analysis.ack_rtt"] else None,
    )
