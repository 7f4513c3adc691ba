"""COLATE, run again: Shahzad and Liu, "Noise Can Help" (SIGMETRICS 2014), §3 to §6.

Its traces are not at hand; the worlds have their statistics (`colate.worlds`). Not run here: the comparison with RLI,
which needs probes (the LDS reproduction has it). Recording rates are timed, so they differ from run to run; everything
else is seeded.

Means: the paper's claims are that less than 0.1 bit per packet does for 99 % of flows to be within 1 % (Fig. 10), and
what follows from 0.1 bit. Here the bits needed are read off the curves, from 0.1 to 16 bits per packet.

Deviations (Fig. 7 and 9): the paper says that 91 % of flows are within 5 % with 1000 repetitions and 98 % with 100 000.
Repetitions only average over how counters are paired; what m counters can know of a variance stays ± √(2/(m − 1)), 32 %
with m = 20.

The guarantee (Fig. 6): vectors are sized by the paper's four equations (`sketches.sizing.colate`). Their variance is
linear in time stamps, so whether a requirement can be met depends on the unit of time, which the paper leaves open; the
coarsest unit in which the equations have a solution is taken. Then the share of flows within β is counted.

Under loss (§1.4) the most frequent of several vectors that lost nothing answers; the paper gives no figures for it. A
vector of N packets survives a loss rate l with probability (1 − l)ᴺ, so of a million packets at 0.1 % loss one with a
thousand has a chance, a thousandth of every flow.

With several peers (§5.3) a point records all its packets into one vector, so only half of it has a counterpart in the
other. The paper finds the accuracy unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.joint.segments import estimate_colate_joint
from sojourn.estimation.published.colate import estimate_flow_means, estimate_means_between, estimate_time_sums
from sojourn.estimation.published.colate_deviation import estimate_centred_deviations, estimate_flow_deviations
from sojourn.lab.traffic import START_NS, Traffic, make_traffic
from sojourn.papers.colate.worlds import (
    COUNT_BITS,
    LAWS,
    LEAST_PACKETS,
    MICROSECOND,
    PUBLISHED_BITS,
    PUBLISHED_PER_FLOW,
    SALT,
    SUM_BITS,
    TRACES,
    Kind,
    Reading,
    counted_pair,
    grand_mean,
    law_world,
    only_large,
    published_pair,
    read_joint,
    read_sample,
    read_theorem_2,
    record_both,
    trace_world,
    values_of,
)
from sojourn.papers.reproduction import Claim, Figure, Line, Outcome, Scale
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.sizing.colate import (
    ColateSizing,
    FlowSums,
    individual_interval,
    individual_reliability,
    published_sizing,
)

BITS = (0.1, 0.25, 1.0, 4.0, 16.0)
CLAIMED_BITS = (0.1, 1.0, 4.0)
PAPER_BITS = 0.1
SEED = 41
# (α, β): low, medium and high accuracy in the paper's terms.
REQUIREMENTS = ((0.90, 0.10), (0.95, 0.05), (0.99, 0.01))


@dataclass(frozen=True, eq=False)
class LawResult:
    """Each method's reading at each number of bits; the grand mean needs none."""

    law: str
    flows: int
    packets: int
    readings: dict[float, list[Reading]]
    grand: Reading

    def curve(self, method: int) -> list[Reading]:
        return [readings[method] for readings in self.readings.values()]


LITERAL, COORDINATED, JOINT, SAMPLE = range(4)


def measure_law(world: Traffic, law: str, bits: Sequence[float] = BITS) -> LawResult:
    """All methods at all sizes in one world."""
    asked = only_large(world)
    readings = {
        b: [
            read_theorem_2(world, asked, b, choice="random"),
            read_theorem_2(world, asked, b, choice="packet"),
            read_joint(world, asked, b),
            read_sample(world, asked, b),
        ]
        for b in bits
    }
    return LawResult(law, int(asked.sum()), len(world.sender), readings, grand_mean(world, asked))


def accuracy(scale: Scale) -> Outcome:
    """Median error against bits per packet under four delay laws, and the bits that the paper's requirements take."""
    results = [measure_law(law_world(law, scale, seed=SEED), law) for law in LAWS]
    claims = [claim for result in results for claim in accuracy_claims(result)]
    figures = []
    for name, title, quantile in (("accuracy-median", "median", 0.5), ("accuracy-p95", "95th percentile", 0.95)):
        panels = {result.law: _lines(result, quantile) for result in results}
        label = f"{title} error, flows ≥ {LEAST_PACKETS} packets [%]"
        figures.append(Figure(name, "bits per packet and point", label, panels, log="xy"))
    panels = {f"{r.law}, 1 bit/packet": [*map(distribution, r.readings[1.0]), distribution(r.grand)] for r in results}
    figures.append(Figure("accuracy-distribution", "error [%]", "flows with less [%]", panels, log="x"))
    return Outcome(claims, figures)


def _lines(result: LawResult, quantile: float) -> list[Line]:
    bits = list(result.readings)
    lines = []
    for method in (LITERAL, COORDINATED, JOINT, SAMPLE):
        curve = result.curve(method)
        y = [max(reading.percent_at(quantile), 1e-3) for reading in curve]
        lines.append(Line(curve[0].name, bits, y, curve[0].kind))
    grand = result.grand.percent_at(quantile)
    return [*lines, Line("grand mean", bits, [grand] * len(bits), "baseline")]


def distribution(reading: Reading) -> Line:
    """The share of flows (per cent) below each error (per cent), as the paper's Fig. 6 and 8 show it."""
    error = np.sort(np.clip(100 * reading.error, 1e-3, 1e5))
    share = 100 * np.arange(1, len(error) + 1) / len(error)
    return Line(reading.name, error.tolist(), share.tolist(), reading.kind)


def accuracy_claims(result: LawResult) -> list[Claim]:
    """Median and 95th percentile at the claimed sizes, and the bits that 99 % of flows within 1 % take."""
    title = f"accuracy, {result.law} ({result.flows} flows ≥ {LEAST_PACKETS} of {result.packets} packets)"
    claims = []
    for bits in (bits for bits in CLAIMED_BITS if bits in result.readings):
        for name, quantile in (("median", 0.5), ("p95", 0.95)):
            readings = (*result.readings[bits], result.grand)
            literal, coordinated, joint, sample, grand = (reading.percent_at(quantile) for reading in readings)
            what = f"{name} error at {bits:g} bit/packet"
            claims += [
                Claim(title, "%", f"{what} (baseline: grand mean)", literal, joint, grand),
                Claim(title, "%", f"{what}, coordinated j (baseline: sample)", coordinated, joint, sample),
            ]
    reliability, interval = REQUIREMENTS[-1]
    needed = [bits_needed(result, method, reliability, interval) for method in (LITERAL, JOINT, SAMPLE)]
    what = f"bits/packet for {reliability:.0%} of flows within {interval:.0%} (baseline: sample)"
    met = needed[0] is not None and needed[0] <= PAPER_BITS
    return [*claims, Claim(title, "bits", what, *needed, paper=PAPER_BITS, reproduced=met)]


def bits_needed(result: LawResult, method: int, reliability: float, interval: float) -> float | None:
    """The fewest of the bits tried at which the requirement is met; None where none of them does."""
    met = [b for b, r in result.readings.items() if r[method].share_within(interval) >= 100 * reliability]
    return min(met, default=None)


DEVIATION_LAWS = ("weibull", "per-flow")
DEVIATION_BITS = (1.0, 4.0, 16.0)
REPETITIONS = (10, 100, 1000, 10_000)
# Share of flows within 5 %, by virtual repetitions.
PAPER_SHARES = {1000: 91.0, 100_000: 98.0}
WITHIN = 0.05
REPETITION_BITS = 16.0
DEVIATION_SEED = 43


@dataclass(frozen=True, eq=False)
class DeviationResult:
    """The readings by bits, and at one size by repetitions (literal, then coordinated)."""

    law: str
    flows: int
    by_bits: dict[float, list[Reading]]
    repeated: dict[int, tuple[Reading, Reading]]
    one_for_all: Reading


LITERAL_STD, COORDINATED_STD, CENTRED, JOINT_STD = range(4)


def _read(name: str, kind: Kind, value: FloatArray, world: Traffic, asked: BoolArray) -> Reading:
    return Reading.of(name, kind, value, world.truth.std_ns[asked])


def _at_bits(world: Traffic, asked: BoolArray, bits: float) -> list[Reading]:
    truth = world.truth
    flows, sizes = truth.flow_id[asked], truth.sent[asked]
    readings = [
        _published(world, asked, bits, choice="random", repetitions=None),
        _published(world, asked, bits, choice="packet", repetitions=None),
    ]
    pair = counted_pair(world, bits, per_flow=PUBLISHED_PER_FLOW)
    centred = values_of(estimate_centred_deviations(*pair, flows, sizes))
    joint = estimate_colate_joint(*pair, truth.flow_id).std_ns[asked]
    readings.append(_read("count-centred", "joint", centred, world, asked))
    readings.append(_read("joint", "joint", joint, world, asked))
    return readings


def _published(world: Traffic, asked: BoolArray, bits: float, *, choice: str, repetitions: int | None) -> Reading:
    truth = world.truth
    pair = published_pair(world, bits, choice=choice)
    answers = estimate_flow_deviations(*pair, truth.flow_id[asked], truth.sent[asked], repetitions=repetitions)
    name = "literal (independent j)" if choice == "random" else "Theorem 4, coordinated j"
    return _read(name, "literal", values_of(answers), world, asked)


def measure_deviation(world: Traffic, law: str) -> DeviationResult:
    """All estimators at all sizes, and the published ones by repetitions."""
    asked = only_large(world)
    repeated = {
        r: (
            _published(world, asked, REPETITION_BITS, choice="random", repetitions=r),
            _published(world, asked, REPETITION_BITS, choice="packet", repetitions=r),
        )
        for r in REPETITIONS
    }
    spread = float(np.std(world.delay_ns[world.delivered]))
    everyone = np.full(int(asked.sum()), spread)
    grand = _read("one deviation for all", "baseline", everyone, world, asked)
    by_bits = {bits: _at_bits(world, asked, bits) for bits in DEVIATION_BITS}
    return DeviationResult(law, int(asked.sum()), by_bits, repeated, grand)


def deviation(scale: Scale) -> Outcome:
    """Deviations of large flows under a law that all flows share, and one by which they differ."""
    results = [measure_deviation(law_world(law, scale, seed=DEVIATION_SEED), law) for law in DEVIATION_LAWS]
    bits = {result.law: _bit_lines(result) for result in results}
    times = {f"{r.law}, {REPETITION_BITS:g} bit/packet": _repetition_lines(r) for r in results}
    figures = [
        Figure("deviation-bits", "bits per packet and point", "median error of the deviation [%]", bits, log="xy"),
        Figure("deviation-repetitions", "virtual repetitions", "flows within 5 % [%]", times, log="x"),
    ]
    return Outcome([claim for result in results for claim in deviation_claims(result)], figures)


def _bit_lines(result: DeviationResult) -> list[Line]:
    lines = []
    for method in (LITERAL_STD, COORDINATED_STD, CENTRED, JOINT_STD):
        curve = [readings[method] for readings in result.by_bits.values()]
        lines.append(Line(curve[0].name, list(DEVIATION_BITS), [r.median_percent for r in curve], curve[0].kind))
    grand = [result.one_for_all.median_percent] * len(DEVIATION_BITS)
    return [*lines, Line(result.one_for_all.name, list(DEVIATION_BITS), grand, "baseline")]


def _repetition_lines(result: DeviationResult) -> list[Line]:
    x = list(result.repeated)
    published = [
        Line(readings[0].name, x, [r.share_within(WITHIN) for r in readings], "literal")
        for readings in zip(*result.repeated.values(), strict=True)
    ]
    ours = [*result.by_bits[REPETITION_BITS][CENTRED:], result.one_for_all]
    level = [Line(r.name, x, [r.share_within(WITHIN)] * len(x), r.kind) for r in ours]
    return [*published, *level, Line("paper", list(PAPER_SHARES), list(PAPER_SHARES.values()), "paper")]


def deviation_claims(result: DeviationResult) -> list[Claim]:
    """The share of flows within 5 % by repetitions, and median errors by bits."""
    title = f"deviation, {result.law} ({result.flows} flows ≥ {LEAST_PACKETS}, m = {PUBLISHED_PER_FLOW})"
    joint = result.by_bits[REPETITION_BITS][JOINT_STD].share_within(WITHIN)
    grand = result.one_for_all.share_within(WITHIN)
    claims = []
    for index, how in enumerate(("", ", coordinated j")):
        for repetitions, paper in PAPER_SHARES.items():
            # Beyond what was run, all permutations represent the many.
            ran = result.repeated.get(repetitions)
            share = (ran or result.by_bits[REPETITION_BITS])[index].share_within(WITHIN)
            what, met = f"within 5 %, {repetitions} repetitions{how} (baseline: one deviation for all)", share >= paper
            claims.append(Claim(title, "% of flows", what, share, joint, grand, paper=paper, reproduced=met))
    for bits, readings in result.by_bits.items():
        literal, coordinated, centred, joint = (reading.median_percent for reading in readings)
        what, grand = f"median error at {bits:g} bit/packet", result.one_for_all.median_percent
        claims += [
            Claim(title, "%", f"{what} (baseline: one deviation for all)", literal, joint, grand),
            Claim(title, "%", f"{what}, coordinated j (baseline: count-centred)", coordinated, joint, centred),
        ]
    return claims


# The paper's 10 MB for the 37.3 M packets of its largest link.
GUARANTEE_BITS = 8 * 10 * 2**20 / 37_300_000
UNITS_NS = (1_000_000, 1000, 1)
MODEL_BITS = 1.0
GUARANTEE_SEED = 47
MOST_BITS = 63
LOSSES = (0.001, 0.003, 0.01)
LOSS_BITS = 4.0
# Halving shares; the last vector takes what is left, so that they add up to 1.
VECTOR_SHARES = (*(2.0**-i for i in range(1, 16)), 2.0**-15)
VECTOR_PER_FLOW = 8
# Many counters with few packets each: a loss spoils little.
JOINT_PER_FLOW = 32
PEER_FLOWS = {Scale.SMALL: 18_000, Scale.PAPER: 387_000}
PEER_BITS = 4.0
MEDIUM = 0.05
LOSS_SEED = 45
LINK_RATE = 484_000
DRIVE_BYTES = 256e9
YEAR_SECONDS = 365.25 * 86_400
JOINT_BITS = 1.0
COUNT_MIN_BITS = 19
TIMED_PACKETS_FLOWS = 18_000
TIMES = 3


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
    memory = int(GUARANTEE_BITS * len(world.sender))
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
            pair = published_pair(world, GUARANTEE_BITS, choice=choice)
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
        world = trace_world(trace, scale, seed=GUARANTEE_SEED)
        asked = only_large(world)
        title = (
            f"guarantee like {trace.name} ({int(asked.sum())} flows ≥ {LEAST_PACKETS} of {len(world.sender)} packets)"
        )
        ours = [read_joint(world, asked, GUARANTEE_BITS), grand_mean(world, asked)]
        for reliability, interval in REQUIREMENTS:
            result = measure_guarantee(world, reliability, interval)
            claims += _guarantee_claims(title, result, ours, reliability, interval)
        panels[f"like {trace.name}"] = [distribution(reading) for reading in (*result.readings, *ours)]
    figure = Figure("guarantee", "error [%]", "flows with less [%]", panels, log="x")
    return Outcome(claims, [figure])


def _guarantee_claims(
    title: str, result: GuaranteeResult, ours: list[Reading], reliability: float, interval: float
) -> list[Claim]:
    readings = (*result.readings, *ours)
    literal, coordinated, joint, grand = (reading.share_within(interval) for reading in readings)
    paper = 100 * reliability
    claims = []
    for how, reached in (("", literal), (", coordinated j", coordinated)):
        what = f"within {interval:.0%} at {GUARANTEE_BITS:.2g} bit/packet{how} (baseline: grand mean)"
        met = reached >= paper
        claims.append(Claim(title, "% of flows", what, reached, joint, grand, paper=paper, reproduced=met))
    if result.sized is None or result.sums_within is None:
        what = f"Eq. 13–15 and 22 have a solution for ({reliability:g}, {interval:g}) in ms, µs or ns"
        return [*claims, Claim(title, "", what, 0.0, paper=1.0, reproduced=False)]
    each, within = 100 * individual_reliability(reliability), result.sums_within
    unit = {1_000_000: "ms", 1000: "µs", 1: "ns"}[result.sized.parameters.resolution_ns]
    what = f"sums of time stamps within B = {result.sized.wanted:.1g} (Eq. 22 solved in {unit})"
    return [*claims, Claim(title, "% of flows", what, within, paper=each, reproduced=within >= each)]


def counter_model(scale: Scale) -> Outcome:
    """Lemma 1: what a flow leaves in each of its counters; Theorem 1: how much strangers' part of a counter varies."""
    world = trace_world(TRACES[1], scale, seed=GUARANTEE_SEED)
    large = np.flatnonzero(only_large(world))
    stamps = (world.sender.time_ns - START_NS).astype(np.float64)
    random = np.random.default_rng(GUARANTEE_SEED)
    slot = world.flow * PUBLISHED_PER_FLOW + random.integers(0, PUBLISHED_PER_FLOW, len(stamps))
    own = np.bincount(slot, stamps, len(world.truth.sent) * PUBLISHED_PER_FLOW).reshape(-1, PUBLISHED_PER_FLOW)
    median = float(np.median(own[large] / own[large].mean(axis=1, keepdims=True)))
    title, what = f"counter model, like {TRACES[1].name}", "median of C_f/E[C_f], large flows (Lemma 1, Fig. 2)"
    lemma = Claim(title, "", what, median, paper=1.0, reproduced=abs(median - 1) < 0.05)
    return Outcome([lemma, *(_variance_claim(title, world, large, unit) for unit in (1000, 1))])


def _variance_claim(title: str, world: Traffic, large: Int64Array, unit_ns: int) -> Claim:
    """Theorem 1's deviation of a counter, Eq. 2, against that of counters which hold strangers only."""
    vector = published_pair(world, MODEL_BITS, choice="random")[0]
    parameters = vector.parameters
    rows = bucket_matrix(world.truth.flow_id[large], parameters.function_salts, np.uint64(parameters.counters))
    sums = vector.column("sum").astype(np.float64) * (parameters.resolution_ns / unit_ns)
    strangers = np.delete(sums, np.unique(rows))
    mean = float(strangers.mean())
    promised, observed = math.sqrt(mean * (1 - 1 / parameters.counters)), float(strangers.std())
    unit, what = (
        f"% of the mean, in {'µs' if unit_ns == 1000 else 'ns'}",
        "σ/mean of a counter without the flow (Eq. 2)",
    )
    near = 0.8 < observed / promised < 1.25
    return Claim(title, unit, what, 100 * observed / mean, paper=100 * promised / mean, reproduced=near)


def measure_loss(world: Traffic) -> list[Reading]:
    """The published variant with j drawn independently and by hash, the joint decoder, samples and the grand mean."""
    asked = only_large(world)
    vectors: dict[str, Any] = {"per_flow": VECTOR_PER_FLOW, "shares": VECTOR_SHARES, "method": "loss variant"}
    readings = [read_theorem_2(world, asked, LOSS_BITS, choice=choice, **vectors) for choice in ("random", "packet")]
    joint = read_joint(world, asked, LOSS_BITS, per_flow=JOINT_PER_FLOW)
    return [*readings, joint, read_sample(world, asked, LOSS_BITS), grand_mean(world, asked)]


def loss_variant(scale: Scale) -> Outcome:
    """Large flows' means under 0.1 to 1 % independent loss, at 4 bits per packet."""
    results = {loss: measure_loss(law_world("per-flow", scale, seed=LOSS_SEED, loss=loss)) for loss in LOSSES}
    claims = [claim for loss, readings in results.items() for claim in _loss_claims(loss, readings)]
    names = [(reading.name, reading.kind) for reading in next(iter(results.values()))]
    percent = [100 * loss for loss in LOSSES]
    shares = {
        "answered": [[r.answered_percent for r in readings] for readings in results.values()],
        "within 5 %": [[r.share_within(MEDIUM) for r in readings] for readings in results.values()],
    }
    panels = {
        title: [Line(name, percent, [row[i] for row in rows], kind) for i, (name, kind) in enumerate(names)]
        for title, rows in shares.items()
    }
    figure = Figure("loss", "loss [%]", f"flows ≥ {LEAST_PACKETS} packets [%]", panels, log="x")
    return Outcome(claims, [figure])


def _loss_claims(loss: float, readings: list[Reading]) -> list[Claim]:
    title = f"loss of {loss:.1%}, per-flow, {LOSS_BITS:g} bit/packet, {len(VECTOR_SHARES)} vectors"
    answered = [reading.answered_percent for reading in readings]
    within = [reading.share_within(MEDIUM) for reading in readings]
    literal, coordinated, joint, sample, grand = range(5)
    rows = (
        (f"flows ≥ {LEAST_PACKETS} answered (baseline: sample)", answered, (literal, joint, sample)),
        ("within 5 % (baseline: grand mean)", within, (literal, joint, grand)),
        ("within 5 %, coordinated j (baseline: sample)", within, (coordinated, joint, sample)),
    )
    return [Claim(title, "% of flows", what, *(values[i] for i in chosen)) for what, values, chosen in rows]


def several_peers(scale: Scale) -> Outcome:
    """One link alone, and the same link when both its ends talk to a third point as well."""
    links = [make_traffic(seed=LOSS_SEED + i, flows=PEER_FLOWS[scale], delays="per-flow") for i in range(3)]
    alone = links[0]
    # The first link's truth, with a second link's packets at its sender and a third's at its receiver.
    mixed = replace(
        alone, sender=_joined(alone.sender, links[1].sender), receiver=_joined(alone.receiver, links[2].receiver)
    )
    asked = only_large(alone)
    joint = read_joint(alone, asked, PEER_BITS).median_percent
    grand = grand_mean(alone, asked).median_percent
    claims = []
    for name, choice in (("literal", "random"), ("coordinated j", "packet")):
        single, several = (_point_by_point(world, asked, choice).median_percent for world in (alone, mixed))
        what = f"median error, {name} (joint: one vector per peer; baseline: grand mean)"
        flows = f"per point ({int(asked.sum())} flows)"
        near = several <= 1.5 * single
        claims.append(Claim(f"1 peer {flows}", "%", what, single, joint, grand))
        claims.append(Claim(f"2 peers {flows}", "%", what, several, joint, grand, reproduced=near))
    return Outcome(claims)


def _point_by_point(world: Traffic, asked: BoolArray, choice: str) -> Reading:
    """Theorem 2 at each point on its own, whatever else went past it."""
    truth = world.truth
    pair = published_pair(world, PEER_BITS, choice=choice)
    answers = estimate_means_between(*pair, truth.flow_id[asked], truth.sent[asked])
    return Reading.of(choice, "literal", values_of(answers), truth.mean_ns[asked])


def _joined(one: PacketBatch, other: PacketBatch) -> PacketBatch:
    both = PacketBatch.concatenate([one, other])
    return both.select(np.argsort(both.time_ns, kind="stable"))


def costs(_scale: Scale) -> Outcome:
    """Storage on the paper's backbone link, the count-min comparison of §6.5, and recording speed on one core."""
    years = DRIVE_BYTES * 8 / LINK_RATE / YEAR_SECONDS
    what = f"256 GB on a link of {LINK_RATE / 1e6:g} Mpps (literal: 0.1 bit/packet, joint: {JOINT_BITS:g})"
    # ⌈e/β⌉ columns by ⌈ln 1/(1 − α)⌉ rows, for one flow.
    counters = math.ceil(math.e / 0.05) * math.ceil(math.log(1 / 0.05))
    needed = counters * COUNT_MIN_BITS / PAPER_BITS
    rows: tuple[tuple[str, str, str, float, float, float | None], ...] = (
        ("storage", "years", what, 1.5, years / PAPER_BITS, years / JOINT_BITS),
        ("count-min", "counters", "count-min counters per flow, α = 0.95, β = 0.05", 165.0, float(counters), None),
        ("count-min", "packets", "packets per flow where count-min needs 0.1 bit/packet", 31_350.0, needed, None),
    )
    claims = [
        Claim(title, unit, quantity, literal, joint, paper=paper, reproduced=abs(literal / paper - 1) < 0.05)
        for title, unit, quantity, paper, literal, joint in rows
    ]
    return Outcome([*claims, _speed()])


def _speed() -> Claim:
    """One hash and one update per packet, against the mean rate of the paper's link."""
    batch = make_traffic(seed=1, flows=TIMED_PACKETS_FLOWS).sender
    counters, unit = len(batch) // 50, MICROSECOND
    plain = {"bits": PUBLISHED_BITS, "choice": "random", "wrap": False, "origin_ns": START_NS}
    counted = {"bits": SUM_BITS, "count_bits": COUNT_BITS, "max_delay_ns": 10**8}
    rates = []
    for per_flow, kind in ((20, plain), (4, counted)):
        parameters = CounterVectorParameters(counters=counters, per_flow=per_flow, resolution_ns=unit, **kind)
        times = []
        for _ in range(TIMES):
            vector = CounterVector(parameters)
            began = perf_counter()
            vector.record_batch(batch)
            times.append(perf_counter() - began)
        rates.append(len(batch) / min(times) / 1e6)
    what, paper = "packets recorded on one core (timed; paper: mean rate of its link)", LINK_RATE / 1e6
    return Claim("speed", "Mpps", what, *rates, paper=paper, reproduced=rates[0] >= paper)


TITLE = "COLATE: per-flow latency from noisy counters"
EXPERIMENTS = (counter_model, accuracy, guarantee, deviation, loss_variant, several_peers, costs)
