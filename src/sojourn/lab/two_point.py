"""A two-point world: heavy-tailed flows through a bottleneck queue with a finite buffer.

Flow sizes are Pareto; a flow's packets lie in a window of its own, in short trains, so that flows overlap
and arrivals are bursty. All packets share one FIFO queue with a byte rate and a byte buffer: a packet that
finds no room is lost (bursts are lost together). After the queue each flow takes one of two paths with
different propagation delays, so that flows differ and packets of different flows overtake each other.

Cost: O(n log n) for n packets; the same seed gives the same world.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import kernel
from sojourn.core.keys import FlowKey, key_id

START_NS = 1_700_000_000_000_000_000
LOST = -1
PACKET_SIZES = (64, 576, 1500)
SIZE_SHARES = (0.4, 0.2, 0.4)
TRAIN_PACKETS, TRAIN_NS = 12, 400_000
PATHS_NS = (2_000_000, 9_000_000)


@dataclass(frozen=True, eq=False)
class TwoPointWorld:
    """What the two observation points saw, and the key of each flow id."""

    sender: PacketBatch
    receiver: PacketBatch
    delay_ns: Int64Array = field(repr=False)
    keys: dict[int, FlowKey] = field(repr=False)
    seed: int

    @property
    def lost(self) -> int:
        return len(self.sender) - len(self.receiver)

    def truth(self) -> FlowTruth:
        """What every flow went through, from the delays that the world itself dealt out."""
        return flow_truth(self.sender.flow_id, self.delay_ns, self.delay_ns != LOST)


@dataclass(frozen=True, eq=False)
class FlowTruth:
    """One row per flow; the delay columns are NaN for a flow that lost everything."""

    flow_id: UInt64Array
    sent: Int64Array
    received: Int64Array
    mean_ns: FloatArray
    std_ns: FloatArray

    @property
    def lost(self) -> Int64Array:
        return self.sent - self.received

    @property
    def mean_of_all_ns(self) -> float:
        """The mean delay of all delivered packets."""
        return float(np.nansum(self.mean_ns * self.received)) / max(1, int(self.received.sum()))


def flow_truth(flow_id: UInt64Array, delay_ns: Int64Array, delivered: BoolArray) -> FlowTruth:
    """The truth per flow, given every packet's flow, delay and fate."""
    ids, flow = np.unique(flow_id, return_inverse=True)
    sent = np.bincount(flow, minlength=len(ids))
    arrived, delay = flow[delivered], delay_ns[delivered].astype(np.float64)
    received = np.bincount(arrived, minlength=len(ids))
    with np.errstate(invalid="ignore"):
        mean = np.bincount(arrived, delay, len(ids)) / received
        std = np.sqrt(np.bincount(arrived, (delay - mean[arrived]) ** 2, len(ids)) / received)
    return FlowTruth(ids, sent, received, mean, std)


@kernel
def _serve(time_ns: Int64Array, size: Int64Array, ns_per_byte: float, buffer_bytes: int) -> Int64Array:
    """Departure times of a FIFO queue, `LOST` where the buffer had no room (Lindley's recursion)."""
    departure = np.empty_like(time_ns)
    free_at = float(time_ns[0])
    for i in range(len(time_ns)):
        waiting_ns = max(0.0, free_at - float(time_ns[i]))
        if waiting_ns / ns_per_byte + size[i] > buffer_bytes:
            departure[i] = LOST
            continue
        free_at = float(time_ns[i]) + waiting_ns + size[i] * ns_per_byte
        departure[i] = time_ns[i] + np.int64(waiting_ns + size[i] * ns_per_byte)
    return departure


def make_two_point_world(
    *,
    seed: int,
    flows: int = 2_000,
    packets: int = 400_000,
    duration_ns: int = 10_000_000_000,
    load: float = 0.65,
    buffer_bytes: int = 128_000,
    tail: float = 1.2,
) -> TwoPointWorld:
    """Generate a world; `load` is the bottleneck's mean utilisation, `tail` the Pareto index of sizes."""
    if not 1 <= flows <= packets:
        raise ParameterError(f"{packets} packets cannot make {flows} flows", action="use 1 or more per flow")
    random = np.random.default_rng(seed)
    sizes = _flow_sizes(random, flows, packets, tail)
    flow = np.repeat(np.arange(flows), sizes)
    time_ns = _send_times(random, sizes, duration_ns)
    order = np.argsort(time_ns, kind="stable")
    flow, time_ns = flow[order], time_ns[order] + START_NS
    size = random.choice(PACKET_SIZES, len(flow), p=SIZE_SHARES).astype(np.int64)
    ns_per_byte = load * duration_ns / float(size.sum())
    departure = _serve(time_ns, size, ns_per_byte, buffer_bytes)
    propagation = random.choice(PATHS_NS, flows) * random.lognormal(0, 0.25, flows)
    arrival = departure + propagation.astype(np.int64)[flow]
    keys = _keys(random, flows)
    sender = PacketBatch(
        np.array(list(keys), np.uint64)[flow],
        random.integers(0, 2**64, len(flow), dtype=np.uint64),
        time_ns,
        size,
    )
    delay = np.where(departure == LOST, LOST, arrival - time_ns)
    there = np.flatnonzero(departure != LOST)
    received = replace(sender, time_ns=arrival).select(there[np.argsort(arrival[there], kind="stable")])
    return TwoPointWorld(sender, received, delay, keys, seed)


def _flow_sizes(random: np.random.Generator, flows: int, packets: int, tail: float) -> Int64Array:
    """Pareto sizes of at least one packet that add up to `packets`."""
    weight = random.pareto(tail, flows) + 1
    sizes: Int64Array = 1 + np.floor(weight / weight.sum() * (packets - flows)).astype(np.int64)
    sizes[np.argmax(sizes)] += packets - int(sizes.sum())
    return sizes


def _send_times(random: np.random.Generator, sizes: Int64Array, duration_ns: int) -> Int64Array:
    """Each flow fills a window of its own, at least a fifth of the whole, with short trains of packets."""
    width = duration_ns * random.uniform(0.2, 1.0, len(sizes))
    start = random.uniform(0, duration_ns - width)
    packets = int(sizes.sum())
    trains = np.repeat(-(-sizes // TRAIN_PACKETS), sizes)
    train = np.floor(random.uniform(0, 1, packets) * trains) / trains
    within = random.exponential(TRAIN_NS, packets)
    times: Int64Array = (np.repeat(start, sizes) + train * np.repeat(width, sizes) + within).astype(np.int64)
    return times


def _keys(random: np.random.Generator, flows: int) -> dict[int, FlowKey]:
    """Distinct five-tuples in 10.0.0.0/8, by id."""
    keys: dict[int, FlowKey] = {}
    while len(keys) < flows:
        source, destination = random.integers(0, 2**24, 2)
        ports = random.integers(1024, 65536, 2)
        key = FlowKey(
            IPv4Address((10 << 24) + int(source)),
            int(ports[0]),
            IPv4Address((10 << 24) + int(destination)),
            int(ports[1]),
            protocol=int(random.choice((6, 17))),
        )
        keys[key_id(key)] = key
    return keys
