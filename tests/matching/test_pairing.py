"""Pairing against a plain dictionary that follows the documented rules packet by packet."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.matching.join_table import LATE_COPY_NS
from sojourn.matching.joining import NO_LIMIT_NS, JoinSettings
from sojourn.matching.numbers import FlowNumbers
from sojourn.matching.pairing import (
    DUPLICATE,
    LEAST_MARGIN_NS,
    MATCHED,
    MIRRORED_SHARE,
    SINGLE_SHARE,
    SLACK_NS,
    UNMATCHED,
    pair_packets,
)

MS = 1_000_000
Packets = list[tuple[int, int]]


@dataclass
class Waiting:
    row: int
    time: int
    kept: int
    shadow: bool
    late: bool


@dataclass
class Identity:
    """What is known of one identity: who waits at each point, and the latest pair's two times."""

    waiting: tuple[list[Waiting], list[Waiting]] = field(default_factory=lambda: ([], []))
    recent: tuple[int, int] | None = None


@dataclass
class Model:
    """Two points' packets in order of time, each against a dictionary of identities."""

    settings: JoinSettings
    pairs: dict[int, tuple[int, bool]] = field(default_factory=dict)
    statuses: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    shadows: list[int] = field(default_factory=lambda: [0, 0])
    alone_shadows: list[int] = field(default_factory=lambda: [0, 0])

    def run(self, sent: Packets, got: Packets) -> Model:
        identities: dict[int, Identity] = defaultdict(Identity)
        events = [(time, 0, row, packet) for row, (packet, time) in enumerate(sent)]
        events += [(time, 1, row, packet) for row, (packet, time) in enumerate(got)]
        for time, side, row, packet in sorted(events):
            self.take(identities[packet], time, side, row)
        for identity in identities.values():
            for side, waiting in enumerate(identity.waiting):
                for one in waiting:
                    self.leave(one, side)
        return self

    def leave(self, one: Waiting, side: int) -> None:
        self.statuses[side][one.row] = DUPLICATE if one.shadow or one.late else UNMATCHED
        self.alone_shadows[side] += one.shadow

    def take(self, identity: Identity, time: int, side: int, row: int) -> None:
        own, other = identity.waiting[side], identity.waiting[1 - side]
        if identity.recent is not None and max(identity.recent) < time - LATE_COPY_NS:
            identity.recent = None
        one = Waiting(row, time, time, False, False)
        if own and time - own[-1].kept <= self.settings.duplicate_ns:
            one.kept, one.shadow = own[-1].kept, True
        if recent := identity.recent:
            if time - recent[side] <= self.settings.duplicate_ns:
                one.kept, one.shadow = recent[side], True
            one.late = side == 1 and (time - recent[1] <= LATE_COPY_NS or time - recent[0] <= self.settings.high_ns)
        self.shadows[side] += one.shadow
        if one.shadow and self.settings.mirrored[side]:
            self.leave(one, side)
            return
        is_single = not own and identity.recent is None
        partner = self.partner(other, time, side, is_single)
        if partner is None:
            own.append(one)
            return
        there, here = (partner, one) if side else (one, partner)
        copied = not is_single or bool(other) or partner.shadow
        self.pairs[here.row] = (there.row, copied)
        self.statuses[0][there.row] = self.statuses[1][here.row] = MATCHED
        identity.recent = there.time, here.time

    def partner(self, other: list[Waiting], time: int, side: int, is_single: bool) -> Waiting | None:
        while other:
            first = other[0]
            if is_single and len(other) == 1 and not (first.shadow or first.late):
                return other.pop(0)
            delay = time - first.time if side else first.time - time
            if side:
                passed, fits = delay > self.settings.high_ns, delay >= self.settings.low_ns
            else:
                passed, fits = delay < self.settings.low_ns, delay <= self.settings.high_ns
            if not passed:
                return other.pop(0) if fits else None
            self.leave(other.pop(0), 1 - side)
        return None


def model(sent: Packets, got: Packets, duplicate_ns: int) -> Model:
    """A first run without a window, and if there are copies a second one with what it told."""
    settings = JoinSettings(duplicate_ns=duplicate_ns)
    first = Model(settings).run(sent, got)
    single = [(r, s) for r, (s, copied) in first.pairs.items() if not copied]
    counts = [Counter(packet for packet, _ in packets) for packets in (sent, got)]
    once = [(r, s) for r, s in single if counts[0][sent[s][0]] == counts[1][got[r][0]] == 1]
    delays = [got[r][1] - sent[s][1] for r, s in (once if once and len(once) >= SINGLE_SHARE * len(single) else single)]
    low, high = (min(delays), max(delays)) if delays else (0, 0)  # fewer than 500: the central 99.8 % are all
    is_copied = any(c for _, c in first.pairs.values()) or DUPLICATE in first.statuses[1].values() or any(first.shadows)
    if is_copied:
        margin = max(LEAST_MARGIN_NS, (high - low) // 2) if delays else 3 << 60
        mirrored = tuple(
            2 * alone > shadows and alone > MIRRORED_SHARE * len(packets)
            for alone, shadows, packets in zip(first.alone_shadows, first.shadows, (sent, got), strict=True)
        )
        window = replace(settings, low_ns=low - margin, high_ns=high + margin, mirrored=mirrored)
        first = Model(window).run(sent, got)
    slack = max(SLACK_NS, high - low) if delays else NO_LIMIT_NS
    for r, (s, copied) in list(first.pairs.items()):
        if not copied and not low - slack <= got[r][1] - sent[s][1] <= high + slack:
            del first.pairs[r]
            first.statuses[0][s] = first.statuses[1][r] = UNMATCHED
    return first


def batch(packets: Packets) -> PacketBatch:
    return PacketBatch.of([0] * len(packets), np.array([p for p, _ in packets], np.uint64), [t for _, t in packets])


# Few ids and few times, so that copies, ties and impossible delays are common; ids use all their bits.
times = st.sampled_from([0, 1, 50, 100, 101, 5 * MS, 6 * MS, 7 * MS, 20 * MS, 900 * MS, 2_000 * MS, 900_000 * MS])
ids = st.sampled_from([0, 1, 2, 255, 256, 1 << 32, (1 << 64) - 1, 0x0123456789ABCDEF])
points = st.lists(st.tuples(ids, times), max_size=25)


@given(points, points, st.sampled_from([0, 100, MS]))
def test_pairs_equal_the_plain_model(sent: Packets, got: Packets, duplicate_ns: int) -> None:
    found = pair_packets(batch(sent), batch(got), duplicate_ns=duplicate_ns)
    wanted = model(sent, got, duplicate_ns)
    pairs = dict(zip(found.receiver_row.tolist(), found.sender_row.tolist(), strict=True))
    assert pairs == {r: s for r, (s, _) in wanted.pairs.items()}
    assert found.sender_status.tolist() == [wanted.statuses[0][row] for row in range(len(sent))]
    assert found.receiver_status.tolist() == [wanted.statuses[1][row] for row in range(len(got))]
    assert (np.diff(found.received_ns) >= 0).all()


@given(points, points)
def test_exchanging_the_points_exchanges_the_pairs(sent: Packets, got: Packets) -> None:
    ids_once = list(dict(sent).items()), list(dict(got).items())
    there = pair_packets(batch(ids_once[0]), batch(ids_once[1]))
    back = pair_packets(batch(ids_once[1]), batch(ids_once[0]))
    pairs = set(zip(there.sender_row.tolist(), there.receiver_row.tolist(), strict=True))
    assert pairs == set(zip(back.receiver_row.tolist(), back.sender_row.tolist(), strict=True))


@pytest.mark.parametrize("delay", [300, -300, 10**12, -(10**12)])
def test_a_million_identical_packets_pair_in_linear_time(delay: int) -> None:
    """A flood of one packet over and over would take hours in anything quadratic, whoever waits for whom."""
    count = 1_000_000
    sent = 10**13 + np.arange(count, dtype=np.int64) * 1_000
    flood = PacketBatch.of(np.zeros(count, np.uint64), np.full(count, 7, np.uint64), sent[::-1])
    found = pair_packets(flood, PacketBatch.of(flood.flow_id, flood.packet_id, flood.time_ns + delay))
    assert len(found) == count
    assert (found.raw_delay_ns == delay).all()


def test_an_absurd_delay_is_not_a_match_and_one_of_minutes_is() -> None:
    count = 1_000
    sent = np.arange(count, dtype=np.int64) * MS
    got = sent + 5 * MS
    got[7] += 3_600_000 * MS
    got[8] += 100_000 * MS
    numbers = np.arange(count)
    found = pair_packets(
        PacketBatch.of(np.zeros(count, np.int64), numbers, sent),
        PacketBatch.of(np.zeros(count, np.int64), numbers, got),
    )
    assert len(found) == count - 1
    assert found.sender_status[7] == found.receiver_status[7] == UNMATCHED
    assert found.sender_status[8] == found.receiver_status[8] == MATCHED


def test_copies_of_a_mirror_do_not_take_the_place_of_packets_that_hosts_repeat() -> None:
    """Both packets of a host that repeats itself arrive, and each is seen twice at one of the points."""
    sent = np.arange(2_000) * 5 * MS
    identity = np.arange(2_000)
    identity[1::4] = identity[0::4]  # every fourth is the same as the one before
    got = sent + 20 * MS
    once = PacketBatch.of(np.zeros(2_000, np.int64), identity, sent), PacketBatch.of(identity * 0, identity, got)
    for mirror in range(2):
        points = list(once)
        again = PacketBatch.of(identity * 0, identity, once[mirror].time_ns + 3_000)
        points[mirror] = PacketBatch.concatenate([once[mirror], again])
        found = pair_packets(*points)
        assert len(found) == 2_000
        assert (found.raw_delay_ns == 20 * MS).all()
        statuses = (found.sender_status, found.receiver_status)[mirror]
        assert np.count_nonzero(statuses == DUPLICATE) == 2_000


@pytest.mark.parametrize("distinct", [1, 1_023, 1_024, 1_025, 50_000])
def test_ids_are_numbered_in_order_of_appearance(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    pool = rng.integers(0, 1 << 64, distinct, dtype=np.uint64)
    column = pool[rng.integers(0, distinct, 60_000)]
    numbers = FlowNumbers()
    found = np.concatenate([numbers.of(part) for part in np.array_split(column, 7)])
    assert numbers.ids.tolist() == list(dict.fromkeys(column.tolist()))
    assert np.array_equal(numbers.ids[found], column)


def test_lost_packets_that_are_the_same_as_others_that_arrived_are_counted() -> None:
    """Copies that a capture shows later than a mirror port would: 10 arrived once, 11 twice, 12 not at all."""
    late = 50_000_000
    sender = PacketBatch.of([1] * 6, [10, 10, 11, 11, 12, 12], [0, late, 10, late + 10, 20, late + 20])
    receiver = PacketBatch.of([1] * 3, [10, 11, 11], [1000, 1010, late + 1010])
    pairs = pair_packets(sender, receiver)
    assert pairs.raw_delay_ns.tolist() == [1000, 1000, 1000]
    assert (pairs.shared_ids, pairs.unpaired_copies) == (6, 1)


def test_a_poll_beyond_one_point_s_end_does_not_widen_the_window_of_copies() -> None:
    """Polls that are the same every two seconds, 1 in 10 lost, a receiver that captures for longer, other packets that
    occur once: those alone say which delays are plausible, so that a poll never takes a lost one's place."""
    rng = np.random.default_rng(7)
    polls, others = 60, 4_000
    identity = np.r_[np.tile(np.arange(200), polls), np.arange(1_000, 1_000 + others)].astype(np.uint64)
    sent_ns = np.r_[np.repeat(np.arange(polls) * 2_000 * MS, 200), rng.integers(0, 2_000 * polls * MS, others)]
    arrives = rng.random(len(identity)) >= 0.1
    seen = sent_ns < 50 * 2_000 * MS
    sender = PacketBatch.of(identity[seen] * 0, identity[seen], sent_ns[seen])
    receiver = PacketBatch.of(identity[arrives] * 0, identity[arrives], sent_ns[arrives] + 5 * MS)
    found = pair_packets(sender, receiver)
    within = found.copied & (found.sent_ns < 40 * 2_000 * MS)
    assert np.count_nonzero(within) > 7_000
    assert (found.raw_delay_ns[within] == 5 * MS).all()


@pytest.mark.parametrize(("gap_ns", "ambiguous"), [(2 * MS, 200), (200 * MS, 0)])
def test_equal_packets_that_were_on_their_way_together_are_counted(gap_ns: int, ambiguous: int) -> None:
    """Delays from 1 to 4 ms: two of one kind within as much may have been on their way together."""
    number = np.arange(1_000)
    identity = np.r_[number, np.full(200, 5_000)].astype(np.uint64)
    sent_ns = np.r_[number * MS, np.arange(200) * gap_ns]
    sender = PacketBatch.of(identity * 0, identity, sent_ns)
    receiver = PacketBatch.of(identity * 0, identity, sent_ns + np.r_[(1 + number % 4) * MS, np.full(200, 2 * MS)])
    assert pair_packets(sender, receiver).ambiguous == ambiguous
