"""Exact matching on worlds whose truth is known: loss, duplicates, reordering, edges, directions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import InputError, MismatchError, ParameterError
from sojourn.matching.clock.correction import ClockMode
from sojourn.matching.exact import ExactMatch, Fate, match_exact

MS = 1_000_000
SECOND = 1_000 * MS
START = 1_700_000_000 * SECOND


@dataclass
class World:
    """Packets that cross from one point to the other, and what really happened to each."""

    flow: np.ndarray
    packet: np.ndarray
    sent: np.ndarray
    delay: np.ndarray
    lost: np.ndarray

    @classmethod
    def of(cls, rng: np.random.Generator, count: int, *, flows: int = 7, loss: float = 0.1) -> World:
        flow = rng.integers(1, flows + 1, count).astype(np.uint64)
        sent = START + np.sort(rng.integers(0, 10 * SECOND, count))
        delay = 5 * MS + rng.exponential(2 * MS, count).astype(np.int64)
        return cls(flow, rng.permutation(count).astype(np.uint64), sent, delay, rng.random(count) < loss)

    def keep_ends(self) -> None:
        """The first and the last packets arrive, so that nothing is left undecided."""
        self.lost[:200] = self.lost[-200:] = False

    def sender(self) -> PacketBatch:
        return PacketBatch.of(self.flow, self.packet, self.sent)

    def receiver(self, *, offset: int = 0) -> PacketBatch:
        got = ~self.lost
        return PacketBatch.of(self.flow[got], self.packet[got], (self.sent + self.delay)[got] + offset)


def shuffled(batch: PacketBatch, rng: np.random.Generator) -> PacketBatch:
    return batch.select(rng.permutation(len(batch)))


def joined(*batches: PacketBatch) -> PacketBatch:
    return PacketBatch.concatenate(batches)


def table(match: ExactMatch) -> dict[int, tuple[int, int, int]]:
    f = match.flows
    return {
        int(i): (int(p), int(r), int(n)) for i, p, r, n in zip(f.flow_id, f.packets, f.received, f.lost, strict=True)
    }


@pytest.mark.parametrize("loss", [0.0, 0.001, 0.2, 0.9])
def test_loss_and_delay_of_every_flow_are_exact_in_any_file_order(loss: float) -> None:
    rng = np.random.default_rng(1)
    world = World.of(rng, 20_000, loss=loss)
    world.keep_ends()
    match = match_exact(shuffled(world.sender(), rng), shuffled(world.receiver(), rng))
    assert match.ignored() == {}
    for row, flow in enumerate(match.flows.flow_id):
        mine = world.flow == flow
        got = world.delay[mine & ~world.lost]
        assert match.flows.packets[row] == mine.sum()
        assert match.flows.received[row] == len(got)
        assert match.flows.lost[row] == (mine & world.lost).sum()
        assert match.flows.mean_ns[row] == pytest.approx(got.mean(), rel=1e-12)
        assert match.flows.std_ns[row] == pytest.approx(got.std(), rel=1e-9)
        assert (match.flows.min_ns[row], match.flows.max_ns[row]) == (got.min(), got.max())
    delays = world.delay[~world.lost]
    assert match.aggregate.mean_ns == pytest.approx(delays.mean(), rel=1e-12)
    assert match.aggregate.std_ns == pytest.approx(delays.std(), rel=1e-9)
    assert match.aggregate.lost == world.lost.sum()


def test_each_packet_gets_its_own_delay() -> None:
    rng = np.random.default_rng(2)
    world = World.of(rng, 5_000)
    order = rng.permutation(5_000)
    match = match_exact(world.sender().select(order), world.receiver())
    assert np.array_equal(match.packets.delay_ns, world.delay[order][match.packets.sender_row])
    assert not world.lost[order][match.packets.sender_row].any()


def test_mirrored_copies_are_duplicates_and_not_losses() -> None:
    rng = np.random.default_rng(3)
    world = World.of(rng, 10_000, loss=0.1)
    world.keep_ends()
    twice = rng.random(10_000) < 0.3
    again = PacketBatch.of(world.flow[twice], world.packet[twice], world.sent[twice] + 3_000)
    match = match_exact(joined(world.sender(), again), world.receiver())
    assert match.aggregate.lost == world.lost.sum()
    assert np.count_nonzero(match.sender_fate == Fate.DUPLICATE) == twice.sum() == match.flows.duplicates.sum()
    assert match.aggregate.sent == 10_000
    mirrored = match_exact(world.sender(), joined(world.receiver(), world.receiver(offset=2_000)))
    assert mirrored.aggregate.lost == world.lost.sum()
    assert np.count_nonzero(mirrored.receiver_fate == Fate.DUPLICATE) == 10_000 - world.lost.sum()


def test_a_copy_made_by_the_network_is_a_duplicate() -> None:
    world = World.of(np.random.default_rng(4), 1_000, loss=0.0)
    copy = world.receiver().select(slice(100, 110))
    late = PacketBatch.of(copy.flow_id, copy.packet_id, copy.time_ns + 2 * MS)
    match = match_exact(world.sender(), joined(late, world.receiver()))
    assert match.ignored() == {"duplicate at receiver": 10}
    assert match.aggregate.mean_ns == pytest.approx(world.delay.mean())


def test_identical_packets_pair_oldest_first_and_a_loss_does_not_shift_the_rest() -> None:
    background = World.of(np.random.default_rng(5), 2_000, loss=0.0)
    background.packet += np.uint64(10)
    resets = START + np.arange(1, 9, dtype=np.int64) * SECOND
    arrived = np.delete(resets, [2, 5]) + 6 * MS
    sender = joined(background.sender(), PacketBatch.of([99] * 8, [1] * 8, resets))
    receiver = joined(background.receiver(), PacketBatch.of([99] * 6, [1] * 6, arrived[::-1]))
    match = match_exact(sender, receiver)
    assert table(match)[99] == (8, 6, 2)
    mine = match.packets.flow_id == 99
    assert (match.packets.delay_ns[mine] == 6 * MS).all()
    lost = match.sender_fate[2_000:] == Fate.LOST
    assert list(np.flatnonzero(lost)) == [2, 5]


def reordering_model(sent: list[int]) -> tuple[int, int]:
    """RFC 4737 by its definition: `sent` in order of arrival."""
    late, extent = 0, 0
    for i, time in enumerate(sent):
        earlier = [j for j in range(i) if sent[j] > time]
        if earlier:
            late += 1
            extent = max(extent, i - earlier[0])
    return late, extent


def jitter_model(delays: list[int]) -> float:
    jitter = 0.0
    for before, after in pairwise(delays):
        jitter += (abs(after - before) - jitter) / 16
    return jitter


def test_reordering_and_jitter_follow_their_definitions() -> None:
    rng = np.random.default_rng(6)
    world = World.of(rng, 3_000, flows=5, loss=0.1)
    world.delay += rng.integers(0, 30 * MS, 3_000)
    match = match_exact(world.sender(), world.receiver())
    arrival = np.argsort(world.sent + world.delay, kind="stable")
    for row, flow in enumerate(match.flows.flow_id):
        mine = [i for i in arrival if world.flow[i] == flow and not world.lost[i]]
        late, extent = reordering_model([int(world.sent[i]) for i in mine])
        assert late > 50
        assert (match.flows.reordered[row], match.flows.reorder_extent[row]) == (late, extent)
        assert match.flows.jitter_ns[row] == pytest.approx(jitter_model([int(world.delay[i]) for i in mine]))


@pytest.mark.parametrize("offset", [0, 5 * SECOND, -5 * SECOND])
@pytest.mark.parametrize("trim", [True, False])
def test_captures_that_start_and_stop_apart_do_not_make_losses(offset: int, trim: bool) -> None:
    rng = np.random.default_rng(7)
    world = World.of(rng, 20_000, flows=200, loss=0.05)
    arrival = world.sent + world.delay
    seen_sent = (world.sent > START + SECOND) & (world.sent < START + 8 * SECOND)
    seen_got = ~world.lost & (arrival > START + 2 * SECOND) & (arrival < START + 7 * SECOND)
    sender = PacketBatch.of(world.flow[seen_sent], world.packet[seen_sent], world.sent[seen_sent])
    receiver = PacketBatch.of(world.flow[seen_got], world.packet[seen_got], arrival[seen_got] + offset)
    match = match_exact(sender, receiver, trim=trim)
    really_lost = world.lost[seen_sent]
    called_lost = match.sender_fate == Fate.LOST
    if not trim:
        assert called_lost.sum() == seen_sent.sum() - match.aggregate.received
        return
    assert not (called_lost & ~really_lost).any()
    inside = (world.sent > START + 2 * SECOND) & (world.sent < START + 7 * SECOND - 30 * MS)
    assert (world.lost & inside).sum() <= called_lost.sum() <= (world.lost & inside).sum() + 5
    assert not (match.receiver_fate == Fate.RECEIVER_ONLY).any()


def test_packets_that_the_senders_capture_dropped_are_receiver_only() -> None:
    world = World.of(np.random.default_rng(8), 5_000, loss=0.0)
    kept = np.ones(5_000, np.bool_)
    kept[2_000:2_050] = False
    match = match_exact(world.sender().select(kept), world.receiver())
    assert match.ignored() == {"not seen sent at receiver": 50}
    assert match.aggregate.lost == 0


def test_a_flow_whose_key_changes_on_the_way_is_the_senders_flow() -> None:
    world = World.of(np.random.default_rng(20), 3_000, loss=0.1)
    world.keep_ends()
    got = world.receiver()
    retagged = PacketBatch.of(got.flow_id + np.uint64(1_000), got.packet_id, got.time_ns)
    match = match_exact(world.sender(), retagged)
    assert set(match.flows.flow_id) == set(range(1, 8))
    assert match.aggregate.lost == world.lost.sum()
    assert match.ignored() == {}


def two_way(offset: int, seed: int = 9) -> tuple[PacketBatch, PacketBatch, Conversations, World, World]:
    """Flows 1…7 travel forward, 101…107 are their opposites."""
    rng = np.random.default_rng(seed)
    there, back = World.of(rng, 4_000, loss=0.1), World.of(rng, 3_000, loss=0.02)
    back.packet += np.uint64(1 << 40)
    back.flow += np.uint64(100)
    there.keep_ends()
    back.keep_ends()
    got = ~back.lost
    arrived = PacketBatch.of(back.flow[got], back.packet[got], (back.sent + back.delay)[got])
    left = PacketBatch.of(back.flow, back.packet, back.sent + offset)
    numbers = np.arange(1, 8, dtype=np.uint64)
    sender = shuffled(joined(there.sender(), arrived), rng)
    receiver = shuffled(joined(there.receiver(offset=offset), left), rng)
    return sender, receiver, Conversations(numbers, numbers + np.uint64(100)), there, back


@pytest.mark.parametrize("offset", [0, 2 * MS, 3 * SECOND, -3 * SECOND, 3600 * SECOND])
def test_directions_are_told_apart_with_any_clock_offset(offset: int) -> None:
    sender, receiver, conversations, there, back = two_way(offset)
    match = match_exact(sender, receiver, conversations=conversations)
    assert set(match.flows.flow_id) == set(range(1, 8))
    assert match.aggregate.lost == there.lost.sum()
    assert match.clock.both_directions
    assert match.clock.uncertainty_ns is not None
    assert abs(match.clock.offset_ns - offset) <= match.clock.uncertainty_ns <= 6 * MS
    other = match_exact(receiver, sender, conversations=conversations)
    assert set(other.flows.flow_id) == set(range(101, 108))
    assert other.aggregate.lost == back.lost.sum()
    assert abs(other.clock.offset_ns + offset) <= (other.clock.uncertainty_ns or 0)


def test_without_known_conversations_the_sign_of_synchronous_delays_tells_directions() -> None:
    sender, receiver, _, there, _ = two_way(0)
    match = match_exact(sender, receiver)
    assert set(match.flows.flow_id) == set(range(1, 8))
    assert match.aggregate.mean_ns == pytest.approx(there.delay[~there.lost].mean())


def test_a_given_offset_is_subtracted_and_reversed() -> None:
    sender, receiver, conversations, there, back = two_way(2 * SECOND)
    mode = ClockMode("offset", 2 * SECOND)
    match = match_exact(sender, receiver, conversations=conversations, clock=mode)
    assert match.aggregate.mean_ns == pytest.approx(there.delay[~there.lost].mean())
    other = match_exact(receiver, sender, conversations=conversations, clock=mode.reversed())
    assert other.aggregate.mean_ns == pytest.approx(back.delay[~back.lost].mean())


def test_negative_delays_that_stay_are_explained() -> None:
    sender, receiver, conversations, *_ = two_way(-SECOND)
    match = match_exact(sender, receiver, conversations=conversations, clock=ClockMode("none"))
    assert match.aggregate.negative == match.aggregate.received > 0
    assert "negative" in match.explanation
    assert "not corrected" in match.explanation
    corrected = match_exact(sender, receiver, conversations=conversations)
    assert corrected.aggregate.negative == 0
    assert "negative" not in corrected.explanation


def test_flows_never_matched_are_listed_apart_unless_their_conversation_passes() -> None:
    sender, receiver, conversations, there, _ = two_way(0)
    middle = START + 5 * SECOND
    stray = PacketBatch.of([500, 500, 501], [1 << 50, 2 << 50, 3 << 50], [middle, middle + 1, middle + 2])
    blackholed = ~np.isin(receiver.flow_id, [3])
    match = match_exact(joined(sender, stray), receiver.select(blackholed), conversations=conversations)
    gone = int((there.flow == 3).sum())
    packets, received, lost = table(match)[3]
    assert received == 0
    assert lost == packets >= gone - 100  # a few at the edges stay undecided
    assert np.isnan(match.flows.mean_ns[match.flows.flow_id == 3]).all()
    assert match.unmatched_flows.tolist() == [500, 501]
    counted = match_exact(joined(sender, stray), receiver, conversations=conversations, count_unmatched=True)
    assert table(counted)[500] == (2, 0, 2)
    assert len(counted.unmatched_flows) == 0


@pytest.mark.parametrize("empty", ["sender", "receiver", "both"])
def test_an_empty_point_gives_an_empty_answer(empty: str) -> None:
    nothing = PacketBatch.of([], [], [])
    some = PacketBatch.of([1, 2], [3, 4], [START, START + 1])
    match = match_exact(nothing if empty != "receiver" else some, nothing if empty != "sender" else some, trim=True)
    assert len(match.flows) == 0
    assert match.aggregate.sent == 0
    assert "nothing is known" in match.explanation


def test_bad_input_is_refused_with_a_reason() -> None:
    good = PacketBatch.of([1], [1], [START])
    with pytest.raises(InputError, match="receiver: a packet's time"):
        match_exact(good, PacketBatch.of([1], [1], [-1]))
    with pytest.raises(MismatchError):
        Conversations(np.zeros(2, np.uint64), np.zeros(1, np.uint64))
    with pytest.raises(ParameterError):
        match_exact(good, good, duplicate_ns=-1)


class DictionaryModel:
    """The ten-line matcher: k-th copy with k-th copy, in time order."""

    def __init__(self, sent: list[tuple[int, int, int]], got: list[tuple[int, int, int]]) -> None:
        copies: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for flow, packet, time in sorted(sent, key=lambda p: p[2]):
            copies[packet].append((flow, time))
        self.delays: dict[int, list[int]] = defaultdict(list)
        for _, packet, time in sorted(got, key=lambda p: p[2]):
            if copies[packet]:
                flow, before = copies[packet].pop(0)
                self.delays[flow].append(time - before)
        self.lost: dict[int, int] = defaultdict(int)
        for rest in copies.values():
            for flow, _ in rest:
                self.lost[flow] += 1


packets = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 1_000), st.integers(1, 50), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(packets, st.booleans(), st.randoms(use_true_random=False))
def test_equals_the_dictionary_model_on_small_worlds(world: list, repeat: bool, random) -> None:
    """Either ids repeat and nothing is lost, or ids are unique and packets are lost."""
    sent, got = [], []
    for number, (packet, slot, delay, is_lost) in enumerate(world):
        identity = packet if repeat else number
        time = START + (slot * 100 + number) * MS  # never two at once
        sent.append((packet % 3, identity, time))
        if repeat or not is_lost:
            got.append((packet % 3, identity, time + delay * 10_000))
    model = DictionaryModel(sent, got)
    random.shuffle(sent)
    random.shuffle(got)
    match = match_exact(
        PacketBatch.of(*zip(*sent, strict=True)),
        PacketBatch.of(*zip(*got, strict=True)) if got else PacketBatch.of([], [], []),
        trim=False,
        count_unmatched=True,
    )
    found: dict[int, list[int]] = defaultdict(list)
    for flow, delay in zip(match.packets.flow_id, match.packets.delay_ns, strict=True):
        found[int(flow)].append(int(delay))
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in model.delays.items()}
    assert {k: v[2] for k, v in table(match).items() if v[2]} == {k: v for k, v in model.lost.items() if v}
    assert match.aggregate.sent == len(sent)


absurd_times = st.sampled_from([0, 1, 10**9, START, START + MS, START + 9 * MS, (3 << 60) - 1])
absurd_packets = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), absurd_times), max_size=80)


@given(absurd_packets, absurd_packets, st.booleans(), st.sampled_from(["auto", "none", "offset"]))
def test_absurd_input_still_accounts_for_every_packet(sent: list, got: list, trim: bool, mode: str) -> None:
    batches = [PacketBatch.of(*zip(*p, strict=True)) if p else PacketBatch.of([], [], []) for p in (sent, got)]
    pairs = np.arange(0, 4, 2, dtype=np.uint64), np.arange(1, 5, 2, dtype=np.uint64)
    match = match_exact(*batches, conversations=Conversations(*pairs), trim=trim, clock=ClockMode(mode, 10**18))
    aggregate = match.aggregate
    assert aggregate.received == np.count_nonzero(match.sender_fate == Fate.RECEIVED)
    assert aggregate.received == np.count_nonzero(match.receiver_fate == Fate.RECEIVED)
    assert aggregate.lost == np.count_nonzero(match.sender_fate == Fate.LOST)
    assert (match.flows.packets == match.flows.received + match.flows.lost).all()
    counted = aggregate.sent + aggregate.received + sum(match.ignored().values())
    assert counted == len(sent) + len(got)
    if aggregate.negative:
        assert "negative" in match.explanation
