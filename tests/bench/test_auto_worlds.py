"""The worlds that auto is judged in are what their records say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.auto.worlds import (
    FIRST_SEED,
    LONGEST_NS,
    LOSSES,
    MEAN_NS,
    QUICK,
    SIZES,
    TICK_NS,
    WORLDS,
    World,
    worlds_of,
)

from sojourn.core.errors import ParameterError
from sojourn.lab.traffic import MS, START_NS, Traffic

PLAIN = World(name="plain", flows=400, packets=60_000, sizes="geometric", means="alike", delays="gamma")


def drawn(seed: int = 1, **changes: object) -> Traffic:
    return replace(PLAIN, **changes).draw(seed)  # type: ignore[arg-type]


def lost_per_flow(traffic: Traffic) -> np.ndarray:
    return traffic.truth.lost / traffic.truth.sent


def runs(lost: np.ndarray) -> np.ndarray:
    """The lengths of runs of lost packets."""
    edges = np.diff(np.concatenate([[0], lost.astype(np.int8), [0]]))
    return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)


def test_the_sets_have_other_seeds_and_one_has_further_kinds() -> None:
    look, once = worlds_of("look"), worlds_of("once")
    assert len({world.name for world in WORLDS}) == len(WORLDS) >= 40
    assert set(look) < set(once)
    assert FIRST_SEED["once"] > FIRST_SEED["look"] + 100_000
    assert set(QUICK) <= {world.name for world in look}


def test_a_world_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ParameterError, match="few alike flows"):
        worlds_of("look", ["nowhere"])
    with pytest.raises(ParameterError, match="pareto"):
        replace(PLAIN, sizes="huge")
    once_only = next(world.name for world in WORLDS if not world.look)
    with pytest.raises(ParameterError):
        worlds_of("look", [once_only])


def test_the_worlds_reach_from_few_flows_to_many_and_from_no_loss_to_a_fifth() -> None:
    assert min(world.flows for world in WORLDS) == 50
    assert max(world.flows for world in WORLDS) == 100_000
    assert {0.0, 0.2} <= {world.lost for world in WORLDS}
    assert {world.losses for world in WORLDS} == set(LOSSES)
    assert {world.sizes for world in WORLDS} == set(SIZES)
    assert max(world.packets for world in WORLDS) <= 3_000_000


def test_the_same_seed_gives_the_same_packets_and_another_does_not() -> None:
    first, second, other = drawn(3), drawn(3), drawn(4)
    assert np.array_equal(first.receiver.packet_id, second.receiver.packet_id)
    assert not np.array_equal(first.sender.packet_id[:100], other.sender.packet_id[:100])


def test_the_truth_is_that_of_the_packets_both_points_saw() -> None:
    traffic = drawn(lost=0.05, losses="late packets", means="x10")
    sent_at = dict(zip(traffic.sender.packet_id.tolist(), traffic.sender.time_ns.tolist(), strict=True))
    delay = traffic.receiver.time_ns - np.array([sent_at[one] for one in traffic.receiver.packet_id.tolist()])
    ids, row = np.unique(traffic.receiver.flow_id, return_inverse=True)
    mean = np.bincount(row, delay) / np.bincount(row)
    known = np.isin(traffic.truth.flow_id, ids)
    assert np.allclose(mean, traffic.truth.mean_ns[known], rtol=1e-12)
    assert np.array_equal(np.unique(traffic.sender.flow_id, return_counts=True)[1], traffic.truth.sent)


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_add_up(sizes: str) -> None:
    truth = drawn(sizes=sizes).truth
    assert len(truth.flow_id) == PLAIN.flows
    assert truth.sent.sum() == pytest.approx(PLAIN.packets, rel=0.01)


def test_sizes_follow_their_law() -> None:
    assert np.ptp(drawn(sizes="equal").truth.sent) == 0
    geometric = drawn(sizes="geometric").truth.sent
    assert geometric.std() / geometric.mean() == pytest.approx(1.0, abs=0.15)
    zipf = np.sort(drawn(sizes="zipf").truth.sent)[::-1]
    assert zipf[0] / zipf[9] == pytest.approx(10, rel=0.01)
    elephants = np.sort(drawn(sizes="elephants").truth.sent)[::-1]
    assert elephants[:4].sum() / elephants.sum() == pytest.approx(0.7, abs=0.1)
    pareto = np.sort(drawn(sizes="pareto", flows=5000, packets=500_000).truth.sent)
    # The median of a Pareto law of 1.2 is 2^(1/1.2), its upper decile 10^(1/1.2).
    assert np.quantile(pareto, 0.9) / np.median(pareto) == pytest.approx(5 ** (1 / 1.2), rel=0.1)


@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("lost", [0.01, 0.05])
def test_the_share_lost_is_as_asked_for(losses: str, lost: float) -> None:
    found = np.mean([1 - drawn(seed, losses=losses, lost=lost).delivered.mean() for seed in range(4)])
    assert found == pytest.approx(lost, rel=0.15)


def test_losses_come_in_runs_of_the_length_asked_for() -> None:
    assert runs(~drawn(lost=0.05).delivered).mean() == pytest.approx(1.05, abs=0.05)
    assert runs(~drawn(lost=0.05, losses="bursts", burst=20.0).delivered).mean() == pytest.approx(20, rel=0.25)


def test_a_tenth_of_the_flows_loses_everything_that_is_lost() -> None:
    share = lost_per_flow(drawn(lost=0.01, losses="few flows"))
    assert 0.07 < np.mean(share > 0) <= 0.1
    assert share.max() > 3 * share[share > 0].mean()


def test_late_packets_are_lost_more_often() -> None:
    for losses, least in (("late packets", 0.05), ("independent", -0.02)):
        traffic = drawn(lost=0.05, losses=losses)
        tie = np.corrcoef(traffic.delay_ns, ~traffic.delivered)[0, 1]
        assert tie > least
        assert losses == "late packets" or tie < 0.02
    late = drawn(lost=0.05, losses="late packets")
    slow = late.delay_ns > np.quantile(late.delay_ns, 0.9)
    assert np.mean(~late.delivered[slow]) > 1.5 * np.mean(~late.delivered)


def test_slow_flows_lose_in_proportion_to_their_delay() -> None:
    traffic = drawn(lost=0.05, losses="slow flows", means="bimodal", packets=200_000)
    mean = np.nan_to_num(traffic.truth.mean_ns)
    slow, fast = (traffic.truth.sent[rows] @ lost_per_flow(traffic)[rows] / traffic.truth.sent[rows].sum()
                  for rows in (mean > 3 * MEAN_NS, mean < 3 * MEAN_NS))  # fmt: skip
    assert slow / fast == pytest.approx(8 / 0.6, rel=0.25)


def test_means_lie_as_far_apart_as_asked_for() -> None:
    def decades(means: str) -> float:
        mean = drawn(means=means, sizes="equal", packets=200_000).truth.mean_ns
        return float(np.ptp(np.log10(mean)))

    assert decades("alike") < 0.1
    assert decades("x10") == pytest.approx(1.0, abs=0.1)
    assert decades("x100") == pytest.approx(2.0, abs=0.1)
    bimodal = drawn(means="bimodal").truth.mean_ns / MEAN_NS
    assert np.mean(bimodal > 3) == pytest.approx(0.3, abs=0.08)
    assert np.all((bimodal < 1.5) | (bimodal > 4))


@pytest.mark.parametrize(("means", "sign"), [("slow elephants", 1), ("slow mice", -1)])
def test_means_go_with_size_over_a_decade(means: str, sign: int) -> None:
    truth = drawn(means=means, sizes="pareto", packets=200_000).truth
    log_size, log_mean = np.log10(truth.sent), np.log10(truth.mean_ns)
    assert sign * np.corrcoef(log_size, log_mean)[0, 1] > 0.9
    slope = np.polyfit(log_size, log_mean, 1)[0]
    assert sign * slope * np.ptp(log_size) == pytest.approx(1.0, abs=0.1)


def hill(values: np.ndarray, count: int) -> float:
    """Hill's estimate of the tail's index from the largest values."""
    largest = np.sort(values)[-count - 1 :]
    return float(1 / np.mean(np.log(largest[1:] / largest[0])))


@pytest.mark.parametrize(("delays", "tail"), [("pareto 1.5", 1.5), ("pareto 1.1", 1.1)])
def test_tails_have_their_index(delays: str, tail: float) -> None:
    delay = drawn(delays=delays, packets=200_000).delay_ns
    assert hill(delay[delay < LONGEST_NS], 2000) == pytest.approx(tail, rel=0.1)
    assert delay.max() <= LONGEST_NS


@pytest.mark.parametrize(
    ("delays", "variation"), [("gamma", 0.5), ("queue", 0.2), ("log-normal", (np.e - 1) ** 0.5), ("quantised", None)]
)
def test_delays_have_their_mean_and_variation(delays: str, variation: float | None) -> None:
    delay = drawn(delays=delays).delay_ns
    assert delay.mean() == pytest.approx(MEAN_NS, rel=0.02)
    if variation is None:
        assert np.all(delay % TICK_NS == 0)
    else:
        assert delay.std() / delay.mean() == pytest.approx(variation, rel=0.05)


def test_drift_changes_delays_over_time() -> None:
    for drift, early, late in (("none", 1.0, 1.0), ("sine", 1.6, 0.4), ("step", 0.6, 1.4)):
        traffic = drawn(drift=drift)
        place = (traffic.sender.time_ns - START_NS) / 10e9
        for found, at in ((early, 0.25), (late, 0.75)):
            near = np.abs(place - at) < 0.03
            assert traffic.delay_ns[near].mean() == pytest.approx(found * MEAN_NS, rel=0.05)


def test_detours_copies_and_order() -> None:
    late = drawn(late=0.1)
    assert np.mean(late.delay_ns >= 20 * MS) == pytest.approx(0.1, abs=0.01)
    copied = drawn(copied=0.02)
    again = len(copied.receiver) - len(np.unique(copied.receiver.packet_id))
    assert again / len(copied.sender) == pytest.approx(0.02, rel=0.15)
    assert np.all(np.diff(copied.receiver.time_ns) >= 0)
    assert np.array_equal(copied.truth.lost, np.zeros_like(copied.truth.lost))


def overtaken(traffic: Traffic) -> int:
    """Packets that an earlier one of their flow arrives after."""
    order = np.lexsort((traffic.sender.time_ns, traffic.flow))
    arrival = (traffic.sender.time_ns + traffic.delay_ns)[order]
    same = np.diff(traffic.flow[order]) == 0
    return int(np.sum(np.diff(arrival)[same] < 0))


def test_packets_kept_in_order_never_overtake_and_none_is_earlier() -> None:
    assert overtaken(drawn(delays="log-normal", packets=300_000)) > 100
    kept = drawn(delays="log-normal", packets=300_000, in_order=True)
    assert overtaken(kept) == 0
    assert np.all(kept.delay_ns >= drawn(delays="log-normal", packets=300_000).delay_ns)
