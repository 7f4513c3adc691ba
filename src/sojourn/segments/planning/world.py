"""Worlds to plan in: what a user knows of the traffic, drawn as packets at both points with the truth of every flow.

A plan is tried on a sample of the expected flows. Sizes keep their law: of all sizes, sorted, every n-th is taken.
Flows that the promise is made for are at least `LEAST_PROMISED` of those simulated, so that their error can be counted;
where they are rarer in reality this is cautious, since large flows then meet more often. Elephants are cut to what the
budget of packets allows.

How delays differ is rarely known, and it decides the error. Without better knowledge three kinds are drawn and the
worst counts: two paths (a flow is on the fast or the slow one), flows spread widely around a common mean, and flows
that are all alike while packets vary strongly. A survey knows flows' delays, however they are distributed
(`surveyed_delays`).

Cost: O(packets), at most `PACKET_BUDGET` of them per world; the same seed gives the same world.

A capture tells the same (`read_traffic`): one pass; memory O(flows × epochs). With an epoch shorter than the capture a
flow counts once in every epoch it has packets in, and the number of flows is that of the busiest epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import InputError, ParameterError

PACKET_BUDGET = 400_000
# Decoders solve small problems by dense matrices, at cubic cost: as many flows as are beyond that, or few.
MANY_FLOWS, FEW_FLOWS = 3000, 400
LEAST_PROMISED = 0.05
MOST_SIZES = 1 << 20
START_NS = 1_700_000_000_000_000_000
MEAN_NS = 10_000_000.0
NO_BYTES = 64
ENOUGH_SEEN = 8  # of a flow's packets, to go by its own delays


@dataclass(frozen=True, eq=False)
class Delays:
    """A law of delays: `draw` gives packets their delays in ns, from the flows' rows and each packet's flow, sorted."""

    name: str
    draw: Callable[[np.random.Generator, Int64Array, Int64Array], FloatArray]


def _gamma(random: np.random.Generator, mean: FloatArray, variation: float, owner: Int64Array) -> FloatArray:
    """Delays around each flow's mean, with this deviation over the mean."""
    shape = variation**-2
    drawn: FloatArray = random.standard_gamma(shape, len(owner)) * (mean / shape)[owner]
    return drawn


def _two_paths(random: np.random.Generator, flow: Int64Array, owner: Int64Array) -> FloatArray:
    """A third of the flows takes a path that is ten times slower."""
    slow = random.uniform(size=len(flow)) < 1 / 3
    return _gamma(random, np.where(slow, 10.0, 1.0) * MEAN_NS / 4, 0.3, owner)


def _log_normal(random: np.random.Generator, flow: Int64Array, owner: Int64Array) -> FloatArray:
    return _gamma(random, random.lognormal(np.log(MEAN_NS), 0.7, len(flow)), 0.4, owner)


def equal_delays(variation: float) -> Delays:
    """All flows have one mean; packets vary."""
    return Delays(
        "packets differ", lambda random, flow, owner: _gamma(random, np.full(len(flow), MEAN_NS), variation, owner)
    )


def surveyed_delays(start: Int64Array, delay_ns: Int64Array) -> Delays:
    """The delays that a survey has seen: those of row r are ``delay_ns[start[r]:start[r + 1]]``, at least one.

    A flow's packets take its own delays, in turn, whatever their law; where few were seen of it (a survey samples long
    captures), those of flows of which more were, moved to its mean.
    """
    seen = np.diff(start)
    mean = np.maximum(np.add.reduceat(delay_ns.astype(np.float64), start[:-1]) / seen, 1.0)
    row = np.repeat(np.arange(len(seen)), seen)
    ratio = np.maximum(delay_ns, 0.0) / mean[row]
    well_seen = ratio[seen[row] >= ENOUGH_SEEN]
    common = well_seen if len(well_seen) else ratio

    def draw(random: np.random.Generator, flow: Int64Array, owner: Int64Array) -> FloatArray:
        of_flow = flow[owner]
        first = np.searchsorted(owner, np.arange(len(flow)))
        turn = (np.arange(len(owner)) - first[owner]) % seen[of_flow]
        own = ratio[start[of_flow] + turn]
        others = common[random.integers(0, len(common), len(owner))]
        drawn: FloatArray = np.where(seen[of_flow] >= ENOUGH_SEEN, own, others) * mean[of_flow]
        return drawn

    return Delays("as surveyed", draw)


UNKNOWN_DELAYS = Delays("two paths", _two_paths), Delays("flows differ", _log_normal), equal_delays(1.5)


@dataclass(frozen=True, eq=False)
class ExpectedTraffic:
    """The flows of one epoch: their sizes at the sender, the share that each loses, and how delays may differ.

    ``flows`` is how many there really are; ``packets`` holds their sizes, or a sample of them.
    """

    packets: Int64Array
    lost_share: FloatArray
    flows: int
    delays: Sequence[Delays] = UNKNOWN_DELAYS

    def __post_init__(self) -> None:
        if not len(self.packets) or self.packets.min() < 1 or self.flows < 1:
            raise ParameterError("there is no flow to plan for", where="plan", action="give 1 flow or more")
        if not (np.all(self.lost_share >= 0) and np.all(self.lost_share <= 1)):
            raise ParameterError(
                "a lost share is outside 0 … 1", where="plan", action="give a share such as 0.01 or 1%"
            )

    @property
    def total_packets(self) -> float:
        return float(self.packets.mean()) * self.flows

    @property
    def loss(self) -> float:
        """The share of all packets that is lost."""
        return float(np.sum(self.packets * self.lost_share) / self.packets.sum())


def pareto_sizes(flows: int, packets: float, *, tail: float = 0.9) -> Int64Array:
    """Sizes of flows that have so many packets together: one per stratum of a Pareto law with this tail.

    >>> sizes = pareto_sizes(1000, 20_000)
    >>> len(sizes), int(sizes.min()), bool(0.9 < sizes.sum() / 20_000 < 1.1)
    (1000, 1, True)
    """
    if packets < flows:
        raise ParameterError(
            f"{flows:,} flows cannot share {packets:,.0f} packets",
            where="plan",
            action="give fewer flows, a higher rate or a longer epoch",
        )
    strata = min(flows, MOST_SIZES)
    excess = ((np.arange(strata) + 0.5) / strata) ** (-1 / tail) - 1
    low, high = 0.0, packets
    for _ in range(60):
        scale = (low + high) / 2
        mean = np.maximum(1.0, np.ceil(scale * excess)).mean()
        low, high = (scale, high) if mean * flows < packets else (low, scale)
    sizes = np.maximum(1.0, np.ceil(high * excess))
    return np.minimum(sizes, 2.0**62).astype(np.int64)


@dataclass(frozen=True, eq=False)
class World:
    """Both ends of a segment; per simulated flow its id, size, true mean (NaN if wholly lost) and whether it counts."""

    sender: PacketBatch
    receiver: PacketBatch
    flow_id: UInt64Array
    packets: Int64Array
    mean_ns: FloatArray
    promised: BoolArray

    @property
    def grand_mean(self) -> float:
        """Of the packets that arrived."""
        return float((self.receiver.time_ns - START_NS).mean()) if len(self.receiver) else np.nan


def draw_world(traffic: ExpectedTraffic, delays: Delays, *, least_packets: int, seed: int) -> World:
    """Packets of a sample of the expected flows; those of `least_packets` or more are promised something."""
    random = np.random.default_rng(seed)
    flow, sizes = _choose_flows(traffic, least_packets, random)
    owner = np.repeat(np.arange(len(flow)), sizes)
    delay = np.rint(delays.draw(random, flow, owner)).astype(np.int64)
    delivered = random.random(len(owner)) >= traffic.lost_share[flow][owner]
    flow_id = random.integers(0, 2**64, len(flow), dtype=np.uint64)
    packet_id = random.integers(0, 2**64, len(owner), dtype=np.uint64)
    sender = _batch(flow_id[owner], packet_id, np.zeros(len(owner), np.int64))
    receiver = _batch(flow_id[owner[delivered]], packet_id[delivered], delay[delivered])
    arrived = np.bincount(owner[delivered], minlength=len(flow))
    with np.errstate(invalid="ignore"):
        true_mean = np.bincount(owner[delivered], delay[delivered], len(flow)) / arrived
    return World(sender, receiver, flow_id, sizes, true_mean, traffic.packets[flow] >= least_packets)


def _batch(flow_id: UInt64Array, packet_id: UInt64Array, after_ns: Int64Array) -> PacketBatch:
    return PacketBatch(flow_id, packet_id, START_NS + after_ns, np.full(len(flow_id), NO_BYTES, np.int64))


def _choose_flows(
    traffic: ExpectedTraffic, least_packets: int, random: np.random.Generator
) -> tuple[Int64Array, Int64Array]:
    """Rows of the traffic to simulate, and their sizes within the budget."""
    order = np.argsort(traffic.packets, kind="stable")
    large = order[traffic.packets[order] >= least_packets]
    if not len(large):
        raise ParameterError(
            f"no flow has {least_packets:,} packets (the largest {int(traffic.packets.max()):,})",
            where="plan",
            action="ask for smaller flows, or a longer epoch",
        )
    small = order[: len(order) - len(large)]
    count = MANY_FLOWS if len(order) >= MANY_FLOWS else min(len(order), FEW_FLOWS)
    promised = min(len(large), max(round(count * len(large) / len(order)), round(count * LEAST_PROMISED), 1))
    flow = np.concatenate([_every_nth(small, count - promised, random), _every_nth(large, promised, random)])
    return flow, _within_budget(traffic.packets[flow])


def _every_nth(rows: Int64Array, count: int, random: np.random.Generator) -> Int64Array:
    """`count` of the rows at equal distances, from a random start; all of them where there are no more."""
    if count >= len(rows):
        return rows
    at = (np.arange(count) + random.uniform()) * len(rows) / max(count, 1)
    return rows[at.astype(np.int64)]


def _within_budget(sizes: Int64Array) -> Int64Array:
    """The sizes, the largest cut so that all together keep to the budget."""
    if sizes.sum() <= PACKET_BUDGET:
        return sizes
    low, high = 1, int(sizes.max())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.minimum(sizes, middle).sum() <= PACKET_BUDGET else (low, middle)
    return np.minimum(sizes, low)


class CapturedTraffic(NamedTuple):
    """Sizes of flows per epoch, flows in the busiest epoch, the epoch's length and packets per second."""

    packets: Int64Array
    flows: int
    epoch_ns: int
    rate: float


def read_traffic(batches: Iterable[PacketBatch], *, epoch_ns: int | None, name: str) -> CapturedTraffic:
    """Count every flow's packets in every epoch; without a length the whole capture is one epoch."""
    parts: list[tuple[UInt64Array, Int64Array, Int64Array]] = []
    first, last, total = np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0
    for batch in batches:
        if not len(batch):
            continue
        first, last = min(first, int(batch.time_ns.min())), max(last, int(batch.time_ns.max()))
        total += len(batch)
        slot = batch.time_ns // epoch_ns if epoch_ns else np.zeros(len(batch), np.int64)
        parts.append(_counted(batch.flow_id, slot, np.ones(len(batch), np.int64)))
    if not total:
        raise InputError("there is no IP packet", where=name, action="check the file and the filter")
    flow_id, slot, packets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    _, slot, packets = _counted(flow_id, slot, packets)
    length = max(last - first, 1)
    busiest = int(np.unique(slot, return_counts=True)[1].max())
    return CapturedTraffic(packets, busiest, epoch_ns or length, total * 1e9 / length)


def _counted(flow_id: UInt64Array, slot: Int64Array, packets: Int64Array) -> tuple[UInt64Array, Int64Array, Int64Array]:
    """Packets added up per flow and slot."""
    order = np.lexsort((flow_id, slot))
    flow_id, slot, packets = flow_id[order], slot[order], packets[order]
    starts = np.flatnonzero(np.r_[True, (flow_id[1:] != flow_id[:-1]) | (slot[1:] != slot[:-1])])
    return flow_id[starts], slot[starts], np.add.reduceat(packets, starts)
