"""The kernels agree with a plain model on traffic with loss, reordering, retransmission and wrap-around."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rtt_model import TcpModel
from rtt_worlds import CLIENT, MS, SERVER, SMALL, Packet, Sample, batch_of, flow_id, samples_of

from sojourn.capture.decode.transport import ACK, FIN, SYN
from sojourn.rtt.round_trips import RttMeter, RttOptions
from sojourn.rtt.state import Kind, RttLimits

ALL_TCP = (Kind.TIMESTAMPS, Kind.SEQ, Kind.HANDSHAKE)
# What can happen next, drawn with these weights by repetition.
STEPS = [
    "send",
    "send",
    "send",
    "ack",
    "ack",
    "ack",
    "resend",
    "lose",
    "sack",
    "keep-alive",
    "late",
    "fin",
    "syn",
]
START_NS = 1_700_000_000 * 10**9


class Conversation:
    """A connection seen by a capture point: what both ends send, drawn step by step."""

    def __init__(self, number: int, isn: tuple[int, int], has_stamps: bool, tick_ns: int) -> None:
        self.ends = (("10.0.0.1", 40_000 + number), SERVER)
        self.first = [isn[0], isn[1]]
        self.sent = [isn[0], isn[1]]
        self.acked = [isn[0], isn[1]]
        self.history: list[list[tuple[int, int]]] = [[], []]
        self.echo = [0, 0]
        self.has_stamps = has_stamps
        self.tick_ns = tick_ns

    def packet(self, now: int, end: int, **fields: int | None) -> Packet:
        """A segment of one end, with what it would acknowledge and echo by default."""
        stamps = {}
        if self.has_stamps:
            # Beyond 2³² from the first packet on, so that the kernel sees the wrap and the model does not.
            tick = 2**32 - 50 + (now - START_NS) // self.tick_ns
            stamps = {"tsval": tick, "tsecr": self.echo[end]}
            self.echo[1 - end] = tick
        base = {"flags": ACK, "seq": self.sent[end], "ack": self.acked[1 - end], **stamps}
        return Packet(now, self.ends[end], self.ends[1 - end], **(base | fields))  # type: ignore[arg-type]

    def step(self, what: str, end: int, size: int, now: int) -> Packet | None:
        peer = 1 - end
        if what in ("send", "lose", "fin"):
            start, flags = self.sent[end], ACK | (FIN if what == "fin" else 0)
            self.sent[end] += size + (what == "fin")
            self.history[end].append((start, size))
            return None if what == "lose" else self.packet(now, end, seq=start, length=size, flags=flags)
        if what == "resend" and self.history[end]:
            start, length = self.history[end][-1 - size % min(4, len(self.history[end]))]
            return self.packet(now, end, seq=start, length=length)
        if what == "keep-alive":
            return self.packet(now, end, seq=self.sent[end] - 1, length=size % 2)
        if what == "syn":
            flags = SYN | (ACK if end else 0)
            return self.packet(now, end, seq=self.first[end] - 1, flags=flags)
        edges = [s + n for s, n in self.history[peer] if s + n > self.acked[peer]]
        if what == "late":
            return self.packet(now, end, ack=max(self.acked[peer] - size, self.first[peer]))
        if what == "sack" and edges:
            return self.packet(now, end, sack=edges[-1])
        if edges:
            self.acked[peer] = edges[size % len(edges)]
        return self.packet(now, end)


@st.composite
def traffic(draw: st.DrawFn) -> list[Packet]:
    conversations = []
    for number in range(draw(st.integers(1, 3))):
        isn = tuple(2**32 - draw(st.integers(0, 4000)) for _ in range(2))
        tick_ns = draw(st.sampled_from([MS // 10, MS, 10 * MS]))
        conversations.append(Conversation(number, isn, draw(st.booleans()), tick_ns))  # type: ignore[arg-type]
    which = st.integers(0, len(conversations) - 1)
    later = st.integers(1, 60 * MS)
    step = st.tuples(which, st.sampled_from(STEPS), st.integers(0, 1), st.integers(1, 1448), later)
    now = START_NS
    packets = []
    for number, what, end, size, wait in draw(st.lists(step, min_size=10, max_size=100)):
        now += wait
        packet = conversations[number].step(what, end, size, now)
        if packet is not None:
            packets.append(packet)
    return packets


def modelled(packets: list[Packet], *kinds: Kind) -> list[Sample]:
    model = TcpModel(kinds)
    for packet in packets:
        model.take(packet)
    return model.samples


@given(traffic())
@settings(max_examples=200)
def test_every_kind_of_tcp_sample_equals_the_models(packets: list[Packet]) -> None:
    assert samples_of(packets, *ALL_TCP) == modelled(packets, *ALL_TCP)


@given(traffic(), st.integers(1, 40))
def test_chunks_make_no_difference(packets: list[Packet], chunk: int) -> None:
    assert samples_of(packets, *ALL_TCP, chunk=chunk) == samples_of(packets, *ALL_TCP)


@given(traffic())
def test_by_default_seq_is_read_only_where_there_are_no_time_stamps(packets: list[Packet]) -> None:
    stamped = {flow_id(p) for p in packets if p.tsval is not None}
    kinds = {s.kind for s in samples_of(packets) if s.flow_id in stamped}
    assert Kind.SEQ not in kinds
    plain = [replace(p, tsval=None) for p in packets]
    assert samples_of(plain) == modelled(plain, Kind.SEQ, Kind.HANDSHAKE)


def long_traffic(seed: int, steps: int) -> list[Packet]:
    """The same conversations, longer, from a seeded generator."""
    rng = random.Random(seed)
    world = [
        Conversation(i, (2**32 - rng.randrange(40_000), 2**32 - rng.randrange(40_000)), i % 2 == 0, MS)
        for i in range(4)
    ]
    now = START_NS
    packets = []
    for _ in range(steps):
        now += rng.randrange(1, 60 * MS if rng.random() < 0.2 else MS)
        packet = rng.choice(world).step(rng.choice(STEPS), rng.randrange(2), rng.randrange(1, 1449), now)
        packets += [] if packet is None else [packet]
    return packets


def test_long_conversations_equal_the_models_and_exercise_every_rule() -> None:
    """Equality would be easy where nothing happens: look that it does."""
    seen: Counter[str] = Counter()
    for seed in range(5):
        packets = long_traffic(seed, 3000)
        meter = RttMeter(RttOptions(kinds=frozenset(ALL_TCP), limits=SMALL))
        found = samples_of(packets, meter=meter, chunk=700)
        assert found == modelled(packets, *ALL_TCP)
        seen.update(f"{sample.kind.name} {sample.note.name}" for sample in found)
        seen.update(meter.ignored)
    for expected in (
        "TIMESTAMPS NONE", "HANDSHAKE NONE", "SEQ NONE", "SEQ COVERS_SEVERAL", "SEQ DELAYED",
        "tcp keep-alives",
        "acks that a retransmission makes ambiguous", "acks of data that was sacked before",
        "tcp segments sent again or out of order",
    ):  # fmt: skip
        assert seen[expected] > 0, expected


@pytest.mark.parametrize("column", ["ack", "flags", "payload_bytes"])
def test_columns_of_different_lengths_are_refused(column: str) -> None:
    batch = batch_of([Packet(1), Packet(2)])
    object.__setattr__(batch, column, getattr(batch, column)[:1])
    with pytest.raises(Exception, match=f"column {column} has 1 rows, expected 2"):
        list(RttMeter().feed(batch))


def random_columns(seed: int, count: int) -> list[Packet]:
    rng = np.random.default_rng(seed)
    hosts = [(f"10.0.0.{i}", port) for i in range(1, 5) for port in (1883, 80)]
    picks = rng.integers(0, len(hosts), (count, 2))
    words = rng.integers(0, 2**32, (count, 5))
    return [
        Packet(
            int(rng.integers(-(2**62), 2**62)), hosts[a], hosts[b], int(rng.choice([1, 6, 6, 6, 17, 58])),
            flags=int(words[i, 0] % 256), seq=int(words[i, 1]), ack=int(words[i, 2]),
            tsval=int(words[i, 3]) if words[i, 4] % 2 else None, tsecr=int(words[i, 4]),
            sack=int(words[i, 0]) if words[i, 0] % 3 == 0 else None, payload=rng.bytes(int(words[i, 1] % 40)),
        )
        for i, (a, b) in enumerate(picks)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_senseless_columns_leave_memory_bounded_and_samples_sensible(seed: int) -> None:
    limits = RttLimits(connections=64, pending=64)
    meter = RttMeter(RttOptions(limits=limits))
    before = meter.memory_bytes
    found = samples_of(random_columns(seed, 3000), meter=meter)
    assert meter.memory_bytes == before
    assert all(0 <= s.rtt <= limits.max_rtt_ns for s in found)


def test_what_does_not_fit_the_tables_is_counted() -> None:
    limits = RttLimits(connections=64, pending=64)
    meter = RttMeter(RttOptions(limits=limits))
    clients = [("10.1.0.1", 1024 + i) for i in range(1000)]
    opened = [Packet(START_NS + i, c, SERVER, flags=SYN, seq=i) for i, c in enumerate(clients)]
    data = [Packet(START_NS + MS + i, CLIENT, SERVER, seq=10 * i, length=10) for i in range(1000)]
    samples_of(opened + data, meter=meter)
    assert meter.ignored["connections forgotten for newer ones"] == 1000 + 1 - 64
    assert meter.ignored["unanswered packets forgotten for newer ones"] == 1000 - 64
