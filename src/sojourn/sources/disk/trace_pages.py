"""Pages of the kernel's trace ring, as `trace_pipe_raw` gives them: block IO events in, columns out.

The format is the one that the kernel describes in ``events/header_page``, ``events/header_event`` and the event's own
``format``; where the fields lie is read from there (`PageLayout`), nothing is assumed but little-endian words.

Guarantee: no byte outside of a page is read, whatever the bytes are; a page that contradicts itself is given up at that
place and counted. Cost: O(1) per event. Memory: 66 bytes per event.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array, UInt8Array
from sojourn.core.errors import SourceError
from sojourn.core.kernels import inlined, kernel

__all__ = ["COMM_BYTES", "EVENT", "PageLayout", "parse_pages"]

COMM_BYTES = 16
# One block IO: its thread, the time on the trace's clock, where it goes and what it is (the first two letters of the
# kernel's description, which begins with F for one that flushes first).
EVENT = np.dtype(
    [
        ("tid", np.int64),
        ("time_ns", np.int64),
        ("device", np.int64),
        ("sector", np.int64),
        ("sectors", np.int64),
        ("what", np.uint8, 2),
        ("comm", np.uint8, COMM_BYTES),
    ]
)

_FIELD = re.compile(r"field:\s*[^;]*?(\w+)(?:\[\d*\])?;\s*offset:(\d+);\s*size:(\d+);")
_ID = re.compile(r"^ID: (\d+)$", re.MULTILINE)
_FIELDS = ("common_type", "common_pid", "dev", "sector", "nr_sector", "rwbs", "comm")
_SIZES = {"common_type": (2,), "common_pid": (4,), "dev": (4,), "sector": (8, 4), "nr_sector": (4,)}
_MOST_OFFSET = 4096

# Kinds of entries of the ring; what is below is data of so many words.
_LARGEST_WORDS, _PADDING, _TIME_EXTEND, _TIME_STAMP = 28, 29, 30, 31
_DELTA_BITS = 27
_COMMIT_MASK = (1 << _DELTA_BITS) - 1


@dataclass(frozen=True)
class PageLayout:
    """Where things lie in a page (`header`: commit's place and size, data) and in an event (`offsets` of `_FIELDS`)."""

    event_id: int
    header: tuple[int, int, int]
    offsets: tuple[int, ...]
    sector_bytes: int

    @classmethod
    def described(cls, header_page: str, event_format: str) -> PageLayout:
        """The layout that the kernel describes; a `SourceError` where it is none that can be read here."""
        page = {name: (int(offset), int(size)) for name, offset, size in _FIELD.findall(header_page)}
        event = {name: (int(offset), int(size)) for name, offset, size in _FIELD.findall(event_format)}
        number = _ID.search(event_format)
        missing = [n for n in ("commit", "data") if n not in page] + [n for n in _FIELDS if n not in event]
        odd = [name for name, sizes in _SIZES.items() if name in event and event[name][1] not in sizes]
        if {"commit", "data"} <= page.keys() and not (
            page["commit"][0] >= 8 and page["commit"][1] in (4, 8) and sum(page["commit"]) <= page["data"][0]
        ):
            odd.append("commit")
        far = [name for name, (offset, _) in (page | event).items() if offset > _MOST_OFFSET]
        if sys.byteorder != "little" or number is None or missing or odd or far:
            raise SourceError(
                f"the kernel's trace format is of a kind unknown here ({', '.join(missing + odd + far) or 'event id'})",
                where="tracefs",
                action="use method=system_calls",
            )
        return cls(
            int(number.group(1)),
            (*page["commit"], page["data"][0]),
            tuple(event[name][0] for name in _FIELDS),
            event["sector"][1],
        )

    @property
    def event_bytes(self) -> int:
        """An event is no shorter."""
        return max(self.offsets[-1] + COMM_BYTES, self.offsets[-2] + 2)


@inlined
def _word(data: UInt8Array, place: int, size: int) -> int:
    """A little-endian number; the caller has checked that it lies within."""
    value = 0
    for i in range(size):
        value |= int(data[place + i]) << (8 * i)
    return value


@inlined
def _keep_event(data: UInt8Array, place: int, offsets: Int64Array, sector_bytes: int, now: int, event: Any) -> None:
    event["tid"] = _word(data, place + offsets[1], 4)
    event["time_ns"] = now
    event["device"] = _word(data, place + offsets[2], 4)
    event["sector"] = _word(data, place + offsets[3], sector_bytes)
    event["sectors"] = _word(data, place + offsets[4], 4)
    for i in range(2):
        event["what"][i] = data[place + offsets[5] + i]
    for i in range(COMM_BYTES):
        event["comm"][i] = data[place + offsets[6] + i]


@kernel
def _parse_page(
    data: UInt8Array,
    first: int,
    last: int,
    header: Int64Array,
    offsets: Int64Array,
    event_id: int,
    event_bytes: int,
    sector_bytes: int,
    events: Any,
    count: int,
) -> tuple[int, bool]:
    """Keep the block events of one page behind the `count` there are; how many there are now, and if it was whole."""
    place = first + header[2]
    if place > last or first + header[0] + header[1] > last:
        return count, False
    now = _word(data, first, 8)
    end = place + (_word(data, first + header[0], header[1]) & _COMMIT_MASK)
    if end > last:
        return count, False
    while place + 4 <= end:
        head = _word(data, place, 4)
        kind, delta = head & 31, head >> 5
        if kind == _PADDING and delta == 0:
            return count, True
        body, size = place + 4, 4 * kind
        if kind == 0 or kind > _LARGEST_WORDS:
            if place + 8 > end:
                return count, False
            word = _word(data, place + 4, 4)
            if kind == _TIME_STAMP:
                now, delta = (word << _DELTA_BITS) + delta, 0
            elif kind == _TIME_EXTEND:
                delta += word << _DELTA_BITS
            # A long event's length counts itself.
            body, size = place + 8, 0 if kind >= _TIME_EXTEND else word - 4
        now += delta
        if size < 0 or body + size > end:
            return count, False
        is_event = kind <= _LARGEST_WORDS and size >= event_bytes
        if is_event and _word(data, body + offsets[0], 2) == event_id:
            if count == len(events):
                return count, False
            _keep_event(data, body, offsets, sector_bytes, now, events[count])
            count += 1
        place = body + size
    return count, True


@kernel
def _parse_all(
    data: UInt8Array,
    page_bytes: int,
    header: Int64Array,
    offsets: Int64Array,
    event_id: int,
    event_bytes: int,
    sector_bytes: int,
    events: Any,
) -> tuple[int, int]:
    count = 0
    damaged = 0
    for first in range(0, len(data) - page_bytes + 1, page_bytes):
        last = first + page_bytes
        count, whole = _parse_page(
            data, first, last, header, offsets, event_id, event_bytes, sector_bytes, events, count
        )
        damaged += not whole
    return count, damaged


def parse_pages(data: bytes | bytearray, page_bytes: int, layout: PageLayout) -> tuple[NDArray[np.void], int]:
    """The block events of all pages, in their order, and how many pages were damaged."""
    pages = np.frombuffer(data, np.uint8)
    pages.flags.writeable = False  # one type, so that the kernel is compiled once
    events = np.zeros(len(pages) // layout.event_bytes, EVENT)
    count, damaged = _parse_all(
        pages,
        page_bytes,
        np.array(layout.header, np.int64),
        np.array(layout.offsets, np.int64),
        layout.event_id,
        layout.event_bytes,
        layout.sector_bytes,
        events,
    )
    return events[:count], damaged
