"""Both ends of a segment record the same packets between Start and End; what is lost or missed is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.estimation.lda import estimate_lda
from sojourn.mplane.router import segment as segment_recorder
from sojourn.mplane.router.control_messages import ControlKind
from sojourn.mplane.router.epochs import Void
from sojourn.mplane.router.segment import DATA, ClosedInterval, SegmentRecorder, mark_of
from sojourn.sketches.lda import LdaParameters

SECOND = 1_000_000_000
MS = 1_000_000
START, END = ControlKind.START, ControlKind.END
PARAMETERS = LdaParameters(rows=64, shares=(1.0, 0.1))
FIRST, INTERVALS = 10, 4


@dataclass(frozen=True, eq=False)
class World:
    """A FIFO segment: ids, marks and times at the ingress and, where they arrived, at the egress."""

    ids: np.ndarray
    marks: Int64Array
    entered: Int64Array
    left: Int64Array
    arrived: np.ndarray
    interval: Int64Array

    def batches(self, side: str) -> tuple[PacketBatch, Int64Array]:
        rows = np.arange(len(self.ids)) if side == "ingress" else np.flatnonzero(self.arrived)
        times = self.entered if side == "ingress" else self.left
        rows = rows[np.argsort(times[rows], kind="stable")]
        return PacketBatch.of(np.zeros(len(rows), np.uint64), self.ids[rows], times[rows]), self.marks[rows]


def build(*, seed: int = 1, lost: tuple[int, ...] = (), loss: float = 0.05, overtaking: bool = False) -> World:
    """Four intervals of a second with 2000 packets each way; `lost` are the marks of messages that do not arrive."""
    random = np.random.default_rng(seed)
    edges = [(SECOND * (FIRST + i), i) for i in range(INTERVALS + 1)]
    messages = [(t, mark_of(END, FIRST + i - 1)) for t, i in edges if i] + [
        (t + 2000, mark_of(START, FIRST + i)) for t, i in edges if i < INTERVALS
    ]
    data = np.sort(random.integers(SECOND * FIRST - SECOND // 2, SECOND * (FIRST + INTERVALS) + SECOND // 2, 10_000))
    # Some packets come just before and after each message, where overtaking would tell.
    data = np.sort(np.concatenate([data, *[t + random.integers(-5000, 7000, 40) for t, _ in edges]]))
    entered = np.concatenate([data, [t for t, _ in messages]]).astype(np.int64)
    marks = np.concatenate([np.full(len(data), DATA), [mark for _, mark in messages]]).astype(np.int64)
    order = np.argsort(entered, kind="stable")
    entered, marks = entered[order], marks[order]
    queued = entered + (random.integers(0, 30_000, len(entered)) if overtaking else 0)
    waits = 3 * MS + (2 * MS * np.sin(queued / SECOND)).astype(np.int64)  # falls slower than time goes: still a queue
    arrived = (random.uniform(size=len(entered)) >= loss) | (marks != DATA)
    arrived &= ~np.isin(marks, lost)
    current, interval = -1, np.full(len(marks), -1, np.int64)
    for row, mark in enumerate(marks.tolist()):
        if mark == DATA:
            interval[row] = current
        else:
            current = mark >> 2 if mark & 3 == START else -1
    return World(
        random.integers(0, 2**64, len(marks), dtype=np.uint64), marks, entered, queued + waits, arrived, interval
    )


def run(world: World, *, windows: list[int] | None = None, spoil_at: int | None = None) -> list[ClosedInterval]:
    """Feed the world to a recorder in windows of time, as the taps do."""
    recorder = SegmentRecorder(PARAMETERS, max_delay_ns=SECOND)
    ends = [*(windows or range(SECOND * (FIRST - 1), SECOND * (FIRST + INTERVALS + 4), SECOND // 7)), 1 << 60]
    sides = {side: world.batches(side) for side in ("ingress", "egress")}
    sent = {mark: t for mark, t in zip(world.marks.tolist(), world.entered.tolist(), strict=True) if mark != DATA}
    closed, before = [], 0
    for end in ends:
        for mark, t in sent.items():
            if before <= t < end:
                recorder.sent(ControlKind(mark & 3), mark >> 2, t)
        for side, take in (("ingress", recorder.enter), ("egress", recorder.leave)):
            batch, marks = sides[side]
            rows = (batch.time_ns >= before) & (batch.time_ns < end)
            take(batch.select(rows), marks[rows])
        if spoil_at is not None and before <= spoil_at < end:
            recorder.spoil(Void.EGRESS_DROPS)
        closed += recorder.closed(end)
        before = end
    assert recorder.is_idle
    return closed


def assert_exact(world: World, closed: list[ClosedInterval]) -> None:
    """Counts of sent and lost packets are the truth's, and every cell without loss is usable."""
    assert [interval.number for interval in closed] == list(range(FIRST, FIRST + INTERVALS))
    for interval in closed:
        rows = world.interval == interval.number
        delays = (world.left - world.entered)[rows & world.arrived]
        assert interval.void is None
        assert interval.ingress.recorded == rows.sum()
        assert interval.egress.recorded == len(delays)
        answer = estimate_lda(interval.ingress, interval.egress)
        assert answer.mean
        assert abs(answer.mean.value - delays.mean()) <= 3 * (answer.mean.high - answer.mean.low) + 1


@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("overtaking", [False, True])
def test_both_ends_count_the_packets_between_start_and_end(loss: float, overtaking: bool) -> None:
    world = build(loss=loss, overtaking=overtaking)
    closed = run(world)
    assert_exact(world, closed)
    if not loss:
        for interval in closed:
            assert np.array_equal(interval.ingress.column("digest"), interval.egress.column("digest"))


def test_without_a_memory_of_the_edges_overtaking_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    world = build(loss=0.0, overtaking=True)
    monkeypatch.setattr(segment_recorder, "EDGE_NS", -1)
    wrong = [i for i in run(world) if i.ingress.recorded != i.egress.recorded or i.ingress != i.egress]
    assert wrong


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(SECOND * (FIRST - 1), SECOND * (FIRST + INTERVALS + 3)), max_size=30, unique=True))
def test_how_time_is_cut_does_not_matter(windows: list[int]) -> None:
    assert_exact(build(overtaking=True), run(build(overtaking=True), windows=sorted(windows)))


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ((mark_of(START, 11),), {11: Void.START_LOST}),
        ((mark_of(END, 11),), {11: Void.END_LOST}),
        ((mark_of(START, 11), mark_of(END, 11)), {11: Void.START_LOST}),
        ((mark_of(END, 11), mark_of(START, 12)), {11: Void.END_LOST, 12: Void.START_LOST}),
    ],
)
def test_a_lost_message_voids_its_interval_and_no_other(lost: tuple[int, ...], expected: dict[int, Void]) -> None:
    world = build(lost=lost)
    closed = sorted(run(world), key=lambda interval: interval.number)
    assert {interval.number: interval.void for interval in closed if interval.void} == expected
    for interval in closed:
        rows = world.interval == interval.number
        assert interval.ingress.recorded == rows.sum()
        if not interval.void:
            assert interval.egress.recorded == (rows & world.arrived).sum()


def test_a_message_that_never_entered_voids_its_interval() -> None:
    recorder = SegmentRecorder(PARAMETERS, max_delay_ns=SECOND)
    recorder.sent(START, 5, 5 * SECOND)
    recorder.sent(END, 5, 6 * SECOND)
    assert recorder.closed(7 * SECOND) == []
    (interval,) = recorder.closed(9 * SECOND)
    assert interval.void is Void.START_NOT_SENT
    assert interval.is_idle


def test_a_message_that_takes_longer_than_allowed_counts_as_lost() -> None:
    recorder = SegmentRecorder(PARAMETERS, max_delay_ns=SECOND)
    nothing = PacketBatch.of([], [], [])
    for kind, number, t in ((START, 5, 5 * SECOND), (END, 5, 6 * SECOND)):
        recorder.sent(kind, number, t)
        recorder.enter(PacketBatch.of([0], [kind], [t]), np.array([mark_of(kind, number)]))
    recorder.leave(PacketBatch.of([0], [START], [5 * SECOND + MS]), np.array([mark_of(START, 5)]))
    recorder.leave(nothing, np.empty(0, np.int64))
    (interval,) = recorder.closed(8 * SECOND)
    assert interval.void is Void.END_LOST


def test_what_the_taps_missed_voids_the_intervals_that_are_open() -> None:
    closed = run(build(), spoil_at=SECOND * 12 + SECOND // 2)
    voids = {interval.number: interval.void for interval in closed}
    assert voids[12] is Void.EGRESS_DROPS
    assert voids[10] is None
    assert voids[13] is None
