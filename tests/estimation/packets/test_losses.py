"""Flows' losses: by samples, by counters, by groups; rates that all flows share and rates that differ."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.estimation.packets.evidence import GroupTotals, Heard, PacketEvidence, SampledPackets, SpoiledCounters
from sojourn.estimation.packets.losses import LossPosterior, loss_posterior
from sojourn.estimation.packets.sizes import size_posterior

Random = np.random.Generator


def held(found: LossPosterior, lost: Int64Array) -> FloatArray:
    return np.mean((found.low <= lost) & (lost <= found.high))


def known_sizes(size: Int64Array, share: float, random: Random, lost: Int64Array) -> PacketEvidence:
    """Sizes are exact; a share of the packets was sampled."""
    missing = random.binomial(lost, share)
    kept = missing + random.binomial(size - lost, share)
    none = np.zeros(len(size), np.int64)
    packets = SampledPackets(none, np.full(len(size), share), kept.astype(float), missing.astype(float))
    return PacketEvidence(Heard.exactly(size.astype(float)), Heard.nothing(len(size), float(size.sum())), packets)


def some_rates(random: Random, kind: str, flows: int) -> FloatArray:
    if kind == "alike":
        return np.full(flows, 0.05)
    if kind == "few":
        return np.where(random.uniform(size=flows) < 0.05, random.uniform(0.1, 1.0, flows), 0.0)
    return random.beta(0.5, 5.0, flows)


@pytest.mark.parametrize("kind", ["alike", "few", "spread"])
def test_intervals_from_samples_hold_whatever_rates_are(kind: str) -> None:
    """2,000 flows of 20 to 2,000 packets, a twentieth sampled."""
    random = np.random.default_rng(7)
    size = np.rint(np.exp(random.uniform(3, 7.6, 2_000))).astype(np.int64)
    lost = random.binomial(size, some_rates(random, kind, len(size)))
    evidence = known_sizes(size, 0.05, random, lost)
    found = loss_posterior(evidence, size_posterior(evidence))
    for large in (size < 100, size >= 400):
        assert np.mean(((found.low <= lost) & (lost <= found.high))[large]) > 0.93
    assert (found.low >= evidence.sampled.missing).all()


@pytest.mark.parametrize("kind", ["alike", "few", "spread"])
def test_counters_tell_whose_losses_they_are(kind: str) -> None:
    """1,000 flows spread over four of 3,000 counters each: better than the rate of all, and intervals hold."""
    random = np.random.default_rng(11)
    flows, counters = 1_000, 3_000
    size = np.rint(np.exp(random.uniform(2, 6, flows))).astype(np.int64)
    lost = random.binomial(size, 0.2 * some_rates(random, kind, flows))
    cell = np.array([random.choice(counters, 4, replace=False) for _ in range(flows)])
    missing = np.zeros(counters)
    for row, number in zip(cell, lost, strict=True):
        np.add.at(missing, row, random.multinomial(number, np.full(4, 0.25)))
    evidence = known_sizes(size, 0.0, random, lost)
    spoiled = SpoiledCounters(cell, np.full(cell.shape, 0.25), missing)
    high = np.minimum(missing[cell].sum(axis=1), size)
    heard = Heard(np.zeros(flows), np.zeros(flows), np.zeros(flows), high)
    evidence = PacketEvidence(evidence.of_sent, heard, evidence.sampled, counters=spoiled)
    found = loss_posterior(evidence, size_posterior(evidence))
    assert held(found, lost) > 0.93
    by_rate = size * lost.sum() / size.sum()
    assert np.abs(found.mean - lost).sum() < 0.7 * np.abs(by_rate - lost).sum()
    assert found.mean.sum() == pytest.approx(lost.sum(), rel=0.1)


def test_a_group_that_lost_nothing_lost_nothing_of_any_flow() -> None:
    size = np.full(6, 40)
    evidence = known_sizes(size, 0.1, np.random.default_rng(1), np.zeros(6, np.int64))
    group = np.array([0, 0, 0, 1, 1, 2])
    packets = evidence.sampled._replace(group=group)
    totals = (
        GroupTotals(np.bincount(group, size).astype(float), np.zeros(3)),
        GroupTotals(np.array([0.0, 9.0, 7.0]), np.zeros(3)),
    )
    one = PacketEvidence(evidence.of_sent, evidence.of_lost, packets, *totals)
    found = loss_posterior(one, size_posterior(one))
    assert found.high[:3].max() == 0
    assert (found.low[5], found.high[5]) == (7, 7)
    assert found.high[3:5].max() <= 9


def test_flows_that_lose_everything_are_seen_among_others_that_lose_nothing() -> None:
    random = np.random.default_rng(5)
    size = np.full(400, 200)
    lost = np.where(np.arange(400) < 20, 200, 0)
    evidence = known_sizes(size, 0.1, random, lost)
    found = loss_posterior(evidence, size_posterior(evidence))
    assert found.low[:20].min() > 150
    assert found.high[20:].max() < 20


@pytest.mark.parametrize("has_counters", [False, True])
def test_a_flow_that_lost_more_than_it_sent_contradicts_itself_and_harms_no_other(has_counters: bool) -> None:
    """A collision of digests: cells say nine packets of a flow of three."""
    flows = 40
    none, first = np.zeros(flows), np.arange(flows) == 0
    lost = Heard(none, none, np.where(first, 9.0, 0.0), np.where(first, 9.0, 3.0))
    sampled = SampledPackets(np.zeros(flows, np.int64), np.full(flows, 0.2), none, none)
    places = np.arange(flows)[:, None] + np.array([0, 1])
    counters = SpoiledCounters(places, np.full((flows, 2), 0.5), np.zeros(flows + 1)) if has_counters else None
    evidence = PacketEvidence(Heard.exactly(np.full(flows, 3.0)), lost, sampled, counters=counters)
    found = loss_posterior(evidence, size_posterior(evidence))
    assert found.mean[0] == 9
    assert np.all((found.low[1:] <= found.mean[1:]) & (found.mean[1:] <= found.high[1:]))
    assert found.high[1:].max() <= 3
