"""Clocks of two nodes, followed by what is stored of their runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.arrays import Int64Array
from sojourn.core.estimates import Reason, Unanswered
from sojourn.epochs.epoch import SLEW_UNIT_NS, KernelClock, Slew
from sojourn.estimation.differences import Losses
from sojourn.estimation.lda import LdaAnswer
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.answer import Interval, SegmentTotals
from sojourn.segments.fleet.answers import RunAnswer, SampledDelays
from sojourn.segments.fleet.clocks import ClockAt, smallest
from sojourn.segments.fleet.leads import Kernels
from sojourn.server.runs.answering import row_of
from sojourn.server.runs.clocks import followed_clocks
from sojourn.store.epochs import open_store
from sojourn.store.runs import Pair, RunStore

SECOND, MS = 1_000_000_000, 1_000_000
START = 1_750_000_000 * SECOND
AHEAD = 3 * SECOND  # what the receiver's clock is ahead
THERE = Pair(from_node="a", from_stream="point:eth0:out:g1", to_node="b", to_stream="point:eth1:in:g1")
BACK = Pair(from_node="b", from_stream="point:eth1:out:g1", to_node="a", to_stream="point:eth0:in:g1")


def steered(at_ns: Int64Array) -> Int64Array:
    """What the receiver's kernel steers its clock by: 100 ppm for some time, in which it moves by 4 ms."""
    return np.clip(at_ns - 71 * SECOND, 0, 40 * SECOND) // 10_000


def slew_of(times_ns: Int64Array, *, by_ns: Int64Array | int) -> Slew:
    """What an agent tells of an epoch with packets at these times, true and by its clock."""
    first, last = (steered(times_ns[[0, -1]]) // SLEW_UNIT_NS).tolist() if not isinstance(by_ns, int) else (0, 0)
    shown = times_ns + by_ns
    rough = np.linspace(times_ns[0], times_ns[-1], 100).astype(np.int64)
    off = steered(rough) / SLEW_UNIT_NS - np.linspace(first, last, 100)
    bend = 0 if isinstance(by_ns, int) else int(np.abs(off).max()) + 1
    return Slew(START + int(shown[0]), START + int(shown[-1]), first, last, bend)


def clock_at(at_ns: int, boots: tuple[int, ...], *, ahead_ns: int = 0) -> KernelClock:
    """What a machine tells that was up for 1,000 s, and was started anew at some times."""
    began = max((at for at in boots if at <= at_ns), default=-1_000 * SECOND)
    return KernelClock(False, 16 * SECOND, 0, START + ahead_ns + began, boot=began % (1 << 32))


def run_at(first_ns: int, kernels: Kernels, *, back: bool, length_ns: int = 5 * SECOND) -> RunAnswer:
    """A run of packets that take 2 to 6 ms, each way."""
    random = np.random.default_rng([first_ns // MS, back])
    left = np.sort(random.integers(first_ns, first_ns + length_ns, 8))
    arrived = left + random.integers(2 * MS, 6 * MS, 8)
    pairs = TimedPairs(START + left + AHEAD * back, START + arrived + AHEAD * (not back))
    nothing = Unanswered(Reason.NOTHING_RECORDED)
    totals = SegmentTotals(8, 8, LdaAnswer(nothing, nothing, nothing, nothing), Losses(0, 0, 0, 0))
    interval = Interval(int(pairs.sent_ns[0]), int(pairs.sent_ns[-1]), totals, None)
    none = np.empty(0, np.int64)
    sampled = SampledDelays(none, none, none.astype(float), none.astype(bool), False)
    return RunAnswer(interval, sampled, pairs, kernels=kernels)


def followed(folder: Path, boots: tuple[tuple[int, ...], tuple[int, ...]], seconds: int) -> list[ClockAt]:
    """The clocks of runs there between machines that were started anew at some times each."""
    store = open_store(folder)
    runs = RunStore(store)
    there, back = runs.pairs([THERE, BACK])
    answers = []
    for first_ns in range(0, seconds * SECOND, 5 * SECOND):
        one = clock_at(first_ns, boots[0])
        other = clock_at(first_ns, boots[1], ahead_ns=AHEAD)
        ahead = run_at(first_ns, (one, other), back=False)
        answers.append(ahead)
        for known, answer in ((there, ahead), (back, run_at(first_ns, (other, one), back=True))):
            row = row_of(answer, size_bytes=0, follows=True)
            number = first_ns // SECOND
            runs.add(known.number, [row], until=(number, number), now_ns=1)
    clocks = followed_clocks(runs, [there], answers)
    store.close()
    return clocks


def test_runs_of_machines_that_start_anew_within_minutes_are_bounded_by_those_of_the_same_time(tmp_path: Path) -> None:
    """A count that began anew overlaps the one before: what it is compared with would be anything."""
    for name, boots in {
        "never": ((), ()),
        "receiver": ((), (60 * SECOND, 110 * SECOND)),
        "sender": ((60 * SECOND, 110 * SECOND), ()),
        "both": ((60 * SECOND, 110 * SECOND), (65 * SECOND, 120 * SECOND)),
    }.items():
        for clock in followed(tmp_path / name, boots, 160):
            assert clock.low_ns is not None
            assert clock.high_ns is not None
            assert clock.low_ns <= AHEAD <= clock.high_ns
            assert clock.high_ns - clock.low_ns < 30 * MS
            assert clock.set_ns == 0


@pytest.mark.parametrize("floor_ns", [100_000, MS])
@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_is_steered_is_inside_its_bounds_in_every_run(tmp_path: Path, seed: int, floor_ns: int) -> None:
    """A line that fits between the packets is no clock's where the clock was bent; the machine knows where."""
    random = np.random.default_rng(seed)
    store = open_store(tmp_path)
    runs = RunStore(store)
    there, back = runs.pairs([THERE, BACK])
    answers, truth = [], []
    for number in range(40):
        for known, is_back in ((there, False), (back, True)):
            left = np.sort(random.integers(5 * number * SECOND, 5 * (number + 1) * SECOND, 300))
            arrived = left + (floor_ns * (1 if is_back else 9) + random.exponential(floor_ns, 300)).astype(np.int64)
            ends = (left, arrived) if is_back else (arrived, left)
            by_ns = steered(ends[0])
            slews = slew_of(np.sort(ends[1]), by_ns=0), slew_of(ends[0], by_ns=by_ns)
            one, other = (KernelClock(False, SECOND, 0, START, False, 7, slew) for slew in slews)
            shown = TimedPairs(START + left + by_ns * is_back, START + arrived + by_ns * (not is_back))
            kernels = (other, one) if is_back else (one, other)
            answer = replace(run_at(5 * number * SECOND, kernels, back=is_back), pairs=smallest(shown))
            frame = replace(answer.interval, first_ns=int(shown.sent_ns[0]), last_ns=int(shown.sent_ns[-1]))
            answer = replace(answer, interval=frame)
            runs.add(known.number, [row_of(answer, size_bytes=0, follows=True)], until=(number, number), now_ns=1)
            if not is_back:
                answers.append(answer)
                truth.append(by_ns)
    clocks = followed_clocks(runs, [there], answers)
    store.close()
    for clock, by_ns in zip(clocks, truth, strict=True):
        assert clock.low_ns is not None
        assert clock.high_ns is not None
        assert clock.low_ns <= by_ns.min()
        assert by_ns.max() <= clock.high_ns
        assert clock.high_ns - clock.low_ns < 13 * floor_ns + np.ptp(by_ns) * 2 + 200_000
