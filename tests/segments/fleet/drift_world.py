"""Two points of a fleet over many runs, in which flows' delays stay, wander, step, swing or change paths.

Flows differ by factors (log-normal means) and in size (Pareto), packets of a flow are gamma-distributed around its mean
of the run. A run begins and ends at markers that nothing overtakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, PacketBatch
from sojourn.core.keys import FlowKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.estimation.posterior.history import History
from sojourn.lab.two_point import FlowTruth, flow_truth
from sojourn.segments.fleet.answers import RunAnswer, answer_run
from sojourn.segments.plan import plan_point
from sojourn.segments.record import PointRecorder

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000
RUN_NS = 5_000_000_000
# Packets per run, by which flows are told apart.
CLASSES = {"1-9": (1, 10), "10-99": (10, 100), "100-999": (100, 1000), "1000-": (1000, 10**9)}

Path = Callable[[np.random.Generator, FloatArray, int], FloatArray]


def steady(_random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    return np.tile(usual, (runs, 1))


def walk(random: np.random.Generator, usual: FloatArray, runs: int, step: float = 0.05) -> FloatArray:
    steps = random.normal(0, step, (runs, len(usual)))
    return usual * np.exp(np.cumsum(steps, axis=0))


def fast_walk(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    return walk(random, usual, runs, 0.3)


def step(_random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """All flows are slower by 20 ms in the second half."""
    return usual + 20 * MS * (np.arange(runs)[:, None] >= runs // 2)


def trend(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """A queue that fills: 3 ms more in every run, and each flow by its own factor."""
    rate = 3 * MS * random.lognormal(0, 0.5, len(usual))
    return usual + rate * np.arange(runs)[:, None]


def swing(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """Up and down by half within five runs, each flow with its own phase."""
    phase = random.uniform(0, 2 * np.pi, len(usual))
    return usual * (1 + 0.5 * np.sin(phase + 2 * np.pi * np.arange(runs)[:, None] / 5))


def two_paths(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """Half of the flows change to a path 15 ms longer in the middle."""
    moved = random.uniform(size=len(usual)) < 0.5
    return usual + 15 * MS * (moved & (np.arange(runs)[:, None] >= runs // 2))


def flapping(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """In every run a tenth of the flows change between two paths, 20 ms apart."""
    other = np.cumsum(random.uniform(size=(runs, len(usual))) < 0.1, axis=0) % 2
    return usual + 20 * MS * other


def redrawn(random: np.random.Generator, usual: FloatArray, runs: int) -> FloatArray:
    """Nothing of a flow lasts."""
    return np.array([random.permutation(usual) for _ in range(runs)])


WORLDS: dict[str, Path] = {
    path.__name__: path for path in (steady, walk, fast_walk, step, trend, swing, two_paths, flapping, redrawn)
}


def in_step(after: Int64Array) -> FloatArray:
    return np.zeros(len(after))


def fast(after: Int64Array) -> FloatArray:
    """A clock that gains 50 ppm."""
    return 50e-6 * after


def set_twice(after: Int64Array) -> FloatArray:
    """A clock that is set by 40 ms, and back."""
    return np.where((after >= 4 * RUN_NS) & (after < 7 * RUN_NS), 40.0 * MS, 0.0)


@dataclass(frozen=True)
class Traffic:
    """What is drawn: `lead` gives by how many ns the receiver's clock is ahead, so long after the start."""

    world: str = "steady"
    flows: int = 600
    packets: float = 40.0
    loss: float = 0.01
    runs: int = 10
    shape: float = 4.0
    lead: Callable[[Int64Array], FloatArray] = in_step

    def draw(self, seed: int) -> Iterator[tuple[PacketBatch, PacketBatch, FlowTruth]]:
        """What sender and receiver see in each run, and the truth, delays being raw."""
        random = np.random.default_rng(seed)
        rate = (random.pareto(1.3, self.flows) + 0.3) * self.packets / 3.6
        usual = random.lognormal(np.log(8 * MS), 0.8, self.flows)
        ids = np.array(list(keys(self.flows)), np.uint64)
        for run, mean in enumerate(WORLDS[self.world](random, usual, self.runs)):
            flow = np.repeat(np.arange(self.flows), random.poisson(rate))
            time = np.sort(random.integers(0, RUN_NS, len(flow))) + START_NS + run * RUN_NS
            flow = random.permutation(flow)
            delay = (mean[flow] * random.gamma(self.shape, 1 / self.shape, len(flow))).astype(np.int64)
            delay += self.lead(time - START_NS).astype(np.int64)
            kept = random.uniform(size=len(flow)) >= self.loss
            packet = random.integers(0, 2**64, len(flow), dtype=np.uint64)
            size = np.full(len(flow), 500)
            sent = PacketBatch(ids[flow], packet, time, size)
            there = np.flatnonzero(kept)
            there = there[np.argsort((time + delay)[there], kind="stable")]
            received = PacketBatch(ids[flow[there]], packet[there], (time + delay)[there], size[there])
            yield sent, received, flow_truth(sent.flow_id, delay, kept)


def keys(flows: int) -> dict[int, FlowKey]:
    """The keys of as many flows by their ids."""
    there = IPv4Address("10.1.0.1")
    found = [FlowKey(IPv4Address(f"10.0.{n >> 8}.{n & 255}"), 1000 + n, there, 443, 17) for n in range(flows)]
    return {key_id(key): key for key in found}


def answered(traffic: Traffic, memory_bytes: int, *, seed: int) -> Iterator[tuple[RunAnswer, RunAnswer, FlowTruth]]:
    """The runs of a traffic, each answered alone and with the history of those before it, and their truth."""
    packets = round(traffic.flows * traffic.packets)
    plan = plan_point(memory_bytes, flows=traffic.flows, loss=traffic.loss, packets=packets)
    by_id = keys(traffic.flows)
    past = History.none()
    for number, (sent, received, truth) in enumerate(traffic.draw(seed)):
        ends = []
        for batch in (sent, received):
            point = PointRecorder("n", "s", plan.stream)
            (epoch,) = [*point.record(batch), *point.finish()]
            active = tuple(by_id[flow] for flow in np.unique(batch.flow_id).tolist())
            ends.append([Epoch("n", "s", number, epoch.sketch, active)])
        found = answer_run(*ends, history=past)
        past = History.of(found.interval.flows)
        yield answer_run(*ends), found, truth
