"""Diagnosis on generated worlds: the right segment is named, chance is not blamed, thin evidence is told.

Settings were chosen on seeds 0 … 99,999 and 700,000 … 700,199; the worlds here have seeds from 500,000 on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from segment_worlds import MS, SECOND, START_NS, Fault, law_of, line_path, measured, row, world
from sojourn.core.errors import ParameterError
from sojourn.mplane.station.diagnosis import (
    Diagnosis,
    DiagnosisPlan,
    Verdict,
    Window,
    delay_change,
    diagnose,
    new_verdicts,
)

PATH = line_path()
BEFORE = 20
PLAN = DiagnosisPlan(before=Window(START_NS, START_NS + BEFORE * SECOND))
SEEDS = range(500_000, 500_100)
# Independent intervals; queues that wander for seconds; delays of packets far more skewed than exponential ones.
LAWS = {"steady": {}, "wandering": {"memory": 0.5, "wander": 0.3}, "skewed": {"shape": 0.3, "wander": 0.3}}


def diagnosed(seed: int, fault: Fault | None = None, plan: DiagnosisPlan = PLAN, **law: float) -> Diagnosis:
    return diagnose(PATH, world(seed, fault=fault, **law), plan)


def is_right(result: Diagnosis, fault: Fault) -> bool:
    return result.verdict is Verdict.CHANGED and result.cause is not None and result.cause.segment == fault.segment


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_clear_change_of_delay_is_pinned_on_the_right_segment(law: dict) -> None:
    """6 ms more than 2 ms: 95 of 100 worlds at least, every segment in turn."""
    right = covered = 0
    for seed in SEEDS:
        fault = Fault(PATH.segments[seed % 5], BEFORE, BEFORE + 3, delay_ns=6 * MS)
        result = diagnosed(seed, fault, **law)
        if is_right(result, fault):
            right += 1
            covered += result.cause.delay.low <= 6 * MS <= result.cause.delay.high
            assert result.segments[0].segment == fault.segment
    assert right >= 95
    assert covered >= 0.88 * right


def test_a_clear_change_of_loss_is_pinned_on_the_right_segment() -> None:
    right = 0
    for seed in SEEDS:
        fault = Fault(PATH.segments[seed % 5], BEFORE, BEFORE + 3, loss=0.4)
        result = diagnosed(seed, fault, loss=0.005)
        right += is_right(result, fault) and result.cause.loss.is_clear and "loss +" in result.summary
    assert right >= 95


@pytest.mark.parametrize("law", [*LAWS.values(), {"loss": 0.02}], ids=[*LAWS, "lossy"])
def test_without_a_change_hardly_anything_is_blamed(law: dict) -> None:
    """The rate asked for is 1 %; at most 4 of 100 worlds, which a true 1 % exceeds once in 290."""
    verdicts = Counter(diagnosed(seed, **law).verdict for seed in SEEDS)
    assert verdicts[Verdict.CHANGED] <= 4
    assert verdicts[Verdict.NOTHING] >= 96


def test_two_changes_are_ranked_by_what_they_explain() -> None:
    large, small = PATH.segments[1], PATH.segments[4]
    rows = world(500_003)
    faults = {large: Fault(large, BEFORE, 99, delay_ns=9 * MS), small: Fault(small, BEFORE, 99, delay_ns=4 * MS)}
    random = np.random.default_rng(500_004)
    rows = [one for one in rows if one.segment not in faults]
    for segment, fault in faults.items():
        rows += measured(random, segment, law_of(segment), BEFORE + 3, fault)
    result = diagnose(PATH, rows, PLAN)
    assert [one.segment for one in result.segments[:2]] == [large, small]
    assert result.segments[0].share == pytest.approx(9 / 13, abs=0.12)
    assert sum(one.share for one in result.segments) == pytest.approx(1)
    assert result.delay.low < 13 * MS < result.delay.high


def test_what_was_removed_is_told_as_cleared() -> None:
    cleared = 0
    for seed in SEEDS[:40]:
        fault = Fault(PATH.segments[seed % 5], BEFORE + 4, BEFORE + 12, delay_ns=6 * MS)
        result = diagnose(PATH, world(seed, intervals=BEFORE + 20, fault=fault), PLAN)
        cleared += result.verdict is Verdict.CLEARED and result.cause.segment == fault.segment
    assert cleared >= 38


def test_cleared_is_not_said_where_nothing_was() -> None:
    said = sum(
        diagnose(PATH, world(seed, intervals=BEFORE + 20), PLAN).verdict is not Verdict.NOTHING for seed in SEEDS[:50]
    )
    assert said <= 3


def test_while_it_lasts_it_is_changed_and_not_cleared() -> None:
    fault = Fault(PATH.segments[2], BEFORE + 4, 99, delay_ns=6 * MS)
    result = diagnose(PATH, world(500_007, intervals=BEFORE + 20, fault=fault), PLAN)
    assert is_right(result, fault)


@pytest.mark.parametrize(
    ("is_there", "text"),
    [
        (lambda one: not 3 <= number(one) < BEFORE, "3 usable intervals before, 6 are needed"),
        (lambda one: number(one) <= BEFORE, "1 usable interval now, 2 are needed"),
        (lambda one: str(one.segment) != "m>y>n", "m>y>n: 0 usable intervals now, 2 are needed"),
    ],
    ids=["little before", "little now", "a segment without any"],
)
def test_too_few_intervals_are_too_thin(is_there, text: str) -> None:
    result = diagnose(PATH, [one for one in world(500_010) if is_there(one)], PLAN)
    assert result.verdict is Verdict.TOO_THIN
    assert text in result.summary


def test_too_few_packets_and_void_intervals_are_too_thin() -> None:
    few = [replace(one, packets=3) if one.segment == PATH.segments[0] else one for one in world(500_011)]
    assert "with too few packets" in diagnose(PATH, few, PLAN).summary
    thin = PATH.segments[3]
    void = [
        row(thin, i, 20, 0, np.empty(0), "route changed")
        if one.segment == thin and (i := number(one)) >= BEFORE
        else one
        for one in world(500_012)
    ]
    result = diagnose(PATH, void, PLAN)
    assert result.verdict is Verdict.TOO_THIN
    assert "0 usable intervals now (3 void)" in result.summary
    assert result.delay is None


def test_of_diagnoses_in_a_row_those_that_say_something_else_are_news() -> None:
    fault = Fault(PATH.segments[1], BEFORE + 5, BEFORE + 15, delay_ns=6 * MS)
    rows = world(500_003, intervals=BEFORE + 30, fault=fault)
    plans = [replace(PLAN, now_ns=START_NS + (BEFORE + n) * SECOND, false_alarms=1e-4) for n in range(3, 31)]
    news = list(new_verdicts(diagnose(PATH, rows, plan) for plan in plans))
    assert [(one.verdict, one.cause.segment if one.cause else None) for one in news] == [
        (Verdict.NOTHING, None),
        (Verdict.TOO_THIN, None),
        (Verdict.CHANGED, fault.segment),
        (Verdict.TOO_THIN, None),
        (Verdict.CLEARED, fault.segment),
    ]


def number(one) -> int:
    return (one.start_ns - START_NS) // SECOND


def test_silence_after_speech_is_a_change() -> None:
    silent = PATH.segments[0]
    rows = [
        row(silent, number(one), 20, 0, np.empty(0), "End lost")
        if one.segment == silent and number(one) >= BEFORE
        else one
        for one in world(500_013)
    ]
    result = diagnose(PATH, rows, PLAN)
    assert result.verdict is Verdict.CHANGED
    assert result.summary == "nothing passes a>x>m any more"


def with_means(seed: int, means_ms: list[float]):
    """A world whose m>y>n has other means in its last intervals."""
    rows = world(seed)
    changed = PATH.segments[2]
    for i, mean in enumerate(means_ms):
        place = next(j for j, one in enumerate(rows) if one.segment == changed and number(one) == BEFORE + i)
        rows[place] = replace(rows[place], mean_ns=mean * MS, low_ns=mean * MS, high_ns=mean * MS)
    return rows


def test_a_change_in_every_interval_is_told_however_it_varies() -> None:
    result = diagnose(PATH, with_means(500_016, [9.0, 12.0, 120.0]), PLAN)
    assert (result.verdict, str(result.cause.segment)) == (Verdict.CHANGED, "m>y>n")


def test_one_outlier_is_neither_a_change_nor_nothing() -> None:
    result = diagnose(PATH, with_means(500_017, [2.0, 2.0, 60.0]), PLAN)
    assert result.verdict is Verdict.TOO_THIN
    assert "m>y>n by +19" in result.summary
    assert "its intervals now differ" in result.summary


def test_changes_below_the_least_are_not_told() -> None:
    fault = Fault(PATH.segments[1], BEFORE, 99, delay_ns=3 * MS)
    assert is_right(diagnosed(500_014, fault), fault)
    assert diagnosed(500_014, fault, replace(PLAN, least_ns=4 * MS)).verdict is Verdict.NOTHING


def test_windows_are_found_in_the_data() -> None:
    fault = Fault(PATH.segments[1], 27, 30, delay_ns=6 * MS)
    rows = world(500_015, intervals=30, fault=fault)
    result = diagnose(PATH, rows, DiagnosisPlan())
    assert is_right(result, fault)
    assert result.now == Window(START_NS + 27 * SECOND, START_NS + 30 * SECOND)
    assert result.before == Window(START_NS, START_NS + 27 * SECOND // 2)
    # A router that reports two intervals later does not make the newest too thin.
    late = [one for one in rows if one.method == "probes" or number(one) < 28]
    assert diagnose(PATH, late, DiagnosisPlan()).now.to_ns == START_NS + 28 * SECOND


def test_no_measurements_at_all_are_too_thin() -> None:
    assert diagnose(PATH, [], DiagnosisPlan()).verdict is Verdict.TOO_THIN


def test_intervals_of_changes_hold_the_truth() -> None:
    """95 % nominal, 91 % of 300 asked for: a true 95 % misses that once in 500."""
    segment, held = PATH.segments[0], 0
    for seed in range(600_000, 600_300):
        random = np.random.default_rng(seed)
        rows = measured(random, segment, law_of(segment, wander=0.3), 23)
        change = delay_change(rows[:20], rows[20:], false_alarms=0.01)
        held += change.low <= 0 <= change.high
    assert held >= 273


def test_a_plan_that_cannot_be_is_refused() -> None:
    for wrong in ({"intervals": 1}, {"false_alarms": 0.0}):
        with pytest.raises(ParameterError):
            DiagnosisPlan(**wrong)
