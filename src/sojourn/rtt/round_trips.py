"""Passive round-trip times from one observation point, streaming and in bounded memory.

`RttMeter` is fed `TransportBatch`es in the order of the capture and gives `RttSamples`: TCP by its
handshake, its time stamps, or (where a segment has none) its sequence numbers (`rtt.tcp`); ICMP and ICMPv6
echo by identifier and sequence number; MQTT by packet ids (`rtt.mqtt`); QUIC by its spin bit (`rtt.quic`); DNS by
id and question (`rtt.dns`).

A sample is the time between a packet and its answer *as both passed the observation point*: the way from
there to the answering host and back. It is named, as ePPing and pping do, by the flow of the answer: the
source is the host that answered.

Memory: fixed by `RttLimits`, 14 MB by default. Time: O(1) per packet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import counts_by_text
from sojourn.capture.decode.transport import ACK, FIN, HAS_SACK, HAS_TIMESTAMPS, RST, SYN, TransportBatch
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import borrowing_inlined, borrowing_kernel
from sojourn.rtt.dns import read_message
from sojourn.rtt.mqtt import MQTT_PORT, read_messages
from sojourn.rtt.quic import WHOLE_ALWAYS, read_datagram
from sojourn.rtt.state import (
    COUNT_TEXTS,
    EMPTY,
    FLAGS,
    NEWEST_TSVAL,
    SAMPLE_WORDS,
    TSVAL_KNOWN,
    Count,
    Kind,
    RttLimits,
    RttSamples,
    RttTables,
    UInt32Array,
    await_once,
    find_connection,
    pending_key,
    signed,
    take_pending,
    write_answer,
)
from sojourn.rtt.tcp import acknowledge, echo_timestamp, open_connection, send_segment

_ICMP, _TCP, _UDP, _ICMP6 = 1, 6, 17, 58
_ECHO_REQUEST = (8, 128)

# Bits of what is asked for: one per kind, and two for kinds that are else measured only where there is nothing better.
_TIMESTAMPS, _SEQ, _HANDSHAKE, _MESSAGES, _QUERIES = (
    1 << Kind.TIMESTAMPS,
    1 << Kind.SEQ,
    1 << Kind.HANDSHAKE,
    1 << Kind.MQTT,
    1 << Kind.DNS,
)
_SPIN = 1 << Kind.QUIC | 1 << Kind.QUIC_WHOLE
_SEQ_ALWAYS = 1 << len(Kind)
# What a UDP port serves.
_QUIC_SERVICE, _DNS_SERVICE = 1, 2
QUIC_PORT, DNS_PORT = 443, 53
_ICMP_KIND = int(Kind.ICMP)

# Samples of one call of the kernel; no segment may give more than half.
_BUFFER_SAMPLES = 1 << 16
_MOST_PER_PACKET = _BUFFER_SAMPLES // 2


@dataclass(frozen=True, kw_only=True)
class RttOptions:
    """Which kinds of sample are wanted, and the UDP ports of servers.

    With no ``kinds`` named, all are, but SEQ/ACK only where segments have no time stamps and ``QUIC_WHOLE`` only where
    one direction passes. A named ``SEQ`` is read from every segment, a named ``QUIC_WHOLE`` from both directions.
    """

    kinds: frozenset[Kind] = frozenset()
    limits: RttLimits = field(default_factory=RttLimits)
    quic_ports: frozenset[int] = frozenset({QUIC_PORT})
    dns_ports: frozenset[int] = frozenset({DNS_PORT})

    def __post_init__(self) -> None:
        ports = self.quic_ports | self.dns_ports
        for port in ports:
            if not 0 < port < 1 << 16:
                raise ParameterError(f"there is no port {port}", where="rtt", action="use 1 to 65535")
        if both := self.quic_ports & self.dns_ports:
            raise ParameterError(f"port {min(both)} is of QUIC and of DNS", where="rtt", action="choose one")

    @property
    def mask(self) -> int:
        if not self.kinds:
            return _SEQ_ALWAYS - 1
        wanted = sum(1 << kind for kind in self.kinds)
        wanted |= _SEQ_ALWAYS if Kind.SEQ in self.kinds else 0
        return wanted | (WHOLE_ALWAYS if Kind.QUIC_WHOLE in self.kinds else 0)

    @property
    def services(self) -> UInt8Array:
        """What each UDP port serves, as a number; 0 is nothing that is measured."""
        services = np.zeros(1 << 16, np.uint8)
        services[list(self.quic_ports)] = _QUIC_SERVICE
        services[list(self.dns_ports)] = _DNS_SERVICE
        return services


@borrowing_inlined
def _tcp(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    now: int,
    flow_id: int,
    reverse_id: int,
    is_mqtt: bool,
    flags: int,
    seq: int,
    ack: int,
    tsval: int,
    tsecr: int,
    sack_high: int,
    offset: int,
    length: int,
    captured: int,
    mask: int,
) -> int:
    """One TCP segment: what it answers first, then what it sends."""
    if flow_id == reverse_id:
        tables.counts[Count.SAME_ENDS] += 1
        return written
    if (flags & RST) != 0:
        tables.counts[Count.RESET] += 1
        return written
    low_id = min(flow_id, reverse_id)
    place = find_connection(tables, low_id, now)
    row = 2 * place + (0 if flow_id == low_id else 1)
    reverse_row = row ^ 1
    has_timestamps = (flags & HAS_TIMESTAMPS) != 0
    if (flags & SYN) != 0:
        written = open_connection(
            tables, written, row, reverse_row, flow_id, (flags & ACK) != 0, seq, ack, length, now,
            (mask & _HANDSHAKE) != 0,
        )  # fmt: skip
        if has_timestamps:
            tables.words[row, NEWEST_TSVAL] = tsval
            tables.words[row, FLAGS] |= TSVAL_KNOWN
        return written
    wanted_seq = (mask & _SEQ_ALWAYS) != 0 or ((mask & _SEQ) != 0 and not has_timestamps)
    wanted_timestamps = (mask & _TIMESTAMPS) != 0
    if (flags & ACK) != 0:
        if has_timestamps and wanted_timestamps:
            written = echo_timestamp(tables, written, reverse_row, flow_id, reverse_id, tsecr, now)
        written = acknowledge(
            tables, written, reverse_row, flow_id, reverse_id, ack, (flags & HAS_SACK) != 0, sack_high, now,
            (mask & _HANDSHAKE) != 0, wanted_seq,
        )  # fmt: skip
    if is_mqtt and length > 0:
        written = read_messages(
            tables, written, data, offset, length, captured, row, reverse_row, flow_id, reverse_id, seq, now
        )
    send_segment(
        tables, row, flow_id, seq, length, (flags & FIN) != 0, has_timestamps, tsval, now,
        wanted_timestamps, wanted_seq,
    )  # fmt: skip
    return written


@borrowing_inlined
def _echo(
    tables: RttTables,
    written: int,
    now: int,
    flow_id: int,
    reverse_id: int,
    message: int,
    identifier: int,
    sequence: int,
) -> int:
    """An ICMP echo request or reply; a request that is repeated unanswered gives no sample."""
    number = (identifier & 0xFFFF) << 16 | (sequence & 0xFFFF)
    if message in _ECHO_REQUEST:
        await_once(tables, pending_key(flow_id, _ICMP_KIND, number), now, False, Count.ICMP_REPEATED)
        return written
    sent = take_pending(tables, pending_key(reverse_id, _ICMP_KIND, number))
    if sent == EMPTY:
        return written
    return write_answer(tables, written, flow_id, reverse_id, now, sent, _ICMP_KIND)


@borrowing_inlined
def _datagram(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    now: int,
    flow_id: int,
    reverse_id: int,
    src_service: int,
    dest_service: int,
    offset: int,
    length: int,
    captured: int,
    mask: int,
) -> int:
    """One UDP datagram from or to a port of a service that is measured."""
    services = src_service | dest_service
    if offset < 0 or captured < 0 or captured > length or offset > data.shape[0] - captured:
        tables.counts[Count.PAYLOAD_OUT_OF_RANGE] += 1
        return written
    if (services & _DNS_SERVICE) != 0:
        if (mask & _QUERIES) == 0:
            return written
        return read_message(tables, written, data, offset, length, captured, flow_id, reverse_id, now)
    if (mask & _SPIN) == 0:
        return written
    if src_service == dest_service:
        tables.counts[Count.QUIC_ROLES_UNKNOWN] += 1
        return written
    is_server = src_service != 0
    return read_datagram(tables, written, data, offset, captured, flow_id, reverse_id, is_server, now, mask)


@borrowing_kernel
def _measure(
    tables: RttTables,
    first: int,
    data: UInt8Array,
    time_ns: Int64Array,
    flow_id: UInt64Array,
    reverse_id: UInt64Array,
    protocol: NDArray[np.uint8],
    src_port: NDArray[np.uint16],
    dest_port: NDArray[np.uint16],
    flags: NDArray[np.uint16],
    seq: UInt32Array,
    ack: UInt32Array,
    tsval: UInt32Array,
    tsecr: UInt32Array,
    sack_high: UInt32Array,
    payload_offset: Int64Array,
    payload_bytes: Int64Array,
    payload_captured: Int64Array,
    services: UInt8Array,
    mask: int,
) -> tuple[int, int]:
    """Take in rows from `first` on until they end or the samples' buffer may overflow.

    Returns the row to continue at and the number of samples written.
    """
    counts = tables.counts
    written = 0
    for i in range(first, len(time_ns)):
        if written > tables.samples.shape[0] - _MOST_PER_PACKET:
            return i, written
        number = protocol[i]
        if number == _TCP:
            length = payload_bytes[i]
            captured = min(payload_captured[i], length, 2 * _MOST_PER_PACKET - 8)
            offset = payload_offset[i]
            if length < 0 or length > 0x7FFFFFFF:
                counts[Count.PAYLOAD_OUT_OF_RANGE] += 1
                continue
            is_mqtt = (mask & _MESSAGES) != 0 and (src_port[i] == MQTT_PORT or dest_port[i] == MQTT_PORT)
            if is_mqtt and (captured < 0 or offset < 0 or offset > data.shape[0] - captured):
                counts[Count.PAYLOAD_OUT_OF_RANGE] += 1
                is_mqtt = False
            written = _tcp(
                tables, written, data, time_ns[i], signed(flow_id[i]), signed(reverse_id[i]), is_mqtt,
                signed(flags[i]), signed(seq[i]), signed(ack[i]), signed(tsval[i]), signed(tsecr[i]),
                signed(sack_high[i]), offset, length, captured, mask,
            )  # fmt: skip
        elif number in (_ICMP, _ICMP6):
            message = signed(flags[i])
            known = message in (8, 0) if number == _ICMP else message in (128, 129)
            if not known:
                counts[Count.OTHER_ICMP] += 1
            elif (mask & (1 << _ICMP_KIND)) != 0:
                written = _echo(
                    tables, written, time_ns[i], signed(flow_id[i]), signed(reverse_id[i]), message,
                    signed(ack[i]), signed(seq[i]),
                )  # fmt: skip
        elif number == _UDP and (services[src_port[i]] | services[dest_port[i]]) != 0:
            written = _datagram(
                tables, written, data, time_ns[i], signed(flow_id[i]), signed(reverse_id[i]),
                signed(services[src_port[i]]), signed(services[dest_port[i]]), payload_offset[i], payload_bytes[i],
                min(payload_captured[i], payload_bytes[i]), mask,
            )  # fmt: skip
        else:
            counts[Count.OTHER_PROTOCOL] += 1
    return len(time_ns), written


class RttMeter:
    """Passive round-trip times of everything that passes one observation point."""

    def __init__(self, options: RttOptions | None = None) -> None:
        self.options = options or RttOptions()
        self._tables = RttTables.empty(self.options.limits, np.zeros((_BUFFER_SAMPLES, SAMPLE_WORDS), np.int64))
        self._services = self.options.services
        self.packets = 0

    @property
    def memory_bytes(self) -> int:
        """All that is kept, whatever the traffic."""
        return self._tables.memory_bytes

    @property
    def ignored(self) -> dict[str, int]:
        """How often something was left out, by reason; reasons that did not occur are absent."""
        return counts_by_text(self._tables.counts, COUNT_TEXTS)

    def feed(self, batch: TransportBatch) -> Iterator[RttSamples]:
        """Take in the next packets; gives what they completed, at most 65,536 samples at a time."""
        _check(batch)
        self.packets += len(batch)
        # One type, whether a file is read or a ring is written to: the kernel is compiled once.
        data = batch.data.view()
        data.flags.writeable = False
        row = 0
        while row < len(batch):
            row, written = _measure(
                self._tables, row, data, batch.time_ns, batch.flow_id, batch.reverse_id, batch.protocol,
                batch.src_port, batch.dest_port, batch.flags, batch.seq, batch.ack, batch.tsval,
                batch.tsecr, batch.sack_high, batch.payload_offset, batch.payload_bytes,
                batch.payload_captured, self._services, self.options.mask,
            )  # fmt: skip
            if written:
                yield RttSamples.from_buffer(self._tables.samples[:written])


def _check(batch: TransportBatch) -> None:
    """The kernel trusts the columns' lengths."""
    for name, column in vars(batch).items():
        if name != "data" and len(column) != len(batch):
            raise ParameterError(f"column {name} has {len(column)} rows, expected {len(batch)}", where="rtt")
