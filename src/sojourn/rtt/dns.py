"""Round-trip times of DNS over UDP: a query to its response, by addresses, ports, id and question.

The question (name in any case, type, class) and the operation must be the same, as resolvers demand. A query that is
repeated with its id before an answer came gives no sample. A message without exactly one question, or with a name that
is compressed, overlong or has an overlong label, is counted; so is one whose question was not captured whole.

These are answers of the resolver: the time includes its work, and its own questions to others.

Guarantee: reads nothing outside the captured bytes; a name has at most 255. Time: O(length of the name).
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import UInt8Array
from sojourn.core.kernels import borrowing_inlined
from sojourn.rtt.state import (
    EMPTY,
    Count,
    Kind,
    RttTables,
    await_once,
    pending_key,
    signed,
    take_pending,
    write_answer,
)

_DNS = int(Kind.DNS)
_HEADER_BYTES = 12
_IS_RESPONSE = 0x80
_OPERATION = 0x78
_MAX_NAME_BYTES = 255
_MAX_LABEL_BYTES = 63
# What a question turned out to be, where there is none to read.
_CUT, _MALFORMED = -1, -2
# FNV-1a of 64 bits.
_OFFSET_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@borrowing_inlined
def _question_end(data: UInt8Array, at: int, stop: int) -> int:
    """Where the question that begins at `at` ends, `_CUT` or `_MALFORMED`."""
    start = at
    while at - start < _MAX_NAME_BYTES:
        if at >= stop:
            return _CUT
        size = signed(data[at])
        if size == 0:
            return at + 5 if at + 5 <= stop else _CUT
        if size > _MAX_LABEL_BYTES:
            return _MALFORMED
        at += 1 + size
    return _MALFORMED


@borrowing_inlined
def _hashed(number: np.uint64, byte: int) -> np.uint64:
    # In names the case of letters means nothing; elsewhere nothing is lost that tells questions apart in practice.
    folded = byte + 32 if 65 <= byte <= 90 else byte
    return (number ^ np.uint64(folded)) * _PRIME


@borrowing_inlined
def _exchange(data: UInt8Array, start: int, end: int) -> int:
    """The number of the exchange that a message belongs to: a hash of its id, operation and question."""
    number = _hashed(_OFFSET_BASIS, signed(data[start + 2]) & _OPERATION)
    for at in range(start, start + 2):
        number = (number ^ np.uint64(data[at])) * _PRIME
    for at in range(start + _HEADER_BYTES, end):
        number = _hashed(number, signed(data[at]))
    return signed(number)


@borrowing_inlined
def read_message(
    tables: RttTables,
    written: int,
    data: UInt8Array,
    offset: int,
    length: int,
    captured: int,
    flow_id: int,
    reverse_id: int,
    now: int,
) -> int:
    """Await the answer to a query, or end the sample of the one that a response answers."""
    stop = offset + captured
    end = _MALFORMED
    if captured < _HEADER_BYTES:
        end = _CUT
    elif signed(data[offset + 4]) == 0 and signed(data[offset + 5]) == 1:
        end = _question_end(data, offset + _HEADER_BYTES, stop)
    if end < 0:
        is_cut = end == _CUT and captured < length
        tables.counts[Count.DNS_TRUNCATED if is_cut else Count.DNS_MALFORMED] += 1
        return written
    number = _exchange(data, offset, end)
    if (signed(data[offset + 2]) & _IS_RESPONSE) == 0:
        await_once(tables, pending_key(flow_id, _DNS, number), now, False, Count.DNS_REPEATED)
        return written
    sent = take_pending(tables, pending_key(reverse_id, _DNS, number))
    if sent == EMPTY:
        return written
    return write_answer(tables, written, flow_id, reverse_id, now, sent, _DNS)
