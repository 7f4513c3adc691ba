"""Memory is shared so that a wrong guess of flows, loss or packets costs little, and a right one hardly anything."""

from __future__ import annotations

from itertools import product

import numpy as np

from sojourn.segments.planning.layout import _split_of, fit_auto
from sojourn.segments.planning.regret import (
    PLAUSIBLE_LOSS,
    PREMIUM,
    Case,
    Split,
    least_regret,
    plausible_cases,
    predicted_errors,
)

MEMORIES = [8_000, 32_000, 128_000, 1_000_000]
SIZE = 150


def split_for(memory: int, case: Case, *, doubt: float) -> Split:
    flows, loss, size = case
    return _split_of(fit_auto(memory, flows=round(flows), loss=loss, packets=round(size * flows), doubt=doubt))


def test_a_doubted_guess_costs_its_premium_at_most_and_protects_from_the_worst() -> None:
    """By the laws that it goes by, beside the layout of who trusts the guess."""
    saved, paid = [], []
    for memory, flows, loss in product(MEMORIES, (50, 1000, 20_000), (0.0003, 0.003, 0.03, 0.2)):
        cases = plausible_cases(Case(flows, loss, SIZE), 10.0)
        splits = [split_for(memory, cases[0], doubt=doubt) for doubt in (1.0, 10.0)]
        trusting, doubting = predicted_errors(splits, cases)
        assert doubting[0] <= PREMIUM * trusting[0]
        saved.append(np.log((trusting / doubting).max()))
        paid.append(np.log((doubting / trusting).max()))
    assert np.mean(saved) > np.log(1.5) > np.mean(paid)


def test_cells_of_whole_flows_are_there_where_they_take_little() -> None:
    """They tell sizes and losses exactly."""
    for loss in (0.001, 0.05, 0.2):
        assert split_for(1_000_000, Case(800, loss, SIZE), doubt=10.0).cells >= 2 * 800


def test_what_is_plausible_is_a_decade_around_the_guess() -> None:
    cases = plausible_cases(Case(1000, 0.05, 100), 10.0)
    assert cases[0] == (1000, 0.05, 100)
    ends = {(flows, loss, size) for flows, loss, size in product((100, 10_000), (0.005, PLAUSIBLE_LOSS), (10, 1000))}
    assert ends <= {tuple(round(one, 9) for one in case) for case in cases}
    assert max(case.loss for case in cases) == PLAUSIBLE_LOSS
    assert max(case.loss for case in plausible_cases(Case(1000, 0.5, 100), 10.0)) == 0.5, "somebody says so"


def test_a_split_that_is_never_far_off_is_taken_before_one_that_is_best_where_the_guess_is_right() -> None:
    """Few counters per flow have fewer strangers, and are all spoiled where much is lost."""
    few, several = (Split(counters=80_000, sample=385, per_flow=per_flow) for per_flow in (4, 10))
    cases = [Case(1000, 1e-4, SIZE), Case(1000, 0.05, SIZE)]
    errors = predicted_errors([few, several], cases)
    assert errors[0, 0] < errors[1, 0] <= PREMIUM * errors[0, 0]
    assert errors[0, 1] > 1.15 * errors[1, 1]
    assert least_regret([few, several], cases) == 1
    assert least_regret([few, several], cases[:1]) == 0


def test_predicted_errors_fall_with_memory_and_rise_with_loss() -> None:
    for per_flow in (4, 16, 64):
        splits = [Split(0, memory // 10, memory // 100, per_flow) for memory in MEMORIES]
        errors = predicted_errors(splits, [Case(1000, loss, SIZE) for loss in (1e-4, 0.01, 0.3)])
        assert (errors[1:] < errors[:-1]).all()
        assert (errors[:, 1:] > errors[:, :-1]).all()
