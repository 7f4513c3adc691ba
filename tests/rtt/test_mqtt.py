"""MQTT round trips: read from payload bytes as a plain parser reads them, never beyond what was captured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rtt_worlds import MS, SMALL, Packet, Sample, batch_of, flow_id, samples_of

from sojourn.capture.decode.transport import ACK, SYN
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, RttLimits

DEVICE, BROKER = ("10.0.0.9", 50_001), ("10.0.0.2", 1883)
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def message(first: int, body: bytes) -> bytes:
    """A message with its remaining length in groups of seven bits."""
    size, length = len(body), b""
    while True:
        size, group = size >> 7, size & 127
        length += bytes([group | 128 if size else group])
        if not size:
            return bytes([first]) + length + body


def publish(packet_id: int, *, qos: int = 1, topic: bytes = b"t/1", payload: bytes = b"x", dup: bool = False) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return message(0x30 | qos << 1 | dup << 3, len(topic).to_bytes(2, "big") + topic + number + payload)


def puback(packet_id: int) -> bytes:
    return message(0x40, packet_id.to_bytes(2, "big"))


class Stream:
    """A connection whose segments carry the bytes given, in sequence from its SYN on."""

    def __init__(self, *, with_syn: bool = True) -> None:
        self.packets: list[Packet] = []
        self.now = 0
        self.seq = {DEVICE: 2**32 - 20, BROKER: 500}
        if with_syn:
            self.packets += [
                Packet(0, DEVICE, BROKER, flags=SYN, seq=self.seq[DEVICE] - 1),
                Packet(0, BROKER, DEVICE, flags=SYN | ACK, seq=self.seq[BROKER] - 1, ack=self.seq[DEVICE]),
            ]

    def send(self, src: tuple[str, int], payload: bytes, *, after: int = MS) -> Stream:
        self.now += after
        dest = BROKER if src == DEVICE else DEVICE
        self.packets.append(Packet(self.now, src, dest, seq=self.seq[src], payload=payload, flags=ACK))
        self.seq[src] += len(payload)
        return self

    def samples(self, *, snap: int | None = None) -> tuple[list[Sample], dict[str, int]]:
        meter = RttMeter(RttOptions(kinds=frozenset({Kind.MQTT}), limits=SMALL))
        found = samples_of(self.packets, meter=meter, snap=snap)
        return found, {reason: n for reason, n in meter.ignored.items() if reason.startswith("mqtt")}


def rtts(stream: Stream, **options: int) -> list[int]:
    return [s.rtt for s in stream.samples(**options)[0]]


def test_a_publish_is_timed_until_its_puback_and_named_by_the_broker_that_answered() -> None:
    stream = Stream().send(DEVICE, publish(7)).send(BROKER, puback(7), after=5 * MS)
    found, ignored = stream.samples()
    assert found == [Sample(6 * MS, flow_id(stream.packets[-1]), 5 * MS, Kind.MQTT)]
    assert ignored == {}


def test_both_directions_publish_with_the_same_packet_id() -> None:
    stream = Stream().send(DEVICE, publish(1)).send(BROKER, publish(1))
    stream.send(DEVICE, puback(1), after=2 * MS).send(BROKER, puback(1), after=3 * MS)
    assert rtts(stream) == [2 * MS, 6 * MS]


def test_a_ping_is_timed() -> None:
    assert rtts(Stream().send(DEVICE, PINGREQ).send(BROKER, PINGRESP, after=9 * MS)) == [9 * MS]


def test_several_messages_share_a_segment() -> None:
    stream = Stream().send(DEVICE, publish(1) + publish(9, qos=0) + publish(2) + PINGREQ)
    stream.send(BROKER, puback(2) + PINGRESP + puback(1), after=4 * MS)
    assert rtts(stream) == [4 * MS] * 3


@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_383, 16_384, 40_000])
def test_remaining_lengths_of_one_to_three_bytes(size: int) -> None:
    stream = Stream().send(DEVICE, publish(3, payload=bytes(size)) + PINGREQ)
    assert rtts(stream.send(BROKER, puback(3) + PINGRESP)) == [MS, MS]


def test_a_message_that_spans_segments_is_counted_and_the_next_one_is_read() -> None:
    long = publish(1, payload=bytes(2000))
    stream = Stream().send(DEVICE, long[:1400]).send(DEVICE, long[1400:] + publish(2))
    found, ignored = stream.send(BROKER, puback(1) + puback(2)).samples()
    assert [s.rtt for s in found] == [MS]
    assert ignored == {"mqtt messages that span segments": 1}


def test_qos_0_and_2_are_not_timed() -> None:
    assert rtts(Stream().send(DEVICE, publish(1, qos=0) + publish(1, qos=2)).send(BROKER, puback(1))) == []


@pytest.mark.parametrize("again", [publish(5), publish(5, dup=True)])
def test_a_repeated_publish_gives_no_sample(again: bytes) -> None:
    found, ignored = Stream().send(DEVICE, publish(5)).send(DEVICE, again).send(BROKER, puback(5)).samples()
    assert found == []
    assert ignored == {"mqtt messages repeated unanswered": 1}


def test_a_retransmitted_segment_is_read_once() -> None:
    stream = Stream().send(DEVICE, publish(5))
    stream.seq[DEVICE] -= len(publish(5))
    stream.send(DEVICE, publish(5)).send(BROKER, puback(5))
    assert rtts(stream) == [2 * MS]


def test_without_a_syn_a_segment_is_taken_to_begin_with_a_message() -> None:
    stream = Stream(with_syn=False).send(DEVICE, b"\x00 no mqtt").send(DEVICE, publish(5))
    found, ignored = stream.send(BROKER, puback(5)).samples()
    assert [s.rtt for s in found] == [MS]
    assert ignored == {"mqtt segments or messages that do not parse": 1}


def test_a_packet_id_beyond_the_snap_length_is_counted() -> None:
    stream = Stream().send(DEVICE, publish(5, topic=b"long/topic")).send(BROKER, puback(5))
    assert rtts(stream, snap=18) == [MS]
    found, ignored = stream.samples(snap=15)
    assert found == []
    assert ignored == {"mqtt segments or messages not captured whole": 1}


def test_other_ports_are_not_read() -> None:
    stream = Stream().send(DEVICE, PINGREQ).send(BROKER, PINGRESP)
    moved = [
        Packet(p.time_ns, (p.src[0], p.src[1] % 1000), (p.dest[0], p.dest[1] % 1000), payload=p.payload)
        for p in stream.packets
    ]
    assert samples_of(moved, Kind.MQTT) == []


def parsed(payload: bytes) -> list[tuple[str, int]]:
    """What a whole segment asks and answers, read by plain Python; ends where it reads like no message."""
    events, at = [], 0
    while at < len(payload):
        first, size, shift, body = payload[at], 0, 0, at + 1
        while body < len(payload) and body - at <= 4:
            size |= (payload[body] & 127) << shift
            shift, body = shift + 7, body + 1
            if payload[body - 1] < 128:
                break
        complete = body > at + 1 and payload[body - 1] < 128
        kind, flags = first >> 4, first & 15
        allowed = {3: {0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13}, 6: {2}, 8: {2}, 10: {2}, 0: set()}
        if not complete or flags not in allowed.get(kind, {0}) or body + size > len(payload):
            return events
        content = payload[body : body + size]
        if kind == 3 and flags & 6 == 2 and len(content) >= 2:
            topic = int.from_bytes(content[:2], "big")
            number = content[2 + topic : 4 + topic]
            if len(number) == 2 and any(number):
                events.append(("dup" if flags & 8 else "publish", int.from_bytes(number, "big")))
        elif kind == 4 and size >= 2:
            events.append(("puback", int.from_bytes(content[:2], "big")))
        elif kind in (12, 13):
            events.append(("ping" if kind == 12 else "pong", 0))
        at = body + size
    return events


def modelled(packets: list[Packet]) -> list[int]:
    waiting: dict[tuple[object, str, int], int] = {}
    found = []
    for p in packets:
        for what, number in parsed(p.payload):
            space = "ping" if what in ("ping", "pong") else "id"
            if what in ("puback", "pong"):
                start = waiting.pop((p.reverse, space, number), None)
                found += [] if start is None else [p.time_ns - start]
            elif (p.flow, space, number) in waiting:
                del waiting[p.flow, space, number]
            elif what != "dup":
                waiting[p.flow, space, number] = p.time_ns
    return found


messages = st.one_of(
    st.builds(publish, st.integers(0, 4), qos=st.integers(0, 2), topic=st.binary(max_size=4), dup=st.booleans()),
    st.builds(puback, st.integers(0, 4)),
    st.sampled_from([PINGREQ, PINGRESP]),
)
segments = st.one_of(st.lists(messages, max_size=5).map(b"".join), st.binary(max_size=30))


@given(st.lists(st.tuples(st.sampled_from([DEVICE, BROKER]), segments), max_size=12))
def test_kernel_and_plain_parser_agree_on_messages_and_noise(
    sent: list[tuple[tuple[str, int], bytes]],
) -> None:
    """Every segment on a connection of its own sequence numbers, so that each is taken from its start."""
    packets = [
        Packet(i * MS, src, BROKER if src == DEVICE else DEVICE, seq=i * 10**6, payload=payload)
        for i, (src, payload) in enumerate(sent)
    ]
    assert [s.rtt for s in samples_of(packets, Kind.MQTT)] == modelled(packets)


@given(st.lists(segments, min_size=1, max_size=8), st.integers(0, 20), st.binary(min_size=40, max_size=40))
def test_bytes_that_were_not_captured_are_never_looked_at(sent: list[bytes], snap: int, behind: bytes) -> None:
    packets = [
        Packet(i * MS, DEVICE if i % 2 else BROKER, BROKER if i % 2 else DEVICE, seq=i * 10**6, payload=p)
        for i, p in enumerate(sent)
    ]
    batch = batch_of(packets, snap=snap)
    results = []
    for tail in (b"", behind):
        data = np.frombuffer(batch.data.tobytes() + tail, np.uint8)
        object.__setattr__(batch, "data", data)
        meter = RttMeter(RttOptions(limits=SMALL))
        results.append(([list(s.rows()) for s in meter.feed(batch)], meter.ignored))
    assert results[0] == results[1]


def test_a_payload_that_lies_outside_of_the_buffer_is_refused() -> None:
    batch = batch_of([Packet(0, DEVICE, BROKER, payload=publish(1))])
    batch.payload_offset[0] = 2**40
    meter = RttMeter(RttOptions(limits=SMALL))
    assert list(meter.feed(batch)) == []
    assert meter.ignored == {"packets with an impossible payload": 1}


def test_more_answers_than_the_buffer_of_samples_holds_are_given_in_parts() -> None:
    stream = Stream()
    for _ in range(5):
        for ids in (range(1, 8001), range(8001, 16001)):
            stream.send(DEVICE, b"".join(publish(i, topic=b"", payload=b"") for i in ids))
        stream.send(BROKER, b"".join(puback(i) for i in range(1, 16001)))
    meter = RttMeter(RttOptions(kinds=frozenset({Kind.MQTT}), limits=RttLimits(pending=1 << 20)))
    parts = [len(samples) for samples in meter.feed(batch_of(stream.packets))]
    assert len(parts) > 1
    assert sum(parts) == 5 * 16_000
