"""Segments ranked by totals: clocks that are set in the range are corrected on either side of the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.server.runs.test_clocks import AHEAD, BACK, MS, SECOND, START, THERE, run_at

from sojourn.core.estimates import Estimate
from sojourn.epochs.epoch import KernelClock
from sojourn.estimation.lda import LdaAnswer
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.fleet.answers import RunAnswer, SampledDelays
from sojourn.server.runs.answering import row_of
from sojourn.server.runs.ranking import RankedSegment, RankingWork, ranked
from sojourn.store.epochs import open_store
from sojourn.store.runs import RunStore


def with_delays(answer: RunAnswer, by_ns: int) -> RunAnswer:
    """The run as one whose receiver's clock is further ahead, with a mean and samples."""
    pairs = TimedPairs(answer.pairs.sent_ns, answer.pairs.received_ns + by_ns)
    raw = pairs.raw_delay_ns
    mean = Estimate(float(raw.mean()), float(raw.min()), float(raw.max()), len(raw), "lda")
    totals = answer.interval.totals
    delays = LdaAnswer(mean, totals.delays.deviation, *(totals.delays.deviation,) * 2)
    sampled = SampledDelays(raw * 0, raw, raw * 0.0 + 1.0, raw[:0] > 0, False)
    interval = replace(answer.interval, totals=replace(totals, delays=delays))
    return replace(answer, pairs=pairs, interval=interval, sampled=sampled)


def rank(folder: Path, steps: tuple[tuple[int, int], ...], *, node: str) -> list[RankedSegment]:
    """Both directions of a minute in which the clock of `a` or `b` is set at some times; a third of runs says so."""
    store = open_store(folder)
    runs = RunStore(store)
    pairs = runs.pairs([THERE, BACK])
    for first_ns in range(0, 60 * SECOND, 5 * SECOND):
        set_ns = sum(by for at, by in steps if first_ns >= at)
        was_set = any(first_ns <= at < first_ns + 5 * SECOND for at, _ in steps)
        leads = {"a": START, "b": START + AHEAD}
        leads[node] += set_ns
        for known in pairs:
            ends = known.pair.from_node, known.pair.to_node
            kernels = [KernelClock(False, SECOND, 0, leads[end], was_set, 7) for end in ends]
            answer = run_at(first_ns, (kernels[0], kernels[1]), back=known.pair == BACK)
            answer = with_delays(answer, set_ns if ends[1] == node else -set_ns)
            runs.add(known.number, [row_of(answer, size_bytes=0, follows=True)], until=(first_ns,) * 2, now_ns=1)
    work = RankingWork(segments={"ab": (THERE,), "ba": (BACK,)}, from_ns=0, to_ns=2**62, top=0, by="mean")
    found = ranked(runs, work)
    store.close()
    return found


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize(
    "steps",
    [
        (),
        ((22 * SECOND, 40 * MS),),
        ((7 * SECOND, -3_600 * SECOND),),
        ((7 * SECOND, SECOND), (23 * SECOND, -86_400 * SECOND), (44 * SECOND, 5 * MS)),
    ],
)
def test_a_clock_that_is_set_in_the_range_moves_no_mean(
    tmp_path: Path, steps: tuple[tuple[int, int], ...], node: str
) -> None:
    found = rank(tmp_path, steps, node=node)
    assert [one.row["segment"] for one in found] != []
    for one in found:
        assert one.row["clock"] == "followed"
        assert one.row["mean_ns"] == pytest.approx(4 * MS, abs=2 * MS)
        assert one.row["worst_p99_ns"] == pytest.approx(6 * MS, abs=2 * MS)
        assert one.row["runs"] == 12
