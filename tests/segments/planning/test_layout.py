"""Layouts by what a survey counted of each flow: cells no wider than its packets need, samples where they hold flows
whole, whole flows where few of them lose anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.auto.trial import Drawn, try_memory
from bench.auto.worlds import World

from sojourn.core.arrays import Int64Array
from sojourn.segments.plan import plan_segment
from sojourn.segments.planning.layout import FLOWS, SAMPLES, SPREAD, Expected, SurveyedFlows, fit_auto, fit_sample
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lds import LdsParameters

FLOWS_COUNT, SIZE = 2_000, 150


def seen(packets: Int64Array, lost: Int64Array | None = None) -> SurveyedFlows:
    return SurveyedFlows(packets, lost)


def layout(memory: int, *, loss: float, packets: Int64Array, lost: Int64Array | None = None):
    total = int(packets.sum())
    return fit_auto(memory, flows=len(packets), loss=loss, packets=total, seen=seen(packets, lost))


EQUAL = np.full(FLOWS_COUNT, SIZE)


def test_cells_without_loss_are_as_wide_as_the_packets_need_them() -> None:
    cells = layout(128_000, loss=0.0, packets=EQUAL)[FLOWS]
    assert isinstance(cells, LdsParameters)
    # Even one cell may take all packets, and as many copies.
    assert cells.count_limit >= 2 * EQUAL.sum()
    assert cells.rows * cells.columns >= 1.15 * 8 * 128_000 // 96


def test_too_few_cells_to_be_exact_are_rows_of_microseconds() -> None:
    parts = layout(28_000, loss=0.0, packets=EQUAL)
    assert all(isinstance(part, CounterVectorParameters) and part.per_flow == 1 for part in parts.values())
    assert len({part.salt for part in parts.values()}) == len(parts) == 3
    assert all(part.count_limit >= 2 * EQUAL.sum() for part in parts.values())
    assert sum(part.counters for part in parts.values()) > 1.3 * 8 * 28_000 // 96


def test_where_few_flows_lose_anything_a_sample_answers_them_beside_whole_flows() -> None:
    lost = np.where(np.arange(FLOWS_COUNT) < FLOWS_COUNT // 10, 15, 0)
    parts = layout(28_000, loss=0.01, packets=EQUAL, lost=lost)
    assert parts[FLOWS].per_flow == parts[SPREAD].per_flow == 1
    assert SAMPLES in parts
    # As many losses of all flows leave none whole.
    even = layout(28_000, loss=0.01, packets=EQUAL, lost=np.full(FLOWS_COUNT, 2))
    assert all(getattr(part, "per_flow", 2) > 1 for part in even.values())


@pytest.mark.parametrize("memory", [8_000, 32_000, 128_000, 1_000_000])
@pytest.mark.parametrize("loss", [0.0, 0.0005, 0.003, 0.05])
def test_a_surveyed_plan_fits_the_memory(memory: int, loss: float) -> None:
    sizes = np.random.default_rng(1).geometric(1 / 100, 3_000)
    lost = np.random.default_rng(2).binomial(sizes, loss)
    known = {"flows": len(sizes), "loss": loss, "packets": int(sizes.sum())}
    plan = plan_segment("auto", memory, **known, seen=seen(sizes, lost), joint=True)
    assert plan.memory_bits <= 8 * memory


def test_a_sample_that_holds_most_large_flows_whole_is_expected_to_be_exact() -> None:
    """One elephant has nine packets in ten; by their mean, flows would not fit."""
    sizes = np.full(500, 120)
    sizes[0] = 540_000
    slots = fit_sample(800_000, flows=500).slots
    expected = Expected(500, 0.005, float(sizes.sum()), seen(sizes))
    assert expected.sampled_error(slots) == 0
    assert expected.prefers_samples(66_000, slots)
    assert not Expected(500, 0.005, float(sizes.sum())).prefers_samples(66_000, slots)


def test_what_a_sample_is_off_by_goes_with_what_it_keeps_of_each_flow() -> None:
    """Four flows of 10,000 packets with 50 slots each, or more for those that share no group: 0.29·√(1/50)."""
    sizes = np.full(4, 10_000)
    expected = Expected(4, 0.1, 40_000.0, seen(sizes))
    assert expected.sampled_error(200) == pytest.approx(0.29 / np.sqrt(50), rel=0.5)
    assert expected.sampled_error(800) == pytest.approx(expected.sampled_error(200) / 2, rel=0.05)


def test_flows_ten_times_apart_in_less_than_a_cell_each() -> None:
    """1,500 flows in 16 KB, three seeds: 0.3 to 0.6 %, where cells of 96 bits are 2.2 to 4.6 % off."""
    world = World(name="narrow cells", flows=1_500, packets=150_000)
    errors = [try_memory(Drawn.of(world, seed), "auto", 16_000, seed)[1]["error"] for seed in range(3)]
    assert np.mean(errors) < 0.015


def test_no_cells_take_room_from_a_sample_that_would_keep_most_large_flows_whole() -> None:
    sizes = np.random.default_rng(3).zipf(1.6, 20_000).clip(max=20_000)
    lost = np.random.default_rng(4).binomial(sizes, 0.003)
    expected = Expected(len(sizes), 0.003, float(sizes.sum()), seen(sizes, lost))
    spared = []
    for memory in np.geomspace(1e6, 8e6, 40).astype(int).tolist():
        parts = layout(memory, loss=0.003, packets=sizes, lost=lost)
        alone = expected.sampled_error(fit_sample(memory, flows=len(sizes)).slots)
        if alone == 0:
            assert expected.sampled_error(parts[SAMPLES].slots) < 1e-4
            spared.append(FLOWS not in parts)
    assert any(spared)
    assert not all(spared)


def test_how_delays_vary_is_told_whatever_flows_means_are_and_a_few_late_packets() -> None:
    random = np.random.default_rng(5)
    flow = np.repeat(np.arange(400), 60)
    mean = 1e6 * 10 ** random.uniform(0, 2, 400)
    delay = (mean[flow] * random.gamma(4.0, 0.25, len(flow))).astype(np.int64)
    found = SurveyedFlows(EQUAL).with_delays(flow, delay)
    assert found.varied == pytest.approx(0.5, abs=0.03)
    assert found.slope == 0
    narrow = (mean[flow] * random.normal(1.0, 0.02, len(flow))).astype(np.int64)
    late = random.uniform(size=len(flow)) < 1 / 2000
    narrow[late] *= 300
    assert SurveyedFlows(EQUAL).with_delays(flow, narrow).varied == pytest.approx(0.02, rel=0.2)


def test_what_no_flow_tells_varies_as_usual() -> None:
    for flow, delay in (([], []), ([0, 1], [5, 6]), ([0] * 9, [-5] * 9)):
        before = SurveyedFlows(EQUAL)
        assert before.with_delays(np.array(flow, np.int64), np.array(delay, np.int64)) is before


def test_where_means_go_with_sizes_few_counters_give_way_to_samples() -> None:
    random = np.random.default_rng(6)
    packets = np.floor(8 * (random.pareto(1.2, 20_000) + 1)).astype(np.int64)
    flow = np.repeat(np.arange(len(packets)), packets)
    for power in (0.0, -0.5, 0.5):
        mean = 5e6 * (packets / 20) ** power
        found = SurveyedFlows(packets).with_delays(flow, mean[flow].astype(np.int64))
        assert found.slope == pytest.approx(power, abs=0.01)
        few = {"flows": len(packets), "loss": 0.005, "packets": int(packets.sum())}
        parts = fit_auto(90_000, **few, seen=replace(found, varied=0.5))
        assert (SAMPLES in parts) == bool(power)


def test_counters_are_expected_to_be_as_far_off_as_flows_are_apart() -> None:
    """1 % lost, a counter for each flow: samples are better only where flows are far more than ten times apart."""
    choice, errors = [], []
    for apart in (0.27, 0.54, 1.08):
        surveyed = SurveyedFlows(EQUAL, np.full(FLOWS_COUNT, 2), apart=apart)
        expected = Expected(FLOWS_COUNT, 0.013, float(EQUAL.sum()), surveyed)
        errors.append(expected.counters_error(1.2))
        choice.append(expected.prefers_samples(round(1.2 * expected.counted), round(1.2 * expected.counted)))
    assert errors[2] == pytest.approx(2 * errors[1], rel=0.05)
    assert errors[1] == pytest.approx(2 * errors[0], rel=0.1)
    assert choice[0] < choice[2]


def test_what_strangers_lose_spoils_counters_of_flows_that_lose_little() -> None:
    """A third of the flows loses nearly all that is lost; if all lost alike, counters would be further off still."""
    packets = np.full(3_000, 200)
    few = np.where(np.arange(3_000) % 3 == 0, 18, 0)
    errors = []
    for loss, lost in ((0.002, np.full(3_000, 0)), (0.03, few), (0.03, np.full(3_000, 6))):
        surveyed = SurveyedFlows(packets, np.where(lost == 0, np.arange(3_000) % 3 == 1, lost))
        errors.append(Expected(3_000, loss, float(packets.sum()), surveyed).counters_error(2.0))
    assert errors[0] < errors[1] < errors[2]


def test_samples_are_taken_where_a_few_packets_tell_a_mean() -> None:
    """1 % lost: counters where packets vary by a half, but two packets of a flow are enough where they hardly vary."""
    flows = [SurveyedFlows(EQUAL, np.full(FLOWS_COUNT, 2), varied) for varied in (0.5, 0.03)]
    found = [fit_auto(64_000, flows=FLOWS_COUNT, loss=0.013, packets=int(EQUAL.sum()), seen=one) for one in flows]
    assert any(getattr(part, "per_flow", 1) > 1 for part in found[0].values())
    assert set(found[1]) <= {FLOWS, SAMPLES}
    assert all(getattr(part, "per_flow", 1) == 1 for part in found[1].values())


def test_counters_are_for_the_few_flows_that_have_most_packets() -> None:
    """Thirty flows of a thousand packets among 3,000 of two, 1 % lost: each would have one counter by the mean size."""
    packets = np.where(np.arange(3_000) < 30, 1_000, 2)
    expected = Expected(3_000, 0.01, float(packets.sum()), seen(packets))
    assert expected.counted == 120 <= expected.count
    assert not expected.prefers_samples(1_000, 1_000)


def test_counters_are_as_many_as_a_flow_that_counts_needs_not_the_average_one() -> None:
    """One flow in ten loses a tenth of its packets, the others none: nine of ten flows that count lose nothing."""
    packets = np.full(3_000, 400)
    lost = np.where(np.arange(3_000) % 10 == 0, 40, 0)
    expected = Expected(3_000, 0.01, float(packets.sum()), seen(packets, lost))
    assert expected.usual.packets == 400
    assert expected.usual.lost == pytest.approx(-np.log(0.9))
    alike = Expected(3_000, 0.01, float(packets.sum()))
    assert alike.usual.lost == pytest.approx(4)
    assert expected.counters_per_flow(6_000) < alike.counters_per_flow(6_000)


def test_elephants_have_the_counters_that_their_losses_need() -> None:
    """Half of the flows that count lose some packets, as these are elephants, although hardly any does on average."""
    packets = np.where(np.arange(3_000) < 200, 2_000, 3)
    lost = np.where(np.arange(3_000) < 200, 10, 0)
    expected = Expected(3_000, 0.005, float(packets.sum()), seen(packets, lost))
    assert expected.usual.lost > 0.005 * packets.mean()


def test_counters_of_flows_that_are_alike_are_expected_to_be_close() -> None:
    random = np.random.default_rng(7)
    flow = np.repeat(np.arange(400), 60)
    errors = []
    for apart, varied in ((1.0, 0.5), (0.02, 0.5), (0.02, 0.02)):
        mean = 1e6 * np.exp(random.normal(0, apart, 400))
        delay = (mean[flow] * random.normal(1, varied / 2, len(flow)).clip(0.1)).astype(np.int64)
        surveyed = seen(EQUAL).with_delays(flow, delay)
        errors.append(Expected(FLOWS_COUNT, 0.01, float(EQUAL.sum()), surveyed).counters_error(1.0))
    assert errors[0] > 1.3 * errors[1] > 1.5 * errors[2]
    assert SurveyedFlows(EQUAL).with_delays(flow, flow + 5).apart == pytest.approx(0.5, abs=0.02)
