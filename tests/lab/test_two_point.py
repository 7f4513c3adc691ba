"""The generated world: repeatable, heavy-tailed, lossy, and true to its own queue."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.core.keys import key_id
from sojourn.lab.two_point import LOST, PATHS_NS, _serve, make_two_point_world


def test_the_same_seed_gives_the_same_world() -> None:
    one, other = (make_two_point_world(seed=3, flows=50, packets=5000) for _ in range(2))
    assert np.array_equal(one.receiver.time_ns, other.receiver.time_ns)
    assert one.keys == other.keys
    different = make_two_point_world(seed=4, flows=50, packets=5000)
    assert not np.array_equal(one.sender.time_ns, different.sender.time_ns)


def test_the_queue_equals_a_plain_model() -> None:
    random = np.random.default_rng(5)
    times = np.sort(random.integers(0, 10**6, 300))
    sizes = random.integers(64, 1500, 300)
    departure = _serve(times, sizes, 8.0, 6000)
    free_at = 0.0
    for time_ns, size, got in zip(times, sizes, departure, strict=True):
        waiting = max(0.0, free_at - time_ns)
        if waiting / 8 + size > 6000:
            assert got == LOST
            continue
        free_at = time_ns + waiting + size * 8
        assert got == pytest.approx(free_at, abs=1)
    assert 0 < (departure == LOST).sum() < 300


def test_packets_are_conserved_and_no_delay_is_shorter_than_the_path() -> None:
    world = make_two_point_world(seed=1, flows=200, packets=50_000, load=0.95)
    assert len(world.sender) == 50_000
    assert len(np.unique(world.sender.flow_id)) == 200
    assert world.lost > 0
    sent_at = dict(zip(world.sender.packet_id.tolist(), world.sender.time_ns.tolist(), strict=True))
    delays = [
        t - sent_at[p] for p, t in zip(world.receiver.packet_id.tolist(), world.receiver.time_ns.tolist(), strict=True)
    ]
    assert min(delays) > 0.3 * min(PATHS_NS)
    assert (np.diff(world.receiver.time_ns) >= 0).all()


def test_sizes_are_heavy_tailed_and_keys_match_ids() -> None:
    world = make_two_point_world(seed=2, flows=1000, packets=100_000)
    sizes = np.sort(np.unique(world.sender.flow_id, return_counts=True)[1])[::-1]
    assert sizes[:100].sum() > 0.4 * sizes.sum()
    assert all(key_id(key) == flow_id for flow_id, key in list(world.keys.items())[:50])


def test_impossible_worlds_are_refused() -> None:
    with pytest.raises(ParameterError, match="5 packets cannot make 10 flows"):
        make_two_point_world(seed=1, flows=10, packets=5)


def test_the_truth_is_what_the_two_points_saw() -> None:
    world = make_two_point_world(seed=6, flows=40, packets=4000, load=0.95)
    sent_at = dict(zip(world.sender.packet_id.tolist(), world.sender.time_ns.tolist(), strict=True))
    seen: dict[int, list[int]] = {}
    receiver = world.receiver
    for flow, packet, time_ns in zip(
        receiver.flow_id.tolist(), receiver.packet_id.tolist(), receiver.time_ns.tolist(), strict=True
    ):
        seen.setdefault(flow, []).append(time_ns - sent_at[packet])
    truth = world.truth()
    assert truth.lost.sum() == world.lost
    for i, flow in enumerate(truth.flow_id.tolist()):
        assert truth.received[i] == len(seen[flow])
        assert truth.mean_ns[i] == pytest.approx(np.mean(seen[flow]))
        assert truth.std_ns[i] == pytest.approx(np.std(seen[flow]))
