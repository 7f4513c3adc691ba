"""What flows' percentiles come to: how many are answered, how far off, and how many intervals hold the truth.

Both points of a drawn world record with `auto`, planned for its traffic. Before: each flow's own sampled packets alone,
with intervals that assume nothing. After: with the shape that flows share, where that predicts. Flows whose packets
were all sampled are left out: their percentiles are exact either way.

Worlds are named by how packets' delays are distributed around their flow's mean (×10 apart): with a heavy tail, in two
modes, in whole milliseconds, log-normal, and as each flow pleases, from nearly constant to a packet in twenty that
takes all the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.auto.trial import answered, recorded
from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.estimates import LEVELS
from sojourn.core.units import parse_bytes
from sojourn.estimation.order_statistics import row_quantiles
from sojourn.estimation.sample import match_samples
from sojourn.lab.traffic import MS, START_NS, Traffic, traffic_of
from sojourn.segments.answer import parts_of
from sojourn.segments.plan import plan_segment
from sojourn.sketches.sample import Sample

FLOWS, PACKETS, DURATION_NS = 1_500, 150_000, 10_000_000_000
LOSSES = (0.0, 0.2)
# What is planned for: where nothing is expected to be lost, `auto` keeps cells alone, which tell no percentiles.
EXPECTED_LOSS = 0.01
SHOWN = ("p50", "p90", "p99")
CLASSES = {"1–9": 1, "10–99": 10, "100–999": 100, "≥ 1,000": 1_000}
FEWEST = 50
Law = Callable[[np.random.Generator, FloatArray, FloatArray], FloatArray]
"""Delays from each packet's flow's mean, and a number of the flow's own in 0 … 1."""

LAWS: dict[str, Law] = {
    "log-normal": lambda random, mean, _: mean * random.lognormal(-0.18, 0.6, len(mean)),
    "heavy tail": lambda random, mean, _: np.minimum(mean / 3 * (random.pareto(1.5, len(mean)) + 1), 200 * mean),
    "two modes": lambda random, mean, _: (
        mean * np.where(random.uniform(size=len(mean)) < 0.85, 0.4, 4.4) * random.gamma(40, 1 / 40, len(mean))
    ),
    "quantised": lambda random, mean, _: MS * np.floor(mean / MS * random.gamma(4.0, 0.25, len(mean)) + 0.5),
    "shapes differ": lambda random, mean, own: mean * random.gamma(0.3 * 200**own, 1 / (0.3 * 200**own), len(mean)),
}


def drawn_traffic(law: str, loss: float, seed: int) -> Traffic:
    """Pareto flows whose means are up to a factor of ten apart."""
    random = np.random.default_rng([seed, sorted(LAWS).index(law), int(100 * loss)])
    weight = random.pareto(1.2, FLOWS) + 1
    size = 1 + np.round(weight / weight.sum() * (PACKETS - FLOWS)).astype(np.int64)
    flow = random.permutation(np.repeat(np.arange(FLOWS), size))
    mean, own = 5 * MS * 10 ** random.uniform(-0.5, 0.5, FLOWS), random.uniform(size=FLOWS)
    delay_ns = np.maximum(LAWS[law](random, mean[flow], own[flow]), 1.0).astype(np.int64)
    time_ns = START_NS + np.sort(random.integers(0, DURATION_NS, len(flow)))
    return traffic_of(random, flow, time_ns, delay_ns, random.uniform(size=len(flow)) >= loss)


@dataclass(frozen=True, eq=False)
class Figures:
    """Of every flow: percentiles before and after (× levels × value, low, high), which are shared, the quantiles of its
    own sampled packets, the truth, and the packets that arrived; flows that were sampled whole are left out."""

    before: FloatArray
    after: FloatArray
    is_shared: BoolArray
    sampled: FloatArray
    truth: FloatArray
    received: Int64Array

    @classmethod
    def of(cls, law: str, loss: float, seed: int, memory: int) -> Figures:
        traffic = drawn_traffic(law, loss, seed)
        truth = traffic.truth
        sizes = {"flows": len(truth.flow_id), "packets": int(truth.sent.sum())}
        plan = plan_segment("auto", memory, **sizes, loss=max(loss, EXPECTED_LOSS), salt=seed, joint=True)
        flows = answered(plan, traffic)[0]
        ends = [parts_of(end) for end in recorded(plan, traffic)]
        name = next(name for name, part in ends[0].items() if isinstance(part, Sample))
        matched = match_samples(ends[0][name], ends[1][name])
        before, delays = matched.flows(truth.flow_id).percentiles, matched.delays(truth.flow_id)
        assert before is not None
        assert flows.percentiles is not None
        is_shared = np.zeros(before.shape[:2], bool) if flows.shared_shape is None else flows.shared_shape
        rows = (truth.received > 0) & ~delays.whole
        sampled = np.stack([row_quantiles(delays.start, delays.delay_ns, q) for q in LEVELS.values()], axis=1)
        columns = (before, flows.percentiles, is_shared, sampled, true_percentiles(traffic), truth.received)
        return cls(*(column[rows] for column in columns))

    def joined(self, other: Figures) -> Figures:
        columns = zip(vars(self).values(), vars(other).values(), strict=True)
        return Figures(*(np.concatenate(two) for two in columns))


def true_percentiles(traffic: Traffic) -> FloatArray:
    """Of the packets delivered, flows × levels."""
    flow, delay = traffic.flow[traffic.delivered], traffic.delay_ns[traffic.delivered].astype(np.float64)
    order = np.lexsort((delay, flow))
    start = np.searchsorted(flow[order], np.arange(len(traffic.truth.flow_id) + 1))
    return np.stack([row_quantiles(start, delay[order], level) for level in LEVELS.values()], axis=1)


def rows_of(figures: Figures) -> Iterator[list[str]]:
    """For each level shown: flows answered before and after, errors, coverage."""
    for number, level in enumerate(LEVELS):
        if level not in SHOWN:
            continue
        truth = figures.truth[:, number]
        had, shared = ~np.isnan(figures.before[:, number, 0]), figures.is_shared[:, number]
        known, seen = ~np.isnan(figures.after[:, number, 0]), ~np.isnan(figures.sampled[:, number])
        low, high = figures.after[:, number, 1], figures.after[:, number, 2]
        held = (low <= truth * (1 + 1e-9)) & (truth * (1 - 1e-9) <= high)
        yield [
            level,
            f"{_percent(had)} → {_percent(known)}",
            _errors(truth, had & shared, figures.before[:, number, 0], figures.after[:, number, 0]),
            _errors(truth, ~had & shared & seen, figures.sampled[:, number], figures.after[:, number, 0]),
            _errors(truth, shared & ~seen, figures.after[:, number, 0]),
            _coverage(held, shared, figures.received),
        ]


def _percent(rows: BoolArray) -> str:
    return f"{100 * rows.mean():.0f} %"


def _errors(truth: FloatArray, rows: BoolArray, *values: FloatArray) -> str:
    """Median relative errors in per cent of the same flows."""
    if rows.sum() < FEWEST:
        return "–"
    return " → ".join(f"{100 * np.median(np.abs(value[rows] / truth[rows] - 1)):.0f}" for value in values)


def _coverage(held: BoolArray, shared: BoolArray, received: Int64Array) -> str:
    """Of shared intervals, by classes of sizes with enough of them."""
    place = np.searchsorted(list(CLASSES.values()), received, side="right") - 1
    found = []
    for number, name in enumerate(CLASSES):
        rows = shared & (place == number)
        if rows.sum() >= FEWEST:
            found.append(f"{name}: {100 * held[rows].mean():.0f}")
    return ", ".join(found) or "–"


HEADINGS = ("delays", "lost", "", "flows answered", "answered before", "not before, sampled", "not sampled", "held, %")


def table(laws: Sequence[str], memory: int, seeds: Sequence[int]) -> Iterator[str]:
    """Lines as they are known."""
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|" + "---|" * len(HEADINGS)
    for law in laws:
        for loss in LOSSES:
            figures = Figures.of(law, loss, seeds[0], memory)
            for seed in seeds[1:]:
                figures = figures.joined(Figures.of(law, loss, seed, memory))
            for row in rows_of(figures):
                yield "| " + " | ".join([law, f"{100 * loss:.0f} %", *row]) + " |"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench percentiles", description=__doc__)
    parser.add_argument("--law", action="append", choices=sorted(LAWS), help="only this one; may be repeated")
    parser.add_argument("--memory", default="256KB")
    parser.add_argument("--salts", type=int, default=2, help="draws of each world, with other hashes each")
    options = parser.parse_args(arguments)
    for line in table(options.law or list(LAWS), parse_bytes(options.memory), range(options.salts)):
        print(line, flush=True)
