"""Worlds for COLATE's experiments: its three traces' statistics, and named delay laws, with the truth of every packet.

The traces themselves (a backbone, an enterprise, a data centre) are not public or hold one point only; the paper makes
the second point by a queue with RED. A world *like* a trace has its packets per flow, its packet rate and such a queue
(0.5 s of buffer, the paper's RED); flow sizes are Pareto, each flow lives in a window of its own. A *law* world has
delays drawn from a distribution (`lab.traffic`), so that flows differ as much as the law says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.joint.segments import estimate_colate_joint
from sojourn.estimation.published.colate import estimate_flow_means
from sojourn.estimation.sample import estimate_sample
from sojourn.lab.traffic import PACKET_BYTES, START_NS, TAIL, Queue, Red, Traffic, make_traffic, serve, traffic_of
from sojourn.papers.reproduction import Scale
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.sample import WAITING_SHARE, Sample, SampleParameters

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


MICROSECOND = 1000
PUBLISHED_BITS = 44
PUBLISHED_PER_FLOW = 20
SUM_BITS, COUNT_BITS = 38, 18
USUAL_PACKETS = 150_000
JOINT_PER_FLOW = 4
LONGEST_DELAY_NS = 600_000_000
SAMPLE_FLOW_BITS = 28
SALT = 6

Kind = Literal["literal", "joint", "baseline"]
S = TypeVar("S", CounterVector, Sample)


@dataclass(frozen=True, eq=False)
class Reading:
    """What a method answers about the flows asked for, and how far it is off; no answer is as bad as any."""

    name: str
    kind: Kind
    value: FloatArray
    error: FloatArray

    @classmethod
    def of(cls, name: str, kind: Kind, value: FloatArray, truth: FloatArray) -> Reading:
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(value / truth - 1)
        return cls(name, kind, value, np.where(np.isnan(off), np.inf, off))

    @property
    def median_percent(self) -> float:
        return 100 * float(np.median(self.error))

    def percent_at(self, quantile: float) -> float:
        """A quantile of the error in per cent; as observed, since an error may be infinite."""
        return 100 * float(np.quantile(self.error, quantile, method="higher"))

    def share_within(self, interval: float) -> float:
        """The share of flows whose error is at most `interval`, in per cent."""
        return 100 * float(np.mean(self.error <= interval))

    @property
    def answered_percent(self) -> float:
        return 100 * float(np.mean(np.isfinite(self.value)))


def record_both(sender: S, receiver: S, world: Traffic) -> tuple[S, S]:
    """Record a world at both ends; a sketch too small for it is a mistake of the experiment."""
    for sketch, batch in ((sender, world.sender), (receiver, world.receiver)):
        taken = sketch.record_batch(batch)
        if taken < len(batch):
            raise ValueError(f"the {sketch.parameters.kind} was full after {taken} of {len(batch)} packets")
    return sender, receiver


def published_pair(
    world: Traffic,
    bits_per_packet: float,
    *,
    choice: str,
    per_flow: int = PUBLISHED_PER_FLOW,
    shares: tuple[float, ...] = (1.0,),
) -> tuple[CounterVector, CounterVector]:
    """Published vectors of both ends in the given bits, all vectors of the loss variant together."""
    memory = bits_per_packet * len(world.sender)
    bits = max(PUBLISHED_BITS, _bits_for_stamps(world, per_flow))
    parameters = CounterVectorParameters(
        counters=max(2 * per_flow, int(memory / (bits * len(shares)))),
        per_flow=per_flow,
        bits=bits,
        choice=choice,
        shares=shares,
        wrap=False,
        origin_ns=START_NS,
        resolution_ns=MICROSECOND,
        salt=SALT,
    )
    return record_both(CounterVector(parameters, seed=1), CounterVector(parameters, seed=2), world)


def _bits_for_stamps(world: Traffic, per_flow: int) -> int:
    """What the largest flow's share of a counter takes if all its packets came last."""
    last = int(world.receiver.time_ns[-1] - START_NS) // MICROSECOND
    return math.ceil(math.log2(last * int(world.truth.sent.max()) / per_flow)) + 1


def _bits_for_elephants(world: Traffic, per_flow: int) -> int:
    """By how much sums and counts must be wider than usual for the largest flow's share of a counter."""
    share = float(world.truth.sent.max()) / per_flow
    return max(0, math.ceil(math.log2(share / USUAL_PACKETS)))


def counted_pair(
    world: Traffic, bits_per_packet: float, *, per_flow: int = JOINT_PER_FLOW
) -> tuple[CounterVector, CounterVector]:
    """Coordinated vectors with counts of both ends in the given bits."""
    wider = _bits_for_elephants(world, per_flow)
    cell = SUM_BITS + COUNT_BITS + 2 * wider
    parameters = CounterVectorParameters(
        counters=max(2 * per_flow, int(bits_per_packet * len(world.sender) / cell)),
        per_flow=per_flow,
        bits=SUM_BITS + wider,
        count_bits=COUNT_BITS + wider,
        resolution_ns=MICROSECOND,
        max_delay_ns=LONGEST_DELAY_NS,
        salt=SALT,
    )
    return record_both(CounterVector(parameters), CounterVector(parameters), world)


def values_of(answers: list[Answer]) -> FloatArray:
    """The answers' values; NaN where there is none."""
    return np.array([a.value if isinstance(a, Estimate) else np.nan for a in answers], np.float64)


def read_theorem_2(
    world: Traffic, asked: BoolArray, bits_per_packet: float, *, choice: str, method: str = "Theorem 2", **vectors: Any
) -> Reading:
    """Theorem 2 over the published vector (or several, as in `published_pair`); j ``random``, or ``packet``."""
    truth = world.truth
    pair = published_pair(world, bits_per_packet, choice=choice, **vectors)
    answers = estimate_flow_means(*pair, truth.flow_id[asked], truth.sent[asked])
    name = "literal (independent j)" if choice == "random" else f"{method}, coordinated j"
    return Reading.of(name, "literal", values_of(answers), truth.mean_ns[asked])


def read_joint(world: Traffic, asked: BoolArray, bits_per_packet: float, *, per_flow: int = JOINT_PER_FLOW) -> Reading:
    """All flows decoded together; the reading of those asked for."""
    truth = world.truth
    flows = estimate_colate_joint(*counted_pair(world, bits_per_packet, per_flow=per_flow), truth.flow_id)
    return Reading.of("joint", "joint", flows.mean_ns[asked], truth.mean_ns[asked])


def read_sample(world: Traffic, asked: BoolArray, bits_per_packet: float) -> Reading:
    """Coordinated samples in the same bits: one group, so that large flows keep their full share of the slots."""
    truth = world.truth
    memory = bits_per_packet * len(world.sender)
    one = SampleParameters(slots=1, groups=1, flow_bits=SAMPLE_FLOW_BITS)
    slot_bits = one.hash_bits + one.flow_bits + one.time_bits
    slots = max(1, int(memory / slot_bits * WAITING_SHARE / (WAITING_SHARE + 1)))
    parameters = SampleParameters(slots=slots, groups=1, flow_bits=SAMPLE_FLOW_BITS, salt=SALT)
    pair = record_both(Sample(parameters), Sample(parameters), world)
    flows = estimate_sample(*pair, truth.flow_id[asked])
    return Reading.of("sample", "baseline", flows.mean_ns, truth.mean_ns[asked])


def grand_mean(world: Traffic, asked: BoolArray) -> Reading:
    """The mean of all packets, for every flow."""
    truth = world.truth
    value = np.full(int(asked.sum()), truth.mean_of_all_ns)
    return Reading.of("grand mean", "baseline", value, truth.mean_ns[asked])
