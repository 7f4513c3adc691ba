"""COLATE's guarantee and the model under it: Lemma 1 (Fig. 2), Theorem 1's variance, and (α, β) met or not (Fig. 6).

Vectors are sized by the paper's four equations (`sketches.sizing.colate`). Their variance is linear in time stamps, so
whether a requirement can be met depends on the unit of time, which the paper leaves open; the coarsest unit in which
the equations have a solution is taken. Then the share of flows within β is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.published.colate import estimate_flow_means, estimate_time_sums
from sojourn.lab.traffic import START_NS, Traffic
from sojourn.papers.claims import Claim
from sojourn.papers.colate.accuracy import REQUIREMENTS, distribution
from sojourn.papers.colate.methods import (
    PUBLISHED_PER_FLOW,
    SALT,
    Reading,
    grand_mean,
    published_pair,
    read_joint,
    record_both,
    values_of,
)
from sojourn.papers.colate.worlds import LEAST_PACKETS, TRACES, only_large, trace_world
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.sizing.colate import (
    ColateSizing,
    FlowSums,
    individual_interval,
    individual_reliability,
    published_sizing,
)

__all__ = ["counter_model", "guarantee", "measure_guarantee", "size_as_published"]

# The paper's 10 MB for the 37.3 M packets of its largest link.
BITS = 8 * 10 * 2**20 / 37_300_000
UNITS_NS = (1_000_000, 1000, 1)
MODEL_BITS = 1.0
SEED = 47
MOST_BITS = 63


@dataclass(frozen=True, eq=False)
class Sized:
    """What the equations gave: the parameters, the interval B they promise, and the one that β takes (Eq. 12)."""

    sizing: ColateSizing
    parameters: CounterVectorParameters
    wanted: float


def size_as_published(world: Traffic, asked: BoolArray, reliability: float, interval: float) -> Sized | None:
    """Sized for the flows asked about with m = 20, in the coarsest unit that has a solution; None where none has.

    B, which differs from flow to flow (Eq. 12), is that of the median flow.
    """
    sums = _time_sums(world)[asked]
    delays = (world.truth.mean_ns * world.truth.sent)[asked]
    wanted = float(np.median([individual_interval(interval, s, s + d) for s, d in zip(sums, delays, strict=True)]))
    memory = int(BITS * len(world.sender))
    for unit in UNITS_NS:
        flow_sums = FlowSums(float(sums.min()) / unit, float(sums.max()) / unit)
        if flow_sums.most / PUBLISHED_PER_FLOW > 2.0 ** (MOST_BITS - 2):
            break  # no counter holds that
        try:
            sizing = published_sizing(
                memory, flow_sums, interval=wanted, reliability=reliability, per_flow=PUBLISHED_PER_FLOW
            )
        except ParameterError:
            continue
        return Sized(sizing, sizing.parameters(resolution_ns=unit, origin_ns=START_NS, salt=SALT), wanted)
    return None


def _time_sums(world: Traffic) -> FloatArray:
    """Every flow's true sum of time stamps at the sender, in ns from the start."""
    stamps = (world.sender.time_ns - START_NS).astype(np.float64)
    sums: FloatArray = np.bincount(world.flow, stamps, len(world.truth.sent)).astype(np.float64)
    return sums


def _roomier(parameters: CounterVectorParameters, world: Traffic) -> CounterVectorParameters:
    """The same n and m with counters wide enough for any split of the world's time stamps: bits given away."""
    total = float(np.sum(world.receiver.time_ns - START_NS)) / parameters.resolution_ns
    bits = min(MOST_BITS, max(parameters.bits, math.ceil(math.log2(total)) + 1))
    return replace(parameters, bits=bits, threshold=0)


@dataclass(frozen=True, eq=False)
class GuaranteeResult:
    """Literal and coordinated; the share of flows whose sum at the sender is within B."""

    readings: list[Reading]
    sized: Sized | None
    sums_within: float | None


def measure_guarantee(world: Traffic, reliability: float, interval: float) -> GuaranteeResult:
    """Literal and coordinated in the published size; where it has no solution, in the memory it was to have."""
    asked = only_large(world)
    truth = world.truth
    flows, sizes = truth.flow_id[asked], truth.sent[asked]
    sized = size_as_published(world, asked, reliability, interval)
    within = None
    readings = []
    for name, choice in (("literal (independent j)", "random"), ("Theorem 2, coordinated j", "packet")):
        if sized is None:
            pair = published_pair(world, BITS, choice=choice)
        else:
            parameters = replace(_roomier(sized.parameters, world), choice=choice)
            pair = record_both(CounterVector(parameters, seed=1), CounterVector(parameters, seed=2), world)
            sums = values_of(estimate_time_sums(pair[0], flows))
            within = Reading.of("sums", "literal", sums, _time_sums(world)[asked]).share_within(sized.wanted)
        answers = estimate_flow_means(*pair, flows, sizes)
        readings.append(Reading.of(name, "literal", values_of(answers), truth.mean_ns[asked]))
    return GuaranteeResult(readings, sized, within)


def guarantee(scale: Scale) -> Outcome:
    """The share of flows within β in worlds like the paper's traces, for its three requirements."""
    claims: list[Claim] = []
    panels: dict[str, list[Line]] = {}
    for trace in TRACES:
        world = trace_world(trace, scale, seed=SEED)
        asked = only_large(world)
        title = (
            f"guarantee like {trace.name} ({int(asked.sum())} flows ≥ {LEAST_PACKETS} of {len(world.sender)} packets)"
        )
        ours = [read_joint(world, asked, BITS), grand_mean(world, asked)]
        for reliability, interval in REQUIREMENTS:
            result = measure_guarantee(world, reliability, interval)
            claims += _guarantee_claims(title, result, ours, reliability, interval)
        panels[f"like {trace.name}"] = [distribution(reading) for reading in (*result.readings, *ours)]
    figure = Figure(name="guarantee", x_label="error [%]", y_label="flows with less [%]", panels=panels, log_x=True)
    return Outcome(claims, [figure])


def _guarantee_claims(
    title: str, result: GuaranteeResult, ours: list[Reading], reliability: float, interval: float
) -> list[Claim]:
    readings = (*result.readings, *ours)
    literal, coordinated, joint, grand = (reading.share_within(interval) for reading in readings)
    what = f"within {interval:.0%} at {BITS:.2g} bit/packet"
    paper = 100 * reliability
    claims = [
        Claim(experiment=title, quantity=f"{what} (baseline: grand mean)", unit="% of flows", paper=paper,
              literal=literal, joint=joint, baseline=grand, reproduced=literal >= paper),
        Claim(experiment=title, quantity=f"{what}, coordinated j (baseline: grand mean)", unit="% of flows",
              paper=paper, literal=coordinated, joint=joint, baseline=grand, reproduced=coordinated >= paper),
    ]  # fmt: skip
    if result.sized is None or result.sums_within is None:
        what = f"Eq. 13–15 and 22 have a solution for ({reliability:g}, {interval:g}) in ms, µs or ns"
        return [*claims, Claim(experiment=title, quantity=what, unit="", paper=1.0, literal=0.0, reproduced=False)]
    each = 100 * individual_reliability(reliability)
    unit = {1_000_000: "ms", 1000: "µs", 1: "ns"}[result.sized.parameters.resolution_ns]
    return [
        *claims,
        Claim(experiment=title, unit="% of flows", paper=each, literal=result.sums_within,
              quantity=f"sums of time stamps within B = {result.sized.wanted:.1g} (Eq. 22 solved in {unit})",
              reproduced=result.sums_within >= each),
    ]  # fmt: skip


def counter_model(scale: Scale) -> Outcome:
    """Lemma 1: what a flow leaves in each of its counters; Theorem 1: how much strangers' part of a counter varies."""
    world = trace_world(TRACES[1], scale, seed=SEED)
    large = np.flatnonzero(only_large(world))
    stamps = (world.sender.time_ns - START_NS).astype(np.float64)
    random = np.random.default_rng(SEED)
    slot = world.flow * PUBLISHED_PER_FLOW + random.integers(0, PUBLISHED_PER_FLOW, len(stamps))
    own = np.bincount(slot, stamps, len(world.truth.sent) * PUBLISHED_PER_FLOW).reshape(-1, PUBLISHED_PER_FLOW)
    ratio = own[large] / own[large].mean(axis=1, keepdims=True)
    title = f"counter model, like {TRACES[1].name}"
    claims = [
        Claim(experiment=title, quantity="median of C_f/E[C_f], large flows (Lemma 1, Fig. 2)", unit="", paper=1.0,
              literal=float(np.median(ratio)), reproduced=abs(float(np.median(ratio)) - 1) < 0.05),
        *(_variance_claim(title, world, large, unit) for unit in (1000, 1)),
    ]  # fmt: skip
    return Outcome(claims)


def _variance_claim(title: str, world: Traffic, large: Int64Array, unit_ns: int) -> Claim:
    """Theorem 1's deviation of a counter, Eq. 2, against that of counters which hold strangers only."""
    vector = published_pair(world, MODEL_BITS, choice="random")[0]
    parameters = vector.parameters
    rows = bucket_matrix(world.truth.flow_id[large], parameters.function_salts, np.uint64(parameters.counters))
    sums = vector.column("sum").astype(np.float64) * (parameters.resolution_ns / unit_ns)
    strangers = np.delete(sums, np.unique(rows))
    promised = math.sqrt(float(strangers.mean()) * (1 - 1 / parameters.counters))
    observed = float(strangers.std())
    name = {1000: "µs", 1: "ns"}[unit_ns]
    return Claim(
        experiment=title, quantity="σ/mean of a counter without the flow (Eq. 2)", unit=f"% of the mean, in {name}",
        paper=100 * promised / float(strangers.mean()), literal=100 * observed / float(strangers.mean()),
        reproduced=0.8 < observed / promised < 1.25,
    )  # fmt: skip
