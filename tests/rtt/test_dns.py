"""DNS round trips: a query and the response with its id and question, read as a plain parser reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rtt_worlds import MS, SMALL, Packet, Sample, batch_of, flow_id, samples_of

from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind

STUB, RESOLVER = ("10.0.0.9", 40_001), ("10.0.0.2", 53)
A, AAAA = 1, 28
MALFORMED = "dns messages without one readable question"
CUT = "dns messages not captured whole"


def name_bytes(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def message(
    number: int, name: bytes, kind: int = A, *, is_response: bool = False, flags: int = 0, count: int = 1
) -> bytes:
    header = number.to_bytes(2, "big") + (is_response << 15 | 0x0100 | flags).to_bytes(2, "big")
    question = name + kind.to_bytes(2, "big") + b"\0\1"
    return header + count.to_bytes(2, "big") + bytes(6) + question + (b"\xc0\x0c answer" if is_response else b"")


def query(number: int, name: str = "www.example.org", kind: int = A) -> bytes:
    return message(number, name_bytes(name), kind)


def response(number: int, name: str = "www.example.org", kind: int = A, flags: int = 0) -> bytes:
    return message(number, name_bytes(name), kind, is_response=True, flags=flags)


def exchange(*sent: bytes, every: int = MS) -> list[Packet]:
    """Messages in order, each from the side that its QR bit says."""
    return [
        Packet(i * every, *((RESOLVER, STUB) if len(p) > 2 and p[2] & 0x80 else (STUB, RESOLVER)), 17, payload=p)
        for i, p in enumerate(sent)
    ]


def measured(packets: Sequence[Packet], **options: int) -> tuple[list[Sample], dict[str, int]]:
    meter = RttMeter(RttOptions(limits=SMALL))
    return samples_of(packets, meter=meter, **options), meter.ignored


def rtts(*sent: bytes) -> list[int]:
    return [s.rtt for s in measured(exchange(*sent))[0]]


def test_a_query_is_timed_until_its_response_and_named_by_the_resolver() -> None:
    packets = exchange(query(7), response(7), every=3 * MS)
    assert measured(packets) == ([Sample(3 * MS, flow_id(packets[1]), 3 * MS, Kind.DNS)], {})


def test_responses_come_in_any_order() -> None:
    sent = query(1), query(2), query(3, kind=AAAA), response(3, kind=AAAA), response(1), response(2)
    assert rtts(*sent) == [MS, 4 * MS, 4 * MS]


@pytest.mark.parametrize(
    "other",
    [
        response(8),
        response(7, "www.example.net"),
        response(7, kind=AAAA),
        response(7, flags=0x2000),  # another operation
    ],
)
def test_what_answers_another_question_ends_nothing(other: bytes) -> None:
    assert rtts(query(7), other, response(7)) == [2 * MS]


def test_another_port_ends_nothing() -> None:
    packets = exchange(query(7), response(7))
    packets[1] = Packet(MS, RESOLVER, (STUB[0], STUB[1] + 1), 17, payload=response(7))
    assert measured(packets)[0] == []


def test_the_case_of_a_name_means_nothing() -> None:
    assert rtts(query(7, "wWw.ExAmPlE.oRg"), response(7)) == [MS]


def test_a_repeated_query_gives_no_sample_and_is_counted() -> None:
    found, ignored = measured(exchange(query(7), query(7), response(7)))
    assert (found, ignored) == ([], {"dns queries repeated unanswered": 1})
    assert rtts(query(7), response(7), query(7), response(7)) == [MS, MS]


def test_the_root_and_the_longest_name_are_read() -> None:
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(name_bytes(longest)) == 255
    assert rtts(query(1, ""), response(1, "")) == [MS]
    assert rtts(query(1, longest), response(1, longest)) == [MS]


@pytest.mark.parametrize(
    "bad",
    [
        message(1, b"\xc0\x0c"),  # a pointer to itself
        message(1, b"\3www\xc0\x0c"),
        message(1, b"\x40" + b"a" * 64 + b"\0"),
        message(1, name_bytes(".".join(["a" * 63] * 4))),
        message(1, name_bytes("a"), count=0),
        message(1, name_bytes("a"), count=2),
        message(1, name_bytes("a"), count=257),
        message(1, b"\3ww"),
        b"\0\1\1\0\0\1",
        b"",
    ],
)
def test_what_has_no_readable_question_is_counted(bad: bytes) -> None:
    assert measured(exchange(bad)) == ([], {MALFORMED: 1})


@pytest.mark.parametrize("snap", [0, 11, 12, 20, 32])
def test_a_question_beyond_the_snap_length_is_counted(snap: int) -> None:
    packets = exchange(query(7), response(7))
    assert len(query(7)) == 33
    assert measured(packets, snap=33)[0] != []
    assert measured(packets, snap=snap) == ([], {CUT: 2})


def test_ports_of_servers_are_an_option() -> None:
    moved = [Packet(0, STUB, ("10.0.0.2", 5353), 17, payload=query(1))]
    moved.append(Packet(MS, ("10.0.0.2", 5353), STUB, 17, payload=response(1)))
    assert measured(moved)[0] == []
    meter = RttMeter(RttOptions(limits=SMALL, dns_ports=frozenset({5353})))
    assert [s.kind for s in samples_of(moved, meter=meter)] == [Kind.DNS]


def test_tcp_is_not_read() -> None:
    packets = [Packet(p.time_ns, p.src, p.dest, 6, payload=p.payload) for p in exchange(query(1), response(1))]
    assert [s for s in measured(packets)[0] if s.kind is Kind.DNS] == []


def parsed(payload: bytes) -> tuple[bool, tuple[object, ...]] | None:
    """Whether a message is a response, and its exchange; None for what cannot be read. Plain Python."""
    if len(payload) < 12 or payload[4:6] != b"\0\1":
        return None
    at = 12
    while at < len(payload) and payload[at]:
        if payload[at] > 63:
            return None
        at += 1 + payload[at]
    if at - 12 >= 255 or at + 5 > len(payload):
        return None
    return bool(payload[2] & 0x80), (payload[:2], payload[2] & 0x78, payload[12 : at + 5].lower())


def modelled(packets: Sequence[Packet]) -> list[tuple[int, int]]:
    waiting: dict[object, int] = {}
    found = []
    for p in packets:
        if (read := parsed(p.payload)) is None:
            continue
        is_response, number = read
        if is_response:
            start = waiting.pop((p.reverse, number), None)
            found += [] if start is None else [(p.time_ns, p.time_ns - start)]
        elif (p.flow, number) in waiting:
            del waiting[p.flow, number]
        else:
            waiting[p.flow, number] = p.time_ns
    return found


names = st.one_of(st.sampled_from(["a", "A", "b.a", ""]).map(name_bytes), st.binary(max_size=5))
messages = st.one_of(
    st.builds(message, st.integers(0, 2), names, st.integers(0, 1), is_response=st.booleans(), count=st.integers(0, 2)),
    st.binary(max_size=30),
)


@given(st.lists(messages, max_size=20))
def test_kernel_and_plain_parser_agree_on_messages_and_noise(sent: list[bytes]) -> None:
    packets = exchange(*sent)
    assert [(s.time_ns, s.rtt) for s in measured(packets)[0]] == modelled(packets)


@given(st.lists(messages, max_size=8), st.integers(0, 30), st.binary(min_size=40, max_size=40))
def test_bytes_that_were_not_captured_are_never_looked_at(sent: list[bytes], snap: int, behind: bytes) -> None:
    batch = batch_of(exchange(*sent), snap=snap)
    results = []
    for tail in (b"", behind):
        object.__setattr__(batch, "data", np.frombuffer(batch.data.tobytes() + tail, np.uint8))
        meter = RttMeter(RttOptions(limits=SMALL))
        results.append(([list(s.rows()) for s in meter.feed(batch)], meter.ignored))
    assert results[0] == results[1]
