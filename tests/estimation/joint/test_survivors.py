"""Survivor bias: learned from flows that were heard, and from the flow-blind mean."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.estimation.joint import decoder as joint
from sojourn.estimation.joint.decoder import correct_survivor_bias
from sojourn.estimation.joint.linear import DelayMessages
from sojourn.estimation.joint.segments import estimate_lds_joint
from sojourn.lab.traffic import MS, START_NS, Traffic, draw_flow_sizes, traffic_of
from sojourn.sketches.lds import Lds, LdsParameters
from worlds import recorded

FLOWS = 3000
WORST_LOSS = 0.15


def slow_flows_lose_more(seed: int) -> Traffic:
    """Loss rises with a flow's mean delay, from nothing to 15 %."""
    random = np.random.default_rng(seed)
    flow = random.permutation(np.repeat(np.arange(FLOWS), draw_flow_sizes(random, FLOWS)))
    mean = np.maximum(random.normal(20 * MS, 5 * MS, FLOWS), 2 * MS)
    loss = WORST_LOSS * np.argsort(np.argsort(mean)) / FLOWS
    delay_ns = (mean[flow] * random.gamma(100, 0.01, len(flow))).astype(np.int64)
    delivered = random.uniform(size=len(flow)) >= loss[flow]
    return traffic_of(random, flow, START_NS + np.arange(len(flow)) * 1000, delay_ns, delivered)


def mean_bias(world: Traffic, pair) -> float:
    told = float(world.delay_ns[world.delivered].mean())
    answer = estimate_lds_joint(*pair, world.truth.flow_id, grand_mean=told)
    heard = answer.answered & (world.truth.received > 0)
    return float((answer.mean_ns - world.truth.mean_ns)[heard].mean())


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 0.3, 0.1, 0.03)])
def test_answers_are_less_biased_where_slow_flows_lose_more(monkeypatch, shares) -> None:
    corrected, plain = [], []
    for seed in (61, 62):
        world = slow_flows_lose_more(seed)
        pair = recorded(world, lambda s=seed: Lds(LdsParameters(rows=4, columns=3000, spread=4, shares=shares, salt=s)))
        corrected.append(mean_bias(world, pair))
        with monkeypatch.context() as without:
            without.setattr(joint, "correct_survivor_bias", lambda said, *_: said)
            plain.append(mean_bias(world, pair))
    assert np.mean(plain) < -0.2 * MS
    assert abs(np.mean(corrected)) < 0.7 * abs(np.mean(plain))


def messages(value: np.ndarray, precision: np.ndarray) -> DelayMessages:
    return DelayMessages(value, precision, 10.0, 4.0, 0.0, np.zeros(len(value)))


def test_the_flow_blind_mean_moves_only_what_was_not_heard() -> None:
    random = np.random.default_rng(3)
    value = np.where(np.arange(400) < 200, random.normal(0, 2, 400), 0.0)
    precision = np.where(np.arange(400) < 200, 100.0, 0.0)
    unheard = np.where(np.arange(400) < 200, 0.0, 1.0)
    size = np.full(400, 50.0)
    said = correct_survivor_bias(messages(value, precision), size, unheard, 10.5)
    assert np.abs(said.shift[:200]).max() < 0.2
    assert said.shift[200:] == pytest.approx(1.0, abs=0.4)
    assert np.all(said.shift_deviation[200:] > said.shift_deviation[:200])


def test_without_losses_nothing_moves() -> None:
    said = messages(np.arange(50.0), np.ones(50))
    assert correct_survivor_bias(said, np.arange(50.0) + 1, np.zeros(50), 30.0) is said


def test_flows_that_do_not_differ_are_left_as_they_are() -> None:
    """Nor is anything divided by their variance of 0."""
    said = DelayMessages(np.zeros(20), np.ones(20), 10.0, 0.0, 0.0, np.zeros(20))
    with np.errstate(all="raise"):
        assert correct_survivor_bias(said, np.full(20, 50.0), np.linspace(0, 1, 20), 10.5) is said
