"""COLATE's standard deviations: error against virtual repetitions (the paper's Fig. 7 and 9) and against storage.

The paper says that 91 % of flows are within 5 % with 1000 repetitions and 98 % with 100 000. Repetitions only average
over how counters are paired; what m counters can know of a variance stays ± √(2/(m − 1)), 32 % with m = 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.estimation.joint.segments import estimate_colate_joint
from sojourn.estimation.published.colate_deviation import estimate_centred_deviations, estimate_flow_deviations
from sojourn.lab.traffic import Traffic
from sojourn.papers.claims import Claim
from sojourn.papers.colate.methods import PUBLISHED_PER_FLOW, Kind, Reading, counted_pair, published_pair, values_of
from sojourn.papers.colate.worlds import LEAST_PACKETS, law_world, only_large
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale

__all__ = ["DeviationResult", "deviation", "deviation_claims", "measure_deviation"]

DEVIATION_LAWS = ("weibull", "per-flow")
BITS = (1.0, 4.0, 16.0)
REPETITIONS = (10, 100, 1000, 10_000)
# Share of flows within 5 %, by virtual repetitions.
PAPER_SHARES = {1000: 91.0, 100_000: 98.0}
WITHIN = 0.05
REPETITION_BITS = 16.0
SEED = 43


@dataclass(frozen=True, eq=False)
class DeviationResult:
    """The readings by bits, and at one size by repetitions (literal, then coordinated)."""

    law: str
    flows: int
    by_bits: dict[float, list[Reading]]
    repeated: dict[int, tuple[Reading, Reading]]
    one_for_all: Reading


LITERAL, COORDINATED, CENTRED, JOINT = range(4)


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
    by_bits = {bits: _at_bits(world, asked, bits) for bits in BITS}
    return DeviationResult(law, int(asked.sum()), by_bits, repeated, grand)


def deviation(scale: Scale) -> Outcome:
    """Deviations of large flows under a law that all flows share, and one by which they differ."""
    results = [measure_deviation(law_world(law, scale, seed=SEED), law) for law in DEVIATION_LAWS]
    against_bits = Figure(
        name="deviation-bits",
        x_label="bits per packet and point",
        y_label="median error of the deviation [%]",
        panels={result.law: _bit_lines(result) for result in results},
        log_x=True,
        log_y=True,
    )
    against_repetitions = Figure(
        name="deviation-repetitions",
        x_label="virtual repetitions",
        y_label="flows within 5 % [%]",
        panels={f"{r.law}, {REPETITION_BITS:g} bit/packet": _repetition_lines(r) for r in results},
        log_x=True,
    )
    claims = [claim for result in results for claim in deviation_claims(result)]
    return Outcome(claims, [against_bits, against_repetitions])


def _bit_lines(result: DeviationResult) -> list[Line]:
    lines = []
    for method in (LITERAL, COORDINATED, CENTRED, JOINT):
        curve = [readings[method] for readings in result.by_bits.values()]
        lines.append(Line(curve[0].name, list(BITS), [r.median_percent for r in curve], curve[0].kind))
    grand = [result.one_for_all.median_percent] * len(BITS)
    return [*lines, Line(result.one_for_all.name, list(BITS), grand, "baseline")]


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
    joint = result.by_bits[REPETITION_BITS][JOINT].share_within(WITHIN)
    grand = result.one_for_all.share_within(WITHIN)
    claims = []
    for index, how in enumerate(("", ", coordinated j")):
        for repetitions, paper in PAPER_SHARES.items():
            # Beyond what was run, all permutations stand for the many.
            ran = result.repeated.get(repetitions)
            literal = (ran or result.by_bits[REPETITION_BITS])[index].share_within(WITHIN)
            claims.append(
                Claim(experiment=title, unit="% of flows", paper=paper, literal=literal, joint=joint, baseline=grand,
                      quantity=f"within 5 %, {repetitions} repetitions{how} (baseline: one deviation for all)",
                      reproduced=literal >= paper)
            )  # fmt: skip
    for bits, readings in result.by_bits.items():
        medians = [reading.median_percent for reading in readings]
        what = f"median error at {bits:g} bit/packet"
        claims += [
            Claim(experiment=title, quantity=f"{what} (baseline: one deviation for all)", unit="%",
                  literal=medians[LITERAL], joint=medians[JOINT], baseline=result.one_for_all.median_percent),
            Claim(experiment=title, quantity=f"{what}, coordinated j (baseline: count-centred)", unit="%",
                  literal=medians[COORDINATED], joint=medians[JOINT], baseline=medians[CENTRED]),
        ]  # fmt: skip
    return claims
