"""Memory planned for surveyed flows keeps its error when they are then measured: a queue that drops in bursts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sojourn.capture.decode.ids import KEY_BYTES
from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.lab.two_point import TwoPointWorld, make_two_point_world
from sojourn.matching.clock.correction import ClockMode
from sojourn.segments.plan import plan_survey
from sojourn.segments.planning.search import achieved_share, expect_surveyed, plan_surveyed, promised_size
from sojourn.segments.ranges import DelayRange
from sojourn.segments.survey import conclude, read_points
from sojourn.segments.surveyed import measure_surveyed


class WorldPoint:
    """One end of a generated world, as a point that can be read again."""

    def __init__(self, name: str, batch: PacketBatch, world: TwoPointWorld) -> None:
        self.name = name
        self.batch = batch
        self.flows = FlowTable()
        new = self.flows.update(batch.flow_id, batch.time_ns, batch.size_bytes)
        texts = [world.keys[int(batch.flow_id[row])].to_bytes() for row in new]
        padded = np.frombuffer(b"".join(text.ljust(KEY_BYTES, b"\0") for text in texts), np.uint8)
        self.flows.add_keys(padded.reshape(-1, KEY_BYTES), np.array([len(text) for text in texts], np.uint8))

    def batches(self) -> Iterator[PacketBatch]:
        yield self.batch

    def known_batches(self, packets: int) -> Iterator[PacketBatch]:
        yield self.batch.select(slice(0, packets))


def surveyed(seed: int, **change: float):
    world = make_two_point_world(seed=seed, **({"flows": 300, "packets": 60_000} | change))
    points = WorldPoint("in", world.sender, world), WorldPoint("out", world.receiver, world)
    return points, conclude(*read_points(*points), clock=ClockMode())


@pytest.mark.parametrize(("sketch", "load"), [("auto", 0.9), ("sample", 0.9), ("colate", 0.3)])
def test_the_surveyed_flows_are_within_the_error_as_promised(sketch: str, load: float) -> None:
    """Three deviations of the draw below the confidence: a false alarm in 1 of 700 for each of three."""
    points, survey = surveyed(5, load=load)
    assert (survey.loss > 0) == (load == 0.9)
    wish, chosen = plan_surveyed(sketch, survey, error=0.1, confidence=0.9, joint=True)
    whole, _ = measure_surveyed(*points, survey, chosen.plan)
    count, share = achieved_share(whole.flows, survey, wish)
    assert wish.least_packets == 100
    assert count == np.sum(survey.sender.flows.packets >= 100)
    assert share >= 0.9 - 3 * np.sqrt(0.09 / count)


def test_lost_packets_in_every_large_flow_make_cells_impossible() -> None:
    _, survey = surveyed(6, load=1.3)
    with pytest.raises(ParameterError, match="use --sketch auto"):
        plan_surveyed("lds", survey, error=0.05, confidence=0.95, joint=True)


def test_the_survey_is_expected_as_it_was() -> None:
    _, survey = surveyed(7)
    traffic = expect_surveyed(survey)
    assert traffic.flows == len(survey.flow_id)
    assert traffic.total_packets == pytest.approx(survey.sender.packets, rel=0.01)
    assert traffic.loss == pytest.approx(survey.loss, abs=0.002)


def test_small_flows_are_promised_something_where_there_are_no_large_ones() -> None:
    assert promised_size(np.array([500] * 5)) == 100
    assert promised_size(np.array([500] * 4 + [20])) == 10
    assert promised_size(np.array([3, 2])) == 1


def test_a_survey_counts_the_packets_and_losses_of_each_flow() -> None:
    _, survey = surveyed(7, load=0.9)
    counted, flows = survey.counted_flows, survey.match.flows
    assert counted.packets.sum() == survey.packets
    assert counted.lost is not None
    assert counted.lost.sum() > 0
    assert np.array_equal(counted.packets[: len(flows)], flows.packets)
    assert np.array_equal(counted.lost[: len(flows)], flows.lost)


@pytest.mark.parametrize("memory", [8_000, 32_000, 128_000])
def test_a_plan_for_delays_that_are_far_apart_keeps_within_the_memory(memory: int) -> None:
    _, survey = surveyed(9)
    late = replace(survey)
    late.__dict__["delay_range"] = DelayRange(spread_ns=3_600 * 10**9)
    plan = plan_survey(late, "auto", memory, joint=True)
    assert 0.8 * 8 * memory < plan.memory_bits <= 8 * memory


def test_copies_at_the_receiver_spoil_cells_as_lost_packets_do() -> None:
    _, survey = surveyed(9)
    flows = survey.match.flows
    sampled = replace(survey, is_complete=False)
    assert sampled.spoiling == survey.spoiling == survey.loss
    sampled.match.flows.duplicates[:] = 5
    assert sampled.spoiling == pytest.approx(survey.loss + 5 * len(flows.duplicates) / survey.match.aggregate.sent)
    assert survey.spoiling == survey.loss
