"""In quiet epochs, whose true values are below their limit or exactly at it, an objective raises at its stated rate.

Epochs go through the recorder of agents, the store, the query engine's decoder and the judgement. The number of
evaluations that raised is held against the binomial distribution of the stated rate: each test fails by chance once in
a thousand where the rate is just kept; the seeds are fixed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import bdtrc

from objective_worlds import Draw, RttNode, flow, gamma
from sojourn.epochs.epoch import Epoch
from sojourn.estimation.buckets.queries import RangeQuery
from sojourn.estimation.buckets.questions import Question, answer_streams
from sojourn.objectives.objective import objective_of
from sojourn.server.control.objectives.evaluating import Evaluated, Finding, Stretch
from sojourn.server.control.objectives.judging import judged
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.store.epochs import open_store

LIMIT_NS = 100e6
CHANCE = 0.001


class OneEpoch:
    """A stream of a single epoch."""

    node, unit, live = "alpha", "ns", False

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def __iter__(self):
        return iter([self._epoch])


def constant(value_ns: float) -> Draw:
    return lambda _random, count: np.full(count, value_ns)


def lognormal(mean_ns: float, *, sigma: float = 0.8) -> Draw:
    """The heavy tail of a congested path."""
    return lambda random, count: mean_ns * random.lognormal(-(sigma**2) / 2, sigma, count)


def raised(
    tmp_path: Path, draws: list[Draw], *, epochs: int, false_alarms: float, samples: int = 40, seed: int = 1
) -> int:
    """How many evaluations of some epochs raised anything."""
    store = open_store(tmp_path)
    parameters = BucketArrayParameters(buckets=24, per_instance=3, bits=48, count_bits=24)
    node = RttNode(store, parameters=parameters, seed=seed)
    flows = [flow(number) for number in range(len(draws))]
    table = {"nodes": ["*"], "metric": "rtt", "require": ["mean < 100ms"], "false_alarms": false_alarms}
    objective = objective_of("quiet", table)
    count = 0
    for number in range(epochs):
        epoch = node.record(flows, draws, samples=samples)
        question = Question(range=RangeQuery(from_ns=0, to_ns=2**62, stat="mean"), instance="*")
        found = answer_streams([OneEpoch(epoch)], question)
        findings = tuple(
            Finding(condition=0, instance=str(one.instance), now=one.range.answer)  # type: ignore[arg-type]
            for one in found
            if one.range.answer
        )
        span = {"before": number - 1, "position": number, "from_ns": 0, "until_ns": 1, "lasts_ns": 1}
        evaluated = Evaluated(place="alpha/rtt", stretch=Stretch(**span), findings=findings)
        count += judged(objective, evaluated, places=1).state == "violated"
    store.close()
    return count


def is_kept(count: int, epochs: int, rate: float) -> bool:
    """Whether as many raises, or more, happen by chance at the rate at least once in a thousand."""
    return bool(count == 0 or bdtrc(count - 1, epochs, rate) >= CHANCE)


QUIET: dict[str, list[Draw]] = {
    "exactly at the limit": [gamma(LIMIT_NS)] * 5,
    "at the limit without any variation": [constant(LIMIT_NS)] * 5,
    "heavy tails at the limit": [lognormal(LIMIT_NS)] * 5,
    "some below, some at it": [gamma(share * LIMIT_NS) for share in (0.3, 0.8, 0.98, 1.0, 1.0)],
}


@pytest.mark.parametrize("world", ["exactly at the limit", "some below, some at it"])
def test_quiet_epochs_raise_no_more_often_than_stated(tmp_path: Path, world: str) -> None:
    rate, epochs = 0.01, 100
    count = raised(tmp_path, QUIET[world], epochs=epochs, false_alarms=rate)
    assert is_kept(count, epochs, rate), f"{count} of {epochs}"


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("world", QUIET)
def test_a_thousand_quiet_epochs_raise_no_more_often_than_stated(tmp_path: Path, world: str, rate: float) -> None:
    count = raised(tmp_path, QUIET[world], epochs=1000, false_alarms=rate, seed=2)
    assert is_kept(count, 1000, rate), f"{count} of 1000"


def test_the_test_would_notice_a_rate_that_is_not_kept(tmp_path: Path) -> None:
    """Half above the limit is no quiet epoch: with two hundred round trips of each flow it is raised."""
    count = raised(tmp_path, [gamma(1.5 * LIMIT_NS)] * 5, epochs=30, false_alarms=0.01, samples=200)
    assert not is_kept(count, 30, 0.01)
