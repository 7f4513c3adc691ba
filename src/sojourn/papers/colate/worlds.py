"""Worlds for COLATE's experiments: its three traces' statistics, and named delay laws, with the truth of every packet.

The traces themselves (a backbone, an enterprise, a data centre) are not public or hold one point only; the paper makes
the second point by a queue with RED. A world *like* a trace has its packets per flow, its packet rate and such a queue
(0.5 s of buffer, the paper's RED); flow sizes are Pareto, each flow lives in a window of its own. A *law* world has
delays drawn from a distribution (`lab.traffic`), so that flows differ as much as the law says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.lab.queue_red import Queue, Red, serve
from sojourn.lab.traffic import PACKET_BYTES, START_NS, TAIL, Traffic, make_traffic, traffic_of
from sojourn.papers.reproduction import Scale

__all__ = ["LAWS", "LEAST_PACKETS", "TRACES", "Trace", "law_world", "only_large", "trace_world"]

LAWS = ("per-flow", "weibull", "pareto", "bimodal")
LEAST_PACKETS = 1000
SMALL_FLOWS = 36_000
SMALL_TRACE_PACKETS = 1_000_000
LARGEST_SHARE = 0.03
LOAD = 0.95
BUFFER_NS = 500_000_000
PACKET_GAP_NS = 20_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Trace:
    """A row of the paper's Table 2."""

    name: str
    packets: int
    flows: int
    duration_ns: int

    def scaled(self, packets: int) -> Trace:
        """The same rate and packets per flow with fewer packets."""
        share = min(1.0, packets / self.packets)
        sizes = (self.packets, self.flows, self.duration_ns)
        return Trace(self.name, *(round(size * share) for size in sizes))


TRACES = (
    Trace("CHIC", 37_300_000, 3_010_000, 300 * SECOND),
    Trace("ICSI", 46_900_000, 387_000, 147_960 * SECOND),
    Trace("DC", 19_900_000, 439_000, 3_888 * SECOND),
)


def law_world(law: str, scale: Scale, *, seed: int, loss: float = 0.0, flows: int | None = None) -> Traffic:
    """Delays by a named law; at small scale 36 000 flows, 1.3 M packets, 110 flows with 1000 or more."""
    wanted = flows or (SMALL_FLOWS if scale is Scale.SMALL else TRACES[2].flows)
    return make_traffic(seed=seed, flows=wanted, delays=law, loss=loss)


def trace_world(trace: Trace, scale: Scale, *, seed: int, packets: int | None = None) -> Traffic:
    """A world like the trace; packets that RED dropped are in neither end, as the paper assumes no loss."""
    wanted = packets or (SMALL_TRACE_PACKETS if scale is Scale.SMALL else trace.packets)
    like = trace.scaled(wanted)
    random = np.random.default_rng(seed)
    size = _sizes(random, like)
    flow = np.repeat(np.arange(len(size)), size)
    life = np.minimum(size * PACKET_GAP_NS * random.lognormal(0, 1, len(size)), like.duration_ns)
    start = random.uniform(0, like.duration_ns - life)
    time_ns = (start[flow] + random.uniform(size=len(flow)) * life[flow]).astype(np.int64)
    order = np.argsort(time_ns, kind="stable")
    flow, time_ns = flow[order], time_ns[order]
    rate = LOAD * like.duration_ns / (len(flow) * PACKET_BYTES)
    queue = Queue(ns_per_byte=rate, buffer_bytes=int(BUFFER_NS / rate), red=Red())
    delay_ns, through = serve(random, queue, time_ns, np.full(len(flow), PACKET_BYTES, np.int64))
    kept = np.unique(flow[through], return_inverse=True)[1]
    everything = np.ones(int(through.sum()), np.bool_)
    return traffic_of(random, kept, START_NS + time_ns[through], delay_ns[through], everything)


def _sizes(random: np.random.Generator, trace: Trace) -> Int64Array:
    """Pareto flow sizes, by strata, whose scale gives the trace's packets."""
    uniform = (np.arange(trace.flows) + random.uniform(size=trace.flows)) / trace.flows
    tail = (1 - uniform) ** (-1 / TAIL) - 1
    largest = LARGEST_SHARE * trace.packets
    low, high = 0.0, float(trace.packets)
    for _ in range(60):
        middle = (low + high) / 2
        too_many = np.clip(np.ceil(middle * tail), 1, largest).sum() > trace.packets
        low, high = (low, middle) if too_many else (middle, high)
    return np.clip(np.ceil(high * tail), 1, largest).astype(np.int64)


def only_large(world: Traffic, least: int = LEAST_PACKETS) -> BoolArray:
    """The flows that the claims are about."""
    large: BoolArray = world.truth.received >= least
    return large
