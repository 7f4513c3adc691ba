"""Worlds with the statistics of the LDS paper's trace, recorded and answered in every way.

The trace: 146 000 flows, 7.8 million packets at 27 000 a second, 4.4 % of flows above 50 packets (Pareto). Sizes here
follow that tail at any number of flows; delays follow one of several laws, since an estimator's error depends on how
flows differ:

- ``per-flow``: log-normal means, packets vary around their flow's;
- ``bimodal``: a fast and a slow path, 3 and 40 ms;
- ``weibull``: the same for all flows;
- ``one queue``, ``two queues``: delays change slowly in time (a log-normal level, correlated over 50 ms), the same for
  all packets of a queue; flows last for a part of the time. This is what interpolating methods rely on, and what flows
  in different queues take from them.

**Baselines** see every packet of the traffic and keep what their method would have kept; lost packets give them
nothing. Flows of which they know nothing get the mean of all delays, as the LDS paper does (§5.1).

- **RLI** (reference latency interpolation): reference packets at a fixed rate; every other packet has the delay that
  lies between its two neighbouring references, and a receiver with state per flow adds them up. As on a trace, the
  next packet that is sent after each tick serves as reference (and counts for other packets only).
- **MPE** (multi-point estimator): flow records of coordinated samples; a sampled flow has the delays of its first and
  last sampled packet, and between them the curve through all records' samples that fall into that time; its mean over
  time answers.
- **count-min**: sizes only, R rows of counters, the smallest answers.

Cost of a baseline: O(n log n) for n packets. Lee, Duffield and Kompella, "Not All Microseconds Are Equal" (2010) and
"Two Samples Are Enough" (2010); Cormode and Muthukrishnan, "An Improved Data Stream Summary" (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.core.hash_kernels import bucket_matrix, mix_column, salt_table
from sojourn.core.kernels import kernel
from sojourn.estimation.joint.segments import estimate_lds_joint
from sojourn.estimation.lda import estimate_lda
from sojourn.estimation.lds import ALPHA, estimate_lds
from sojourn.lab.traffic import MS, START_NS, Traffic, draw_flow_sizes, make_traffic, traffic_of
from sojourn.papers.reproduction import Scale
from sojourn.segments.planning.layout import fit_lda
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.weights import FlowWeights

FLOWS = {Scale.SMALL: 20_000, Scale.PAPER: 146_000}
PACKETS_PER_SECOND = 27_000
ROWS = 4
BLIND_BYTES = 16 << 10
SIZE_CLASSES = {
    "1–9": (1, 9),
    "10–99": (10, 99),
    "100–499": (100, 499),
    "500–999": (500, 999),
    "1000–4999": (1000, 4999),
    "≥ 5000": (5000, 1 << 40),
}
# A queue's usual delay, how much it varies (of its logarithm), and over how long; a step of the level.
QUEUES = ((2.0 * MS, 0.7), (9.0 * MS, 0.4))
CORRELATION_NS, STEP_NS = 50 * MS, MS


@kernel
def _level(noise: FloatArray, keep: float) -> FloatArray:
    """A stationary process that forgets a share 1 − keep in each step."""
    level = np.empty(len(noise))
    now = noise[0]
    for i in range(len(noise)):
        now = keep * now + np.sqrt(1 - keep * keep) * noise[i]
        level[i] = now
    return level


def make_queue_traffic(*, seed: int, flows: int, queues: int) -> Traffic:
    """Flows that pass one of `queues` queues, whose delay changes slowly; the median flow lasts a tenth of the time."""
    random = np.random.default_rng(seed)
    size = draw_flow_sizes(random, flows)
    duration = int(size.sum()) * 1_000_000_000 // PACKETS_PER_SECOND
    lasts = duration * np.minimum(random.lognormal(np.log(0.1), 1.0, flows), 1.0)
    begins = random.uniform(size=flows) * (duration - lasts)
    flow = np.repeat(np.arange(flows), size)
    offset = begins[flow] + random.uniform(size=len(flow)) * lasts[flow]
    order = np.argsort(offset)
    flow, offset = flow[order], offset[order]
    queue = random.integers(0, queues, flows)[flow]
    grid = np.arange(0, duration + 2 * STEP_NS, STEP_NS)
    delay = np.empty(len(flow))
    for number in range(queues):
        usual, spread = QUEUES[number]
        level = _level(random.normal(size=len(grid)), float(np.exp(-STEP_NS / CORRELATION_NS)))
        own = queue == number
        delay[own] = usual * np.exp(spread * np.interp(offset[own], grid, level))
    delivered = np.ones(len(flow), bool)
    return traffic_of(random, flow, START_NS + offset.astype(np.int64), delay.astype(np.int64), delivered)


@dataclass(frozen=True, eq=False)
class Trial:
    """A world, recorded at both ends."""

    traffic: Traffic
    sender: Lds
    receiver: Lds
    blind: tuple[Lda, Lda]

    @property
    def sent(self) -> Int64Array:
        return self.traffic.truth.sent

    def literal(self, *, score: Literal["guarded", "published"] = "published", alpha: float = ALPHA) -> FlowDelays:
        """The published estimator's answers; ``score`` is its rule over rows that sample, or the guarded one."""
        return estimate_lds(self.sender, self.receiver, self.traffic.truth.flow_id, score=score, alpha=alpha)

    @cached_property
    def joint(self) -> FlowDelays:
        """Our decoder's answers from the same cells; under loss it is given the mean of a 16 KiB flow-blind LDA."""
        blind = estimate_lda(*self.blind).mean
        lost = not self.traffic.delivered.all()
        mean = blind.value if lost and isinstance(blind, Estimate) else None
        return estimate_lds_joint(self.sender, self.receiver, self.traffic.truth.flow_id, grand_mean=mean)

    def errors(self, mean_ns: FloatArray) -> FloatArray:
        """Relative errors; NaN for flows without an answer or without a delivered packet."""
        truth = self.traffic.truth.mean_ns
        return np.abs(mean_ns / np.where(truth > 0, truth, np.nan) - 1)


def run(traffic: Traffic, parameters: LdsParameters, *, weights: FlowWeights | None = None) -> Trial:
    """Record a world at both ends."""
    ends = []
    blind = []
    for batch in (traffic.sender, traffic.receiver):
        sketch, lda = Lds(parameters, weights), Lda(fit_lda(BLIND_BYTES, salt=parameters.salt))
        if sketch.record_batch(batch) < len(batch) or lda.record_batch(batch) < len(batch):
            raise OverflowError("the world does not fit its sketch")
        ends.append(sketch)
        blind.append(lda)
    return Trial(traffic, ends[0], ends[1], (blind[0], blind[1]))


# Methods by name: each gives the flows' mean delays.
Methods = dict[str, Callable[[Trial], FloatArray]]


@dataclass(frozen=True, eq=False)
class Errors:
    """Relative errors of several worlds together, by method, with the flows' sizes."""

    sent: Int64Array
    by_method: dict[str, FloatArray]

    def of(self, method: str, chosen: BoolArray | None = None) -> FloatArray:
        """A method's errors of some flows (all)."""
        errors = self.by_method[method]
        return errors if chosen is None else errors[chosen]

    def classes(self) -> dict[str, BoolArray]:
        """The flows of each class of sizes that there are flows of."""
        masks = {name: (self.sent >= low) & (self.sent <= high) for name, (low, high) in SIZE_CLASSES.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}


def pool(
    worlds: Sequence[Callable[[], Traffic]],
    parameters: Callable[[int], LdsParameters],
    methods: Methods,
) -> Errors:
    """Run worlds one after the other; `parameters` are made with a salt, `methods` give each flow's mean delay."""
    sent, errors = [], []
    for salt, world in enumerate(worlds):
        trial = run(world(), parameters(salt))
        sent.append(trial.sent)
        errors.append({name: trial.errors(method(trial)) for name, method in methods.items()})
    joined = {name: np.concatenate([world[name] for world in errors]) for name in methods}
    return Errors(np.concatenate(sent), joined)


def median_percent(errors: FloatArray) -> float:
    """The median of the answered flows' errors, in per cent."""
    known = errors[~np.isnan(errors)]
    return float(100 * np.median(known)) if len(known) else float("nan")


def law_worlds(law: str, flows: int, seeds: Sequence[int], *, loss: float = 0.0) -> list[Callable[[], Traffic]]:
    """Worlds whose delays follow one law, made when they are needed."""
    return [lambda seed=seed: make_traffic(seed=seed, flows=flows, delays=law, loss=loss) for seed in seeds]  # type: ignore[misc]


SECOND = 1_000_000_000


def grand_mean(traffic: Traffic) -> FloatArray:
    """The mean delay of all packets, for every flow."""
    return np.full(len(traffic.truth.flow_id), traffic.truth.mean_of_all_ns)


def reference_interpolation(traffic: Traffic, *, rate_hz: float) -> FloatArray:
    """RLI's mean delay of each flow, in the rows of the truth."""
    kept = np.flatnonzero(traffic.delivered)
    time = traffic.sender.time_ns[kept]
    ticks = np.arange(int(time[0]), int(time[-1]), round(SECOND / rate_hz))
    reference = np.unique(np.searchsorted(time, ticks))
    delay = traffic.delay_ns[kept].astype(np.float64)
    at = (time - time[0]).astype(np.float64)
    between = np.interp(at, at[reference], delay[reference])
    # Real references are packets of no flow: one that serves as such is judged by its neighbours.
    for part in (slice(0, None, 2), slice(1, None, 2)):
        others = np.delete(reference, np.arange(len(reference))[part])
        if len(others):
            between[reference[part]] = np.interp(at[reference[part]], at[others], delay[others])
    return _flow_means(traffic, traffic.flow[kept], between)


def _flow_means(traffic: Traffic, flow: Int64Array, delay: FloatArray) -> FloatArray:
    flows = len(traffic.truth.flow_id)
    count = np.bincount(flow, minlength=flows)
    with np.errstate(invalid="ignore"):
        means = np.bincount(flow, delay, flows) / count
    return np.where(count > 0, means, traffic.truth.mean_of_all_ns)


def multi_point(traffic: Traffic, *, share: float, salt: int = 0) -> FloatArray:
    """MPE's mean delay of each flow from records of a share of the packets, chosen by hash at both points."""
    chosen = mix_column(traffic.sender.packet_id ^ np.uint64(salt)) < np.uint64(share * 2.0**64)
    kept = np.flatnonzero(chosen & traffic.delivered)
    flow, time = traffic.flow[kept], traffic.sender.time_ns[kept]
    # Packets are in the order of their times: the first and last of each flow's rows are its record.
    order = np.argsort(flow, kind="stable")
    starts = np.flatnonzero(np.diff(flow[order], prepend=-1))
    first, last = order[starts], order[np.append(starts[1:], len(order)) - 1] if len(order) else order
    sampled = np.unique(np.concatenate([first, last]))
    at = (time[sampled] - time[0]).astype(np.float64) if len(kept) else np.empty(0)
    delay = traffic.delay_ns[kept[sampled]].astype(np.float64)
    area = np.concatenate([[0.0], np.cumsum(np.diff(at) * (delay[1:] + delay[:-1]) / 2)])
    begin, end = np.searchsorted(sampled, first), np.searchsorted(sampled, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        curve = (area[end] - area[begin]) / (at[end] - at[begin])
    means = grand_mean(traffic)
    means[flow[first]] = np.where(at[end] > at[begin], curve, delay[begin])
    return means


def count_min(flow_id: UInt64Array, packets: Int64Array, *, rows: int, columns: int, salt: int = 0) -> Int64Array:
    """The size that a count-min sketch gives each flow."""
    cells = bucket_matrix(flow_id, salt_table(rows, salt), np.uint64(columns))
    sums = np.array([np.bincount(cells[:, row], packets, columns) for row in range(rows)])
    least: Int64Array = sums[np.arange(rows), cells].min(axis=1).astype(np.int64)
    return least
