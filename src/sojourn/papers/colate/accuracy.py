"""COLATE's accuracy against storage: mean latency of large flows from 0.1 to 16 bits per packet.

The paper's claims are that less than 0.1 bit per packet does for 99 % of flows to be within 1 % (Fig. 10), and what
follows from 0.1 bit. Here the bits needed are read off the curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.lab.traffic import Traffic
from sojourn.papers.claims import Claim
from sojourn.papers.colate.methods import Reading, grand_mean, read_joint, read_sample, read_theorem_2
from sojourn.papers.colate.worlds import LAWS, LEAST_PACKETS, law_world, only_large
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale

__all__ = ["REQUIREMENTS", "accuracy", "accuracy_claims", "distribution", "measure_law"]

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
    figures = [
        Figure(
            name=name,
            x_label="bits per packet and point",
            y_label=f"{title} error, flows ≥ {LEAST_PACKETS} packets [%]",
            panels={result.law: _lines(result, quantile) for result in results},
            log_x=True,
            log_y=True,
        )
        for name, title, quantile in (("accuracy-median", "median", 0.5), ("accuracy-p95", "95th percentile", 0.95))
    ]
    return Outcome(claims, [*figures, _distributions(results)])


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


def _distributions(results: Sequence[LawResult]) -> Figure:
    panels = {f"{r.law}, 1 bit/packet": [*map(distribution, r.readings[1.0]), distribution(r.grand)] for r in results}
    return Figure(
        name="accuracy-distribution", x_label="error [%]", y_label="flows with less [%]", panels=panels, log_x=True
    )


def accuracy_claims(result: LawResult) -> list[Claim]:
    """Median and 95th percentile at the claimed sizes, and the bits that 99 % of flows within 1 % take."""
    title = f"accuracy, {result.law} ({result.flows} flows ≥ {LEAST_PACKETS} of {result.packets} packets)"
    claims = []
    for bits in CLAIMED_BITS:
        if bits not in result.readings:
            continue
        readings = result.readings[bits]
        for name, quantile in (("median", 0.5), ("p95", 0.95)):
            literal, coordinated, joint, sample = (reading.percent_at(quantile) for reading in readings)
            what = f"{name} error at {bits:g} bit/packet"
            grand = result.grand.percent_at(quantile)
            claims += [
                Claim(experiment=title, quantity=f"{what} (baseline: grand mean)", unit="%", literal=literal,
                      joint=joint, baseline=grand),
                Claim(experiment=title, quantity=f"{what}, coordinated j (baseline: sample)", unit="%",
                      literal=coordinated, joint=joint, baseline=sample),
            ]  # fmt: skip
    reliability, interval = REQUIREMENTS[-1]
    needed = [bits_needed(result, method, reliability, interval) for method in (LITERAL, JOINT, SAMPLE)]
    what = f"bits/packet for {reliability:.0%} of flows within {interval:.0%} (baseline: sample)"
    return [
        *claims,
        Claim(experiment=title, quantity=what, unit="bits", paper=PAPER_BITS, literal=needed[0], joint=needed[1],
              baseline=needed[2], reproduced=needed[0] is not None and needed[0] <= PAPER_BITS),
    ]  # fmt: skip


def bits_needed(result: LawResult, method: int, reliability: float, interval: float) -> float | None:
    """The fewest of the bits tried at which the requirement is met; None where none of them does."""
    met = [b for b, r in result.readings.items() if r[method].share_within(interval) >= 100 * reliability]
    return min(met, default=None)
