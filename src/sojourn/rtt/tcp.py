"""Round-trip times of TCP: handshake, time stamps, sequence numbers.

**Handshake**: a SYN to its SYN/ACK, a SYN/ACK to the first ACK of it; none when either was repeated.
SYN segments give samples of this kind alone.

**Time stamps** (RFC 7323, as pping does): the first segment that carries a TSval is timed, the first
TSecr that echoes it ends the sample. Timed are segments with data or FIN whose TSval is newer than any
seen in that direction; a pure ACK is not (nothing answers it), but it uses its TSval up, for the echo
could be the ACK's. The first TSval of a connection whose SYN was not seen is not timed: it may be older
than the capture.

**SEQ/ACK**: a segment with new data (or FIN) to the first ACK that ends exactly where it ends. After
a retransmission no ACK of anything sent before it gives a sample (Karn: RFC 6298 §3, held to the whole
flight, since the ACK that a retransmission releases covers later segments too). A segment that arrives
out of order is taken for a retransmission. An ACK at or below what was already SACKed gives no sample:
what it covers arrived earlier.

A keep-alive (0 or 1 byte below the next sequence number, everything acknowledged) is not timed. A probe
of a closed window cannot give a wrong sample: its byte is either accepted or sent again.

Time: O(1) per segment.
"""

from __future__ import annotations

from sojourn.core.kernels import borrowing_inlined
from sojourn.rtt.state import (
    ACK_KNOWN,
    AMBIGUOUS,
    AMBIGUOUS_UNTIL,
    AUX_LIMIT,
    ECHO_KNOWN,
    EMPTY,
    FLAGS,
    HIGHEST_ACK,
    KEY,
    MIN_RTT,
    MQTT_KNOWN,
    MQTT_NEXT,
    NEWEST_ECHO,
    NEWEST_TSVAL,
    NEXT_SEQ,
    NO_RTT,
    SACK_HIGH,
    SACKED,
    SEQ_KNOWN,
    SYN_ACK_SENT,
    SYN_SEEN,
    SYN_SENT,
    SYN_TIME,
    TIME,
    TSVAL_KNOWN,
    WORD,
    Count,
    Kind,
    Note,
    RttTables,
    UInt32Array,
    add_pending,
    find_pending,
    pending_key,
    serial_difference,
    signed,
    take_pending,
    write_sample,
)

# The shortest time for which a common receiver holds an ACK back (Linux' TCP_DELACK_MIN).
DELAYED_ACK_NS = 40_000_000
# What a SYN may carry (TCP fast open) and its answer may leave unacknowledged.
_FAST_OPEN_LIMIT = 0x10000
_NO_NOTE, _COVERS_SEVERAL, _DELAYED = int(Note.NONE), int(Note.COVERS_SEVERAL), int(Note.DELAYED)
_HANDSHAKE = int(Kind.HANDSHAKE)
_TIMESTAMPS = int(Kind.TIMESTAMPS)
_SEQ = int(Kind.SEQ)


@borrowing_inlined
def open_connection(
    tables: RttTables,
    written: int,
    row: int,
    reverse_row: int,
    flow_id: int,
    is_answer: bool,
    seq: int,
    ack: int,
    length: int,
    now: int,
    wanted: bool,
) -> int:
    """Take in a SYN or a SYN/ACK; the latter answers a SYN of the reverse direction."""
    words, times = tables.words, tables.times
    state = signed(words[row, FLAGS])
    end = (seq + 1 + length) & WORD
    if (state & SYN_SEEN) != 0 and words[row, NEXT_SEQ] == end:
        if (state & (SYN_SENT | SYN_ACK_SENT)) != 0:
            tables.counts[Count.HANDSHAKE_REPEATED] += 1
        words[row, FLAGS] = state & ~(SYN_SENT | SYN_ACK_SENT)
    else:
        sent = SYN_ACK_SENT if is_answer else SYN_SENT
        words[row, FLAGS] = SEQ_KNOWN | SYN_SEEN | MQTT_KNOWN | sent
        words[row, NEXT_SEQ] = end
        words[row, MQTT_NEXT] = (seq + 1) & WORD
        times[row, SYN_TIME] = now
    if not is_answer:
        return written
    reverse = signed(words[reverse_row, FLAGS])
    unacknowledged = (signed(words[reverse_row, NEXT_SEQ]) - ack) & WORD
    if (reverse & SYN_SENT) != 0 and unacknowledged < _FAST_OPEN_LIMIT:
        if wanted:
            sent_ns = times[reverse_row, SYN_TIME]
            written = write_sample(tables, written, reverse_row, flow_id, now, sent_ns, _HANDSHAKE, _NO_NOTE)
        words[reverse_row, FLAGS] = (reverse & ~SYN_SENT) | ACK_KNOWN
        words[reverse_row, HIGHEST_ACK] = ack
    return written


@borrowing_inlined
def echo_timestamp(
    tables: RttTables, written: int, reverse_row: int, flow_id: int, reverse_id: int, tsecr: int, now: int
) -> int:
    """A TSecr that no earlier one equals or exceeds ends the sample of the TSval it echoes."""
    words = tables.words
    state = signed(words[reverse_row, FLAGS])
    if (state & TSVAL_KNOWN) == 0:
        return written
    if (state & ECHO_KNOWN) != 0 and serial_difference(tsecr, signed(words[reverse_row, NEWEST_ECHO])) <= 0:
        return written
    sent = take_pending(tables, pending_key(reverse_id, _TIMESTAMPS, tsecr))
    if sent == EMPTY:
        return written
    words[reverse_row, FLAGS] = state | ECHO_KNOWN
    words[reverse_row, NEWEST_ECHO] = tsecr
    return write_sample(tables, written, reverse_row, flow_id, now, sent, _TIMESTAMPS, _NO_NOTE)


@borrowing_inlined
def _is_ambiguous(tables: RttTables, row: int, state: int, ack: int) -> bool:
    """Whether Karn's rule or an earlier SACK forbids a sample from this ACK."""
    words, counts = tables.words, tables.counts
    if (state & AMBIGUOUS) != 0 and serial_difference(ack, signed(words[row, AMBIGUOUS_UNTIL])) <= 0:
        counts[Count.ACK_AFTER_RETRANSMISSION] += 1
        return True
    if (state & SACKED) != 0 and serial_difference(ack, signed(words[row, SACK_HIGH])) <= 0:
        counts[Count.ACK_AFTER_SACK] += 1
        return True
    return False


@borrowing_inlined
def _note_of(tables: RttTables, row: int, state: int, ack: int, length: int, rtt: int) -> int:
    """Whether an ACK covers more than one segment, or waited in vain for a second one."""
    words, times = tables.words, tables.times
    if (state & ACK_KNOWN) == 0:
        return _NO_NOTE
    covered = serial_difference(ack, signed(words[row, HIGHEST_ACK]))
    if covered > length and length < AUX_LIMIT:
        return _COVERS_SEVERAL
    lowest = times[row, MIN_RTT]
    if lowest != NO_RTT and rtt - lowest >= DELAYED_ACK_NS and signed(words[row, NEXT_SEQ]) == ack:
        return _DELAYED
    return _NO_NOTE


@borrowing_inlined
def _after_ack(words: UInt32Array, row: int, state: int, ack: int, is_new: bool, has_sack: bool, sack_high: int) -> int:
    """What is known of a direction's data once an ACK was taken in."""
    if is_new:
        words[row, HIGHEST_ACK] = ack
        state |= ACK_KNOWN
        if (state & AMBIGUOUS) != 0 and serial_difference(ack, signed(words[row, AMBIGUOUS_UNTIL])) >= 0:
            state &= ~AMBIGUOUS
        if (state & SACKED) != 0 and serial_difference(ack, signed(words[row, SACK_HIGH])) >= 0:
            state &= ~SACKED
    if has_sack and serial_difference(sack_high, ack) > 0:
        is_higher = serial_difference(sack_high, signed(words[row, SACK_HIGH])) > 0
        if (state & SACKED) == 0 or is_higher:
            words[row, SACK_HIGH] = sack_high
            state |= SACKED
    return state


@borrowing_inlined
def acknowledge(
    tables: RttTables,
    written: int,
    reverse_row: int,
    flow_id: int,
    reverse_id: int,
    ack: int,
    has_sack: bool,
    sack_high: int,
    now: int,
    wanted_handshake: bool,
    wanted_seq: bool,
) -> int:
    """Take in an ACK: of a SYN/ACK, of data that is timed, or of nothing new."""
    words, pending = tables.words, tables.pending
    state = signed(words[reverse_row, FLAGS])
    is_new = (state & ACK_KNOWN) == 0 or serial_difference(ack, signed(words[reverse_row, HIGHEST_ACK])) > 0
    if (state & SYN_ACK_SENT) != 0:
        if signed(words[reverse_row, NEXT_SEQ]) == ack:
            state &= ~SYN_ACK_SENT
            if wanted_handshake:
                sent = tables.times[reverse_row, SYN_TIME]
                written = write_sample(tables, written, reverse_row, flow_id, now, sent, _HANDSHAKE, _NO_NOTE)
    elif wanted_seq and is_new and (state & SEQ_KNOWN) != 0:
        place = find_pending(tables, pending_key(reverse_id, _SEQ, ack))
        if place >= 0:
            sent = pending[place, TIME]
            length = pending[place, KEY] & AUX_LIMIT
            pending[place, TIME] = EMPTY
            if not _is_ambiguous(tables, reverse_row, state, ack):
                note = _note_of(tables, reverse_row, state, ack, length, now - sent)
                written = write_sample(tables, written, reverse_row, flow_id, now, sent, _SEQ, note)
    words[reverse_row, FLAGS] = _after_ack(words, reverse_row, state, ack, is_new, has_sack, sack_high)
    return written


@borrowing_inlined
def _advance(
    tables: RttTables, row: int, state: int, flow_id: int, seq: int, occupied: int, now: int, wanted: bool
) -> int:
    """Move a direction's sequence numbers on; time new data, mark what is ambiguous after old."""
    words = tables.words
    end = (seq + occupied) & WORD
    behind = 0
    if (state & SEQ_KNOWN) != 0:
        behind = serial_difference(signed(words[row, NEXT_SEQ]), seq)
    # Who sends data no longer waits for an answer to its SYN alone.
    state &= ~(SYN_SENT | SYN_ACK_SENT)
    if behind <= 0:
        if wanted:
            aux = min(occupied, AUX_LIMIT)
            add_pending(tables, pending_key(flow_id, _SEQ, end), aux, now)
        words[row, NEXT_SEQ] = end
        return state | SEQ_KNOWN
    tables.counts[Count.RETRANSMITTED] += 1
    if serial_difference(end, signed(words[row, NEXT_SEQ])) > 0:
        words[row, NEXT_SEQ] = end
    words[row, AMBIGUOUS_UNTIL] = words[row, NEXT_SEQ]
    return state | AMBIGUOUS


@borrowing_inlined
def _is_keep_alive(words: UInt32Array, row: int, state: int, seq: int, length: int) -> bool:
    known = SEQ_KNOWN | ACK_KNOWN
    if length > 1 or (state & known) != known:
        return False
    following = signed(words[row, NEXT_SEQ])
    return ((following - 1) & WORD) == seq and signed(words[row, HIGHEST_ACK]) == following


@borrowing_inlined
def send_segment(
    tables: RttTables,
    row: int,
    flow_id: int,
    seq: int,
    length: int,
    has_fin: bool,
    has_timestamps: bool,
    tsval: int,
    now: int,
    wanted_timestamps: bool,
    wanted_seq: bool,
) -> None:
    """Take in what a segment sends: its sequence range and its TSval."""
    words = tables.words
    state = signed(words[row, FLAGS])
    timed = False
    if not has_fin and _is_keep_alive(words, row, state, seq, length):
        tables.counts[Count.KEEP_ALIVE] += 1
    elif length > 0 or has_fin:
        timed = True
        occupied = length + (1 if has_fin else 0)
        state = _advance(tables, row, state, flow_id, seq, occupied, now, wanted_seq)
    if has_timestamps:
        if (state & TSVAL_KNOWN) == 0:
            words[row, NEWEST_TSVAL] = tsval
            state |= TSVAL_KNOWN
        elif serial_difference(tsval, signed(words[row, NEWEST_TSVAL])) > 0:
            words[row, NEWEST_TSVAL] = tsval
            if timed and wanted_timestamps:
                add_pending(tables, pending_key(flow_id, _TIMESTAMPS, tsval), 0, now)
    words[row, FLAGS] = state
