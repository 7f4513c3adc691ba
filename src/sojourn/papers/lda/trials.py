"""Trials of LDA: traces with the paper's delay laws and losses, aggregators at both ends, errors against the truth.

A trace is one interval of one second: packets evenly spaced, each with a delay drawn from a law whose mean is 0.2 ms
(the paper's is 0.2 µs; only ratios matter). As in the paper, one trace serves several trials that differ in the hash's
salt, and several loss rates. Cells are the paper's: 40 bits of time, 32 of count, no digest.

Cost: 10 ms per trial and million packets, after 0.1 s for the trace.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch
from sojourn.core.errors import SketchFullError
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.lda import estimate_lda
from sojourn.lab.traffic import START_NS, lose_in_bursts, queue_delay_ns
from sojourn.papers.reproduction import Scale
from sojourn.sketches.lda import Lda, LdaParameters, tuned_share

INTERVAL_NS = 1_000_000_000
MEAN_NS = 200_000
COUNTERS = 1024
PAPER_LOAD = 0.5  # α of the paper's evaluation


@dataclass(frozen=True)
class Plan:
    """How much is simulated: packets per interval, traces, and trials (hash salts) on each."""

    packets: int
    traces: int
    salts: int

    @property
    def trials(self) -> int:
        return self.traces * self.salts


def plan_of(scale: Scale) -> Plan:
    """A fifth of the paper's packets, or all; ten times its ten trials either way: their mean still varies by 8 %."""
    return Plan(1_000_000 if scale is Scale.SMALL else 5_000_000, traces=4, salts=25)


@dataclass(frozen=True)
class DelayLaw:
    """A distribution of delays by name; `draw` gives values of mean 1."""

    name: str
    draw: Callable[[np.random.Generator, int], FloatArray]


def weibull(shape: float) -> DelayLaw:
    """P(X > x) = exp(−(x/α)^β)."""
    scale = 1 / math.gamma(1 + 1 / shape)
    return DelayLaw(f"Weibull {shape:g}", lambda random, packets: random.weibull(shape, packets) * scale)


def pareto(shape: float) -> DelayLaw:
    """P(X > x) = (x/α)^−β for x above α."""
    scale = (shape - 1) / shape
    return DelayLaw(f"Pareto {shape:g}", lambda random, packets: (random.pareto(shape, packets) + 1) * scale)


LAWS = (weibull(0.6), weibull(0.7), weibull(0.8), pareto(3), pareto(5))


@dataclass(frozen=True, eq=False)
class Crossing:
    """What both ends of a segment saw in one interval, every packet's delay and fate."""

    sender: PacketBatch
    receiver: PacketBatch
    delay_ns: Int64Array
    delivered: BoolArray

    @property
    def losses(self) -> int:
        return len(self.sender) - len(self.receiver)

    @cached_property
    def mean_ns(self) -> float:
        """The mean delay of the packets delivered."""
        return float(self.delay_ns[self.delivered].mean())

    @cached_property
    def std_ns(self) -> float:
        """The deviation of their delays."""
        return float(self.delay_ns[self.delivered].std())


def make_trace(seed: int, law: DelayLaw, packets: int) -> tuple[PacketBatch, Int64Array]:
    """The packets of an interval as the sender sees them, and their delays; laws differ in their packets too."""
    random = np.random.default_rng((seed, *law.name.encode()))
    delay_ns = np.rint(law.draw(random, packets) * MEAN_NS).astype(np.int64)
    time_ns = START_NS + np.arange(packets) * INTERVAL_NS // packets
    packet_id = random.integers(0, 2**64, packets, dtype=np.uint64)
    return PacketBatch(np.zeros(packets, np.uint64), packet_id, time_ns, np.full(packets, 250, np.int64)), delay_ns


def cross(trace: tuple[PacketBatch, Int64Array], loss: float, *, seed: int, burst: float = 0.0) -> Crossing:
    """The trace with a share of its packets lost, independently or in bursts."""
    sender, delay_ns = trace
    random = np.random.default_rng((seed, int(sender.packet_id[0])))
    if burst:
        delivered = ~lose_in_bursts(random, len(sender), loss=loss, burst=burst)
    else:
        delivered = random.random(len(sender)) >= loss
    arrived = replace(sender, time_ns=sender.time_ns + delay_ns).select(delivered)
    return Crossing(sender, arrived, delay_ns, delivered)


def lda_cells(shares: Sequence[float], *, counters: int = COUNTERS, salt: int = 0) -> LdaParameters:
    """The paper's cells, shared out evenly among the banks."""
    return LdaParameters(
        rows=counters // len(shares),
        shares=tuple(shares),
        sum_bits=40,
        count_bits=32,
        digest_bits=0,
        max_delay_ns=50 * MEAN_NS,  # single delays may be longer: sums of thousands come nowhere near 2³⁹ ns
        salt=salt,
    )


def tuned_banks(packets: int, losses: Sequence[float], *, load: float = PAPER_LOAD) -> list[float]:
    """The shares of banks made for the loss rates given, each with its part of the counters."""
    rows = COUNTERS // len(losses)
    return [tuned_share(rows, packets * loss, load=load) for loss in losses]


@dataclass(frozen=True)
class Trial:
    """One estimate beside the truth: relative errors (1 where there is no answer), and what they rest on."""

    mean_error: float
    centred_error: float
    published_error: float
    samples: float
    bound: float = math.nan  # half-width of Eq. 1's 98 % interval, relative to the mean
    value: float = math.nan  # estimated mean over true mean
    covered: float = math.nan  # whether our 95 % interval covered the true mean


def relative_error(answer: Answer | float, truth: float) -> float:
    """|estimate/truth − 1|, and 1 where there is none: as if the answer had been 0."""
    value = answer.value if isinstance(answer, Estimate) else answer
    return abs(value / truth - 1) if isinstance(value, float) and math.isfinite(value) else 1.0


def try_lda(crossing: Crossing, parameters: LdaParameters) -> Trial:
    """Record both ends and estimate."""
    sender, receiver = Lda(parameters), Lda(parameters)
    for sketch, batch in ((sender, crossing.sender), (receiver, crossing.receiver)):
        if sketch.record_batch(batch) < len(batch):
            raise SketchFullError("more packets than the paper's cells hold", where="lda")
    answer = estimate_lda(sender, receiver)
    if not isinstance(answer.mean, Estimate):
        return Trial(1.0, 1.0, 1.0, 0.0)
    samples = answer.mean.samples
    return Trial(
        relative_error(answer.mean, crossing.mean_ns),
        relative_error(answer.deviation, crossing.std_ns),
        relative_error(answer.published_deviation, crossing.std_ns),
        samples,
        # 2·exp(−ε²Sμ²/2σ²) = 0.02 (Eq. 1)
        math.sqrt(2 * math.log(100) / samples) * crossing.std_ns / crossing.mean_ns,
        answer.mean.value / crossing.mean_ns,
        float(answer.mean.contains(crossing.mean_ns)),
    )


def mean_of(trials: Sequence[Trial], name: str) -> float:
    """The mean of one figure over trials."""
    return fmean(getattr(trial, name) for trial in trials)


Shares = Callable[[int, float], Sequence[float]]
Trials = dict[tuple[str, float], list[Trial]]


def crossings(
    plan: Plan, law: DelayLaw, losses: Sequence[float], *, burst: float = 0.0
) -> Iterator[tuple[int, float, Crossing]]:
    """Every trace of the plan with every loss rate: its number, the rate, and what both ends saw."""
    for number in range(plan.traces):
        trace = make_trace(number, law, plan.packets)
        for loss in losses:
            yield number, loss, cross(trace, loss, seed=number * 1_000_003 + round(loss * 1e6), burst=burst)


def try_banks(plan: Plan, law: DelayLaw, losses: Sequence[float], banks: Mapping[str, Shares]) -> Trials:
    """The plan's trials of several LDAs (name → shares, given packets and loss rate), by name and loss rate."""
    trials: Trials = defaultdict(list)
    for number, loss, crossing in crossings(plan, law, losses):
        for name, shares in banks.items():
            given = shares(plan.packets, loss)
            for salt in range(plan.salts):
                parameters = lda_cells(given, salt=number * plan.salts + salt)
                trials[name, loss].append(try_lda(crossing, parameters))
    return trials


PROBE_BITS = 64 * 8


def send_times(random: np.random.Generator, hertz: float, duration_ns: int) -> Int64Array:
    """When the probes of a Poisson process leave, from 0 on; there may be none."""
    return np.sort(random.integers(0, duration_ns, random.poisson(hertz * duration_ns / 1e9)))


def _trial(delay_ns: FloatArray, mean_ns: float, std_ns: float) -> Trial:
    """Errors of the probes' own mean and deviation (n − 1) as estimates of the traffic's."""
    count = len(delay_ns)
    mean = float(delay_ns.mean()) if count else math.nan
    deviation = float(delay_ns.std(ddof=1)) if count > 1 else math.nan
    error = relative_error(deviation, std_ns)
    return Trial(relative_error(mean, mean_ns), error, error, count, value=mean / mean_ns)


def probe_trace(random: np.random.Generator, crossing: Crossing, hertz: float) -> Trial:
    """Probe a trace of independent delays for its one second."""
    packets = len(crossing.sender)
    place = send_times(random, hertz, INTERVAL_NS) * packets // INTERVAL_NS
    arrived = place[crossing.delivered[place]]
    return _trial(crossing.delay_ns[arrived].astype(np.float64), crossing.mean_ns, crossing.std_ns)


def probe_queue(random: np.random.Generator, traffic: Crossing, hertz: float, *, service_ns: int) -> Trial:
    """Probe a queue while its traffic lasts; a probe takes `service_ns` on the link, a packet's time."""
    first, last = int(traffic.sender.time_ns[0]), int(traffic.sender.time_ns[-1])
    times = first + send_times(random, hertz, last - first)
    following = np.searchsorted(traffic.sender.time_ns, times)
    arrived = times[traffic.delivered[following]]
    delay = queue_delay_ns(arrived, traffic.sender.time_ns, traffic.delay_ns, traffic.delivered, service_ns=service_ns)
    return _trial(delay.astype(np.float64), traffic.mean_ns, traffic.std_ns)
