"""The kernel's trace pages: a recorded one, built ones against a plain model, and bytes that are no pages."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import SourceError
from sojourn.sources.block_trace import BlockIo, PageLayout, parse_pages

HEADER_PAGE = """\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
"""
FORMAT = """\
name: block_bio_queue
ID: 2097
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;
\tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;
\tfield:char rwbs[10];\toffset:28;\tsize:10;\tsigned:0;
\tfield:char comm[16];\toffset:38;\tsize:16;\tsigned:0;
"""
LAYOUT = PageLayout.described(HEADER_PAGE, FORMAT)
PAGE = 4096
EVENT_ID = 2097

# The first two events of a page that Linux 6.18 gave for a dd with direct writes.
RECORDED = bytes.fromhex(
    "2921c5f8fb0a0000 7800000000000000"
    "0e000000 31080000 7e790000 0000e00f 00000000 f0f7c801 00000000 08000000"
    "52410000000000000000 64640000000000000000000000000000 0000"
    "ae0e9201 31080000 7e790000 0000e00f 00000000 b02b580a 00000000 08000000"
    "57530000000000000000 64640000000000000000000000000000 0000"
)


@dataclass
class Built:
    """A page as it is written: entries and, in step, the times and events a reader should find."""

    start_ns: int = 1_000_000
    data: bytes = b""
    events: list[tuple[int, int, int, int, int, bytes, bytes]] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.now = self.start_ns

    def _head(self, kind: int, delta: int) -> bytes:
        return struct.pack("<I", kind | delta << 5)

    def event(self, delta: int, tid: int, *, event_id: int = EVENT_ID, long: bool = False) -> None:
        device, sector, sectors = 254 << 20 | 3, (1 << 40) + tid, tid % 300
        fixed = struct.pack("<HBBiI4xQI", event_id, 0, 0, tid, device, sector, sectors)
        body = (fixed + b"WS".ljust(10, b"\0") + b"worker".ljust(16, b"\0")).ljust(56, b"\0")
        if long:
            self.data += self._head(0, delta) + struct.pack("<I", len(body) + 4) + body
        else:
            self.data += self._head(len(body) // 4, delta) + body
        self.now += delta
        if event_id == EVENT_ID:
            self.events.append((tid, self.now, device, sector, sectors, b"WS", b"worker"))

    def time_extend(self, delta: int) -> None:
        self.data += self._head(30, delta & (1 << 27) - 1) + struct.pack("<I", delta >> 27)
        self.now += delta

    def time_stamp(self, time_ns: int) -> None:
        self.data += self._head(31, time_ns & (1 << 27) - 1) + struct.pack("<I", time_ns >> 27)
        self.now = time_ns

    def discarded(self, delta: int, words: int) -> None:
        self.data += self._head(29, delta) + struct.pack("<I", 4 * words + 4) + bytes(4 * words)
        self.now += delta

    def padding(self) -> None:
        self.data += self._head(29, 0) + b"\xff" * 8

    def page(self, flags: int = 0) -> bytes:
        return (struct.pack("<QQ", self.start_ns, len(self.data) | flags) + self.data).ljust(PAGE, b"\0")


def plain(events: list[BlockIo]) -> list[tuple[int, int, int, int, int, bytes, bytes]]:
    return [(*event[:5], event.what, event.comm.rstrip(b"\0")) for event in events]


def test_a_recorded_page_is_read() -> None:
    events, damaged = parse_pages(RECORDED.ljust(PAGE, b"\0"), PAGE, LAYOUT)
    first = int.from_bytes(RECORDED[:8], "little")
    assert damaged == 0
    assert plain(events) == [
        (31102, first, 254 << 20, 29947888, 8, b"RA", b"dd"),
        (31102, first + (0x01920EAE >> 5), 254 << 20, 173550512, 8, b"WS", b"dd"),
    ]


def test_long_pauses_and_absolute_times_are_followed() -> None:
    built = Built()
    built.event(5, 1)
    built.time_extend(1 << 40 | 12345)
    built.event(6, 2, long=True)
    built.discarded(1000, 3)
    built.event(7, 3)
    built.time_stamp(1 << 50 | 77)
    built.event(8, 4)
    events, damaged = parse_pages(built.page(), PAGE, LAYOUT)
    assert damaged == 0
    assert plain(events) == built.events


events = st.tuples(st.just("event"), st.integers(0, (1 << 27) - 1), st.integers(1, 1 << 22))
entries = st.one_of(
    events,
    events,
    events,
    st.tuples(st.just("time_extend"), st.integers(0, 1 << 50)),
    st.tuples(st.just("time_stamp"), st.integers(1 << 40, 1 << 58)),
    st.tuples(st.just("discarded"), st.integers(1, 1000), st.integers(0, 20)),
)


@given(
    st.lists(st.lists(st.tuples(entries, st.booleans(), st.booleans()), max_size=40), min_size=1, max_size=4),
    st.sampled_from([0, 1 << 30, 1 << 31]),
)
def test_built_pages_are_read_as_they_were_written(
    pages: list[list[tuple[tuple[object, ...], bool, bool]]], flags: int
) -> None:
    data, expected = b"", []
    for page in pages:
        built = Built()
        for (kind, *numbers), long, foreign in page:
            options = {"long": long, "event_id": 3 if foreign else EVENT_ID} if kind == "event" else {}
            getattr(built, str(kind))(*numbers, **options)
        built.padding()
        data += built.page(flags)
        expected += built.events
    events, damaged = parse_pages(data, PAGE, LAYOUT)
    assert damaged == 0
    assert plain(events) == expected


@given(st.binary(max_size=3 * PAGE), st.integers(0, 1 << 32))
def test_bytes_that_are_no_pages_harm_nothing(data: bytes, commit: int) -> None:
    """Every event must lie in the page: there cannot be more than fit."""
    data = data[:8] + struct.pack("<Q", commit) + data[16:]
    events, _ = parse_pages(data.ljust(PAGE, b"\x0e"), PAGE, LAYOUT)
    assert len(events) <= 3 * PAGE // 58 + 1


@pytest.mark.parametrize("cut", range(16, 76, 4))
def test_a_page_that_promises_too_much_is_counted(cut: int) -> None:
    """The commit says more than there is: an event that would end outside is not given."""
    built = Built()
    built.event(5, 77)
    built.event(5, 78)
    page = built.page()[: cut + 16]
    events, damaged = parse_pages(page, len(page), LAYOUT)
    assert len(events) == 0
    assert damaged == 1


def test_an_entry_that_runs_over_the_end_is_damage() -> None:
    built = Built()
    built.event(5, 77)
    built.data += struct.pack("<II", 0, 4000)
    events, damaged = parse_pages(built.page(), PAGE, LAYOUT)
    assert (len(events), damaged) == (1, 1)
    built.data = built.data[:-8] + struct.pack("<II", 0, 2)
    assert parse_pages(built.page(), PAGE, LAYOUT)[1] == 1


def test_the_layout_is_the_kernels() -> None:
    assert PageLayout(EVENT_ID, (8, 8, 16), (0, 4, 8, 16, 24, 28, 38), 8) == LAYOUT
    moved = FORMAT.replace("offset:38", "offset:40")
    assert PageLayout.described(HEADER_PAGE, moved) == replace(LAYOUT, offsets=(0, 4, 8, 16, 24, 28, 40))


@pytest.mark.parametrize(
    ("header", "event"),
    [
        ("", FORMAT),
        (HEADER_PAGE, ""),
        (HEADER_PAGE, FORMAT.replace("comm[16]", "command[16]")),
        (HEADER_PAGE, FORMAT.replace("offset:16;\tsize:8", "offset:16;\tsize:3")),
        (HEADER_PAGE.replace("offset:16", "offset:999999"), FORMAT),
        (HEADER_PAGE.replace("offset:16", "offset:4"), FORMAT),
        (HEADER_PAGE, FORMAT.replace("ID: 2097", "ID: many")),
    ],
)
def test_a_format_of_another_kind_is_refused(header: str, event: str) -> None:
    with pytest.raises(SourceError, match="trace format"):
        PageLayout.described(header, event)
