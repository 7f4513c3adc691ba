"""Packets of a sink on the wire: a CBOR sequence (RFC 8742), small enough for a sink to write by hand.

::

    packet = [origin, sequence, [node, …], t0_ns, sink_ns, sum_ms]

Times are whole ns; ``sum_ms`` is S as the two bytes of its node hold it, null or 65 535 where it is not known. Decoding
is as strict as that of epochs; a packet of the wrong shape is counted by reason, bytes that are no CBOR end it all.
Cost: about 3 µs for a packet.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator

import cbor2

from sojourn.epochs.wire import load_item
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, PacketRow

__all__ = ["decode_packets", "encode_packets"]

FIELDS = 6
NS_PER_MS = 1_000_000
LARGEST = 1 << 62


def encode_packets(rows: Iterable[PacketRow]) -> bytes:
    """Rows as bytes, one after the other."""
    return b"".join(
        cbor2.dumps([origin, sequence, path, t0, at_sink, None if total < 0 else round(total / NS_PER_MS)])
        for origin, sequence, path, t0, at_sink, total in rows
    )


def decode_packets(data: bytes, faults: Counter[str]) -> Iterator[PacketRow]:
    """The rows in `data`; those that are none are counted by reason."""
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        item = load_item(stream, f"packet at byte {stream.tell()}", depth=2, what="a packet")
        row = _row(item)
        if row is None:
            faults["packet that is not six fields of whole numbers"] += 1
        else:
            yield row


def _row(item: object) -> PacketRow | None:
    if not isinstance(item, list) or len(item) != FIELDS or not isinstance(item[2], list):
        return None
    origin, sequence, path, t0, at_sink, sum_ms = item
    total = MISSING if sum_ms is None else sum_ms
    if not all(type(number) is int and abs(number) < LARGEST for number in (origin, sequence, t0, at_sink, total)):
        return None
    if not all(type(node) is int and abs(node) < LARGEST for node in path):
        return None
    return origin, sequence, path, t0, at_sink, MISSING if total < 0 else min(total * NS_PER_MS, SUM_LIMIT_NS)
