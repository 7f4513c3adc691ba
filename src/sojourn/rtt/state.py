"""What passive round-trip times remember: two tables of fixed size, what is done to them, and the samples that leave.

*Connections* hold, for both directions of a conversation, its latest sequence numbers, time stamps and
MQTT messages, or QUIC's spin: one cache line per direction. *Pending* holds packets that wait for their answer,
as ``(flow, kind, number) → time``: one cache line per bucket of four.

Guarantee: memory never grows. Both tables are four-way associative; a new entry takes an empty place of
its bucket or the place of the oldest one there, and if that one was still young enough to matter, the
eviction is counted. An entry is recognised by 64 bits of hash (48 + log₂ of the buckets when there are
fewer than 2¹⁶): a false match is as likely as two flows sharing an id.
Memory: 144 bytes per connection, 16 per pending packet. Time: O(1), one cache miss per table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import borrowing_inlined

UInt32Array: TypeAlias = NDArray[np.uint32]


class Kind(IntEnum):
    """What a sample was read from."""

    TIMESTAMPS = 0
    SEQ = 1
    HANDSHAKE = 2
    ICMP = 3
    MQTT = 4
    QUIC = 5
    QUIC_WHOLE = 6
    DNS = 7


class Note(IntEnum):
    """What is known about the acknowledgement behind a SEQ/ACK sample, or the edge behind a QUIC sample."""

    NONE = 0
    COVERS_SEVERAL = 1
    DELAYED = 2


class Count(IntEnum):
    """What was left out, by reason."""

    OTHER_PROTOCOL = 0
    OTHER_ICMP = 1
    RESET = 2
    SAME_ENDS = 3
    KEEP_ALIVE = 4
    RETRANSMITTED = 5
    ACK_AFTER_RETRANSMISSION = 6
    ACK_AFTER_SACK = 7
    HANDSHAKE_REPEATED = 8
    ICMP_REPEATED = 9
    ANSWER_BEFORE_PACKET = 10
    ANSWER_TOO_LATE = 11
    PENDING_EVICTED = 12
    CONNECTION_EVICTED = 13
    MQTT_SPANS_SEGMENTS = 14
    MQTT_TRUNCATED = 15
    MQTT_MALFORMED = 16
    MQTT_REPEATED = 17
    PAYLOAD_OUT_OF_RANGE = 18
    EARLIER_CONNECTION = 19
    NOT_QUIC = 20
    QUIC_STRAGGLER = 21
    QUIC_UNPROVEN = 22
    QUIC_PAUSE = 23
    QUIC_ROLES_UNKNOWN = 24
    DNS_TRUNCATED = 25
    DNS_MALFORMED = 26
    DNS_REPEATED = 27


COUNT_TEXTS = {
    Count.OTHER_PROTOCOL: "packets without round trips (not tcp, icmp, quic or dns, or header cut short)",
    Count.OTHER_ICMP: "icmp messages other than echo",
    Count.RESET: "tcp resets",
    Count.SAME_ENDS: "tcp segments from an endpoint to itself",
    Count.KEEP_ALIVE: "tcp keep-alives",
    Count.RETRANSMITTED: "tcp segments sent again or out of order",
    Count.ACK_AFTER_RETRANSMISSION: "acks that a retransmission makes ambiguous",
    Count.ACK_AFTER_SACK: "acks of data that was sacked before",
    Count.HANDSHAKE_REPEATED: "handshakes whose syn or syn/ack was repeated",
    Count.ICMP_REPEATED: "icmp echo requests repeated unanswered",
    Count.ANSWER_BEFORE_PACKET: "answers with an earlier time than their packet",
    Count.ANSWER_TOO_LATE: "answers later than the longest round trip",
    Count.PENDING_EVICTED: "unanswered packets forgotten for newer ones",
    Count.CONNECTION_EVICTED: "connections forgotten for newer ones",
    Count.MQTT_SPANS_SEGMENTS: "mqtt messages that span segments",
    Count.MQTT_TRUNCATED: "mqtt segments or messages not captured whole",
    Count.MQTT_MALFORMED: "mqtt segments or messages that do not parse",
    Count.MQTT_REPEATED: "mqtt messages repeated unanswered",
    Count.PAYLOAD_OUT_OF_RANGE: "packets with an impossible payload",
    Count.EARLIER_CONNECTION: "answers that match an earlier connection of the same ports",
    Count.NOT_QUIC: "datagrams on quic's ports that are not quic",
    Count.QUIC_STRAGGLER: "quic packets whose spin bit changed out of turn",
    Count.QUIC_UNPROVEN: "quic spin edges of connections not (yet) known to spin",
    Count.QUIC_PAUSE: "quic spin edges after a pause of the host that they answer",
    Count.QUIC_ROLES_UNKNOWN: "quic packets between two server ports",
    Count.DNS_TRUNCATED: "dns messages not captured whole",
    Count.DNS_MALFORMED: "dns messages without one readable question",
    Count.DNS_REPEATED: "dns queries repeated unanswered",
}


WAYS = 4
EMPTY = np.iinfo(np.int64).min
NO_RTT = np.iinfo(np.int64).max
WORD = 0xFFFFFFFF
_HALF_WORD = 0x80000000

# Columns of a direction: eight 32-bit words, then the times in the second half of its cache line.
FLAGS, NEXT_SEQ, HIGHEST_ACK, AMBIGUOUS_UNTIL, SACK_HIGH, NEWEST_TSVAL, NEWEST_ECHO, MQTT_NEXT = range(8)
SYN_TIME, MIN_RTT = 4, 5
LINE_WORDS = 8

# Bits of FLAGS: which of the other words hold something, and what a direction waits for.
SEQ_KNOWN, ACK_KNOWN, AMBIGUOUS, SACKED, TSVAL_KNOWN, ECHO_KNOWN, MQTT_KNOWN = (1 << i for i in range(7))
SYN_SENT, SYN_ACK_SENT, SYN_SEEN = 0x100, 0x200, 0x400

# Columns of the two tables.
KEY, TIME = 0, 1

# A pending number's name space: its kind, and for MQTT's pings beside its packet ids that of a kind that has none.
SPACE_PING = int(Kind.QUIC)
_GOLDEN = np.uint64(hashing.GOLDEN_GAMMA)
_SPACE_BITS = np.uint64(3)
_AUX_BITS = np.uint64(16)
AUX_LIMIT = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class RttLimits:
    """How much is remembered, and for how long.

    ``max_rtt_ns``: what waited longer is forgotten and gives no sample. ``idle_ns``: a connection that
    was silent for longer may be replaced without being counted as evicted.
    """

    connections: int = 1 << 16
    pending: int = 1 << 18
    max_rtt_ns: int = 60_000_000_000
    idle_ns: int = 300_000_000_000

    def __post_init__(self) -> None:
        for name in ("connections", "pending"):
            value = getattr(self, name)
            if not 64 <= value <= 1 << 28 or value & (value - 1):
                raise ParameterError(
                    f"{value} {name} entries", where="rtt", action="use a power of two from 64 to 2^28"
                )
        for name in ("max_rtt_ns", "idle_ns"):
            if not 0 < getattr(self, name) < 1 << 62:
                raise ParameterError(f"{name} is {getattr(self, name)}", where="rtt", action="use 1 to 2^62")


def _aligned(rows: int, columns: int) -> Int64Array:
    """Rows of 64-bit words whose first one starts a cache line."""
    spare = np.zeros(rows * columns + LINE_WORDS, np.int64)
    shift = (-spare.ctypes.data % 64) // 8
    return spare[shift : shift + rows * columns].reshape(rows, columns)


class RttTables(NamedTuple):
    """The memory of one observation point, as the kernels work on it; `words` are `times` in halves.

    `samples` is what a kernel writes samples into.
    """

    connections: Int64Array
    words: UInt32Array
    times: Int64Array
    pending: Int64Array
    counts: Int64Array
    samples: Int64Array
    max_rtt_ns: int
    idle_ns: int

    @classmethod
    def empty(cls, limits: RttLimits, samples: Int64Array) -> RttTables:
        connections, pending = _aligned(limits.connections, 2), _aligned(limits.pending, 2)
        connections[:, TIME] = pending[:, TIME] = EMPTY
        times = _aligned(2 * limits.connections, LINE_WORDS)
        counts = np.zeros(len(Count), np.int64)
        return cls(
            connections, times.view(np.uint32), times, pending, counts, samples, limits.max_rtt_ns, limits.idle_ns
        )

    @property
    def memory_bytes(self) -> int:
        return sum(array.nbytes for array in (self.connections, self.times, self.pending, self.samples))


@borrowing_inlined
def signed(value: object) -> int:
    """Any integer as a signed 64-bit word, the only kind that the kernels reckon with."""
    return np.int64(value)  # type: ignore[return-value,arg-type]


@borrowing_inlined
def serial_difference(a: int, b: int) -> int:
    """a − b of 32-bit numbers that wrap around: −2³¹ … 2³¹ − 1 (RFC 1982)."""
    return ((a - b + _HALF_WORD) & WORD) - _HALF_WORD


@borrowing_inlined
def _first_of_bucket(key: np.uint64, entries: int) -> int:
    """Where the bucket that the key's high bits choose begins (`entries` is a power of two)."""
    buckets = np.uint64(entries // WAYS)
    return signed(((key >> np.uint64(32)) * buckets) >> np.uint64(32)) * WAYS


@borrowing_inlined
def find_connection(tables: RttTables, low_id: int, now: int) -> int:
    """The place of the conversation whose lower flow id is `low_id`; taken anew when it has none."""
    connections = tables.connections
    first = _first_of_bucket(mix(np.uint64(low_id)), connections.shape[0])
    victim = first
    for place in range(first, first + WAYS):
        seen = connections[place, TIME]
        if connections[place, KEY] == low_id and seen != EMPTY:
            if now > seen:
                connections[place, TIME] = now
            return place
        if seen < connections[victim, TIME]:
            victim = place
    seen = connections[victim, TIME]
    if seen != EMPTY and now - seen < tables.idle_ns:
        tables.counts[Count.CONNECTION_EVICTED] += 1
    connections[victim, KEY] = low_id
    connections[victim, TIME] = now
    for row in range(2 * victim, 2 * victim + 2):
        tables.words[row, FLAGS] = 0
        tables.times[row, MIN_RTT] = NO_RTT
        tables.times[row, SYN_TIME] = EMPTY
    return victim


@borrowing_inlined
def pending_key(flow_id: int, space: int, number: int) -> np.uint64:
    """The hash of one awaited answer."""
    value = (np.uint64(number) << _SPACE_BITS) | np.uint64(space)
    return mix(np.uint64(flow_id) ^ (value * _GOLDEN))


@borrowing_inlined
def find_pending(tables: RttTables, key: np.uint64) -> int:
    """The place of an awaited answer, or −1."""
    pending = tables.pending
    first = _first_of_bucket(key, pending.shape[0])
    tag = signed(key << _AUX_BITS)
    for place in range(first, first + WAYS):
        if (pending[place, KEY] & ~AUX_LIMIT) == tag and pending[place, TIME] != EMPTY:
            return place
    return -1


@borrowing_inlined
def take_pending(tables: RttTables, key: np.uint64) -> int:
    """When an awaited answer began to be awaited, which it no longer is; `EMPTY` if it was not."""
    place = find_pending(tables, key)
    if place < 0:
        return EMPTY
    sent = tables.pending[place, TIME]
    tables.pending[place, TIME] = EMPTY
    return signed(sent)


@borrowing_inlined
def add_pending(tables: RttTables, key: np.uint64, aux: int, now: int) -> None:
    """Await an answer from `now` on; `aux` (16 bits) comes back with it."""
    pending = tables.pending
    first = _first_of_bucket(key, pending.shape[0])
    tag = signed(key << _AUX_BITS)
    victim = first
    for place in range(first, first + WAYS):
        if (pending[place, KEY] & ~AUX_LIMIT) == tag:
            victim = place
            pending[place, TIME] = EMPTY
            break
        if pending[place, TIME] < pending[victim, TIME]:
            victim = place
    sent = pending[victim, TIME]
    if sent != EMPTY and now - sent < tables.max_rtt_ns:
        tables.counts[Count.PENDING_EVICTED] += 1
    pending[victim, KEY] = tag | aux
    pending[victim, TIME] = now


@borrowing_inlined
def await_once(tables: RttTables, key: np.uint64, now: int, is_repeated: bool, reason: int) -> None:
    """Await an answer, unless it is awaited already (then two could not be told apart) or known to be repeated."""
    place = find_pending(tables, key)
    if place >= 0 and now - tables.pending[place, TIME] <= tables.max_rtt_ns:
        tables.pending[place, TIME] = EMPTY
        tables.counts[reason] += 1
    elif is_repeated:
        tables.counts[reason] += 1
    else:
        add_pending(tables, key, 0, now)


_NO_NOTE = int(Note.NONE)
# Columns of a sample while it is in a kernel's buffer.
FLOW, DONE, RTT, LOWEST, KIND, NOTE = range(6)
SAMPLE_WORDS = 6


@dataclass(frozen=True, eq=False)
class RttSamples:
    """One row per sample, in the order in which they were completed.

    ``flow_id`` is the flow of the packet that completed the sample (the answer), ``time_ns`` when it was
    seen; ``min_rtt_ns`` is the smallest of that flow direction so far, of any kind. ``kind`` and
    ``note`` are numbers of `Kind` and `Note`.
    """

    flow_id: UInt64Array
    time_ns: Int64Array
    rtt_ns: Int64Array
    min_rtt_ns: Int64Array
    kind: UInt8Array
    note: UInt8Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """The samples one by one, as Python's integers: time, flow id, RTT, least RTT, kind, note."""
        columns = (self.time_ns, self.flow_id, self.rtt_ns, self.min_rtt_ns, self.kind, self.note)
        return zip(*(column.tolist() for column in columns), strict=True)

    @classmethod
    def none(cls) -> RttSamples:
        """No samples, with the columns of some."""
        return cls.from_buffer(np.empty((0, SAMPLE_WORDS), np.int64))

    @classmethod
    def from_buffer(cls, buffer: Int64Array) -> RttSamples:
        """Columns copied out of a kernel's rows."""
        return cls(
            np.ascontiguousarray(buffer[:, FLOW]).view(np.uint64),
            np.ascontiguousarray(buffer[:, DONE]),
            np.ascontiguousarray(buffer[:, RTT]),
            np.ascontiguousarray(buffer[:, LOWEST]),
            buffer[:, KIND].astype(np.uint8),
            buffer[:, NOTE].astype(np.uint8),
        )


@borrowing_inlined
def write_sample(
    tables: RttTables, written: int, timed_row: int, flow_id: int, now: int, sent: int, kind: int, note: int
) -> int:
    """Write one sample unless its times make no sense; returns how many are written now.

    `timed_row` is the direction of the packet that was timed, `flow_id` that of the answer.
    """
    times, counts, samples = tables.times, tables.counts, tables.samples
    rtt = now - sent
    if sent < times[timed_row, SYN_TIME]:
        counts[Count.EARLIER_CONNECTION] += 1
        return written
    if rtt < 0:
        counts[Count.ANSWER_BEFORE_PACKET] += 1
        return written
    if rtt > tables.max_rtt_ns:
        counts[Count.ANSWER_TOO_LATE] += 1
        return written
    if rtt < times[timed_row, MIN_RTT]:
        times[timed_row, MIN_RTT] = rtt
    samples[written, FLOW] = flow_id
    samples[written, DONE] = now
    samples[written, RTT] = rtt
    samples[written, LOWEST] = times[timed_row, MIN_RTT]
    samples[written, KIND] = kind
    samples[written, NOTE] = note
    return written + 1


@borrowing_inlined
def write_answer(tables: RttTables, written: int, flow_id: int, reverse_id: int, now: int, sent: int, kind: int) -> int:
    """Write the sample of an answer to a packet that no connection was needed to recognise."""
    low_id = min(flow_id, reverse_id)
    row = 2 * find_connection(tables, low_id, now)
    row += 0 if reverse_id == low_id else 1
    return write_sample(tables, written, row, flow_id, now, sent, kind, _NO_NOTE)
