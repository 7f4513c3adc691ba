"""The judgement is three-valued, by the interval alone; losses and changes keep their rate of false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import bdtr, bdtrc

from sojourn.core.estimates import Estimate
from sojourn.objectives.condition import parse_condition
from sojourn.objectives.judgement import (
    Bounded,
    LossCount,
    State,
    alarm_of_each,
    decide,
    difference,
    judge,
    widened,
)

BELOW, ABOVE = parse_condition("mean < 10ms"), parse_condition("mean > 10ms")


def estimate(low: float, high: float, value: float | None = None) -> Estimate:
    middle = (low + high) / 2 if value is None else value
    return Estimate(middle * 1e6, low * 1e6, high * 1e6, 100, "lda")


@pytest.mark.parametrize(
    ("low", "high", "below", "above"),
    [
        (1, 9, State.MET, State.VIOLATED),
        (11, 19, State.VIOLATED, State.MET),
        (9, 11, State.UNDECIDED, State.UNDECIDED),
        (10, 10, State.MET, State.MET),  # exactly at the limit
        (1, 10, State.MET, State.UNDECIDED),
        (10, 12, State.UNDECIDED, State.MET),
    ],
)
def test_an_interval_is_wholly_on_one_side_or_decides_nothing(
    low: float, high: float, below: State, above: State
) -> None:
    assert judge(BELOW, estimate(low, high)) is below
    assert judge(ABOVE, estimate(low, high)) is above


def test_without_an_answer_nothing_is_decided() -> None:
    change = parse_condition("mean < +1ms against 1d")
    assert judge(BELOW, None) is State.UNDECIDED
    assert decide(BELOW, None, None, 0.01) == (State.UNDECIDED, None)
    assert decide(change, estimate(1, 2), None, 0.01) == (State.UNDECIDED, None)


def test_more_tests_need_wider_intervals() -> None:
    widths = [widened(estimate(9, 11), alarm_of_each(0.01, tests)) for tests in (1, 10, 1000)]
    lengths = [one.high - one.low for one in widths]
    assert lengths == sorted(lengths)
    assert lengths[0] > 2e6, "1 % one-sided is wider than 2.5 %"
    assert [one.level for one in widths] == pytest.approx([0.98, 0.998, 0.99998])
    assert widened(estimate(9, 11), 0.025).high == pytest.approx(11e6)


def test_an_exact_answer_stays_exact_and_certain_bounds_are_never_left() -> None:
    exact = widened(estimate(12, 12), 1e-6)
    assert (exact.low, exact.high) == (12e6, 12e6)
    sure = widened(Bounded(estimate(9, 14, 11), 10.5e6, 20e6), 1e-6)
    assert sure.low == 10.5e6
    assert 14e6 < sure.high <= 20e6


@pytest.mark.parametrize("alarm", [0.025, 0.001])
@pytest.mark.parametrize(("sent", "share"), [(500, 0.001), (5_000, 0.01), (100_000, 0.001)])
def test_a_loss_exactly_at_its_limit_is_raised_no_more_often_than_stated(sent: int, share: float, alarm: float) -> None:
    """By the binomial distribution itself, so without chance."""
    raised = [lost for lost in range(sent) if LossCount(lost, lost, lost, sent).at(alarm).low > share]
    assert bdtrc(raised[0] - 1, sent, share) <= alarm
    cleared = [lost for lost in range(raised[0]) if LossCount(lost, lost, lost, sent).at(alarm).high < share]
    assert not cleared or bdtr(cleared[-1], sent, share) <= alarm


def test_a_loss_that_is_not_exactly_counted_has_the_bounds_of_both() -> None:
    exact, unsure = LossCount(20, 20, 20, 1000).at(0.01), LossCount(20, 10, 40, 1000).at(0.01)
    assert unsure.low == LossCount(10, 10, 10, 1000).at(0.01).low < exact.low
    assert unsure.high == LossCount(40, 40, 40, 1000).at(0.01).high > exact.high
    assert LossCount(0, 0, 0, 10).at(0.01).low == 0.0
    assert LossCount(10, 10, 10, 10).at(0.01).high == 1.0


def test_a_change_is_as_unsure_as_both_answers() -> None:
    found = difference(estimate(7, 13), estimate(1, 9))
    assert (found.value, found.low, found.high) == pytest.approx((5e6, 0.0, 10e6))


def test_changes_of_nothing_are_raised_at_the_stated_rate() -> None:
    """20,000 pairs of normal answers with equal truths, limit 0: 2 % ± 0.4 %; the seed is fixed."""
    condition = parse_condition("mean < +0ms against 1d")
    random = np.random.default_rng(7)
    raised = 0
    for now, before in random.normal(50, 1, (20_000, 2)):
        pair = [Estimate.around(x * 1e6, 1.96e6, samples=9, method="lda") for x in (now, before)]
        raised += decide(condition, pair[0], pair[1], 0.02)[0] is State.VIOLATED
    assert raised / 20_000 < 0.024
    assert raised / 20_000 > 0.01
