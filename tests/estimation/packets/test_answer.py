"""Packets and losses of flows from what two points recorded: intervals that hold by class of sizes, sums that agree."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from bench.auto.trial import CLASSES, Drawn, answered
from bench.auto.worlds import World

K = 1_000
# The kinds of loss, from none to a fifth, in traffic that nothing was tuned to.
WORLDS = [
    World(name="packets, independent", flows=2 * K, packets=150 * K, sizes="zipf", lost=0.02),
    World(name="packets, a fifth", flows=1 * K, packets=100 * K, sizes="pareto", lost=0.2),
    World(
        name="packets, bursts", flows=1_500, packets=150 * K, sizes="elephants", lost=0.05, losses="bursts", burst=40.0
    ),
    World(name="packets, few flows", flows=2 * K, packets=150 * K, sizes="geometric", lost=0.03, losses="few flows"),
    World(name="packets, slow flows", flows=1_500, packets=150 * K, sizes="zipf", lost=0.005, losses="slow flows"),
    World(name="packets, late", flows=1_500, packets=150 * K, sizes="pareto", lost=0.1, losses="late packets"),
    World(name="packets, none", flows=1 * K, packets=50 * K, sizes="zipf"),
]
LEAST_FLOWS = 500


@pytest.mark.parametrize("world", WORLDS, ids=[world.name for world in WORLDS])
def test_intervals_hold_in_every_class_of_sizes(world: World) -> None:
    """Two seeds, three memories, pooled: 90 % or more of the 95 % intervals that have a width, and of those that have
    none hardly any is wrong; the flows' losses add up to the whole's."""
    pooled: dict[tuple[str, str], list[bool]] = defaultdict(list)
    wrong = flows_seen = 0
    for seed in (401, 402):
        drawn = Drawn.of(world, seed)
        truth = drawn.traffic.truth
        place = np.searchsorted(list(CLASSES.values()), truth.sent, side="right") - 1
        for memory in (16 * K, 48 * K, 200 * K):
            flows, _ = answered(drawn.plan("auto", memory, seed), drawn.traffic)
            assert flows.lost.sum() == truth.lost.sum()
            assert flows.packets.sum() == truth.sent.sum()
            for name, true in (("packets", truth.sent), ("lost", truth.lost)):
                value, low, high = (getattr(flows, f"{name}{end}") for end in ("", "_low", "_high"))
                assert ((low <= value) & (value <= high)).all()
                holds = (low <= true) & (true <= high)
                wrong += int((~holds & (low == high)).sum())
                flows_seen += len(true)
                for number in np.unique(place):
                    pooled[name, list(CLASSES)[number]] += holds[(place == number) & (low < high)].tolist()
    assert wrong < 0.002 * flows_seen
    judged = {key: np.mean(holds) for key, holds in pooled.items() if len(holds) >= LEAST_FLOWS}
    assert all(share >= 0.9 for share in judged.values()), judged


def test_more_memory_narrows_the_intervals_to_nothing() -> None:
    drawn = Drawn.of(WORLDS[0], 403)
    widths = []
    for memory in (32 * K, 128 * K, 2_000 * K):
        flows, _ = answered(drawn.plan("auto", memory, 1), drawn.traffic)
        assert flows.lost_high is not None
        assert flows.lost_low is not None
        widths.append(float((flows.lost_high - flows.lost_low).sum()))
    assert widths[0] > widths[1] > widths[2] == 0


def test_copies_do_not_hide_losses() -> None:
    """Where packets arrive twice, what is missing is no longer what was lost: intervals are wider and hold."""
    world = World(name="packets, copies", flows=1 * K, packets=100 * K, lost=0.02, copied=0.01)
    drawn = Drawn.of(world, 404)
    flows, _ = answered(drawn.plan("auto", 48 * K, 1), drawn.traffic)
    known = ~np.isnan(flows.lost)
    assert flows.lost_low is not None
    assert flows.lost_high is not None
    true = drawn.traffic.truth.lost
    assert known.mean() > 0.9
    assert np.mean(((flows.lost_low <= true) & (true <= flows.lost_high))[known]) > 0.9
