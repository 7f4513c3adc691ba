"""QUIC's spin bit: samples where it spins, none where it is greased, no false edges from stragglers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rtt_worlds import MS, SMALL, Packet, Sample, batch_of, flow_id, samples_of
from spin_model import SpinModel
from spin_worlds import CLIENT, SERVER, UDP, Bit, SpinWorld, packets_of, short_header

from sojourn.core.errors import ParameterError
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, Note
from sojourn.rtt.tcp import DELAYED_ACK_NS

BOTH = frozenset({Kind.QUIC, Kind.QUIC_WHOLE})
TO_CLIENT = flow_id(Packet(0, SERVER, CLIENT, protocol=UDP))
TO_SERVER = flow_id(Packet(0, CLIENT, SERVER, protocol=UDP))
SHORT = bytes([0x40])


def measured(packets: Sequence[Packet], kinds: frozenset[Kind] = BOTH) -> tuple[list[Sample], dict[str, int]]:
    meter = RttMeter(RttOptions(kinds=kinds, limits=SMALL))
    return samples_of(packets, meter=meter), meter.ignored


def times(samples: Sequence[Sample], kind: Kind, flow: int) -> list[int]:
    return [s.rtt for s in samples if s.kind is kind and s.flow_id == flow]


def one_way(packets: Sequence[Packet], src: tuple[str, int]) -> list[Packet]:
    return [p for p in packets if p.src == src]


def test_both_directions_give_the_way_to_each_host_and_back() -> None:
    world = SpinWorld(jitter_ns=0)
    found, _ = measured(packets_of(world))
    for flow, least in ((TO_CLIENT, 2 * world.to_server_ns), (TO_SERVER, 2 * world.to_client_ns)):
        rtts = times(found, Kind.QUIC, flow)
        assert len(rtts) > 30
        assert least <= min(rtts) <= max(rtts) <= least + 8 * MS  # until both hosts have something to send
    parts = [s for s in found if s.kind is Kind.QUIC]
    sums = {(s.time_ns, s.flow_id): before.rtt + s.rtt for before, s in pairwise(parts)}
    whole = {(s.time_ns, s.flow_id): s.rtt for s in found if s.kind is Kind.QUIC_WHOLE}
    assert len(whole) > 60
    assert whole.items() <= sums.items()


@pytest.mark.parametrize("src", [CLIENT, SERVER])
def test_one_direction_alone_gives_whole_round_trips(src: tuple[str, int]) -> None:
    found, _ = measured(one_way(packets_of(SpinWorld()), src), frozenset())
    assert len(found) > 20
    assert {s.kind for s in found} == {Kind.QUIC_WHOLE}
    assert all(40 * MS <= s.rtt <= 50 * MS for s in found)


def test_whole_round_trips_of_both_directions_only_where_they_are_asked_for() -> None:
    packets = packets_of(SpinWorld())
    assert {s.kind for s in measured(packets, frozenset())[0]} == {Kind.QUIC}
    assert {s.kind for s in measured(packets, frozenset({Kind.QUIC_WHOLE}))[0]} == {Kind.QUIC_WHOLE}


GREASED = [
    (client, server) for client in Bit for server in Bit if (client, server) != (Bit.SPIN, Bit.SPIN)
]  # fmt: skip
PLACES = {
    "half-way": SpinWorld(packets=1000),
    "at the client": SpinWorld(packets=1000, to_client_ns=20_000, to_server_ns=20 * MS),
    "at the server": SpinWorld(packets=1000, to_client_ns=20 * MS, to_server_ns=20_000),
    "a packet per round trip": SpinWorld(packets=300, ping_pong=True),
    "few packets": SpinWorld(packets=300, every_ns=(30 * MS, 30 * MS)),
    "a fast client": SpinWorld(packets=2000, every_ns=(MS // 2, 10 * MS)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bits", GREASED, ids=lambda bits: f"{bits[0].value}-{bits[1].value}")
def test_connections_that_do_not_spin_give_no_samples(place: str, bits: tuple[Bit, Bit]) -> None:
    for seed in range(2):
        packets = packets_of(replace(PLACES[place], bits=bits, seed=seed))
        for seen in (packets, one_way(packets, CLIENT), one_way(packets, SERVER)):
            assert measured(seen)[0] == []


def test_of_two_thousand_connections_with_random_bits_none_is_trusted() -> None:
    """The rule allows one direction in a thousand; a connection needs both."""
    chance = np.random.default_rng(11)
    connections, each = 2000, 200
    clients = np.repeat(np.arange(connections), each)
    first_bytes = 0x40 | chance.integers(0, 64, connections * each)
    packets = [
        Packet(i * MS, *_ends(int(client), i % 2 == 1), protocol=UDP, payload=bytes([int(first)]))
        for i, (client, first) in enumerate(zip(clients, first_bytes, strict=True))
    ]
    found, ignored = measured(packets)
    assert found == []
    assert ignored["quic spin edges of connections not (yet) known to spin"] > 10 * connections


def _ends(client: int, is_server: bool) -> tuple[tuple[str, int], tuple[str, int]]:
    ends = (f"10.1.{client >> 8}.{client & 255}", 50_000), SERVER
    return (ends[1], ends[0]) if is_server else ends


REORDERED = {
    "5 % by 2 ms": SpinWorld(late=0.05, late_ns=2 * MS, every_ns=(MS, MS // 2)),
    "20 % by 3 ms": SpinWorld(late=0.2, late_ns=3 * MS),
    "20 % by 10 ms": SpinWorld(late=0.2, late_ns=10 * MS),
    "5 % by 3 ms, at the server": SpinWorld(to_client_ns=20 * MS, to_server_ns=20_000, late=0.05, late_ns=3 * MS),
    "5 % by 3 ms, at the client": SpinWorld(to_client_ns=20_000, to_server_ns=20 * MS, late=0.05, late_ns=3 * MS),
    "5 % lost": SpinWorld(lost=0.05),
}


@pytest.mark.parametrize("name", REORDERED)
def test_stragglers_make_no_sample_too_short(name: str) -> None:
    world = replace(REORDERED[name], packets=1500)
    least = {TO_CLIENT: 2 * world.to_server_ns, TO_SERVER: 2 * world.to_client_ns}
    whole = sum(least.values())
    for seed in range(2):
        packets = packets_of(replace(world, seed=seed))
        found, ignored = measured(packets)
        assert len(found) > 40
        assert all(s.rtt >= (least[s.flow_id] if s.kind is Kind.QUIC else whole) for s in found)
        if world.late:
            assert ignored["quic packets whose spin bit changed out of turn"] > 0
        for src in (CLIENT, SERVER):
            assert all(s.rtt >= whole for s in measured(one_way(packets, src))[0])


def conversation(
    turns: int, *, pause_after: int | None = None, pause_ns: int = 0, by_server: bool = False
) -> list[Packet]:
    """Three packets each way in turn, the server 20 ms away; one host pauses before it begins its next turn."""
    chance, now, packets = random.Random(1), 0, []
    for turn in range(turns):
        for src, dest, value in ((CLIENT, SERVER, (turn + 1) % 2), (SERVER, CLIENT, (turn + 1) % 2)):
            if turn == pause_after and (src == SERVER) == by_server:
                now += pause_ns
            for _ in range(3):
                packets.append(Packet(now, src, dest, protocol=UDP, payload=short_header(value, chance)))
                now += MS
            now += 20 * MS - 3 * MS if src == CLIENT else 2 * MS
    return packets


def test_a_pause_of_the_host_that_asks_gives_no_sample() -> None:
    """The client acknowledges with the new value, pauses for a second, and asks again: no round trip of a second."""
    packets = conversation(30)
    at = next(i for i, p in enumerate(packets) if i > 120 and p.src == SERVER and packets[i - 1].src == CLIENT)
    later = [replace(p, time_ns=p.time_ns + 1000 * MS) for p in packets[at - 1 :]]
    found, ignored = measured(packets[: at - 1] + later, frozenset({Kind.QUIC}))
    assert max(times(found, Kind.QUIC, TO_CLIENT)) == 20 * MS
    assert ignored["quic spin edges after a pause of the host that they answer"] == 1


def test_a_host_close_by_may_answer_sooner_than_usual() -> None:
    """The client takes 3 ms for its turns, once 0.1 ms: its edge counts, and no round trip is too short."""
    packets = conversation(40)
    at = next(i for i, p in enumerate(packets) if i > 180 and p.src == CLIENT and packets[i - 1].src == SERVER)
    first = replace(packets[at], time_ns=packets[at - 3].time_ns + MS // 10)
    assert packets[at - 3].src == SERVER
    sooner = [*packets[: at - 2], first, *packets[at - 2 : at], *packets[at + 1 :]]
    found, _ = measured(sooner, frozenset({Kind.QUIC}))
    assert min(times(found, Kind.QUIC, TO_CLIENT)) == 20 * MS
    assert MS // 10 in times(found, Kind.QUIC, TO_SERVER)


def test_an_answer_after_long_silence_is_noted() -> None:
    found, _ = measured(conversation(30, pause_after=20, pause_ns=2 * DELAYED_ACK_NS, by_server=True))
    noted = [s for s in found if s.note is Note.DELAYED]
    assert [s.rtt for s in noted] == [20 * MS + 2 * DELAYED_ACK_NS]


def long_header(
    kind: int, payload: int, *, version: int = 1, token: bytes = b"", ids: tuple[int, int] = (8, 8)
) -> bytes:
    """An Initial (0), 0-RTT (1), Handshake (2) or Retry (3) packet as long as its length field says."""
    number = kind if version == 1 else (kind + 1) & 3
    head = bytes([0xC0 | number << 4]) + version.to_bytes(4, "big")
    for size in ids:
        head += bytes([size]) + b"i" * size
    if kind == 0:
        head += (0x4000 | len(token)).to_bytes(2, "big") + token
    return head + (b"" if kind == 3 else (0x4000 | payload).to_bytes(2, "big") + b"p" * payload)


def values_read(datagrams: Sequence[bytes]) -> int:
    """How many of the datagrams had a spin value that could be read: the rest of a connection that is known to spin."""
    packets = conversation(12)
    spinning = [replace(p, time_ns=p.time_ns) for p in packets]
    last = spinning[-1].time_ns
    extra = [
        Packet(
            last + (i + 1) * 20 * MS, *((CLIENT, SERVER) if i % 2 == 0 else (SERVER, CLIENT)), protocol=UDP, payload=d
        )
        for i, d in enumerate(datagrams)
    ]
    return len(measured(spinning + extra, frozenset({Kind.QUIC}))[0]) - len(
        measured(spinning, frozenset({Kind.QUIC}))[0]
    )


SPUN = bytes([0x60])


@pytest.mark.parametrize("version", [1, 0x6B3343CF])
@pytest.mark.parametrize("kinds", [(2,), (2, 2), (1, 2)])
def test_a_short_header_is_read_behind_coalesced_long_ones(version: int, kinds: tuple[int, ...]) -> None:
    before = b"".join(long_header(kind, 40, version=version, token=b"t" * 70) for kind in kinds)
    assert values_read([before + SPUN, before + SPUN]) == 2
    server_initial = long_header(0, 40, version=version, token=b"t" * 70)
    assert values_read([SPUN, server_initial + before + SPUN]) == 2


@pytest.mark.parametrize(
    "hidden",
    [
        long_header(3, 0) + SPUN,  # a Retry has no length
        long_header(2, 40, version=0xFACE0000) + SPUN,
        long_header(2, 40, ids=(21, 8)) + SPUN,
        long_header(2, 40) * 5 + SPUN,
        long_header(2, 40) + bytes(20),  # padding
        long_header(2, 40)[:-1] + SPUN[:0],
        long_header(2, 40)[:20],
        b"\xc0\0\0",
        b"\x00" * 30,
        b"",
    ],
)  # fmt: skip
def test_what_cannot_be_read_gives_nothing(hidden: bytes) -> None:
    assert values_read([hidden]) == 0


def test_a_new_initial_of_the_client_begins_anew() -> None:
    first = conversation(12)
    again = [replace(p, time_ns=p.time_ns + first[-1].time_ns + MS) for p in first]
    initial = Packet(first[-1].time_ns + 1, CLIENT, SERVER, protocol=UDP, payload=long_header(0, 1100))
    count = len(measured(first)[0])
    assert len(measured([*first, *again])[0]) > 2 * count
    assert len(measured([*first, initial, *again])[0]) == 2 * count


def test_other_traffic_on_the_port_is_counted() -> None:
    wireguard = [Packet(i * MS, *_ends(1, i % 2 == 1), protocol=UDP, payload=b"\4\0\0\0data") for i in range(9)]
    assert measured(wireguard) == ([], {"datagrams on quic's ports that are not quic": 9})
    both = [Packet(i, ("10.0.0.1", 443), ("10.0.0.2", 443), protocol=UDP, payload=SHORT) for i in range(3)]
    assert measured(both) == ([], {"quic packets between two server ports": 3})


def test_ports_of_servers_are_an_option() -> None:
    moved = [
        replace(p, src=(p.src[0], p.src[1] + 4000), dest=(p.dest[0], p.dest[1] + 4000)) for p in packets_of(SpinWorld())
    ]
    assert samples_of(moved, Kind.QUIC) == []
    options = RttOptions(limits=SMALL, quic_ports=frozenset({443, 4443}))
    assert len(samples_of(moved, meter=RttMeter(options))) > 60
    for ports in ({0}, {70_000}, {53}):
        with pytest.raises(ParameterError):
            RttOptions(quic_ports=frozenset(ports))


def test_chunks_change_nothing() -> None:
    packets = packets_of(SpinWorld(packets=400, late=0.1, late_ns=2 * MS))
    assert samples_of(packets, *BOTH, chunk=7) == samples_of(packets, *BOTH)


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=60)), max_size=30), st.integers(0, 40), st.binary(min_size=40)
)
def test_bytes_that_were_not_captured_are_never_looked_at(
    sent: list[tuple[bool, bytes]], snap: int, behind: bytes
) -> None:
    packets = [Packet(i * MS, *_ends(0, server), protocol=UDP, payload=p) for i, (server, p) in enumerate(sent)]
    batch = batch_of(packets, snap=snap)
    results = []
    for tail in (b"", behind):
        object.__setattr__(batch, "data", np.frombuffer(batch.data.tobytes() + tail, np.uint8))
        meter = RttMeter(RttOptions(limits=SMALL))
        results.append(([list(s.rows()) for s in meter.feed(batch)], meter.ignored))
    assert results[0] == results[1]


worlds = st.builds(
    SpinWorld,
    packets=st.integers(1, 400),
    to_client_ns=st.sampled_from([20_000, 5 * MS, 30 * MS]),
    to_server_ns=st.sampled_from([20_000, 15 * MS]),
    every_ns=st.tuples(st.sampled_from([MS, 8 * MS, 40 * MS]), st.sampled_from([MS, 8 * MS, 40 * MS])),
    jitter_ns=st.sampled_from([0, MS // 10, 5 * MS]),
    lost=st.sampled_from([0, 0.1]),
    late=st.sampled_from([0, 0.1]),
    late_ns=st.sampled_from([2 * MS, 20 * MS]),
    bits=st.tuples(st.sampled_from(Bit), st.sampled_from([Bit.SPIN, Bit.SPIN, Bit.RANDOM])),
    ping_pong=st.booleans(),
    seed=st.integers(0, 2**32),
)


@given(worlds, st.sampled_from([None, CLIENT, SERVER]))
def test_kernel_and_plain_model_agree(world: SpinWorld, only: tuple[str, int] | None) -> None:
    packets = packets_of(world)
    packets = packets if only is None else one_way(packets, only)
    model = SpinModel()
    for packet in packets:
        model.take(packet.time_ns, packet.payload[0] >> 5 & 1, is_server=packet.src == SERVER)
    assert [(s.time_ns, s.rtt, s.kind) for s in measured(packets)[0]] == model.samples
