"""Coordinated samples: whole when small, fixed in memory, the same packets at both ends."""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.matching.pairing import PacketSample, common_sample


def packets(count: int, seed: int = 1) -> PacketBatch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 2**64, count, dtype=np.uint64)
    return PacketBatch.of(ids % np.uint64(9), ids, np.arange(count))


def test_a_small_capture_is_kept_whole_and_in_order() -> None:
    batch = packets(500)
    sample = PacketSample(capacity=500)
    sample.add(batch.select(slice(0, 200)))
    sample.add(batch.select(slice(200, None)))
    assert sample.share == 1
    assert np.array_equal(sample.packets().packet_id, batch.packet_id)
    assert np.array_equal(sample.packets().flow_id, batch.flow_id)


def test_memory_is_fixed_and_the_share_is_what_it_says() -> None:
    """Within five standard deviations of a binomial: false alarm below 10⁻⁵."""
    sample = PacketSample(capacity=1000)
    for seed in range(20):
        sample.add(packets(5000, seed))
    assert sample.count <= 1000
    expected = 100_000 * sample.share
    assert abs(sample.count - expected) < 5 * expected**0.5


def test_both_points_keep_the_same_packets_however_many_each_saw() -> None:
    batch = packets(20_000)
    lossy = batch.select(np.arange(len(batch)) % 3 > 0)
    sender, receiver = PacketSample(capacity=3000), PacketSample(capacity=700)
    sender.add(batch)
    receiver.add(lossy)
    sent, received = common_sample(sender, receiver)
    assert set(received.packet_id.tolist()) <= set(sent.packet_id.tolist())
    lost = set(sent.packet_id.tolist()) - set(received.packet_id.tolist())
    assert lost == set(sent.packet_id.tolist()) - set(lossy.packet_id.tolist())
    assert len(received) > 200
