"""Traffic from named distributions, or through a router's queue, with the truth of every packet.

Unlike in `two_point`, delays and losses of `make_traffic` follow exactly the distribution asked for, so that an
experiment can vary one thing at a time. Flow sizes are Pareto, drawn by strata (the same tail with every seed): 4.5 %
of flows have more than 50 packets. Losses are independent or come in bursts (two states, geometric lengths; Gilbert).

`make_queue_traffic` has correlated delays and losses in bursts. Packets arrive in trains (heavy-tailed lengths, faster
than the link) and wait for one link with a byte rate and a byte buffer. RED keeps an average of the queue's length, a
moving one that also ages while the link is idle. Below the lower threshold nothing is dropped; between the two a packet
is dropped with a probability that grows with the average and with the packets accepted since the last drop, which
spaces drops evenly; above the upper one everything is dropped. Packets are dropped, never marked (no ECN). Without RED
only a packet that finds no room is lost (drop-tail). Floyd and Jacobson, "Random Early Detection Gateways for
Congestion Avoidance", Fig. 2; the defaults are those of the simulations in Shahzad and Liu, "Noise Can Help".

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
    "weibull": lambda random, flow: random.weibull(0.7, len(flow)) * 2 * MS,
    "pareto": lambda random, flow: (random.pareto(4, len(flow)) + 1) * MS,
    "normal": lambda random, flow: np.abs(random.normal(20 * MS, 2 * MS, len(flow))),
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


TRAIN_TAIL, SHORTEST_TRAIN, LONGEST_TRAIN = 1.5, 4, 128
TRAIN_SPEED = 3.0
FLOW_TAIL = 1.2
LOST = -1.0


@dataclass(frozen=True, kw_only=True)
class Red:
    """When RED drops: thresholds as shares of the buffer, the average's weight, and the most it drops in between."""

    least: float = 0.475  # min_th
    most: float = 0.95  # max_th
    weight: float = 0.002  # w_q
    most_dropped: float = 0.02  # max_p

    def __post_init__(self) -> None:
        if not 0 <= self.least < self.most:
            raise ParameterError(f"RED between {self.least} and {self.most}", action="use rising thresholds")
        if not (0 < self.weight <= 1 and 0 < self.most_dropped <= 1):
            raise ParameterError(
                f"RED with weight {self.weight}, dropping at most {self.most_dropped}",
                action="use shares above 0, up to 1",
            )


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A FIFO queue before a link; without `red` it is drop-tail."""

    ns_per_byte: float
    buffer_bytes: int
    red: Red | None = None

    def __post_init__(self) -> None:
        if not (self.ns_per_byte > 0 and self.buffer_bytes > 0):
            raise ParameterError(
                f"a queue of {self.buffer_bytes} bytes at {self.ns_per_byte} ns each", action="use more than 0"
            )


@kernel
def _serve(
    time_ns: Int64Array,
    size: Int64Array,
    uniform: FloatArray,
    ns_per_byte: float,
    buffer_bytes: float,
    least: float,
    most: float,
    weight: float,
    most_dropped: float,
) -> FloatArray:
    """How long each packet takes through the queue, `LOST` where it is dropped; thresholds in bytes."""
    delay = np.empty(len(time_ns), np.float64)
    free_at = 0.0  # all times count from the first packet, so that floats keep their fractions
    average = 0.0
    since_drop = -1
    for i in range(len(time_ns)):
        now = float(time_ns[i] - time_ns[0])
        queued = max(0.0, free_at - now) / ns_per_byte
        if queued > 0:
            average += weight * (queued - average)
        else:
            average *= (1 - weight) ** ((now - free_at) / (size[i] * ns_per_byte))
        dropped = queued + size[i] > buffer_bytes or average >= most
        if dropped or average < least:
            since_drop = 0 if dropped else -1
        else:
            since_drop += 1
            share = most_dropped * (average - least) / (most - least)
            dropped = uniform[i] * (1 - since_drop * share) < share
            if dropped:
                since_drop = 0
        if dropped:
            delay[i] = LOST
            continue
        free_at = max(free_at, now) + size[i] * ns_per_byte
        delay[i] = free_at - now
    return delay


def serve(
    random: np.random.Generator, queue: Queue, time_ns: Int64Array, size: Int64Array
) -> tuple[Int64Array, BoolArray]:
    """The delay of every packet (0 where dropped) and whether it got through; times must not fall."""
    red = queue.red or Red(least=2.0, most=3.0)  # a queue never outgrows its buffer, nor does its average
    delay = _serve(
        time_ns,
        size,
        random.uniform(size=len(time_ns)),
        queue.ns_per_byte,
        float(queue.buffer_bytes),
        red.least * queue.buffer_bytes,
        red.most * queue.buffer_bytes,
        red.weight,
        red.most_dropped,
    )
    delivered: BoolArray = delay != LOST
    return np.where(delivered, np.rint(delay), 0).astype(np.int64), delivered


def make_queue_traffic(
    *,
    seed: int,
    flows: int = 1_000,
    packets: int = 200_000,
    load: float = 0.9,
    buffer_packets: int = 256,
    red: Red | None = None,
    duration_ns: int = 10_000_000_000,
) -> Traffic:
    """Traffic through one queue, drop-tail unless `red` is given; `load` is what arrives over what the link carries."""
    if not (packets >= 1 and flows >= 1 and load > 0 and buffer_packets >= 1):
        raise ParameterError(
            f"{packets} packets of {flows} flows at load {load} and a buffer of {buffer_packets}",
            action="use 1 or more",
        )
    random = np.random.default_rng(seed)
    ns_per_byte = load * duration_ns / (packets * PACKET_BYTES)
    flow, time_ns = _trains(random, flows, packets, duration_ns, ns_per_byte * PACKET_BYTES / TRAIN_SPEED)
    queue = Queue(ns_per_byte=ns_per_byte, buffer_bytes=buffer_packets * PACKET_BYTES, red=red)
    delay_ns, delivered = serve(random, queue, time_ns, np.full(packets, PACKET_BYTES, np.int64))
    return traffic_of(random, flow, time_ns, delay_ns, delivered)


def _trains(
    random: np.random.Generator, flows: int, packets: int, duration_ns: int, gap_ns: float
) -> tuple[Int64Array, Int64Array]:
    """Flow and time of every packet, in time order: trains start at random, each belongs to one flow."""
    length = (SHORTEST_TRAIN * (random.pareto(TRAIN_TAIL, -(-packets // SHORTEST_TRAIN)) + 1)).astype(np.int64)
    length = np.minimum(length, LONGEST_TRAIN)
    trains = int(np.searchsorted(np.cumsum(length), packets)) + 1
    length = length[:trains]
    weight = random.pareto(FLOW_TAIL, flows) + 0.1
    owner = random.choice(flows, trains, p=weight / weight.sum())
    start = random.uniform(0, duration_ns, trains)
    place = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    time_ns = (np.repeat(start, length) + place * gap_ns)[:packets].astype(np.int64)
    order = np.argsort(time_ns, kind="stable")
    # Flows are numbered as they appear, so that none is empty.
    flow = np.unique(np.repeat(owner, length)[:packets][order], return_inverse=True)[1]
    return flow, START_NS + time_ns[order]


def queue_delay_ns(
    at_ns: Int64Array, time_ns: Int64Array, delay_ns: Int64Array, delivered: BoolArray, *, service_ns: int = 0
) -> Int64Array:
    """How long something that enters the queue at the times given would take, its own transmission included.

    What is still to be sent then is known from the last packet delivered that came before it.
    """
    sent = time_ns[delivered]
    leaves = sent + delay_ns[delivered]
    before = np.searchsorted(sent, at_ns, side="right") - 1
    last = np.where(before >= 0, leaves[np.maximum(before, 0)], at_ns)
    return np.maximum(last - at_ns, 0) + service_ns
