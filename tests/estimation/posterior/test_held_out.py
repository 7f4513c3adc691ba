"""Models that are wrong are found out by samples that they did not see; those that are right are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.held_out import COMMON, MODEL, OWN, SAMPLES, Halves, Verdict, judge
from sojourn.estimation.posterior.hierarchy import FlowPosterior, learnt_prior, posterior_under

FLOWS = 1_500
MS = 1e6


def _summed(delays: FloatArray) -> tuple[float, float, float]:
    return len(delays), float(delays.mean()), float(((delays - delays.mean()) ** 2).sum())


class Drawn:
    """Flows with cells and samples: `claim` is by how much cells claim to be more precise than they are."""

    def __init__(self, seed: int, *, claim: float = 1.0, spread: float = 0.7, jitter: float = 0.4, cells: float = 0.1):
        random = np.random.default_rng(seed)
        self.size = np.clip(random.pareto(0.8, FLOWS) * 20 + 20, 20, 5_000).round()
        law = 5 * MS * np.exp(spread * random.standard_normal(FLOWS))
        kept = np.minimum(2 + random.poisson(8, FLOWS), self.size).astype(int)
        columns, whole = np.zeros((3, 2, FLOWS)), np.zeros((3, FLOWS))
        self.true = np.zeros(FLOWS)
        for flow, number in enumerate(kept.tolist()):
            delays = law[flow] * random.gamma(1 / jitter**2, jitter**2, int(self.size[flow]))
            self.true[flow] = delays.mean()
            whole[:, flow] = _summed(delays[:number])
            for half in (0, 1):
                columns[:, half, flow] = _summed(delays[half:number:2])
        off = cells * self.true * random.standard_normal(FLOWS)
        precision = claim / (cells * self.true) ** 2
        count, sampled, squares = whole
        self.evidence = Evidence(self.true + off, precision, sampled, count, squares, self.size)
        self.halves = Halves(*columns)

    def judged(self) -> tuple[FlowPosterior, FlowPosterior, Verdict]:
        """Before and after."""
        prior = learnt_prior(self.evidence)
        assert prior is not None
        before = posterior_under(prior, self.evidence)
        verdict = judge(prior, self.evidence, self.halves)
        return before, verdict.applied(before, self.evidence), verdict

    def coverage(self, found: FlowPosterior) -> FloatArray:
        """By classes of sizes that have fifty flows or more."""
        holds = (found.low <= self.true) & (self.true <= found.high)
        classes = np.searchsorted((10, 100, 1_000), self.size, side="right")
        return np.array([holds[classes == n].mean() for n in range(4) if (classes == n).sum() >= 50])

    def error(self, found: FlowPosterior) -> float:
        return float(np.median(np.abs(found.mean / self.true - 1)))


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_is_right_is_left_alone(seed: int) -> None:
    """False alarms: 10⁻⁴ for each of three candidates, and for a width, in each of three classes."""
    before, after, verdict = Drawn(seed).judged()
    assert (verdict.candidate == MODEL).all()
    assert (verdict.widened == 1).all()
    assert np.array_equal(before.mean, after.mean)


@pytest.mark.parametrize("seed", range(3))
def test_cells_that_claim_too_much_lose_their_say_or_their_sharpness(seed: int) -> None:
    """Cells are off by half the mean and claim a thirtieth of that."""
    drawn = Drawn(seed, claim=900.0, cells=0.5)
    before, after, verdict = drawn.judged()
    assert drawn.coverage(before).max() < 0.3
    assert drawn.coverage(after).min() > 0.85
    assert drawn.error(after) < 0.6 * drawn.error(before)
    assert (verdict.candidate == SAMPLES).all()


@pytest.mark.parametrize("seed", range(3))
def test_intervals_are_as_wide_as_errors_where_no_candidate_is_better(seed: int) -> None:
    """Cells are closer than samples, though not by as much as they claim."""
    drawn = Drawn(seed, claim=25.0, cells=0.15, jitter=0.4)
    before, after, verdict = drawn.judged()
    assert drawn.coverage(before).max() < 0.75
    assert drawn.coverage(after).min() > 0.88
    assert set(verdict.candidate.tolist()) <= {MODEL, OWN}
    assert (verdict.widened > 4).all()


def test_few_flows_have_no_verdict() -> None:
    drawn = Drawn(1, claim=900.0, cells=0.5)
    rows = np.arange(30)
    prior = learnt_prior(drawn.evidence)
    assert prior is not None
    few = Halves(*(column[:, rows] for column in drawn.halves))
    verdict = judge(prior, drawn.evidence.select(rows), few)
    assert (verdict.candidate == MODEL).all()
    assert (verdict.widened == 1).all()


def test_one_mean_answers_where_flows_are_alike_and_the_model_does_not_know() -> None:
    """Messages that scatter flows which are alike, and claim to be sure of it."""
    drawn = Drawn(2, claim=400.0, cells=0.2, spread=0.0, jitter=0.7)
    before, after, verdict = drawn.judged()
    assert COMMON in verdict.candidate
    assert drawn.error(after) < 0.5 * drawn.error(before)
