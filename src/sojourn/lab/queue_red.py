"""A router's queue, with random early detection (RED) or drop-tail: correlated delays, losses in bursts.

Packets arrive in trains (heavy-tailed lengths, faster than the link) and wait for one link with a byte rate and a byte
buffer. RED keeps an average of the queue's length, a moving one that also ages while the link is idle. Below the lower
threshold nothing is dropped; between the two a packet is dropped with a probability that grows with the average and
with the packets accepted since the last drop, which spaces drops evenly; above the upper one everything is dropped.
Packets are dropped, never marked (no ECN). Without RED only a packet that finds no room is lost.

Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", Fig. 2; the defaults are those of the
simulations in Shahzad and Liu, "Noise Can Help". Cost: O(n log n) for n packets; a seed gives the same world.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel
from sojourn.lab.traffic import PACKET_BYTES, START_NS, Traffic, traffic_of

__all__ = ["Queue", "Red", "make_queue_traffic", "queue_delay_ns", "serve"]

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


def queue_delay_ns(traffic: Traffic, at_ns: Int64Array, *, service_ns: int = 0) -> Int64Array:
    """How long something that enters the queue at the times given would take, its own transmission included.

    What is still to be sent then is known from the last packet delivered that came before it.
    """
    sent = traffic.sender.time_ns[traffic.delivered]
    leaves = sent + traffic.delay_ns[traffic.delivered]
    before = np.searchsorted(sent, at_ns, side="right") - 1
    last = np.where(before >= 0, leaves[np.maximum(before, 0)], at_ns)
    return np.maximum(last - at_ns, 0) + service_ns
