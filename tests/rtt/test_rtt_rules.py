"""The rules of each kind of sample, one small story each."""

from __future__ import annotations

import pytest
from rtt_worlds import CLIENT, MS, SERVER, SMALL, Packet, Sample, batch_of, flow_id, samples_of

from sojourn.capture.decode.transport import ACK, FIN, RST, SYN
from sojourn.core.errors import ParameterError
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, Note, RttLimits

PING, PONG = (8, 0)


def client(at: int, **fields: int | None) -> Packet:
    return Packet(at * MS, CLIENT, SERVER, **({"flags": ACK} | fields))  # type: ignore[arg-type]


def server(at: int, **fields: int | None) -> Packet:
    return Packet(at * MS, SERVER, CLIENT, **({"flags": ACK} | fields))  # type: ignore[arg-type]


def found(packets: list[Packet], *kinds: Kind) -> list[tuple[str, int, str]]:
    """Who answered, after how many ms, and how that was read."""
    names = {flow_id(client(0)): "client", flow_id(server(0)): "server"}
    return [(names[s.flow_id], s.rtt // MS, s.kind.name.lower()) for s in samples_of(packets, *kinds)]


def test_a_handshake_gives_a_sample_for_each_side() -> None:
    packets = [
        client(0, flags=SYN, seq=99),
        server(30, flags=SYN | ACK, seq=499, ack=100),
        client(32, seq=100, ack=500),
    ]
    assert found(packets) == [("server", 30, "handshake"), ("client", 2, "handshake")]


@pytest.mark.parametrize("again", [0, 1])
def test_a_repeated_syn_or_syn_ack_gives_no_sample(again: int) -> None:
    packets = [client(0, flags=SYN, seq=99), server(30, flags=SYN | ACK, seq=499, ack=100)]
    packets.insert(again + 1, packets[again])
    answers = [name for name, _, _ in found([*packets, client(40, seq=100, ack=500)])]
    assert answers == (["client"] if again == 0 else ["server"])


def test_a_fast_open_syn_is_answered_whether_or_not_its_data_is() -> None:
    for ack in (100, 150):
        packets = [client(0, flags=SYN, seq=99, length=50), server(7, flags=SYN | ACK, seq=1, ack=ack)]
        assert found(packets) == [("server", 7, "handshake")]


def test_data_and_fin_are_timed_by_sequence_numbers() -> None:
    packets = [
        client(0, seq=1, length=10),
        server(5, ack=11),
        client(6, seq=11, flags=FIN | ACK),
        server(9, ack=12),
    ]
    assert found(packets) == [("server", 5, "seq"), ("server", 3, "seq")]


def test_only_the_first_ack_of_a_segment_counts() -> None:
    assert len(found([client(0, seq=1, length=10), server(5, ack=11), server(9, ack=11)])) == 1


def test_an_ack_in_the_middle_of_a_segment_gives_no_sample() -> None:
    assert found([client(0, seq=1, length=10), server(5, ack=6)]) == []


def test_karn_no_sample_from_a_flight_in_which_something_was_sent_again() -> None:
    flight = [client(0, seq=1, length=10), client(1, seq=11, length=10), client(50, seq=1, length=10)]
    assert found([*flight, server(60, ack=21)]) == []
    assert found([*flight, server(60, ack=21), client(61, seq=21, length=5), server(70, ack=26)]) == [
        ("server", 9, "seq")
    ]


def test_an_ack_below_what_was_sacked_gives_no_sample() -> None:
    flight = [client(0, seq=1, length=10), client(1, seq=11, length=10), client(2, seq=21, length=10)]
    assert found([*flight, server(10, ack=1, sack=31), server(60, ack=31)]) == []
    assert found([*flight, server(10, ack=1, sack=21), server(60, ack=31)]) == [("server", 58, "seq")]


def test_a_keep_alive_does_not_disturb() -> None:
    packets = [
        client(0, seq=1, length=10),
        server(5, ack=11),
        client(10, seq=10, length=1),
        server(11, ack=11),
    ]
    packets += [client(20, seq=11, length=10), server(24, ack=21)]
    assert found(packets) == [("server", 5, "seq"), ("server", 4, "seq")]


def test_a_reset_is_no_answer() -> None:
    assert found([client(0, flags=SYN, seq=1), server(5, flags=RST | ACK, ack=2)]) == []


def test_delayed_and_cumulative_acks_are_noted() -> None:
    packets = [
        client(0, seq=1, length=10), server(5, ack=11),
        client(10, seq=11, length=10), client(11, seq=21, length=10), server(16, ack=31),
        client(20, seq=31, length=10), server(70, ack=41),
        client(80, seq=41, length=10), server(90, ack=51),
    ]  # fmt: skip
    notes = [s.note for s in samples_of(packets)]
    assert notes == [Note.NONE, Note.COVERS_SEVERAL, Note.DELAYED, Note.NONE]


def test_the_first_echo_of_the_first_segment_with_a_time_stamp_counts() -> None:
    packets = [
        client(0, flags=SYN, seq=0, tsval=5), server(3, flags=SYN | ACK, seq=0, ack=1, tsval=70, tsecr=5),
        client(10, seq=1, ack=1, length=10, tsval=6, tsecr=70),
        client(11, seq=11, ack=1, length=10, tsval=6, tsecr=70),
        server(20, ack=11, tsval=71, tsecr=6), server(21, ack=21, tsval=71, tsecr=6),
    ]  # fmt: skip
    assert found(packets, Kind.TIMESTAMPS) == [("server", 10, "timestamps")]


def test_an_echo_older_than_one_already_seen_gives_no_sample() -> None:
    packets = [
        client(0, tsval=1, tsecr=70),
        client(10, seq=1, length=10, tsval=6, tsecr=70), client(11, seq=11, length=10, tsval=7, tsecr=70),
        server(20, ack=21, tsval=71, tsecr=7), server(30, ack=11, tsval=71, tsecr=6),
    ]  # fmt: skip
    assert found(packets, Kind.TIMESTAMPS) == [("server", 9, "timestamps")]


def test_the_time_stamp_of_a_pure_ack_is_used_up_without_being_timed() -> None:
    packets = [
        client(0, tsval=1, tsecr=70), client(4, seq=1, tsval=2, tsecr=70),
        client(5, seq=1, length=10, tsval=2, tsecr=70), server(9, ack=11, tsval=71, tsecr=2),
    ]  # fmt: skip
    assert found(packets, Kind.TIMESTAMPS) == []


def test_a_connection_that_began_before_the_capture_waits_for_a_new_time_stamp() -> None:
    packets = [
        client(0, seq=1, length=10, tsval=5, tsecr=70), server(1, ack=11, tsval=71, tsecr=5),
        client(2, seq=11, length=10, tsval=6, tsecr=71), server(9, ack=21, tsval=72, tsecr=6),
    ]  # fmt: skip
    assert found(packets, Kind.TIMESTAMPS) == [("server", 7, "timestamps")]


def test_answers_out_of_time_give_no_sample() -> None:
    meter = RttMeter(RttOptions(limits=RttLimits(max_rtt_ns=50 * MS)))
    packets = [
        client(100, seq=1, length=10),
        server(90, ack=11),
        client(200, seq=11, length=10),
        server(251, ack=21),
    ]
    assert samples_of(packets, meter=meter) == []
    assert meter.ignored == {
        "answers with an earlier time than their packet": 1,
        "answers later than the longest round trip": 1,
    }


def test_min_rtt_is_the_smallest_of_the_direction_so_far() -> None:
    packets = []
    for i, wait in enumerate([9, 4, 7, 3]):
        packets += [client(100 * i, seq=1 + i, length=1), server(100 * i + wait, ack=2 + i)]
    (samples,) = RttMeter(RttOptions(limits=SMALL)).feed(batch_of(packets))
    assert (samples.min_rtt_ns // MS).tolist() == [9, 4, 4, 3]


@pytest.mark.parametrize(("protocol", "request_type", "reply_type"), [(1, 8, 0), (58, 128, 129)])
def test_an_echo_reply_answers_the_request_of_its_identifier_and_number(
    protocol: int, request_type: int, reply_type: int
) -> None:
    a, b = ("10.0.0.1", 0), ("10.0.0.2", 0)
    asked = [Packet(i * MS, a, b, protocol, request_type, seq=i, ack=7) for i in range(3)]
    replies = [Packet((10 - i) * MS, b, a, protocol, reply_type, seq=i, ack=7) for i in (2, 1, 0)]
    stranger = Packet(5 * MS, b, a, protocol, reply_type, seq=1, ack=8)
    samples = samples_of([*asked, stranger, *replies, replies[0]])
    name = flow_id(replies[0])
    assert samples == [Sample((10 - i) * MS, name, (10 - 2 * i) * MS, Kind.ICMP) for i in (2, 1, 0)]


def test_an_echo_request_that_is_repeated_unanswered_gives_no_sample() -> None:
    a, b = ("10.0.0.1", 0), ("10.0.0.2", 0)
    asked = [Packet(i * MS, a, b, 1, PING, seq=5, ack=7) for i in range(2)]
    assert samples_of([*asked, Packet(9 * MS, b, a, 1, PONG, seq=5, ack=7)]) == []


@pytest.mark.parametrize("value", [0, 63, 1000, 1 << 29])
def test_tables_have_sizes_that_are_powers_of_two(value: int) -> None:
    with pytest.raises(ParameterError, match="power of two"):
        RttLimits(pending=value)


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_cannot_be_is_refused_by_its_number(port: int) -> None:
    with pytest.raises(ParameterError, match=f"there is no port {port};"):
        RttOptions(quic_ports=frozenset({443, port}))
