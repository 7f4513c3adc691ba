"""Arrays are made for the instances seen, with room, and again once these have left the band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from objective_worlds import RttNode, flow, gamma
from sojourn.core.estimates import Estimate
from sojourn.estimation.buckets.queries import RangeQuery
from sojourn.estimation.buckets.questions import Question, answer_streams
from sojourn.objectives.sizing import Seen, is_outgrown, sized
from sojourn.store.epochs import open_store

MINUTE_NS = 60 * 10**9


@pytest.mark.parametrize(
    ("planned", "instances", "outgrown"),
    [(0, 1, True), (50, 100, False), (50, 101, True), (64, 8, False), (65, 8, True), (8, 1, False)],
)
def test_the_band_is_twice_above_and_an_eighth_below(planned: int, instances: int, outgrown: bool) -> None:
    assert is_outgrown(planned, Seen(instances=instances, measurements=100, total=1.0)) is outgrown


def test_sums_and_counts_have_room_for_sixteen_times_what_was_seen() -> None:
    seen = Seen(instances=20, measurements=1000, total=2.0**30)
    size, planned = sized(seen, error=0.1, every_ns=MINUTE_NS, means=False)
    assert planned == 20
    assert size.bits >= 34
    assert 2**size.count_bits >= 16 * 1000
    assert size.buckets >= 20


def test_an_array_planned_in_quiet_times_holds_a_measurement_far_beyond_them() -> None:
    """Round trips of 0.2 ms were seen; one of a quarter of a minute is what the objective is there to notice."""
    seen = Seen(instances=1, measurements=900, total=900 * 2e5)
    size, _ = sized(seen, error=0.05, every_ns=3 * 10**9, means=True)
    assert 2**size.bits > 15e9


def test_a_thousand_instances_have_as_many_buckets_each_as_some_dozens() -> None:
    some, _ = sized(Seen(instances=48, measurements=4800, total=1e9), error=0.2, every_ns=MINUTE_NS, means=False)
    many, planned = sized(
        Seen(instances=960, measurements=96_000, total=1e9), error=0.2, every_ns=MINUTE_NS, means=False
    )
    assert planned == 960
    assert many.buckets == pytest.approx(20 * some.buckets, rel=0.01)


@pytest.mark.parametrize("flows", [1, 4, 12])
def test_means_of_few_flows_are_answered_in_every_epoch(flows: int, tmp_path: Path) -> None:
    """Whatever the salt: how values vary has to be learned from enough buckets."""
    seen = Seen(instances=flows, measurements=60 * flows, total=1e9 * flows)
    parameters, _ = sized(seen, error=0.05, every_ns=MINUTE_NS, means=True)
    store = open_store(tmp_path)
    node = RttNode(store, parameters=parameters)

    class Stream:
        node, unit, live = "alpha", "ns", False

        def __init__(self, epoch) -> None:
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch])

    missing = 0
    for _ in range(16):
        epoch = node.record([flow(number) for number in range(flows)], gamma(10e6))
        asked = Question(range=RangeQuery(from_ns=0, to_ns=2**62, stat="mean"), instance="*")
        found = answer_streams([Stream(epoch)], asked)
        missing += sum(not isinstance(one.range.answer, Estimate) for one in found)
    store.close()
    assert missing == 0
    assert np.isfinite(node.truth[0]).all()
