"""Packets longer than the wire carries, split into the packets that were on it.

Linux and network cards hand a TCP sender's data on in super-packets that only the card takes apart (TSO, GSO), and put
a receiver's packets together (GRO, LRO); QUIC does the same with datagrams (USO). A capture on such a host has packets
that no wire ever carried. One of payload L behind headers of h bytes was sent as packets of m = W − h bytes of payload
and a last one with the rest, where W, the length of a full IP packet, is the same for all packets of a flow whatever
options they carry. Each of them has the super-packet's headers but for what segmentation itself changes:

====================  ==================================================
total length          h + m, of the last h + what is left
IPv4 identification   one more than the packet before; 0 stays 0 in a flow that numbers nothing
TCP sequence number   m more than the packet before
FIN, PSH              the last packet's only
CWR                   the first packet's only
UDP length            8 + the datagram's payload
====================  ==================================================

So a split packet has, to the bit, the identity that it has where it was captured by itself (`ids`), as far as its
payload's beginning was captured; where the capture is cut, packets are told apart by their headers. Its time is that
of the super-packet.

**A live capture** is told each super-packet's m by the kernel (``gso_size``): nothing is guessed. What cannot be split
all the same is counted: a super-packet inside of a tunnel, one of which less was captured than identities need, or a
packet longer than any link carries of which the driver says nothing. Only whether a flow numbers its packets is learnt
from those that come; datagrams that this host sends are numbered by the kernel that takes them apart, also from 0 on.
(A host that receives such datagrams knows it from the first one that it sees with another number.)

**In a file W** is told, in this order, by the segment sizes of a connection's SYNs (the smaller of the two), by the
flow's longest packets at the other point if that shows the wire's packets, or by lengths: a sender that has enough to
send fills super-packets to multiples of m, so that two lengths that are multiples of an assumed m (W of 1 500, of
9 000, or of the flow's longest single packets), and every eighth of its super-packets, confirm it. For datagrams only
lengths tell. Without any of these a packet is left as it is, and counted if it is longer than any wire carries. A
capture is looked at so from its first packet of more than 1 500 bytes on.

Memory: 4 MB for what is known of the latest 65,536 flows. Time: 1 ns per packet of a capture (or of what a poll of an
interface found) that has no super-packets, which is left alone; otherwise 20 ns per packet captured and 40 ns per
packet made.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.capture.decode.frames import Located, Offload, empty_rows
from sojourn.capture.decode.locate import LONGEST, OPENINGS
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.hash_kernels import mix
from sojourn.core.kernels import (
    address_of,
    big_16,
    big_32,
    byte_at,
    inlined,
    kernel,
    put_byte,
    put_word,
    signed,
    word_at,
)

LARGEST_ON_A_LINK = 9_216  # jumbo frames; what is longer was put together
OFFLOADING_OFF = "ethtool -K IFACE gro off lro off gso off tso off"
LARGEST_UNSPLIT = 1_600  # an ordinary link's longest frame, with tags
MOST_PORTION_BYTES = 1 << 25  # of the wire's bytes in one batch: 67,000 split packets
_USUAL_WIRE, _JUMBO_WIRE = 1_500, 9_000
_JUMBO_END, _JUMBO_OPTION = 48, 0xC2
_LEAST_SEGMENT, _LEAST_FULL = 460, 1_280  # what RFC 879's 536 bytes leave beside all options
_FEWEST_HITS, _MISSES_PER_HIT, _FEWEST_FULL = 2, 8, 3
_SETS, _WAYS = 1 << 14, 4
_TCP, _UDP = 6, 17
_FIN, _PSH, _ACK, _CWR = 0x01, 0x08, 0x10, 0x80
_OF_TCP, _OF_UDP, _IS_OUTGOING = int(Offload.TCP), int(Offload.UDP), int(Offload.OUTGOING)

_FLOW = np.dtype(
    [
        ("key", np.uint64),
        ("used", np.int64),
        ("said", np.int32),  # W as SYNs or the other point tell; 0: not told
        ("is_seen", np.int32),  # whether the other point showed what is said: a path may carry less than SYNs tell
        ("full", np.int32),  # the longest packet that a wire may have carried, and how often it came
        ("full_count", np.int32),
        ("long", np.int32),  # super-packets, and those whose payload is a multiple of …
        ("said_hits", np.int32),  # … what is said, or usual
        ("full_hits", np.int32),  # … the longest single packet's
        ("jumbo", np.int32),  # super-packets longer than jumbo frames, and multiples of what these carry
        ("jumbo_hits", np.int32),
        ("is_numbered", np.int32),  # whether IPv4's identification was ever anything but 0
    ]
)
# State: a clock of the table, and what became of packets.
_NOW, _SPLIT, _MADE, _LEFT, _STATE = range(5)


class WireSizes:
    """What is known of the lengths of full packets on the wire, by flow; `split` takes super-packets apart by it.

    ``split_packets`` became ``made_packets``; ``left_packets`` are longer than any wire carries and were left alone.
    """

    def __init__(self) -> None:
        self._flows = np.zeros(_SETS * _WAYS, _FLOW)
        self._state = np.zeros(_STATE, np.int64)
        self._is_watched = False
        self.largest_bytes = LARGEST_ON_A_LINK  # of a packet that the link may have carried

    @property
    def split_packets(self) -> int:
        return int(self._state[_SPLIT])

    @property
    def made_packets(self) -> int:
        return int(self._state[_MADE])

    @property
    def left_packets(self) -> int:
        return int(self._state[_LEFT])

    @property
    def has_long(self) -> bool:
        """Whether any packet was longer than a wire would carry."""
        return bool((self._flows["long"] > 0).any())

    def copy(self) -> WireSizes:
        """The same knowledge, with nothing counted yet."""
        other = WireSizes()
        if self._state[_NOW]:
            other._flows[:] = self._flows
        other._state[_NOW] = self._state[_NOW]
        other._is_watched = self._is_watched
        other.largest_bytes = self.largest_bytes
        return other

    def observe(self, data: UInt8Array, rows: Located, marks: Int64Array) -> None:
        """Learn from packets, and `locate`'s marks of them, without splitting any; every flow is watched."""
        self._is_watched = True
        learn_segment_sizes(data, rows, marks, self._flows, self._state)
        plan_segments(data, rows, self._flows, self._state, 0, np.empty((2, len(rows)), np.int64))

    def joined(self, other: WireSizes) -> WireSizes:
        """This point's knowledge with that of the other: a flow's packets there are those of the wire if it has no
        super-packets of it, and what is said there holds here."""
        both = self.copy()
        own, there = (np.flatnonzero(one["key"]) for one in (both._flows, other._flows))
        _, here, match = np.intersect1d(
            both._flows["key"][own], other._flows["key"][there], assume_unique=True, return_indices=True
        )
        rows, others = own[here], other._flows[there[match]]
        seen = (others["long"] == 0) & (others["full_count"] >= _FEWEST_FULL) & (both._flows["long"][rows] > 0)
        heard = ~seen & (both._flows["said"][rows] == 0) & (others["said"] > 0)
        both._flows["said"][rows[seen]] = others["full"][seen]
        both._flows["is_seen"][rows[seen]] = 1
        both._flows["said"][rows[heard]] = others["said"][heard]
        both._is_watched = self._is_watched or other._is_watched
        return both

    def split(
        self, data: UInt8Array, rows: Located, marks: Int64Array, prefix: int
    ) -> tuple[UInt8Array, Located] | None:
        """The packets of the wire, and bytes that hold their headers and the first `prefix` of each, as far as these
        were captured; None where there is nothing to split."""
        has_long = learn_segment_sizes(data, rows, marks, self._flows, self._state)
        self._is_watched = self._is_watched or has_long
        if not self._is_watched:
            return None
        plan = np.empty((2, len(rows)), np.int64)
        count, size = plan_segments(data, rows, self._flows, self._state, prefix, plan)
        return _written(data, rows, plan, prefix, count, size)

    def split_as_told(
        self, data: UInt8Array, rows: Located, marks: Int64Array, prefix: int
    ) -> tuple[UInt8Array, Located] | None:
        """As `split`, by what the kernel told of each packet (`Frames.offload`)."""
        if not rows["segment"].any() and marks[LONGEST] <= self.largest_bytes:
            return None
        plan = np.empty((2, len(rows)), np.int64)
        limits = prefix, self.largest_bytes
        count, size = plan_told_segments(data, rows, self._flows, self._state, limits, plan)
        return _written(data, rows, plan, prefix, count, size)


def _written(
    data: UInt8Array, rows: Located, plan: Int64Array, prefix: int, count: int, size: int
) -> tuple[UInt8Array, Located] | None:
    """The packets that a plan makes of some; None where it splits nothing."""
    if count == len(rows):
        return None
    made, wire = np.empty(size + 8, np.uint8), empty_rows(count)
    write_segments(data, rows, plan, prefix, made, wire)
    made.flags.writeable = False
    return made, wire


@inlined
def _end_hash(data: int, at: int, is_4: bool, port: int) -> np.uint64:
    """A hash of one end of a flow: its address and port."""
    if is_4:
        return mix((np.uint64(big_32(data, at)) << np.uint64(16)) | np.uint64(port))
    return mix(mix(word_at(data, at)) ^ word_at(data, at + 8) ^ np.uint64(port))


@inlined
def _flow_key(data: int, row: np.void, is_reverse: bool) -> np.uint64:
    is_4 = row["version"] == 4
    at = row["ip"] + (12 if is_4 else 8)
    ports = signed(row["ports"])
    source = _end_hash(data, at, is_4, ports >> 16)
    destination = _end_hash(data, at + (4 if is_4 else 16), is_4, ports & 0xFFFF)
    if is_reverse:
        source, destination = destination, source
    return mix(source ^ mix(destination ^ np.uint64(row["own_protocol"]))) | np.uint64(1)


@inlined
def _place(flows: NDArray[np.void], state: Int64Array, key: np.uint64) -> int:
    """The row of a flow. A new one takes that of the flow that was used longest ago, of those without super-packets
    if there are any."""
    first = signed(key >> np.uint64(1)) % _SETS * _WAYS
    state[_NOW] += 1
    victim = first
    for at in range(first, first + _WAYS):
        if flows[at].key == key:
            flows[at].used = state[_NOW]
            return at
        is_long, victim_is_long = flows[at].long > 0, flows[victim].long > 0
        if is_long < victim_is_long or (is_long == victim_is_long and flows[at].used < flows[victim].used):
            victim = at
    flows[victim].key = key
    flows[victim].used = state[_NOW]
    flows[victim].said = flows[victim].is_seen = flows[victim].full = flows[victim].full_count = 0
    flows[victim].long = flows[victim].said_hits = flows[victim].full_hits = 0
    flows[victim].jumbo = flows[victim].jumbo_hits = flows[victim].is_numbered = 0
    return victim


@kernel
def _segment_option(data: int, at: int, end: int) -> int:
    """The maximum segment size that a SYN's options tell; 0 where they do not."""
    while at + 4 <= end:
        kind = byte_at(data, at)
        if kind == 0:
            return signed(0)
        if kind == 1:
            at += 1
            continue
        if kind == 2 and byte_at(data, at + 1) == 4:
            return big_16(data, at + 2)
        at += max(byte_at(data, at + 1), 2)
    return signed(0)


@kernel
def _learn_syn(data: int, row: np.void, flows: NDArray[np.void], state: Int64Array) -> None:
    """A connection's two directions send no more than the smaller size that their SYNs tell."""
    at = row["transport"]
    header = (byte_at(data, at + 12) >> 4) << 2
    size = _segment_option(data, at + 20, min(row["end"], at + header))
    if size < _LEAST_SEGMENT:
        return
    said = size + (40 if row["version"] == 4 else 60)
    is_answer = byte_at(data, at + 13) & _ACK != 0
    for is_reverse in (False, True):
        flow = _place(flows, state, _flow_key(data, row, is_reverse))
        is_less = flows[flow].said and (is_answer or flows[flow].is_seen)
        flows[flow].said = min(said, flows[flow].said) if is_less else said


@kernel
def learn_segment_sizes(
    buffer: UInt8Array, rows: Located, marks: Int64Array, flows: NDArray[np.void], state: Int64Array
) -> bool:
    """Note what SYNs tell; whether a packet is longer than most wires carry."""
    data = address_of(buffer)
    for i in range(marks[OPENINGS]):
        _learn_syn(data, rows[marks[OPENINGS + 1 + i]], flows, state)
    return bool(marks[LONGEST] > _USUAL_WIRE)


@inlined
def _header_bytes(data: int, row: np.void) -> int:
    """The bytes of the IP and transport headers; 0 where they are not there, or not those of TCP or UDP."""
    at = row["transport"]
    if row["fragment"] != 0:
        return signed(0)
    size = signed(0)
    if row["own_protocol"] == _TCP and at + 20 <= row["end"]:
        size = (byte_at(data, at + 12) >> 4) << 2
        if size < 20:
            return signed(0)
    elif row["own_protocol"] == _UDP:
        size = signed(8)
    return at + size - row["ip"] if size and at + size <= row["end"] else signed(0)


@inlined
def _is_confirmed(hits: int, of: int) -> bool:
    return hits >= _FEWEST_HITS and _MISSES_PER_HIT * hits >= of


@inlined
def _is_multiple(payload: int, segment: int) -> bool:
    return segment >= _LEAST_SEGMENT and payload % segment == 0


@inlined
def _is_held(row: np.void, segment: int, header: int, prefix: int) -> bool:
    """Whether the first `prefix` bytes of all packets of the wire were captured."""
    payload = row["ip_bytes"] - header
    last = (payload - 1) // segment * segment
    needed = header + last + min(payload - last, max(prefix - header, 0))
    return bool(row["ip"] + needed <= row["end"])


@inlined
def _datagrams_of(row: np.void, segment: int, header: int, prefix: int) -> int:
    """The segment, unless a datagram's payload is not there: nothing else tells datagrams apart."""
    return segment if segment >= _LEAST_SEGMENT and _is_held(row, segment, header, prefix) else signed(0)


@inlined
def _segment_of(row: np.void, flow: np.void, header: int, prefix: int) -> int:
    """The payload of a full packet of the wire that this one was made of; 0 where that is not known."""
    payload = row["ip_bytes"] - header
    is_tcp = row["own_protocol"] == _TCP
    segment = (flow["said"] if flow["said"] else signed(_USUAL_WIRE)) - header
    flow["long"] += 1
    flow["said_hits"] += is_tcp and _is_multiple(payload, segment)
    by_full = flow["full_count"] >= _FEWEST_FULL and (flow["full"] >= _LEAST_FULL or not is_tcp)
    flow["full_hits"] += by_full and _is_multiple(payload, flow["full"] - header)
    is_full = by_full and _is_confirmed(flow["full_hits"], flow["long"])
    if not is_tcp:
        return _datagrams_of(row, flow["full"] - header, header, prefix) if is_full else signed(0)
    if flow["said"] or _is_confirmed(flow["said_hits"], flow["long"]):
        return segment
    if row["ip_bytes"] > _JUMBO_WIRE:
        flow["jumbo"] += 1
        flow["jumbo_hits"] += _is_multiple(payload, _JUMBO_WIRE - header)
        if _is_confirmed(flow["jumbo_hits"], flow["jumbo"]):
            return _JUMBO_WIRE - header
    return signed(flow["full"] - header if is_full else 0)


@kernel
def plan_segments(
    buffer: UInt8Array, rows: Located, flows: NDArray[np.void], state: Int64Array, prefix: int, plan: Int64Array
) -> tuple[int, int]:
    """Fill in the payload that each packet is to be split by (0: not at all), and the step of its packets'
    identifications; the packets and bytes that result."""
    data = address_of(buffer)
    segment = plan[0]
    count = size = signed(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        segment[i] = 0
        header = _header_bytes(data, row)
        held = min(row["end"] - row["ip"], max(signed(prefix), row["transport"] - row["ip"] + 60))
        length = row["ip_bytes"]
        if header == 0 or length <= header:
            state[_LEFT] += length > LARGEST_ON_A_LINK
            count += 1
            size += held
            continue
        flow = flows[_place(flows, state, _flow_key(data, row, False))]
        most = flow["said"] if flow["said"] else signed(_USUAL_WIRE)
        flow["is_numbered"] |= row["identification"] != 0
        plan[1, i] = flow["is_numbered"]
        if length > most:
            segment[i] = _segment_of(row, flow, header, prefix)
        elif length <= _USUAL_WIRE:
            if length > flow["full"]:
                flow["full"] = length
                flow["full_count"] = 0
            flow["full_count"] += length == flow["full"]
        payload = length - header
        if segment[i] < _LEAST_SEGMENT or payload <= segment[i]:
            segment[i] = 0
            state[_LEFT] += length > most and length > LARGEST_ON_A_LINK
            count += 1
            size += held
            continue
        packets = (payload + segment[i] - 1) // segment[i]
        state[_SPLIT] += 1
        state[_MADE] += packets
        count += packets
        size += packets * max(signed(prefix), header)
    return count, size


@inlined
def _jumbo_bytes(data: int, row: np.void) -> int:
    """The bytes of the option that only tells a super-packet's length beyond 65,535 (RFC 2675); no wire carries it."""
    at = row["ip"]
    has_option = row["version"] == 6 and row["transport"] - at >= _JUMBO_END and big_16(data, at + 4) == 0
    is_jumbo = has_option and byte_at(data, at + 6) == 0 and byte_at(data, at + 42) == _JUMBO_OPTION
    return signed(_JUMBO_END - 40 if is_jumbo else 0)


@inlined
def _told_header_bytes(data: int, row: np.void, prefix: int) -> int:
    """The bytes of a super-packet's headers; 0 where it cannot be split by what the kernel tells of it."""
    header = _header_bytes(data, row)
    # Of a tunnel that is not looked into, the kernel tells the inside's segments.
    wanted = _OF_TCP if row["own_protocol"] == _TCP else _OF_UDP
    if header == 0 or not row["offload"] & wanted:
        return signed(0)
    return header if _is_held(row, signed(row["segment"]), header, prefix) else signed(0)


@kernel
def plan_told_segments(
    buffer: UInt8Array,
    rows: Located,
    flows: NDArray[np.void],
    state: Int64Array,
    limits: tuple[int, int],
    plan: Int64Array,
) -> tuple[int, int]:
    """As `plan_segments`, by what the kernel told; `limits` are the prefix and the longest packet of the link."""
    data = address_of(buffer)
    prefix, largest = limits
    count = size = signed(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        segment = signed(row["segment"])
        header = _told_header_bytes(data, row, prefix) if segment else signed(0)
        payload = row["ip_bytes"] - header
        if header == 0 or payload <= segment:
            plan[0, i] = 0
            if row["own_protocol"] == _UDP and row["identification"] != 0 and row["fragment"] == 0:
                flows[_place(flows, state, _flow_key(data, row, False))]["is_numbered"] = 1
            state[_LEFT] += (segment > 0 and header == 0) or row["ip_bytes"] > largest
            count += 1
            size += min(row["end"] - row["ip"], max(signed(prefix), row["transport"] - row["ip"] + 60))
            continue
        flow = flows[_place(flows, state, _flow_key(data, row, False))]
        flow["is_numbered"] |= row["identification"] != 0
        is_sent_datagram = row["own_protocol"] == _UDP and row["offload"] & _IS_OUTGOING
        plan[0, i] = segment
        plan[1, i] = 1 if is_sent_datagram else flow["is_numbered"]
        packets = (payload + segment - 1) // segment
        state[_SPLIT] += 1
        state[_MADE] += packets
        count += packets
        size += packets * max(signed(prefix), header)
    return count, size


@inlined
def _copy(data: int, start: int, size: int, out: int, at: int) -> None:
    whole = size & ~7
    for i in range(0, whole, 8):
        put_word(out, at + i, word_at(data, start + i))
    for i in range(whole, size):
        put_byte(out, at + i, byte_at(data, start + i))


@inlined
def _put_number(out: int, at: int, value: int, size: int) -> None:
    for i in range(size):
        put_byte(out, at + i, value >> 8 * (size - 1 - i))


@inlined
def _write_lengths(out: int, wire: np.void, later: int) -> None:
    """The IP header of a split packet: its length and, for IPv4, its identification, so much more than the first's."""
    at = wire["ip"]
    if wire["version"] == 6:
        _put_number(out, at + 4, wire["ip_bytes"] - 40, 2)
        return
    _put_number(out, at + 2, wire["ip_bytes"], 2)
    identification = (signed(wire["identification"]) + later) & 0xFFFF
    wire["identification"] = identification
    _put_number(out, at + 4, identification, 2)


@inlined
def _write_transport(out: int, wire: np.void, offset: int, is_last: bool) -> None:
    """The transport header of a split packet whose payload begins `offset` bytes behind the first one's."""
    at = wire["transport"]
    if wire["own_protocol"] == _UDP:
        _put_number(out, at + 4, wire["ip"] + wire["ip_bytes"] - at, 2)
        return
    _put_number(out, at + 4, big_32(out, at + 4) + offset, 4)
    flags = byte_at(out, at + 13)
    if offset:
        flags &= ~_CWR
    if not is_last:
        flags &= ~(_FIN | _PSH)
    put_byte(out, at + 13, flags)


@kernel
def write_segments(
    buffer: UInt8Array, rows: Located, plan: Int64Array, prefix: int, made: UInt8Array, wire: Located
) -> None:
    """All packets in their order, in bytes of their own; those that are to be split as the packets of the wire."""
    data = address_of(buffer)
    out = address_of(made)
    segment = plan[0]
    count = at = signed(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        start, network = row["ip"], row["transport"] - row["ip"]
        if segment[i] == 0:
            held = min(row["end"] - start, max(signed(prefix), network + 60))
            wire[count] = row
            wire[count]["ip"], wire[count]["transport"], wire[count]["end"] = at, at + network, at + held
            _copy(data, start, held, out, at)
            at += held
            count += 1
            continue
        whole, jumbo = _header_bytes(data, row), _jumbo_bytes(data, row)
        payload = row["ip_bytes"] - whole
        header = whole - jumbo
        for offset in range(0, payload, segment[i]):
            size = min(segment[i], payload - offset)
            body = start + whole + offset
            held = max(min(signed(prefix) - header, size, row["end"] - body), signed(0))
            wire[count] = row
            packet = wire[count]
            packet["ip"], packet["transport"], packet["end"] = at, at + network - jumbo, at + header + held
            packet["ip_bytes"] = header + size
            _copy(data, start, header, out, at)
            if jumbo:
                _copy(data, start + _JUMBO_END, whole - _JUMBO_END, out, at + 40)
                put_byte(out, at + 6, byte_at(data, start + 40))
            _copy(data, body, held, out, at + header)
            _write_lengths(out, packet, offset // segment[i] * plan[1, i])
            _write_transport(out, packet, offset, offset + size == payload)
            at += header + held
            count += 1
