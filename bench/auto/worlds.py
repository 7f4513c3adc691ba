"""Kinds of traffic that `auto` is judged in: small records, and the packets at both points that they stand for.

A world says how many flows there are and how their sizes, mean delays, packets' delays and losses are distributed. Two
sets are kept apart: worlds to `LOOK` at while working on estimators, and those to look at `ONCE`, which have seeds of
their own and further kinds, so that nothing can be fitted to them.

Delays have the flow's mean in expectation, but for what drift, reordering and losses that go with delays make of it;
the truth is that of the packets delivered. Nothing is on its way for longer than `LONGEST_NS`.

Cost: O(n log n) for n packets, 0.6 s and 250 MB for a million; the same world and seed give the same packets.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.lab.traffic import MS, START_NS, Traffic, lose_in_bursts, traffic_of

Set = Literal["look", "once"]
Random = np.random.Generator

MEAN_NS = 5.0 * MS
DURATION_NS = 10_000_000_000
LONGEST_NS = 8_000_000_000  # below what sketches reach by themselves: where delays lie is no question here
LEAST_WINDOW = 0.1
MOST_LOST = 0.9  # of the packets, or flows, that losses go with
TICK_NS = 1 * MS
# The seeds of a set begin here; no seed of one is a seed of the other.
FIRST_SEED: dict[Set, int] = {"look": 0, "once": 1_000_000}


def _equal(_: Random, flows: int) -> FloatArray:
    return np.ones(flows)


def _geometric(random: Random, flows: int) -> FloatArray:
    return random.exponential(1.0, flows)


def _pareto(random: Random, flows: int) -> FloatArray:
    return random.pareto(1.2, flows) + 1


def _zipf(_: Random, flows: int) -> FloatArray:
    return 1 / np.arange(1.0, flows + 1)


def _elephants(random: Random, flows: int) -> FloatArray:
    """One flow in a hundred has seven packets in ten."""
    few = max(1, flows // 100)
    weight = random.exponential(1.0, flows)
    weight[:few] = 0.7 / 0.3 * weight[few:].sum() / few * random.uniform(0.5, 1.5, few)
    return weight


def _one_elephant(random: Random, flows: int) -> FloatArray:
    """One flow has nine packets in ten."""
    weight: FloatArray = random.pareto(1.2, flows) + 1
    weight[0] = 9 * weight[1:].sum()
    return weight


SIZES: dict[str, Callable[[Random, int], FloatArray]] = {
    "equal": _equal,
    "geometric": _geometric,
    "pareto": _pareto,
    "zipf": _zipf,
    "elephants": _elephants,
    "one elephant": _one_elephant,
}


def _decades(random: Random, size: Int64Array, decades: float) -> FloatArray:
    """Uniform on a logarithmic scale."""
    factor: FloatArray = 10 ** (decades * random.uniform(-0.5, 0.5, len(size)))
    return factor


def _with_size(random: Random, size: Int64Array, decades: float) -> FloatArray:
    """So many decades between the smallest flow and the largest, with a scatter of a tenth."""
    scale = np.log(size)
    place = (scale - scale.min()) / max(float(np.ptp(scale)), 1e-9)
    factor: FloatArray = 10 ** (decades * (place - 0.5)) * random.lognormal(0.0, 0.1, len(size))
    return factor


MEANS: dict[str, Callable[[Random, Int64Array], FloatArray]] = {
    "alike": lambda _, size: np.ones(len(size)),
    "spread": lambda random, size: random.lognormal(0.0, 0.6, len(size)),
    "x10": lambda random, size: _decades(random, size, 1.0),
    "x100": lambda random, size: _decades(random, size, 2.0),
    "bimodal": lambda random, size: np.where(random.uniform(size=len(size)) < 0.3, 8.0, 0.6),
    "three paths": lambda random, size: random.choice([0.2, 1.0, 6.0], len(size), p=[0.5, 0.4, 0.1]),
    "slow elephants": lambda random, size: _with_size(random, size, 1.0),
    "slow mice": lambda random, size: _with_size(random, size, -1.0),
}


def _classical_pareto(random: Random, mean: FloatArray, tail: float) -> FloatArray:
    drawn: FloatArray = mean * (random.pareto(tail, len(mean)) + 1) * (tail - 1) / tail
    return drawn


def _ticks(random: Random, mean: FloatArray) -> FloatArray:
    """As a clock of milliseconds would show them; rounded by chance, so that means stay."""
    return np.floor(mean * random.gamma(4.0, 0.25, len(mean)) / TICK_NS + random.uniform(size=len(mean))) * TICK_NS


def _spikes(random: Random, mean: FloatArray) -> FloatArray:
    """One packet in two thousand waits five hundred times as long."""
    usual = random.uniform(0.95, 1.05, len(mean))
    usual[random.uniform(size=len(mean)) < 1 / 2_000] *= 500
    found: FloatArray = mean * usual / (1 + 499 / 2_000)
    return found


def _two_paths(random: Random, mean: FloatArray) -> FloatArray:
    """Every packet takes one of two paths by itself."""
    far = random.uniform(size=len(mean)) < 0.3
    found: FloatArray = mean * np.where(far, 2.75, 0.25) * random.gamma(50.0, 0.02, len(mean))
    return found


DELAYS: dict[str, Callable[[Random, FloatArray], FloatArray]] = {
    "gamma": lambda random, mean: mean * random.gamma(4.0, 0.25, len(mean)),
    "queue": lambda random, mean: mean * (0.8 + 0.2 * random.exponential(1.0, len(mean))),
    "log-normal": lambda random, mean: mean * random.lognormal(-0.5, 1.0, len(mean)),
    "pareto 1.5": lambda random, mean: _classical_pareto(random, mean, 1.5),
    "pareto 1.1": lambda random, mean: _classical_pareto(random, mean, 1.1),
    "quantised": _ticks,
    "weibull": lambda random, mean: mean * random.weibull(0.5, len(mean)) / 2,
    "log-normal 0.5": lambda random, mean: mean * random.lognormal(-0.125, 0.5, len(mean)),
    "spikes": _spikes,
    "two paths": _two_paths,
}

DRIFTS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "none": np.ones_like,
    "sine": lambda place: 1 + 0.6 * np.sin(2 * math.pi * place),
    "step": lambda place: np.where(place < 0.5, 0.6, 1.4),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """A kind of traffic; ``look`` worlds are in both sets, the others only in the one to look at once.

    ``lost`` is the share of packets lost, by ``losses``: independent; "bursts", runs of ``burst`` packets of all flows;
    "few flows", a tenth of which lose everything that is lost, differently much; "whole flows", which arrive or do not;
    "late packets" and "slow flows" lose in proportion to their delay. Delays are around ``mean_ns``. ``late`` is the
    share of packets that are sent on a detour of 20 ms, ``in_order`` makes every packet wait for the earlier ones of
    its flow, ``copied`` is the share of packets that arrive twice.
    """

    name: str
    flows: int
    packets: int
    sizes: str = "pareto"
    means: str = "x10"
    delays: str = "gamma"
    lost: float = 0.0
    losses: str = "independent"
    burst: float = 8.0
    drift: str = "none"
    late: float = 0.0
    in_order: bool = False
    copied: float = 0.0
    mean_ns: float = MEAN_NS
    look: bool = True

    def __post_init__(self) -> None:
        known: dict[str, Iterable[str]] = {
            "sizes": SIZES,
            "means": MEANS,
            "delays": DELAYS,
            "losses": LOSSES,
            "drift": DRIFTS,
        }
        for field, names in known.items():
            if getattr(self, field) not in names:
                raise ParameterError(
                    f"{field} {getattr(self, field)!r}", where=self.name, action=f"use one of {', '.join(names)}"
                )
        if not 1 <= self.flows <= self.packets:
            raise ParameterError(f"{self.flows} flows of {self.packets} packets", where=self.name)

    def draw(self, seed: int) -> Traffic:
        """Both points' packets, and the truth."""
        random = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        size = _sizes(random, self)
        flow, place = _send_times(random, size)
        mean = (self.mean_ns * MEANS[self.means](random, size))[flow]
        delay = DELAYS[self.delays](random, mean) * DRIFTS[self.drift](place)
        delay[random.uniform(size=len(flow)) < self.late] += 20 * MS
        delay_ns = np.minimum(delay, LONGEST_NS).astype(np.int64)
        time_ns = START_NS + (place * DURATION_NS).astype(np.int64)
        if self.in_order:
            delay_ns = _in_order(flow, time_ns, delay_ns)
        delivered = ~LOSSES[self.losses](random, self, flow, delay_ns) if self.lost else np.ones(len(flow), bool)
        traffic = traffic_of(random, flow, time_ns, delay_ns, delivered)
        return _with_copies(random, traffic, self.copied) if self.copied else traffic


def _sizes(random: Random, world: World) -> Int64Array:
    """At least one packet each, about as many as asked for together."""
    weight = SIZES[world.sizes](random, world.flows)
    size: Int64Array = 1 + np.round(weight / weight.sum() * (world.packets - world.flows)).astype(np.int64)
    return size


def _send_times(random: Random, size: Int64Array) -> tuple[Int64Array, FloatArray]:
    """Flow and time (as a share of the whole) of every packet, in order: each flow lives in a window of its own."""
    width = random.uniform(LEAST_WINDOW, 1.0, len(size))
    start = random.uniform(0.0, 1.0 - width)
    flow = np.repeat(np.arange(len(size)), size)
    place = start[flow] + width[flow] * random.uniform(size=len(flow))
    order = np.argsort(place, kind="stable")
    return flow[order], place[order]


def _in_order(flow: Int64Array, time_ns: Int64Array, delay_ns: Int64Array) -> Int64Array:
    """Delays of packets that are handed on no earlier than any that their flow sent before."""
    order = np.argsort(flow, kind="stable")
    # Flows are kept apart by more than any time is long, so that one running maximum serves all.
    apart = (DURATION_NS + LONGEST_NS) * flow[order]
    handed_on = np.maximum.accumulate(apart + (time_ns + delay_ns)[order] - START_NS) - apart + START_NS
    kept = np.empty_like(delay_ns)
    kept[order] = handed_on - time_ns[order]
    return kept


def _independent(random: Random, world: World, flow: Int64Array, _: Int64Array) -> BoolArray:
    return random.uniform(size=len(flow)) < world.lost


def _bursts(random: Random, world: World, flow: Int64Array, _: Int64Array) -> BoolArray:
    return lose_in_bursts(random, len(flow), loss=world.lost, burst=world.burst)


def _few_flows(random: Random, world: World, flow: Int64Array, _: Int64Array) -> BoolArray:
    flows = int(flow.max()) + 1
    hit = random.permutation(flows) < max(1, flows // 10)
    return _in_proportion(random, (hit * random.exponential(1.0, flows))[flow], world.lost)


def _whole_flows(random: Random, world: World, flow: Int64Array, _: Int64Array) -> BoolArray:
    """Flows that together have about as many packets as are lost."""
    size = np.bincount(flow)
    is_lost, left = np.zeros(len(size), bool), world.lost * len(flow)
    for one in random.permutation(len(size)):
        if size[one] <= left:
            is_lost[one], left = True, left - size[one]
    found: BoolArray = is_lost[flow]
    return found


def _late_packets(random: Random, world: World, flow: Int64Array, delay_ns: Int64Array) -> BoolArray:
    """By the delay over the flow's mean: what a queue drops would have waited long."""
    mean = np.bincount(flow, delay_ns) / np.bincount(flow)
    return _in_proportion(random, delay_ns / np.maximum(mean[flow], 1.0), world.lost)


def _slow_flows(random: Random, world: World, flow: Int64Array, delay_ns: Int64Array) -> BoolArray:
    mean = np.bincount(flow, delay_ns) / np.bincount(flow)
    return _in_proportion(random, mean[flow], world.lost)


LOSSES: dict[str, Callable[[Random, World, Int64Array, Int64Array], BoolArray]] = {
    "independent": _independent,
    "bursts": _bursts,
    "few flows": _few_flows,
    "whole flows": _whole_flows,
    "late packets": _late_packets,
    "slow flows": _slow_flows,
}


def _in_proportion(random: Random, weight: FloatArray, lost: float) -> BoolArray:
    """A share `lost` of the packets, each as probably as its weight, but none surely."""
    share = weight / weight.mean() * lost
    for _ in range(20):  # what the bound takes away is lost by the others
        share = np.minimum(share * (lost / share.mean()), MOST_LOST)
    lost_ones: BoolArray = random.uniform(size=len(weight)) < share
    return lost_ones


def _with_copies(random: Random, traffic: Traffic, copied: float) -> Traffic:
    """A share of the packets that arrive does so twice, the second time up to a millisecond later."""
    received = traffic.receiver
    again = received.select(random.uniform(size=len(received)) < copied)
    again = replace(again, time_ns=again.time_ns + random.integers(1, MS, len(again)))
    both = PacketBatch.concatenate([received, again])
    return replace(traffic, receiver=both.select(np.argsort(both.time_ns, kind="stable")))


K, M = 1_000, 1_000_000
WORLDS: tuple[World, ...] = (
    World(name="few alike flows", flows=50, packets=100 * K, sizes="geometric", means="alike"),
    World(name="few flows, 2 % lost", flows=60, packets=200 * K, means="x10", lost=0.02),
    World(name="equal flows", flows=2 * K, packets=300 * K, sizes="equal", means="spread"),
    World(name="equal flows, 1 % lost", flows=2 * K, packets=300 * K, sizes="equal", means="spread", lost=0.01),
    World(name="alike, 0.3 % lost", flows=3 * K, packets=400 * K, means="alike", lost=0.003),
    World(name="alike, 5 % lost", flows=1 * K, packets=200 * K, means="alike", lost=0.05, delays="log-normal"),
    World(name="x10, nothing lost", flows=3 * K, packets=300 * K),
    World(name="x10, 0.1 % lost", flows=3 * K, packets=300 * K, lost=0.001),
    World(name="x10, 1 % lost", flows=3 * K, packets=300 * K, lost=0.01),
    World(name="x10, 5 % lost", flows=3 * K, packets=300 * K, lost=0.05),
    World(name="x10, 20 % lost", flows=1 * K, packets=200 * K, sizes="geometric", lost=0.2),
    World(name="x100, 0.1 % lost", flows=2 * K, packets=300 * K, means="x100", lost=0.001),
    World(name="x100, 5 % lost", flows=1 * K, packets=300 * K, sizes="geometric", means="x100", lost=0.05),
    World(name="x100, log-normal", flows=500, packets=200 * K, means="x100", delays="log-normal", lost=0.01),
    World(name="bimodal, nothing lost", flows=5 * K, packets=500 * K, means="bimodal", delays="queue"),
    World(name="bimodal, 1 % lost", flows=5 * K, packets=500 * K, means="bimodal", delays="queue", lost=0.01),
    World(name="bimodal, 10 % lost", flows=1 * K, packets=200 * K, means="bimodal", lost=0.1),
    World(name="slow mice, 1 % lost", flows=2 * K, packets=400 * K, means="slow mice", lost=0.01),
    World(name="slow mice, zipf", flows=10 * K, packets=600 * K, sizes="zipf", means="slow mice", lost=0.002),
    World(name="slow elephants", flows=2 * K, packets=300 * K, means="slow elephants"),
    World(name="slow elephants, 2 % lost", flows=2 * K, packets=300 * K, means="slow elephants", lost=0.02),
    World(name="pareto 1.5, x10", flows=2 * K, packets=300 * K, delays="pareto 1.5", lost=0.01),
    World(name="pareto 1.5, alike", flows=1 * K, packets=300 * K, means="alike", delays="pareto 1.5", lost=0.001),
    World(name="pareto 1.1, spread", flows=1 * K, packets=300 * K, means="spread", delays="pareto 1.1", lost=0.005),
    World(name="quantised", flows=2 * K, packets=300 * K, means="spread", delays="quantised", lost=0.01),
    World(name="elephants and mice", flows=5 * K, packets=500 * K, sizes="elephants", lost=0.003),
    World(
        name="bursts, elephants, sine", flows=2 * K, packets=600 * K, sizes="elephants", means="spread",
        lost=0.01, losses="bursts", drift="sine",
    ),
    World(name="bursts of 20, 5 % lost", flows=1 * K, packets=200 * K, lost=0.05, losses="bursts", burst=20.0),
    World(name="few flows lose", flows=3 * K, packets=300 * K, lost=0.01, losses="few flows", means="spread"),
    World(name="late packets lost", flows=2 * K, packets=300 * K, lost=0.02, losses="late packets"),
    World(name="slow flows lose", flows=2 * K, packets=300 * K, lost=0.02, losses="slow flows"),
    World(name="step", flows=3 * K, packets=300 * K, means="spread", drift="step", lost=0.005),
    World(name="reordered", flows=2 * K, packets=300 * K, late=0.05, lost=0.01),
    World(name="in order, log-normal", flows=1 * K, packets=300 * K, delays="log-normal", in_order=True, lost=0.01),
    World(name="copies", flows=2 * K, packets=300 * K, copied=0.002, lost=0.002),
    World(name="many flows, zipf", flows=100 * K, packets=1 * M, sizes="zipf", means="x10", lost=0.003),
    World(name="many alike flows", flows=20 * K, packets=3 * M, sizes="pareto", means="alike", lost=0.003),
    World(name="ten thousand equal", flows=10 * K, packets=1200 * K, sizes="equal", means="spread", lost=0.01),
    World(name="alike, weibull", flows=2 * K, packets=300 * K, means="alike", delays="weibull", lost=0.01),
    World(
        name="late packets lost, narrow", flows=2 * K, packets=300 * K, means="spread", delays="log-normal 0.5",
        lost=0.02, losses="late packets",
    ),
    World(name="rare spikes", flows=2 * K, packets=300 * K, means="spread", delays="spikes", lost=0.01),
    World(name="two paths a packet", flows=2 * K, packets=300 * K, means="spread", delays="two paths", lost=0.005),
    World(name="copies and losses", flows=2 * K, packets=300 * K, copied=0.01, lost=0.01),
    World(name="tens of nanoseconds", flows=2 * K, packets=300 * K, mean_ns=40.0, lost=0.01),
    World(name="whole flows lost", flows=2 * K, packets=300 * K, lost=0.1, losses="whole flows"),
    World(name="one elephant", flows=2 * K, packets=400 * K, sizes="one elephant", lost=0.01),
    # Only to look at once.
    World(name="two hundred x100", flows=200, packets=200 * K, means="x100", lost=0.003, look=False),
    World(
        name="three paths, 1 % lost", flows=4 * K, packets=400 * K, means="three paths", lost=0.01, look=False,
    ),
    World(
        name="three paths, log-normal", flows=500, packets=300 * K, sizes="geometric", means="three paths",
        delays="log-normal", lost=0.1, look=False,
    ),
    World(
        name="slow mice, elephants", flows=3 * K, packets=400 * K, sizes="elephants", means="slow mice",
        delays="pareto 1.5", lost=0.005, look=False,
    ),
    World(
        name="slow elephants, bursts", flows=1 * K, packets=300 * K, sizes="zipf", means="slow elephants",
        delays="queue", lost=0.03, losses="bursts", burst=30.0, look=False,
    ),
    World(
        name="slow flows lose, x100", flows=2 * K, packets=300 * K, sizes="geometric", means="x100", lost=0.05,
        losses="slow flows", look=False,
    ),
    World(
        name="late packets lost, pareto", flows=1 * K, packets=300 * K, means="spread", delays="pareto 1.5",
        lost=0.01, losses="late packets", look=False,
    ),
    World(
        name="few flows lose, bimodal", flows=3 * K, packets=300 * K, means="bimodal", lost=0.03,
        losses="few flows", look=False,
    ),
    World(name="pareto 1.1, x100", flows=2 * K, packets=300 * K, means="x100", delays="pareto 1.1", look=False),
    World(
        name="quantised, bimodal", flows=2 * K, packets=300 * K, sizes="zipf", means="bimodal", delays="quantised",
        lost=0.001, look=False,
    ),
    World(name="sine, equal", flows=1 * K, packets=300 * K, sizes="equal", drift="sine", lost=0.02, look=False),
    World(
        name="step, copies, reordered", flows=2 * K, packets=300 * K, drift="step", late=0.02, copied=0.001,
        lost=0.005, look=False,
    ),
    World(
        name="in order, 20 % lost", flows=500, packets=200 * K, means="spread", delays="queue", in_order=True,
        lost=0.2, look=False,
    ),
    World(
        name="fifty thousand, slow mice", flows=50 * K, packets=1 * M, means="slow mice", lost=0.001, look=False,
    ),
    World(
        name="equal, three million", flows=15 * K, packets=3 * M, sizes="equal", means="x10", delays="queue",
        lost=0.0005, look=False,
    ),
)  # fmt: skip
QUICK = (
    "few flows, 2 % lost",
    "equal flows, 1 % lost",
    "alike, 0.3 % lost",
    "x10, 1 % lost",
    "x10, 5 % lost",
    "x100, 5 % lost",
    "bimodal, 1 % lost",
    "slow mice, 1 % lost",
    "slow elephants",
    "pareto 1.5, x10",
    "bursts, elephants, sine",
    "few flows lose",
)


def worlds_of(chosen: Set, names: Iterable[str] = ()) -> list[World]:
    """The worlds of a set, or those of them whose names are given."""
    found = [world for world in WORLDS if world.look or chosen == "once"]
    by_name = {world.name: world for world in found}
    if unknown := sorted(set(names) - set(by_name)):
        raise ParameterError(
            f"there is no world {unknown[0]!r}", where="bench auto", action=f"use one of {', '.join(by_name)}"
        )
    return [by_name[name] for name in names] or found
