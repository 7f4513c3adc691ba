"""Worlds with known truth that no estimator was tuned to: named delay distributions × loss × flow sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.lab.two_point import FlowTruth, flow_truth

START_NS = 1_600_000_000_000_000_000
MS = 1_000_000


@dataclass(frozen=True)
class World:
    """Both ends of a segment, and every delay; lost packets are not in ``receiver``."""

    sender: PacketBatch
    receiver: PacketBatch
    delay_ns: np.ndarray
    delivered: np.ndarray

    @property
    def true_mean(self) -> float:
        return float(self.delay_ns[self.delivered].mean())

    @property
    def per_flow(self) -> FlowTruth:
        return flow_truth(self.sender.flow_id, self.delay_ns, self.delivered)

    @property
    def true_std(self) -> float:
        return float(self.delay_ns[self.delivered].std())


def weibull(random, flow):
    return random.weibull(0.7, len(flow)) * 2 * MS


def pareto(random, flow):
    return (random.pareto(4, len(flow)) + 1) * MS


def gaussian(random, flow):
    return np.abs(random.normal(20 * MS, 2 * MS, len(flow)))


def per_flow(random, flow):
    """Flows differ (log-normal means), packets vary around their flow's mean."""
    means = random.lognormal(np.log(5 * MS), 0.6, int(flow.max()) + 1)
    return means[flow] * random.gamma(8, 1 / 8, len(flow))


def bimodal(random, flow):
    means = np.where(random.uniform(size=int(flow.max()) + 1) < 0.3, 40 * MS, 3 * MS)
    return means[flow] + random.exponential(MS, len(flow))


DELAYS = {f.__name__: f for f in (weibull, pareto, gaussian, per_flow, bimodal)}


def heavy(random, flow):
    """So heavy a tail that its variance does not exist."""
    return np.minimum((random.pareto(1.2, len(flow)) + 1) * MS, 900 * MS)


def two_modes(random, flow):
    """A queue that every packet finds empty or full."""
    return np.where(random.uniform(size=len(flow)) < 0.94, MS, 60 * MS) + random.exponential(0.2 * MS, len(flow))


def quantised(random, flow):
    """A clock of a millisecond: many packets have the same delay."""
    return MS * random.geometric(0.3, len(flow))


TAILS = {f.__name__: f for f in (heavy, two_modes, quantised)}


def flow_of_packets(random, flows: int, packets: int, tail: float) -> np.ndarray:
    weights = random.pareto(tail, flows) + 0.05
    flow = random.choice(flows, packets - flows, p=weights / weights.sum())
    return random.permutation(np.concatenate([flow, np.arange(flows)]))


def world(seed: int, *, delays: str, loss: float, flows: int = 200, packets: int = 40_000, tail: float = 1.3) -> World:
    random = np.random.default_rng(seed)
    flow = flow_of_packets(random, flows, packets, tail)
    delay_ns = (DELAYS | TAILS)[delays](random, flow).astype(np.int64)
    ids = random.integers(0, 2**64, flows, dtype=np.uint64)
    sender = PacketBatch(
        ids[flow],
        random.integers(0, 2**64, packets, dtype=np.uint64),
        START_NS + np.sort(random.integers(0, 10**10, packets)),
        np.full(packets, 500, np.int64),
    )
    delivered = random.uniform(size=packets) >= loss
    kept = np.flatnonzero(delivered)
    arrival = (sender.time_ns + delay_ns)[kept]
    order = np.argsort(arrival)
    receiver = PacketBatch(
        sender.flow_id[kept][order], sender.packet_id[kept][order], arrival[order], sender.size_bytes[kept][order]
    )
    return World(sender, receiver, delay_ns, delivered)


def recorded(world: World, make):
    """The same kind of sketch at both ends."""
    sender, receiver = make(), make()
    assert sender.record_batch(world.sender) == len(world.sender)
    assert receiver.record_batch(world.receiver) == len(world.receiver)
    return sender, receiver
