"""Histories of flows: what moved is learnt, a flow that jumped is let go, and what is worth nothing is not used."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.history import (
    DISCOUNT,
    DRIFTS,
    FEWEST_FLOWS,
    Drift,
    Filter,
    History,
    Own,
    judged,
    learn_drift,
    message_of,
)

MS = 1_000_000
FLOWS = 800


def drawn(seed: int, moved: str, flows: int = FLOWS) -> tuple[Own, History, FloatArray]:
    """Present evidence and history of flows that differ by factors, by one to five packets each, and the truth."""
    random = np.random.default_rng(seed)
    before = random.lognormal(np.log(8 * MS), 0.8, flows)
    now = {
        "not": before,
        "shifted": before + 50 * MS,
        "some": before + 60 * MS * (random.uniform(size=flows) < 0.1),
        "redrawn": random.permutation(before),
    }[moved]
    packet = (before / 2) ** 2
    counts = random.integers(1, 6, (2, flows))
    past, present = (
        m + np.sqrt(packet / n) * random.normal(size=flows) for m, n in zip((before, now), counts, strict=True)
    )
    history = History(np.arange(flows).astype(np.uint64), past, packet / counts[0], before)
    return Own(present, packet / counts[1], packet, np.zeros(flows)), history, now


def off(value: FloatArray, truth: FloatArray, own: Own) -> float:
    """The root of the mean square error in deviations of a packet."""
    return float(np.sqrt(np.mean((value - truth) ** 2 / own.packet)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("moved", "shift_ms"), [("not", 0), ("shifted", 50), ("some", 0)])
def test_what_all_flows_moved_by_is_learnt_and_states_are_closer_for_it(moved: str, shift_ms: float, seed: int) -> None:
    own, past, now = drawn(seed, moved)
    drift = learn_drift(own, past)
    assert drift is not None
    assert judged(drift, own, past).pays
    assert drift.shift == pytest.approx(shift_ms * MS, abs=4 * np.sqrt(drift.doubt))
    value, variance = drift.filtered(own, past)
    assert off(value, now, own) < 0.8 * off(own.value, now, own)
    inside = np.abs(value - now) <= 1.96 * np.sqrt(variance)
    assert inside.mean() >= 0.92
    if moved == "some":
        jumped = now - past.answered > 0
        assert inside[jumped].mean() >= 0.88


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_other_flows_are_not_used(seed: int) -> None:
    own, past, _ = drawn(seed, "redrawn")
    drift = learn_drift(own, past)
    assert drift is not None
    assert not judged(drift, own, past).pays


def test_few_flows_tell_nothing() -> None:
    own, past, _ = drawn(0, "not", FEWEST_FLOWS - 1)
    assert learn_drift(own, past) is None


def test_a_message_and_the_evidence_are_the_filtered_state() -> None:
    """Where flows are far apart and runs are long, so that a run's mean is that of the flow's law."""
    own, past, _ = drawn(3, "not")
    past = History(past.flow_id, past.value, past.variance, past.answered * np.where(np.arange(FLOWS) % 2, 1, 1e6))
    weight = np.eye(len(DRIFTS))[3] + 1e-300
    drift = Drift(2.0 * MS, 0.0, weight, True)
    told = message_of(own, past, drift, np.full(FLOWS, 1e12))
    np.testing.assert_allclose(told.value, past.value + 2.0 * MS, rtol=1e-6)
    np.testing.assert_allclose(1 / told.precision, DISCOUNT * past.variance + DRIFTS[3] * own.packet, rtol=1e-4)


def test_flows_are_found_by_their_ids_and_new_ones_have_no_history() -> None:
    past = History(np.array([7, 3, 9], np.uint64), *(np.array([70.0, 30.0, 90.0]) for _ in range(3)))
    found = past.of_flows(np.array([9, 4, 3, 11], np.uint64)).less(10)
    np.testing.assert_array_equal(found.value, [80, np.nan, 20, np.nan])
    np.testing.assert_array_equal(found.variance, [90, np.nan, 30, np.nan])
    assert np.isnan(History.none().of_flows(past.flow_id).value).all()


def test_a_flow_that_nobody_heard_keeps_its_state_and_gets_less_sure() -> None:
    random = np.random.default_rng(5)
    flows, count = 200, 20.0
    mean = random.lognormal(np.log(8 * MS), 0.8, flows)
    packets = mean[:, None] * random.gamma(4, 0.25, (flows, int(count)))
    evidence = Evidence(
        np.zeros(flows),
        np.zeros(flows),
        packets.mean(axis=1),
        np.where(np.arange(flows) == 0, 0.0, count),
        packets.var(axis=1) * count,
        np.full(flows, 100.0),
    )
    past = History(np.arange(flows).astype(np.uint64), mean, (mean / 10) ** 2, mean)
    filtered = Filter.of(evidence, past, past.flow_id)
    told, states = filtered.message(evidence.size), filtered.states(mean)
    assert told is not None
    assert states is not None
    assert states[0][0] == pytest.approx(mean[0], rel=0.1)
    assert states[1][0] > (mean[0] / 10) ** 2
    assert (states[1][1:] < (mean[1:] / 10) ** 2).mean() > 0.9
    assert told.precision[0] > 0
