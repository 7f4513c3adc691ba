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

from sojourn.core.arrays import UInt8Array
from sojourn.core.kernels import borrowing_inlined
from sojourn.rtt.state import (
    EMPTY,
    FLAGS,
    MQTT_KNOWN,
    MQTT_NEXT,
    SPACE_PING,
    WORD,
    Count,
    Kind,
    Note,
    RttTables,
    await_once,
    pending_key,
    serial_difference,
    signed,
    take_pending,
    write_sample,
)

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
def _read_publish(
    tables: RttTables,
    data: UInt8Array,
    first: int,
    body: int,
    message_stop: int,
    captured_stop: int,
    flow_id: int,
    now: int,
) -> None:
    """Find the packet id of a PUBLISH with QoS 1, behind its topic."""
    counts = tables.counts
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
    await_once(tables, pending_key(flow_id, _MQTT, packet_id), now, (first & 8) != 0, Count.MQTT_REPEATED)


@borrowing_inlined
def _answer(tables: RttTables, written: int, reverse_row: int, flow_id: int, key: np.uint64, now: int) -> int:
    """End the sample of an awaited message."""
    sent = take_pending(tables, key)
    if sent == EMPTY:
        return written
    return write_sample(tables, written, reverse_row, flow_id, now, sent, _MQTT, _NO_NOTE)


@borrowing_inlined
def _take_message(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    first: int,
    body: int,
    message_stop: int,
    captured_stop: int,
    reverse_row: int,
    flow_id: int,
    reverse_id: int,
    now: int,
) -> int:
    """Await the answer to a whole message, or end the sample of the one that it answers."""
    kind = first >> 4
    if kind == _PUBLISH and (first & 6) == 2:
        _read_publish(tables, data, first, body, message_stop, captured_stop, flow_id, now)
    elif kind == _PINGREQ:
        await_once(tables, pending_key(flow_id, SPACE_PING, 0), now, False, Count.MQTT_REPEATED)
    elif kind == _PINGRESP:
        return _answer(tables, written, reverse_row, flow_id, pending_key(reverse_id, SPACE_PING, 0), now)
    elif kind == _PUBACK and body + 2 <= message_stop:
        if body + 2 > captured_stop:
            tables.counts[Count.MQTT_TRUNCATED] += 1
            return written
        key = pending_key(reverse_id, _MQTT, signed(data[body]) << 8 | signed(data[body + 1]))
        return _answer(tables, written, reverse_row, flow_id, key, now)
    return written


@borrowing_inlined
def read_messages(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    offset: int,
    length: int,
    captured: int,
    row: int,
    reverse_row: int,
    flow_id: int,
    reverse_id: int,
    seq: int,
    now: int,
) -> int:
    """Read the messages of one segment; `captured` ≤ `length` bytes lie in `data` from `offset` on."""
    words, counts = tables.words, tables.counts
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
            tables, written, data, first, body, message_stop, captured_stop, reverse_row, flow_id, reverse_id, now
        )
        at = message_stop
    words[row, FLAGS] = state | MQTT_KNOWN
    words[row, MQTT_NEXT] = (seq + (following - offset)) & WORD
    return written
