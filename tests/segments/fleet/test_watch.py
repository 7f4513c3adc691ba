"""Looks at open epochs: two points that are asked at the same time choose places that both know."""

from __future__ import annotations

import numpy as np
import pytest
from tests.segments.fleet.fleet_world import SECOND, PolledPoint, watched
from tests.segments.fleet.test_markers import packets

from sojourn.core.arrays import PacketBatch
from sojourn.lab.two_point import LOST, START_NS, make_two_point_world
from sojourn.segments.fleet.markers import SILENCE_NS, after
from sojourn.segments.fleet.watch import LOOKS, WINDOW_NS, Watch
from sojourn.segments.plan import plan_point

PLAN = plan_point(32_000, flows=100, loss=0.01)


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_points_that_are_asked_at_once_have_a_place_in_common(load: float) -> None:
    """Of 60 questions; the looks of two points miss each other in less than one of a hundred, as delays are short.

    More than 5 of 60 would do so by chance in one of 10⁴ runs.
    """
    world = make_two_point_world(seed=5, flows=30, packets=60_000, duration_ns=40 * SECOND, load=load)
    common = 0
    for step in range(60):
        asked_ns = START_NS + 5 * SECOND + step * SECOND // 2
        ends = [PolledPoint(batch, PLAN, world, epoch_ns=60 * SECOND) for batch in (world.sender, world.receiver)]
        # What came before does not matter here.
        looks = [watched(point, asked_ns)[1] for point in ends]
        names = [{look.cut.ends for look in seen if look.cut is not None} for seen in looks]
        common += bool(names[0] & names[1])
    assert common >= 55


def test_a_look_holds_what_came_before_its_place_and_changes_nothing() -> None:
    world = make_two_point_world(seed=6, flows=30, packets=20_000, duration_ns=20 * SECOND, load=0.5)
    order = np.argsort(world.sender.time_ns, kind="stable")
    point = PolledPoint(world.sender, PLAN, world, epoch_ns=3600 * SECOND)
    closed, looks = watched(point, START_NS + 10 * SECOND)
    position = {int(i): place for place, i in enumerate(world.sender.packet_id[order])}
    before = sum(epoch.recorded for epoch in closed)
    for look in looks:
        assert look.cut is not None
        assert look.cut.ends is not None
        assert before + look.recorded == position[look.cut.ends]
    rest = [*point.until(point.last_ns + 1), *point.recorder.finish()]
    assert before + sum(epoch.recorded for epoch in rest) == len(world.sender)
    assert (world.delay_ns != LOST).any()


def test_after_a_silence_the_look_is_behind_the_last_packet() -> None:
    world = make_two_point_world(seed=7, flows=5, packets=500, duration_ns=5 * SECOND, load=0.5)
    point = PolledPoint(world.sender, PLAN, world, epoch_ns=60 * SECOND)
    _, looks = watched(point, point.last_ns + 2 * SILENCE_NS)
    last = int(world.sender.packet_id[np.argmax(world.sender.time_ns)])
    assert [look.cut.ends for look in looks if look.cut is not None] == [after(last)]


def batch_of(ids: list[int]) -> PacketBatch:
    column = np.array(ids, np.uint64)
    return PacketBatch(column, column, np.arange(len(ids)), np.full(len(ids), 100))


def test_a_packet_that_comes_twice_names_no_place() -> None:
    for ids in ([7, 8, 7, 9], [9, 7, 7, 8]):
        watch = Watch()
        watch.begin()
        assert {name for _, name in watch.places(batch_of(ids))} == {8, 9}
    watch = Watch()
    watch.begin()
    assert {name for _, name in watch.places(batch_of([7, 8]))} == {7, 8}
    assert {name for _, name in watch.places(batch_of([7, 9]))} == {9}
    assert watch.places(batch_of([7])) == []


def test_the_smallest_hashes_of_a_window_are_kept_and_the_next_asker_begins_another() -> None:
    now = [0]
    watch = Watch(clock=lambda: now[0])
    assert not watch.is_on
    watch.begin()
    batches = [packets(1000, seed=seed) for seed in range(5)]
    chosen = [name for batch in batches for _, name in watch.places(batch)]
    assert LOOKS <= len(chosen) <= LOOKS * len(batches)
    once = Watch()
    once.begin()
    together = PacketBatch(
        *(np.concatenate([getattr(b, n) for b in batches]) for n in ("flow_id", "packet_id", "time_ns", "size_bytes"))
    )
    assert {name for _, name in once.places(together)} <= set(chosen)
    now[0] = WINDOW_NS
    watch.begin()
    assert len(watch.places(batches[0])) == LOOKS
    watch.end()
    assert watch.is_on
    watch.end()
    assert not watch.is_on
