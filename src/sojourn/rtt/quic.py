"""Round-trip times of QUIC from the latency spin bit (RFC 9000 §17.4, RFC 9312 §3.8).

The server sends the spin value that it last received, the client its opposite: each direction changes value once per
round trip. Where both directions pass, an *edge* of one answers the latest edge of the other, and the time between them
is the way from the observation point to the answering host and back (``QUIC``). Where only one passes, two successive
edges are a whole round trip, host to host and back (``QUIC_WHOLE``).

**Turns.** With both directions in view, exactly one may change: the client's while both values are equal, the server's
while they differ. A packet that changes out of turn is a straggler (reordered across an edge) and changes nothing; so
is one that changes within an eighth of the smoothed time after the edge that it would answer, if the other side answers
sooner than its own does: a straggler is late by at least the other side's time. (A quarter, where only one direction is
in view and may always change.)

**Trust.** An endpoint may set the bit at random, packet by packet, and on one connection in sixteen it must not spin.
Each packet is weighed as evidence, *spinning* against *random*, and the sum of the log likelihood ratios must reach
`_TRUSTED` in both directions (in the only one there is) for edges to give samples.

- Out of turn a spinning direction keeps its value but for `_STRAGGLERS`, a random one for half of its packets. In turn
  it changes with an unknown probability, which is learnt (Krichevsky–Trofimov), against one half. A random direction
  is trusted with a probability of at most 1/1000 (Ville's inequality), counted from its start or its lowest score on.
- One direction alone may change slowly because the peer's bits are random and it reflects some of them. So besides
  keeping its value more often than one that changes every fourth packet (at most `_MOST_STAYS` of a round trip count),
  its round trips must be regular: between half and twice the smoothed one, which 95 % are if it spins and 47 % if
  edges come at random. That takes at least six packets per round trip, and some ten round trips.

A bit that never changes gives no edges.

**Pauses.** An edge is no answer where the side that it answers paused: if that side's longest silence since its own
edge (nobody sent) takes over half of the time, there is no sample. Other waits for a host that has nothing to send are
part of the time, and noted ``DELAYED`` after silence and 40 ms above the direction's least.

A new client Initial on the same addresses and ports begins anew. Coalesced packets are read up to the short header.

Guarantee: reads nothing outside the captured bytes. Time: O(1) per datagram. Memory: that of a connection.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import UInt8Array
from sojourn.core.kernels import borrowing_inlined
from sojourn.rtt.state import (
    EMPTY,
    FLAGS,
    MIN_RTT,
    NO_RTT,
    Count,
    Kind,
    Note,
    RttTables,
    find_connection,
    signed,
    write_sample,
)
from sojourn.rtt.tcp import DELAYED_ACK_NS

# Words and times of a direction, in place of TCP's.
_SCORE, _EDGES, _STAYS = 1, 2, 3
_EDGE_TIME, _LAST_TIME, _SMOOTHED, _SILENCE = 2, 3, 6, 7
# Bits of FLAGS.
_VALUE, _KNOWN, _PAUSED, _BEGUN = 1, 2, 4, 8

# Scores are kept in units of 1/1024 nat, from `−_TRUSTED` (a bad start is overcome) to twice that.
_UNIT = 1024
_TRUSTED = round(math.log(1000) * _UNIT)
_BIAS = _TRUSTED
# The share of a spinning direction's packets that arrive across an edge: generous, as more only make trust slower.
_STRAGGLERS = 0.02
_IN_TURN = round(math.log(2 * (1 - _STRAGGLERS)) * _UNIT)
_OUT_OF_TURN = round(math.log(2 * _STRAGGLERS) * _UNIT)
# Edges and stays are halved beyond so many, so that what is learnt follows the traffic.
_LEARNT = 64
# One direction alone: a change at every sixteenth packet against every fourth, and regular round trips.
_MOST_STAYS = 8
_STAYED, _CHANGED = round(math.log(5 / 4) * _UNIT), round(math.log(1 / 4) * _UNIT)
_REGULAR, _IRREGULAR = round(math.log(0.95 / 0.47) * _UNIT), round(math.log(0.05 / 0.53) * _UNIT)

_QUIC, _WHOLE = int(Kind.QUIC), int(Kind.QUIC_WHOLE)
# A bit of what is asked for, above those of the kinds and SEQ/ACK's: whole round trips where both directions pass, too.
WHOLE_ALWAYS = 1 << (len(Kind) + 1)
_NO_NOTE, _DELAYED = int(Note.NONE), int(Note.DELAYED)
_LONG, _FIXED, _SPIN = 0x80, 0x40, 0x20
_VERSION_1, _VERSION_2 = 1, 0x6B3343CF
_INITIAL, _RETRY = 0, 3
_MAX_CONNECTION_ID = 20
_MAX_COALESCED = 4
# What a datagram holds instead of a short header.
_NOT_QUIC, _ONLY_LONG = -1, -2


@borrowing_inlined
def _long_type(data: UInt8Array, at: int, stop: int) -> int:
    """The type of a long header as version 1 numbers it; −1 if it is cut or of another version."""
    if at + 5 > stop:
        return -1
    kind = signed(data[at]) >> 4 & 3
    version = signed(data[at + 1]) << 24 | signed(data[at + 2]) << 16 | signed(data[at + 3]) << 8 | signed(data[at + 4])
    if version == _VERSION_1:
        return kind
    return (kind + 3) & 3 if version == _VERSION_2 else -1


@borrowing_inlined
def _number(data: UInt8Array, at: int, stop: int) -> tuple[int, int]:
    """A number of variable length (RFC 9000 §16) and where it ends; −1 if it is cut."""
    if at >= stop:
        return -1, at
    value = signed(data[at]) & 0x3F
    size = 1 << (signed(data[at]) >> 6)
    if at + size > stop:
        return -1, at
    for i in range(1, size):
        value = value << 8 | signed(data[at + i])
    return value, at + size


@borrowing_inlined
def _after_long(data: UInt8Array, at: int, stop: int) -> int:
    """Where the packet behind one with a long header begins; `stop` if that cannot be told."""
    kind = _long_type(data, at, stop)
    if kind < 0 or kind == _RETRY:
        return stop
    at += 5
    for _ in range(2):
        if at >= stop or signed(data[at]) > _MAX_CONNECTION_ID:
            return stop
        at += 1 + signed(data[at])
    if kind == _INITIAL:
        token, at = _number(data, at, stop)
        if token < 0 or token > stop - at:
            return stop
        at += token
    length, at = _number(data, at, stop)
    if length < 0 or length > stop - at:
        return stop
    return at + length


@borrowing_inlined
def _short_header(data: UInt8Array, start: int, stop: int) -> int:
    """The first byte of the packet with a short header in a datagram, `_ONLY_LONG` or `_NOT_QUIC`."""
    if start >= stop or (signed(data[start]) & (_LONG | _FIXED)) == 0:
        return _NOT_QUIC
    at = start
    for _ in range(_MAX_COALESCED):
        if at >= stop:
            return _ONLY_LONG
        first = signed(data[at])
        if (first & _LONG) == 0:
            # Behind the last packet there may be padding.
            return first if (first & _FIXED) != 0 else _ONLY_LONG
        at = _after_long(data, at, stop)
    return _ONLY_LONG


@borrowing_inlined
def _forget_evidence(tables: RttTables, row: int) -> None:
    words = tables.words
    words[row, _SCORE] = _BIAS
    words[row, _EDGES] = 0
    words[row, _STAYS] = 0
    tables.times[row, _SMOOTHED] = 0


@borrowing_inlined
def _begin(tables: RttTables, row: int) -> None:
    """Nothing is known of a direction."""
    times = tables.times
    tables.words[row, FLAGS] = _BEGUN
    times[row, _EDGE_TIME] = EMPTY
    times[row, _LAST_TIME] = EMPTY
    times[row, _SILENCE] = 0
    _forget_evidence(tables, row)


@borrowing_inlined
def _weigh(tables: RttTables, row: int, evidence: int) -> None:
    score = signed(tables.words[row, _SCORE]) + evidence
    tables.words[row, _SCORE] = min(max(score, 0), _BIAS + 2 * _TRUSTED)


@borrowing_inlined
def _weigh_turn(tables: RttTables, row: int, is_edge: bool) -> None:
    """Weigh what a direction did that was free to change, by what it did before."""
    words = tables.words
    edges, stays = signed(words[row, _EDGES]), signed(words[row, _STAYS])
    probability = ((edges if is_edge else stays) + 0.5) / (edges + stays + 1)
    _weigh(tables, row, signed(np.log(2 * probability) * _UNIT))
    edges, stays = edges + is_edge, stays + (not is_edge)
    if edges + stays > _LEARNT:
        edges, stays = edges >> 1, stays >> 1
    words[row, _EDGES] = edges
    words[row, _STAYS] = stays


@borrowing_inlined
def _weigh_alone(tables: RttTables, row: int, is_edge: bool, now: int) -> None:
    """Weigh what a direction did whose reverse is not in view."""
    words, times = tables.words, tables.times
    if not is_edge:
        if signed(words[row, _STAYS]) < _MOST_STAYS:
            words[row, _STAYS] += 1
            _weigh(tables, row, _STAYED)
        return
    words[row, _STAYS] = 0
    _weigh(tables, row, _CHANGED)
    smoothed, latest = times[row, _SMOOTHED], times[row, _EDGE_TIME]
    if smoothed > 0:
        is_regular = smoothed <= 2 * (now - latest) and now - latest <= 2 * smoothed
        _weigh(tables, row, _REGULAR if is_regular else _IRREGULAR)


@borrowing_inlined
def _is_trusted(tables: RttTables, row: int) -> bool:
    return signed(tables.words[row, _SCORE]) >= _BIAS + _TRUSTED


@borrowing_inlined
def _take_silence(tables: RttTables, row: int, now: int) -> int:
    """How long nobody had sent before this packet; noted for its direction."""
    times = tables.times
    latest = max(times[row, _LAST_TIME], times[row ^ 1, _LAST_TIME])
    silence = max(now - latest, 0) if latest != EMPTY else 0
    times[row, _SILENCE] = max(times[row, _SILENCE], silence)
    times[row, _LAST_TIME] = now
    return silence


@borrowing_inlined
def _note_of(tables: RttTables, timed_row: int, rtt: int, silence: int) -> int:
    least = tables.times[timed_row, MIN_RTT]
    if least != NO_RTT and rtt - least >= DELAYED_ACK_NS and 2 * silence > rtt:
        return _DELAYED
    return _NO_NOTE


@borrowing_inlined
def _edge(
    tables: RttTables, written: int, row: int, flow_id: int, now: int, silence: int, has_both: bool, mask: int
) -> int:
    """Take in a change of value that is in its turn: the samples that it ends, and the one that it begins."""
    words, times, counts = tables.words, tables.times, tables.counts
    other = row ^ 1
    start = times[other if has_both else row, _EDGE_TIME]
    trusted = _is_trusted(tables, row) and (not has_both or _is_trusted(tables, other))
    if start != EMPTY and has_both and 2 * times[other, _SILENCE] > now - start:
        counts[Count.QUIC_PAUSE] += 1
        words[row, FLAGS] |= _PAUSED
        words[other, FLAGS] |= _PAUSED
    elif start != EMPTY:
        smoothed = times[row, _SMOOTHED]
        times[row, _SMOOTHED] = smoothed + (now - start - smoothed) // 4 if smoothed > 0 else now - start
        if not trusted:
            counts[Count.QUIC_UNPROVEN] += 1
        elif has_both and (mask & (1 << _QUIC)) != 0:
            note = _note_of(tables, other, now - start, silence)
            written = write_sample(tables, written, other, flow_id, now, start, _QUIC, note)
    own = times[row, _EDGE_TIME]
    is_wanted = (mask & (1 << _WHOLE)) != 0 and (not has_both or (mask & WHOLE_ALWAYS) != 0)
    if is_wanted and trusted and own != EMPTY and (signed(words[row, FLAGS]) & _PAUSED) == 0:
        written = write_sample(tables, written, other, flow_id, now, own, _WHOLE, _NO_NOTE)
    words[row, FLAGS] = (signed(words[row, FLAGS]) ^ _VALUE) & ~_PAUSED
    times[row, _EDGE_TIME] = now
    times[row, _SILENCE] = 0
    return written


@borrowing_inlined
def _take_value(
    tables: RttTables, written: int, row: int, flow_id: int, is_server: bool, value: int, now: int, mask: int
) -> int:
    """Take in the spin value of one packet."""
    words, times = tables.words, tables.times
    state, reverse = signed(words[row, FLAGS]), signed(words[row ^ 1, FLAGS])
    silence = _take_silence(tables, row, now)
    has_both = (reverse & _KNOWN) != 0
    if (state & _KNOWN) == 0:
        words[row, FLAGS] = state | _KNOWN | value
        if has_both:
            _forget_evidence(tables, row ^ 1)
        return written
    is_edge = (state & _VALUE) != value
    are_equal = (state & _VALUE) == (reverse & _VALUE)
    may_change = not has_both or are_equal != is_server
    start = times[row ^ 1 if has_both else row, _EDGE_TIME]
    is_soon = start != EMPTY and now - start < times[row, _SMOOTHED] // (8 if has_both else 4)
    # A host close by answers in no time, or takes as long as it is busy.
    is_soon = is_soon and not (has_both and times[row ^ 1, _SMOOTHED] >= times[row, _SMOOTHED])
    if is_edge and (is_soon or not may_change):
        tables.counts[Count.QUIC_STRAGGLER] += 1
        _weigh(tables, row, _OUT_OF_TURN)
        return written
    if not has_both:
        _weigh_alone(tables, row, is_edge, now)
    elif may_change:
        _weigh_turn(tables, row, is_edge)
    else:
        _weigh(tables, row, _IN_TURN)
    if not is_edge:
        return written
    return _edge(tables, written, row, flow_id, now, silence, has_both, mask)


@borrowing_inlined
def read_datagram(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    offset: int,
    captured: int,
    flow_id: int,
    reverse_id: int,
    is_server: bool,
    now: int,
    mask: int,
) -> int:
    """Take in one datagram, of which `captured` bytes lie in `data` from `offset` on."""
    first = _short_header(data, offset, offset + captured)
    if first == _NOT_QUIC or flow_id == reverse_id:
        tables.counts[Count.NOT_QUIC] += 1
        return written
    low_id = min(flow_id, reverse_id)
    row = 2 * find_connection(tables, low_id, now) + (0 if flow_id == low_id else 1)
    is_new = (signed(tables.words[row, FLAGS]) & _BEGUN) == 0
    if (signed(data[offset]) & _LONG) != 0 and not is_server:
        is_new = is_new or _long_type(data, offset, offset + captured) == _INITIAL
    if is_new:
        _begin(tables, row)
        _begin(tables, row ^ 1)
    if first < 0:
        _take_silence(tables, row, now)
        return written
    return _take_value(tables, written, row, flow_id, is_server, (first & _SPIN) >> 5, now, mask)
