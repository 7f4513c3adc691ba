"""Round-trip times of MQTT (3.1.1 and 5): PUBLISH with QoS 1 to PUBACK, PINGREQ to PINGRESP.

Messages are read from the payload bytes of a segment, as many as it holds. Where the next message
begins is known from the SYN on, or from a segment that whole messages filled exactly; otherwise a
segment is taken to begin with a message, and left alone as soon as it reads like none. A message that
spans segments, or whose packet id lies beyond what was captured, is counted and gives no sample. A
PUBLISH that is repeated (same packet id, unanswered, or marked DUP) gives none either.

These are answers of the peer's application: the time includes its work, and TCP's if a segment is lost.

Guarantee: reads nothing outside the captured bytes. Time: O(messages in the segment).
"""

from __future__ import annotations

import numpy as np

from sojourn.capture.rtt_samples import write_sample
from sojourn.capture.rtt_state import (
    EMPTY,
    FLAGS,
    MQTT_KNOWN,
    MQTT_NEXT,
    SPACE_PING,
    TIME,
    WORD,
    Count,
    Kind,
    Note,
    UInt32Array,
    add_pending,
    find_pending,
    pending_key,
    serial_difference,
    signed,
)
from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.kernels import borrowing_inlined

__all__ = ["MQTT_PORT", "read_messages"]

MQTT_PORT = 1883
_PUBLISH, _PUBACK, _PUBREL, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _PINGRESP = 3, 4, 6, 8, 10, 12, 13
_MQTT = int(Kind.MQTT)
_NO_NOTE = int(Note.NONE)
# The longest remaining length that four bytes of seven bits can say.
_LENGTH_BYTES = 4
# What a message's first bytes turned out to be, where they give no length.
_CUT, _MALFORMED = -1, -2


@borrowing_inlined
def _is_fixed_header(first: int) -> bool:
    """Whether a byte can start a message: a known type with the flags that go with it."""
    kind = first >> 4
    flags = first & 15
    if kind == 0:
        return False
    if kind == _PUBLISH:
        return (flags & 6) != 6
    if kind in (_PUBREL, _SUBSCRIBE, _UNSUBSCRIBE):
        return flags == 2
    return flags == 0


@borrowing_inlined
def _remaining_length(data: UInt8Array, start: int, stop: int) -> tuple[int, int]:
    """The length after the fixed header and where the body starts; `_CUT` or `_MALFORMED` if unknown."""
    length = 0
    for i in range(_LENGTH_BYTES):
        if start + i >= stop:
            return _CUT, start
        byte = signed(data[start + i])
        length |= (byte & 127) << (7 * i)
        if byte < 128:
            return length, start + i + 1
    return _MALFORMED, start


@borrowing_inlined
def _await(
    pending: Int64Array,
    counts: Int64Array,
    flow_id: int,
    space: int,
    number: int,
    repeated: bool,
    now: int,
    max_rtt_ns: int,
) -> None:
    """Await the answer to a message, unless it is awaited already: then neither can be told apart."""
    key = pending_key(flow_id, space, number)
    place = find_pending(pending, key)
    if place >= 0 and now - pending[place, TIME] <= max_rtt_ns:
        pending[place, TIME] = EMPTY
        counts[Count.MQTT_REPEATED] += 1
    elif repeated:
        counts[Count.MQTT_REPEATED] += 1
    else:
        add_pending(pending, counts, key, 0, now, max_rtt_ns)


@borrowing_inlined
def _read_publish(
    data: UInt8Array,
    body: int,
    message_stop: int,
    captured_stop: int,
    first: int,
    pending: Int64Array,
    counts: Int64Array,
    flow_id: int,
    now: int,
    max_rtt_ns: int,
) -> None:
    """Find the packet id of a PUBLISH with QoS 1, behind its topic."""
    if body + 2 > message_stop:
        counts[Count.MQTT_MALFORMED] += 1
        return
    if body + 2 > captured_stop:
        counts[Count.MQTT_TRUNCATED] += 1
        return
    at = body + 2 + (signed(data[body]) << 8 | signed(data[body + 1]))
    if at + 2 > message_stop:
        counts[Count.MQTT_MALFORMED] += 1
        return
    if at + 2 > captured_stop:
        counts[Count.MQTT_TRUNCATED] += 1
        return
    packet_id = signed(data[at]) << 8 | signed(data[at + 1])
    if packet_id == 0:
        counts[Count.MQTT_MALFORMED] += 1
        return
    _await(pending, counts, flow_id, _MQTT, packet_id, (first & 8) != 0, now, max_rtt_ns)


@borrowing_inlined
def _answer(
    times: Int64Array,
    pending: Int64Array,
    counts: Int64Array,
    samples: Int64Array,
    written: int,
    reverse_row: int,
    flow_id: int,
    key: np.uint64,
    now: int,
    max_rtt_ns: int,
) -> int:
    """End the sample of an awaited message."""
    place = find_pending(pending, key)
    if place < 0:
        return written
    sent = pending[place, TIME]
    pending[place, TIME] = EMPTY
    return write_sample(samples, written, times, counts, reverse_row, flow_id, now, sent, max_rtt_ns, _MQTT, _NO_NOTE)


@borrowing_inlined
def _take_message(
    data: UInt8Array,
    first: int,
    body: int,
    message_stop: int,
    captured_stop: int,
    times: Int64Array,
    pending: Int64Array,
    counts: Int64Array,
    samples: Int64Array,
    written: int,
    reverse_row: int,
    flow_id: int,
    reverse_id: int,
    now: int,
    max_rtt_ns: int,
) -> int:
    """Await the answer to a whole message, or end the sample of the one that it answers."""
    kind = first >> 4
    if kind == _PUBLISH and (first & 6) == 2:
        _read_publish(data, body, message_stop, captured_stop, first, pending, counts, flow_id, now, max_rtt_ns)
    elif kind == _PINGREQ:
        _await(pending, counts, flow_id, SPACE_PING, 0, False, now, max_rtt_ns)
    elif kind == _PINGRESP:
        key = pending_key(reverse_id, SPACE_PING, 0)
        return _answer(times, pending, counts, samples, written, reverse_row, flow_id, key, now, max_rtt_ns)
    elif kind == _PUBACK and body + 2 <= message_stop:
        if body + 2 > captured_stop:
            counts[Count.MQTT_TRUNCATED] += 1
            return written
        key = pending_key(reverse_id, _MQTT, signed(data[body]) << 8 | signed(data[body + 1]))
        return _answer(times, pending, counts, samples, written, reverse_row, flow_id, key, now, max_rtt_ns)
    return written


@borrowing_inlined
def read_messages(
    data: UInt8Array,
    offset: int,
    length: int,
    captured: int,
    words: UInt32Array,
    times: Int64Array,
    pending: Int64Array,
    counts: Int64Array,
    samples: Int64Array,
    written: int,
    row: int,
    reverse_row: int,
    flow_id: int,
    reverse_id: int,
    seq: int,
    now: int,
    max_rtt_ns: int,
) -> int:
    """Read the messages of one segment; `captured` ≤ `length` bytes lie in `data` from `offset` on."""
    state = signed(words[row, FLAGS])
    trusted = False
    at = offset
    stop = offset + length
    captured_stop = offset + captured
    if (state & MQTT_KNOWN) != 0:
        ahead = serial_difference(signed(words[row, MQTT_NEXT]), seq)
        if ahead >= length:
            return written
        if ahead >= 0:
            trusted = True
            at += ahead
    words[row, FLAGS] = state & ~MQTT_KNOWN
    following = stop
    while at < stop:
        if at >= captured_stop:
            counts[Count.MQTT_TRUNCATED] += 1
            return written
        first = signed(data[at])
        remaining, body = _remaining_length(data, at + 1, captured_stop)
        if not _is_fixed_header(first) or remaining == _MALFORMED:
            counts[Count.MQTT_MALFORMED] += 1
            return written
        if remaining == _CUT:
            counts[Count.MQTT_SPANS_SEGMENTS if captured == length else Count.MQTT_TRUNCATED] += 1
            return written
        message_stop = body + remaining
        if message_stop > stop:
            counts[Count.MQTT_SPANS_SEGMENTS] += 1
            if not trusted:
                return written
            following = message_stop
            break
        written = _take_message(
            data, first, body, message_stop, captured_stop, times, pending, counts, samples, written,
            reverse_row, flow_id, reverse_id, now, max_rtt_ns,
        )  # fmt: skip
        at = message_stop
    words[row, FLAGS] = state | MQTT_KNOWN
    words[row, MQTT_NEXT] = (seq + (following - offset)) & WORD
    return written
