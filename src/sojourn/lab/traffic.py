"""Traffic by the book: flow sizes, delays and losses drawn from named distributions, with the truth of every packet.

Unlike `two_point`, nothing queues here: delays and losses follow exactly the law asked for, so that an experiment can
vary one thing at a time. Flow sizes are Pareto, drawn by strata (the same tail with every seed): 4.5 % of flows have
more than 50 packets. Losses are independent or come in bursts (two states, geometric lengths; Gilbert).

Cost: O(n log n) for n packets, about 150 bytes a packet; the same seed gives the same traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel
from sojourn.lab.two_point import FlowTruth, flow_truth

__all__ = ["DELAY_LAWS", "Traffic", "draw_flow_sizes", "lose_in_bursts", "make_traffic", "traffic_of"]

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
TAIL, SCALE, LARGEST = 0.9, 1.6, 300_000
PACKET_BYTES = 500


@dataclass(frozen=True, eq=False)
class Traffic:
    """Both ends of a segment, and of every packet sent its flow (a row of the truth), delay and fate."""

    sender: PacketBatch
    receiver: PacketBatch
    flow: Int64Array = field(repr=False)
    delay_ns: Int64Array = field(repr=False)
    delivered: BoolArray = field(repr=False)
    truth: FlowTruth = field(repr=False)


DelayLaw = Callable[[np.random.Generator, Int64Array], FloatArray]


def _weibull(random: np.random.Generator, flow: Int64Array) -> FloatArray:
    return random.weibull(0.7, len(flow)) * 2 * MS


def _pareto(random: np.random.Generator, flow: Int64Array) -> FloatArray:
    return (random.pareto(4, len(flow)) + 1) * MS


def _normal(random: np.random.Generator, flow: Int64Array) -> FloatArray:
    return np.abs(random.normal(20 * MS, 2 * MS, len(flow)))


def _per_flow(random: np.random.Generator, flow: Int64Array) -> FloatArray:
    """Flows differ (log-normal means); packets vary around their flow's."""
    means = random.lognormal(np.log(5 * MS), 0.6, int(flow.max()) + 1)
    drawn: FloatArray = means[flow] * random.gamma(8, 1 / 8, len(flow))
    return drawn


def _bimodal(random: np.random.Generator, flow: Int64Array) -> FloatArray:
    """A flow takes the fast path or the slow one."""
    means = np.where(random.uniform(size=int(flow.max()) + 1) < 0.3, 40 * MS, 3 * MS)
    drawn: FloatArray = means[flow] + random.exponential(MS, len(flow))
    return drawn


DELAY_LAWS: dict[str, DelayLaw] = {
    "weibull": _weibull,
    "pareto": _pareto,
    "normal": _normal,
    "per-flow": _per_flow,
    "bimodal": _bimodal,
}


def draw_flow_sizes(random: np.random.Generator, flows: int) -> Int64Array:
    """Pareto sizes in packets, one per stratum of the distribution."""
    uniform = (np.arange(flows) + random.uniform(size=flows)) / flows
    return np.clip(np.ceil(SCALE * ((1 - uniform) ** (-1 / TAIL) - 1)), 1, LARGEST).astype(np.int64)


@kernel
def _gilbert(uniform: FloatArray, enter: float, leave: float) -> BoolArray:
    lost = np.empty(len(uniform), np.bool_)
    bad = False
    for i in range(len(uniform)):
        bad = uniform[i] >= leave if bad else uniform[i] < enter
        lost[i] = bad
    return lost


def lose_in_bursts(random: np.random.Generator, packets: int, *, loss: float, burst: float) -> BoolArray:
    """Which packets of a sequence are lost: a share `loss`, in runs of `burst` on average."""
    if not (0 <= loss < 1 and burst >= 1):
        raise ParameterError(f"loss {loss} in bursts of {burst}", action="use a share below 1 and bursts of 1 or more")
    if burst * (1 - loss) < loss:
        raise ParameterError(f"{loss:.0%} cannot be lost in bursts of {burst}", action="use longer bursts")
    return _gilbert(random.uniform(size=packets), loss / (burst * (1 - loss)), 1 / burst)


def make_traffic(
    *,
    seed: int,
    flows: int,
    delays: str = "per-flow",
    loss: float = 0.0,
    burst: float = 0.0,
    sizes: Int64Array | None = None,
    duration_ns: int = 10_000_000_000,
) -> Traffic:
    """Draw traffic; without `sizes` flows are Pareto, without `burst` (packets per run) losses are independent."""
    if delays not in DELAY_LAWS:
        raise ParameterError(f"there is no delay law {delays!r}", action=f"use one of {', '.join(DELAY_LAWS)}")
    random = np.random.default_rng(seed)
    size = draw_flow_sizes(random, flows) if sizes is None else sizes
    flow = random.permutation(np.repeat(np.arange(len(size)), size))
    delay_ns = DELAY_LAWS[delays](random, flow).astype(np.int64)
    if burst:
        delivered = ~lose_in_bursts(random, len(flow), loss=loss, burst=burst)
    else:
        delivered = random.uniform(size=len(flow)) >= loss
    time_ns = START_NS + np.sort(random.integers(0, duration_ns, len(flow)))
    return traffic_of(random, flow, time_ns, delay_ns, delivered)


def traffic_of(
    random: np.random.Generator, flow: Int64Array, time_ns: Int64Array, delay_ns: Int64Array, delivered: BoolArray
) -> Traffic:
    """Traffic from what became of every packet; ids are drawn, packets have one size."""
    flow_id: UInt64Array = random.integers(0, 2**64, int(flow.max()) + 1, dtype=np.uint64)
    packet_id = random.integers(0, 2**64, len(flow), dtype=np.uint64)
    size_bytes = np.full(len(flow), PACKET_BYTES, np.int64)
    sender = PacketBatch(flow_id[flow], packet_id, time_ns, size_bytes)
    kept = np.flatnonzero(delivered)
    arrival = (time_ns + delay_ns)[kept]
    order = kept[np.argsort(arrival, kind="stable")]
    receiver = PacketBatch(sender.flow_id[order], packet_id[order], np.sort(arrival, kind="stable"), size_bytes[order])
    rows = np.unique(flow_id, return_inverse=True)[1]
    return Traffic(sender, receiver, rows[flow], delay_ns, delivered, flow_truth(sender.flow_id, delay_ns, delivered))
