"""COLATE's loss variant against the truth: which vector answers, what its share is worth, what counts add."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.estimates import Estimate, Reason
from sojourn.estimation.published.colate import estimate_flow_means, usable_vector
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from worlds import DELAYS, recorded, world

# Shares that halve, the last two alike: they add up to 1.
HALVING = (*(2.0**-i for i in range(1, 8)), 2.0**-7)


def vectors(truth, **parameters):
    made = CounterVectorParameters(per_flow=8, **parameters)
    return recorded(truth, lambda: CounterVector(made))


def test_the_most_frequent_vector_that_lost_nothing_answers() -> None:
    truth = world(1, delays="weibull", loss=0.0005)
    sender, receiver = vectors(truth, counters=4000, bits=64, shares=HALVING)
    lost = sender.column("packets") - receiver.column("packets")
    assert lost[0] > 0
    chosen = usable_vector(sender, receiver)
    assert chosen is not None
    assert chosen.share == max(share for share, gone in zip(HALVING, lost, strict=True) if not gone)
    assert chosen.whole


def test_a_vectors_counters_hold_its_share_of_every_flow() -> None:
    truth = world(2, delays="gaussian", loss=0)
    sender, _ = vectors(truth, counters=4000, bits=64, shares=HALVING)
    share = sender.column("packets") / len(truth.sender)
    np.testing.assert_allclose(share, HALVING, atol=4 * np.sqrt(0.25 / len(truth.sender)))


@pytest.mark.parametrize("loss", [0.0, 0.0003, 0.002])
def test_intervals_of_the_published_variant_cover(loss: float) -> None:
    """Five delay laws × 4 worlds; the share heard is a draw, and its chance is part of the interval.

    Flows of one world share counters; with 100 independent flows, 90 % instead of 95 % is 2.3 standard errors.
    """
    inside, asked = [], 0
    for seed, delays in enumerate(list(DELAYS) * 4):
        truth = world(700 + seed, delays=delays, loss=loss)
        exact = truth.per_flow
        large = np.flatnonzero(exact.sent >= 300)
        pair = vectors(truth, counters=4000, bits=64, shares=HALVING, salt=seed)
        answers = estimate_flow_means(*pair, exact.flow_id[large], exact.sent[large])
        asked += len(large)
        inside += [a.contains(m) for a, m in zip(answers, exact.mean_ns[large], strict=True) if isinstance(a, Estimate)]
    assert len(inside) > (0.9 if not loss else 0.05) * asked
    assert 0.90 <= np.mean(inside) <= 0.99


def test_counts_keep_nearly_all_of_a_flow_where_vectors_keep_little() -> None:
    """The same memory: eight vectors of 2000 counters, or one of 12 000 with counts."""
    truth = world(3, delays="weibull", loss=0.002)
    exact = truth.per_flow
    large = np.flatnonzero(exact.sent >= 300)
    asked = exact.flow_id[large], exact.sent[large]
    published = estimate_flow_means(*vectors(truth, counters=2000, bits=64, shares=HALVING), *asked)
    counted = estimate_flow_means(*vectors(truth, counters=12_000, bits=64, count_bits=20), *asked)
    heard = [sum(a.samples for a in answers if isinstance(a, Estimate)) for answers in (published, counted)]
    assert heard[0] < 0.1 * exact.sent[large].sum()
    assert heard[1] > 0.3 * exact.sent[large].sum()
    ours = [abs(a.value / m - 1) for a, m in zip(counted, exact.mean_ns[large], strict=True) if isinstance(a, Estimate)]
    assert np.median(ours) < 0.1


def test_a_vector_that_holds_next_to_nothing_of_a_flow_does_not_answer() -> None:
    truth = world(4, delays="weibull", loss=0.002)
    exact = truth.per_flow
    pair = vectors(truth, counters=4000, bits=64, shares=HALVING)
    chosen = usable_vector(*pair)
    assert chosen is not None
    small = np.flatnonzero(exact.sent * chosen.share < 10)
    answers = estimate_flow_means(*pair, exact.flow_id[small], exact.sent[small])
    assert {a.reason for a in answers if not isinstance(a, Estimate)} == {Reason.LOST_IN_NOISE}


def test_when_every_vector_lost_packets_there_is_no_answer() -> None:
    truth = world(5, delays="weibull", loss=0.05)
    exact = truth.per_flow
    pair = vectors(truth, counters=2000, bits=64, shares=(0.5, 0.3, 0.2))
    answers = estimate_flow_means(*pair, exact.flow_id, exact.sent)
    assert {a.reason for a in answers} == {Reason.NO_USABLE_CELLS}
