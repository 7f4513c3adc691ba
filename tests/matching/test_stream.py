"""Matching packets as they come equals a plain dictionary, to the packet, in memory that does not grow with them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sojourn.capture.flows.table import Conversations
from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.estimates import LEVELS
from sojourn.matching.consumers import LostColumns, MatchedColumns
from sojourn.matching.exact import ExactMatch, Fate, match_exact
from sojourn.matching.join_table import RECEIVER, SENDER
from sojourn.matching.joining import JoinSettings
from sojourn.matching.stream import Directions, ExactStream, StreamSettings

MS = 1_000_000
SECOND = 1_000 * MS
START = 1_700_000_000 * SECOND
LATEST = 1 << 62


@dataclass
class World:
    """Packets on their way, and what each point's capture shows of them by its own clock."""

    count: int = 20_000
    seconds: int = 20
    loss: float = 0.0
    burst: int = 1
    spread: int = 2 * MS
    doubled: float = 0.0
    offset: int = 0
    skew_ppm: float = 0.0
    sender_shows: tuple[float, float] = (0.0, 1.0)
    receiver_shows: tuple[float, float] = (0.0, 1.0)
    way_back: bool = True
    disorder: int = 0
    repeated: int = 0
    seed: int = 1

    def points(self) -> tuple[PacketBatch, PacketBatch]:
        rng = np.random.default_rng(self.seed)
        count, span = self.count, self.seconds * SECOND
        sent = START + np.sort(rng.integers(0, span, count))
        flow = rng.integers(1, 40, count)
        identity = np.arange(count)
        if self.repeated:
            identity = np.where(identity % 50, identity, flow + count)
        delay = 20 * MS + rng.exponential(self.spread, count).astype(np.int64)
        lost = np.repeat(rng.random(count // self.burst + 1) < self.loss, self.burst)[:count]
        back = (flow % 2 == 0) & self.way_back
        arrival = sent + np.where(back, -delay, delay)
        arrival = arrival + self.offset + ((arrival - START) * self.skew_ppm * 1e-6).astype(np.int64)
        return (
            self._seen(rng, flow, identity, sent, ~(lost & back), self.sender_shows, span, 0),
            self._seen(rng, flow, identity, arrival, ~(lost & ~back), self.receiver_shows, span, self.offset),
        )

    def _seen(self, rng, flow, identity, time, there, shows, span, offset) -> PacketBatch:
        since = time - START - offset
        rows = np.flatnonzero(there & (since >= shows[0] * span) & (since <= shows[1] * span))
        twice = rows[rng.random(len(rows)) < self.doubled]
        rows = np.concatenate([rows, twice])
        times = np.concatenate([time[rows[: len(rows) - len(twice)]], time[twice] + 3_000])
        shown = times + (rng.integers(0, self.disorder, len(times)) if self.disorder else 0)
        order = np.argsort(shown, kind="stable")
        return PacketBatch.of(flow[rows][order], identity[rows][order], times[order])


WORLDS = {
    "plain": World(),
    "a fifth is lost": World(loss=0.2),
    "in bursts": World(loss=0.1, burst=30),
    "reordered over 200 ms": World(loss=0.02, spread=200 * MS),
    "a tenth is doubled": World(loss=0.05, doubled=0.1),
    "3 s behind": World(loss=0.05, offset=-3 * SECOND),
    "an hour ahead": World(loss=0.05, offset=3600 * SECOND),
    "50 ppm fast": World(loss=0.05, skew_ppm=50.0),
    "start and stop apart": World(loss=0.05, sender_shows=(0.1, 0.8), receiver_shows=(0.3, 0.9)),
    "40 times as long": World(count=80_000, seconds=80, loss=0.05, receiver_shows=(0.5, 0.525)),
    "one way": World(loss=0.05, way_back=False),
    "out of order by 300 ms": World(loss=0.05, disorder=300 * MS),
    "identical packets": World(repeated=1, spread=MS // 10),
}


def conversations(name: str = "") -> Conversations:
    """Flows 1 and 2, 3 and 4 … are each other's opposites, unless all go one way."""
    odd = np.arange(1, 40, 2, dtype=np.uint64)[: 0 if name == "one way" else None]
    return Conversations(odd, odd + np.uint64(1))


@dataclass
class Seen:
    """A consumer that keeps all it is given."""

    matched: list[MatchedColumns] = field(default_factory=list)
    lost: list[LostColumns] = field(default_factory=list)

    def take_matched(self, packets: MatchedColumns) -> None:
        self.matched.append(MatchedColumns(*(column.copy() for column in vars(packets).values())))

    def take_lost(self, packets: LostColumns) -> None:
        self.lost.append(packets)

    def columns(self, flow: Int64Array) -> dict[str, Int64Array]:
        return {"flow": flow}

    def totals(self, flow: Int64Array) -> dict[str, int]:
        return {"flows": len(flow)}


def streamed(
    points: tuple[PacketBatch, PacketBatch],
    settings: StreamSettings,
    told: ExactMatch,
    chunk: int = 777,
    opposites: Conversations | None = None,
) -> tuple[ExactMatch, Seen, ExactStream]:
    """Both points through a stream, in pieces."""
    seen = Seen()
    stream = ExactStream(settings, [seen])
    done = [0, 0]
    while (side := stream.wants) is not None:
        part = points[side].select(slice(done[side], done[side] + chunk))
        done[side] += len(part)
        if len(part):
            stream.take(side, part)
        else:
            stream.end(side)
    even = np.arange(2, 40, 2, dtype=np.uint64) if told.clock.both_directions else np.zeros(0, np.uint64)
    directions = Directions(told.flows.flow_id, even, opposites or conversations())
    return stream.finish(told.clock, directions), seen, stream


def dictionary_pairs(points: tuple[PacketBatch, PacketBatch]) -> dict[tuple[int, int], int]:
    """(flow, time sent) → time received: k-th copy with k-th copy, copies that follow within 100 µs left out."""
    copies: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = defaultdict(lambda: ([], []))
    for side, batch in enumerate(points):
        order = np.argsort(batch.time_ns, kind="stable")
        for flow, packet, time in zip(
            batch.flow_id[order].tolist(), batch.packet_id[order].tolist(), batch.time_ns[order].tolist(), strict=True
        ):
            seen = copies[packet][side]
            if not seen or time - seen[-1][1] > 100_000:
                seen.append((flow, time))
    return {
        there: here[1] for sent, got in copies.values() if sent and got for there, here in zip(sent, got, strict=False)
    }


@pytest.mark.parametrize("name", WORLDS)
def test_every_packet_is_matched_as_a_dictionary_does(name: str) -> None:
    points = WORLDS[name].points()
    told = match_exact(*points, conversations=conversations(name))
    match, seen, stream = streamed(points, StreamSettings.found(told), told, opposites=conversations(name))
    wanted = dictionary_pairs(points)
    ids = stream.numbers.ids
    clock = told.clock
    found = {
        (int(ids[flow]), sent): delay
        for part in seen.matched
        for flow, sent, delay in zip(*(c.tolist() for c in (part.flow, part.sent_ns, part.delay_ns)), strict=True)
    }
    sent, received = np.array([s for _, s in wanted]), np.array(list(wanted.values()))
    corrected = clock.correct(received, sent) - sent
    assert found == dict(zip(wanted, corrected.tolist(), strict=True))
    assert stream.joiner.crowded == 0
    assert match.aggregate.received > 200


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("chunk", [777, 100_000])
def test_flows_losses_edges_and_copies_are_those_of_packets_in_memory(name: str, chunk: int) -> None:
    points = WORLDS[name].points()
    told = match_exact(*points, conversations=conversations(name))
    match, seen, _ = streamed(points, StreamSettings.found(told), told, chunk, conversations(name))
    assert match.ignored() == told.ignored()
    assert set(match.unmatched_flows.tolist()) == set(told.unmatched_flows.tolist())
    order, other = np.argsort(match.flows.flow_id), np.argsort(told.flows.flow_id)
    for column, expected in zip(vars(match.flows).values(), vars(told.flows).values(), strict=True):
        assert column[order] == pytest.approx(expected[other], rel=1e-9, nan_ok=True)
    for one, expected in zip(match.aggregate.__slots__, told.aggregate.__slots__, strict=True):
        assert getattr(match.aggregate, one) == pytest.approx(getattr(told.aggregate, expected), rel=1e-9)
    assert sum(map(len, seen.lost)) >= match.aggregate.lost


def test_matched_packets_come_in_order_of_arrival_and_numbers_tell_bursts() -> None:
    points = World(loss=0.1, burst=20, way_back=False, seconds=100).points()
    told = match_exact(*points)
    match, seen, stream = streamed(points, StreamSettings.found(told), told)
    arrived = np.concatenate([part.sent_ns + part.delay_ns for part in seen.matched])
    assert (np.diff(arrived) >= 0).all()
    numbers: dict[int, list[int]] = defaultdict(list)
    for part in seen.lost:
        for flow, number in zip(part.flow.tolist(), part.number.tolist(), strict=True):
            numbers[flow].append(number)
    assert all(values == sorted(values) for values in numbers.values())
    for part in seen.matched:
        for flow, number in zip(part.flow.tolist(), part.number.tolist(), strict=True):
            numbers[flow].append(number)
    ids = stream.numbers.ids.tolist()
    for flow, values in numbers.items():
        # Only packets at the edges, which are neither, are missing.
        assert len(set(values)) == len(values) >= np.count_nonzero(points[SENDER].flow_id == ids[flow]) - 2
        assert max(values) < np.count_nonzero(points[SENDER].flow_id == ids[flow])
    assert match.aggregate.lost > 1_000


def test_the_table_does_not_grow_with_the_captures() -> None:
    """1, 4 and 16 times the same traffic: a constant rate, delays of 20 ms."""
    capacities = []
    for length in (1, 4, 16):
        points = World(count=20_000 * length, seconds=20 * length, loss=0.05).points()
        told = match_exact(*(batch.select(slice(0, 5_000)) for batch in points), conversations=conversations())
        settings = StreamSettings.found(told, max_delay_ns=2 * SECOND)
        match, _, stream = streamed(points, settings, told)
        assert match.aggregate.sent > 9_000 * length
        capacities.append(stream.joiner.capacity)
    assert max(capacities) <= 1 << 12
    assert capacities[1] == capacities[2]


def test_a_delay_beyond_the_longest_is_a_loss_and_half_a_minute_is_none() -> None:
    points = World(way_back=False).points()
    late = points[RECEIVER].time_ns.copy()
    late[5_000:5_010] += 35 * SECOND
    slow = points[SENDER], PacketBatch.of(points[RECEIVER].flow_id, points[RECEIVER].packet_id, late)
    slow = slow[0], slow[1].select(np.argsort(late, kind="stable"))
    told = match_exact(*slow)
    match, _, _ = streamed(slow, StreamSettings.found(told), told)
    assert (match.aggregate.lost, match.aggregate.max_ns > 35 * SECOND) == (0, True)
    short, _, _ = streamed(slow, StreamSettings.found(told, max_delay_ns=SECOND), told)
    assert short.aggregate.lost + sum(v for k, v in short.ignored().items() if k.startswith("edge")) >= 10
    assert short.aggregate.max_ns < SECOND


def test_a_full_table_gives_up_the_oldest_and_says_so() -> None:
    points = World(loss=0.9, way_back=False, seconds=2).points()
    told = match_exact(*points)
    found = StreamSettings.found(told)
    settings = StreamSettings(told.clock, JoinSettings(found.join.max_delay_ns, most_rows=1 << 10))
    match, _, stream = streamed(points, settings, told)
    assert stream.joiner.crowded > 1_000
    assert stream.joiner.capacity == 1 << 10
    assert match.aggregate.received == told.aggregate.received  # those in flight are younger than those lost


def test_a_silent_point_holds_the_other_up_only_until_it_is_known_to_be_silent() -> None:
    stream = ExactStream(StreamSettings.of_one_clock(SECOND), span_ns=0)
    batch = PacketBatch.of([1, 1], [5, 6], [START, START + MS])
    stream.take(SENDER, batch)
    stream.until(SENDER, START + 5 * SECOND)
    assert stream.totals.aggregate(np.arange(1)).lost == 0
    stream.until(RECEIVER, START + 10 * SECOND)
    stream.take(SENDER, PacketBatch.of([1], [7], [START + 9 * SECOND]))
    assert stream.totals.aggregate(np.arange(1)).lost == 2
    stream.take(RECEIVER, PacketBatch.of([1], [7], [START + 9 * SECOND + MS]))
    for side in (SENDER, RECEIVER):
        stream.end(side)
    match = stream.finish(stream.settings.clock, Directions.of_one_clock())
    assert (match.aggregate.sent, match.aggregate.received, match.aggregate.lost) == (3, 1, 2)


def test_settings_hold_only_for_what_they_were_made_for() -> None:
    def settings(world: World) -> StreamSettings:
        return StreamSettings.found(match_exact(*world.points(), conversations=conversations()))

    plain = settings(World())
    assert plain.holds(settings(World(seed=2)))
    assert not plain.holds(settings(World(offset=-3 * SECOND)))
    assert not plain.holds(settings(World(skew_ppm=50.0)))
    assert not plain.holds(settings(World(spread=20 * SECOND, seconds=200)))


def test_a_window_that_lets_the_next_copy_of_a_lost_packet_in_does_not_hold() -> None:
    found = replace(StreamSettings.of_one_clock(30 * SECOND), usual_ns=(5 * MS, 25 * MS), has_copies=True)
    found = replace(found, join=replace(found.join, low_ns=-5 * MS, high_ns=35 * MS))
    for high, holds in ((30 * MS, True), (50 * MS, True), (4_455 * MS, False), (20 * MS, False)):
        used = replace(found, join=replace(found.join, high_ns=high))
        assert used.holds(found) == holds, high
        assert used.holds(replace(found, has_copies=False))


@pytest.mark.parametrize("name", WORLDS)
def test_tails_are_those_of_the_matched_and_lost_packets(name: str) -> None:
    points = WORLDS[name].points()
    told = match_exact(*points, conversations=conversations(name))
    match, _, _ = streamed(points, StreamSettings.found(told), told, opposites=conversations(name))
    found = {key: column for tail in match.tails for key, column in tail.columns(match.numbers).items()}
    totals = {key: value for tail in match.tails for key, value in tail.totals(match.numbers).items()}
    row_of = {flow: row for row, flow in enumerate(match.flows.flow_id.tolist())}
    sender, runs = points[SENDER], []
    for flow in set(told.flows.flow_id.tolist()):
        row = row_of[flow]
        delays = told.packets.delay_ns[told.packets.flow_id == flow]
        truth = np.quantile(delays, list(LEVELS.values())) if len(delays) else np.full(len(LEVELS), np.nan)
        for level, value in zip(LEVELS, truth.tolist(), strict=True):
            assert found[f"{level}_ns"][row] == pytest.approx(value, rel=0.01, abs=1, nan_ok=True)
        # Packets of the flow as it was sent, copies left out.
        mine = np.flatnonzero((sender.flow_id == flow) & (told.sender_fate != Fate.DUPLICATE))
        lost = told.sender_fate[mine[np.argsort(sender.time_ns[mine], kind="stable")]] == Fate.LOST
        lengths = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], lost, [0]]))))[::2]
        runs += lengths.tolist()
        assert found["loss_bursts"][row] == len(lengths)
        assert found["longest_burst"][row] == lengths.max(initial=0)
    assert totals["loss_bursts"] == len(runs)
    assert totals["longest_burst"] == max(runs, default=0)
    everything = np.quantile(told.packets.delay_ns, list(LEVELS.values()))
    assert [totals[f"{level}_ns"] for level in LEVELS] == pytest.approx(everything.tolist(), rel=0.01)
