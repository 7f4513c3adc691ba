"""Worlds with the statistics of the LDS paper's trace, recorded and answered in every way.

The trace: 146 000 flows, 7.8 million packets at 27 000 a second, 4.4 % of flows above 50 packets (Pareto). Sizes here
follow that tail at any number of flows; delays follow one of several laws, since an estimator's error depends on how
flows differ:

- ``per-flow``: log-normal means, packets vary around their flow's;
- ``bimodal``: a fast and a slow path, 3 and 40 ms;
- ``weibull``: all flows alike;
- ``one queue``, ``two queues``: delays change slowly in time (a log-normal level, correlated over 50 ms), the same for
  all packets of a queue; flows last for a part of the time. This is what interpolating methods rely on, and what flows
  in different queues take from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import Estimate
from sojourn.core.kernels import kernel
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.joint.segments import estimate_lds_joint
from sojourn.estimation.lda import estimate_lda
from sojourn.estimation.lds import ALPHA, estimate_lds
from sojourn.lab.traffic import MS, START_NS, Traffic, draw_flow_sizes, make_traffic, traffic_of
from sojourn.papers.reproduction import Scale
from sojourn.segments.sizing import fit_lda
from sojourn.sketches.lda import Lda
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.weights.flow_weights import FlowWeights

__all__ = [
    "ROWS",
    "SIZE_CLASSES",
    "Errors",
    "Methods",
    "Trial",
    "flows_of",
    "law_worlds",
    "make_queue_traffic",
    "median_percent",
    "pool",
    "run",
]

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


def flows_of(scale: Scale) -> int:
    """How many flows a world has."""
    return FLOWS[scale]


@kernel
def _level(noise: FloatArray, keep: float) -> FloatArray:
    """A stationary process that forgets a share 1 − keep in each step."""
    level = np.empty(len(noise))
    held = noise[0]
    for i in range(len(noise)):
        held = keep * held + np.sqrt(1 - keep * keep) * noise[i]
        level[i] = held
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
        """Our decoder's answers from the same cells; under loss it is told the mean of a 16 KiB flow-blind LDA."""
        told = estimate_lda(*self.blind).mean
        lost = not self.traffic.delivered.all()
        mean = told.value if lost and isinstance(told, Estimate) else None
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
