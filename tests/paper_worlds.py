"""Traffic like that of the LDS paper: Pareto flow sizes with 4.5 % of flows above 50 packets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import PacketBatch
from worlds import DELAYS, MS, START_NS

TAIL, SCALE, LARGEST = 0.9, 1.6, 300_000
SIZE_CLASSES = ((1, 9), (10, 99), (100, 499), (500, 999), (1000, 4999), (5000, LARGEST))


@dataclass(frozen=True)
class Traffic:
    """Both ends of a segment, and per flow what is true."""

    sender: PacketBatch
    receiver: PacketBatch
    flow_id: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    mean_ns: np.ndarray
    std_ns: np.ndarray

    @property
    def lost(self) -> np.ndarray:
        return self.sent - self.received

    @property
    def grand_mean(self) -> float:
        return float(np.nansum(self.mean_ns * self.received) / self.received.sum())


def two_paths(random, flow):
    """A fast and a slow path, on each of which flows differ."""
    flows = int(flow.max()) + 1
    slow = random.uniform(size=flows) < 0.4
    means = np.where(slow, random.normal(25 * MS, 3 * MS, flows), random.normal(6 * MS, MS, flows))
    return np.abs(means[flow] + random.laplace(0, MS, len(flow)))


ALL_DELAYS = {**DELAYS, "two_paths": two_paths}


def traffic(seed: int, flows: int, delays: str = "per_flow", loss: float = 0.0) -> Traffic:
    random = np.random.default_rng(seed)
    uniform = (np.arange(flows) + random.uniform(size=flows)) / flows
    size = np.clip(np.ceil(SCALE * ((1 - uniform) ** (-1 / TAIL) - 1)), 1, LARGEST).astype(np.int64)
    flow = random.permutation(np.repeat(np.arange(flows), size))
    packets = len(flow)
    delay = ALL_DELAYS[delays](random, flow).astype(np.int64)
    flow_id = random.integers(0, 2**64, flows, dtype=np.uint64)
    packet_id = random.integers(0, 2**64, packets, dtype=np.uint64)
    time_ns = START_NS + np.sort(random.integers(0, 10**10, packets))
    bytes_each = np.full(packets, 500, np.int64)
    kept = np.flatnonzero(random.uniform(size=packets) >= loss)
    sender = PacketBatch(flow_id[flow], packet_id, time_ns, bytes_each)
    arrival = (time_ns + delay)[kept]
    receiver = PacketBatch(flow_id[flow[kept]], packet_id[kept], arrival, bytes_each[kept])
    received = np.bincount(flow[kept], minlength=flows)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(flow[kept], delay[kept], flows) / received
        std = np.sqrt(np.bincount(flow[kept], (delay[kept] - mean[flow[kept]]) ** 2.0, flows) / received)
    return Traffic(sender, receiver, flow_id, size, received, mean, std)
