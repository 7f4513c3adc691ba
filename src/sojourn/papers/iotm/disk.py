"""Disk accesses of ten processes (IoTm, §IV-A, Fig. 2 to 7): accuracy, and what n, m and the epochs do to it.

The published method draws j by chance, has the same hash functions in all epochs and adds up what each epoch's answer
was. Ours decodes all epochs jointly, once from the same random choice and once from turns, under a salt of each epoch's
own. The baseline gives every process an equal share of the total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.buckets.joint import estimate_sums_jointly
from sojourn.estimation.published.iotm import estimate_sums_literally
from sojourn.lab.metrics import DiskWorld, disk_world
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

__all__ = [
    "DECODERS",
    "EPOCHS",
    "Trials",
    "buckets_in_array",
    "buckets_in_subarray",
    "disk_accuracy",
    "disk_memory",
    "epochs_of_a_query",
    "try_disk",
]

UNIT = "operations"
WITHIN = 0.05
MINUTES = 10
# Minutes of an epoch (t of the paper) → epochs in ten minutes.
EPOCHS = {1: 10, 5: 2, 10: 1}
LITERAL, RANDOM, TURNS, EQUAL = "as published", "joint, random", "joint, turns", "equal share"
KINDS = {LITERAL: "literal", RANDOM: "joint", TURNS: "joint", EQUAL: "baseline"}
FIRST_SEED = 9000


@dataclass(frozen=True, eq=False)
class Trials:
    """Relative errors (runs × processes) and whether intervals held the truth; none where there are no intervals."""

    errors: FloatArray
    covered: FloatArray

    @property
    def within(self) -> float:
        """The share of answers within 5 %."""
        return float((self.errors <= WITHIN).mean())

    @property
    def all_within(self) -> float:
        """The share of runs in which every answer is."""
        return float((self.errors <= WITHIN).all(axis=1).mean())


Decoder = Callable[[DiskWorld], list[Answer]]


def _literally(world: DiskWorld) -> list[Answer]:
    """As published: each epoch for itself, estimates added up; no interval comes with them."""
    by_epoch = [estimate_sums_literally([epoch], world.ids, unit=UNIT) for epoch in world.epochs]
    totals = [sum(a.value for a in answers if isinstance(a, Estimate)) for answers in zip(*by_epoch, strict=True)]
    return [Estimate(total, -np.inf, np.inf, 0, LITERAL, UNIT) for total in totals]


def _jointly(world: DiskWorld) -> list[Answer]:
    return estimate_sums_jointly(world.epochs, world.ids, unit=UNIT)


def _equally(world: DiskWorld) -> list[Answer]:
    share = float(world.total.sum()) / len(world.ids)
    return [Estimate(share, -np.inf, np.inf, 0, EQUAL, UNIT)] * len(world.ids)


# Name → (how measurements choose a bucket, whether epochs have salts of their own, the decoder).
DECODERS: dict[str, tuple[str, bool, Decoder]] = {
    LITERAL: ("random", False, _literally),
    RANDOM: ("random", True, _jointly),
    TURNS: ("round-robin", True, _jointly),
    EQUAL: ("random", False, _equally),
}


def try_disk(decoder: str, runs: int, *, buckets: int = 20, per_instance: int = 5, epochs: int = 1) -> Trials:
    """Answer about the ten minutes of ten processes, in several worlds."""
    spreading, salted, decode = DECODERS[decoder]
    parameters = BucketArrayParameters(buckets=buckets, per_instance=per_instance, bits=16, spreading=spreading)
    worlds = [
        disk_world(FIRST_SEED + run, parameters, epochs=epochs, burst=0.3 if epochs > 1 else 0.0, salted=salted)
        for run in range(runs)
    ]
    return _trials([(decode(world), world.total) for world in worlds])


def _trials(answered: Sequence[tuple[list[Answer], FloatArray]]) -> Trials:
    errors = [
        [abs(a.value - t) / t if isinstance(a, Estimate) else 1.0 for a, t in zip(answers, truth, strict=True)]
        for answers, truth in answered
    ]
    covered = [
        float(a.contains(t))
        for answers, truth in answered
        for a, t in zip(answers, truth, strict=True)
        if isinstance(a, Estimate) and np.isfinite(a.low)
    ]
    return Trials(np.array(errors), np.array(covered))


def _runs(scale: Scale, decoder: str, epochs: int, *, sweep: bool = False) -> int:
    """How many worlds a figure rests on; the published likelihood takes seconds where buckets hold little."""
    small = {10: 4, 2: 10, 1: 40}[epochs] if decoder == LITERAL else 200 // (epochs if not sweep else 10)
    if sweep and decoder == LITERAL:
        small = max(1, small // 4)
    return small if scale is Scale.SMALL else 5 * small


def disk_accuracy(scale: Scale) -> Outcome:
    """Fig. 3: every process within 5 %, from epochs of 1, 5 and 10 minutes; n = 20, m = 5."""
    trials = {
        (name, minutes): try_disk(name, _runs(scale, name, epochs), epochs=epochs)
        for name in DECODERS
        for minutes, epochs in EPOCHS.items()
    }
    claims: list[Claim] = []
    for minutes in EPOCHS:
        literal, random, turns, equal = (trials[name, minutes] for name in DECODERS)
        claims += [
            Claim(
                experiment="disk",
                quantity=f"processes within 5 %, t = {minutes} min; joint: {how}",
                unit="%",
                paper=100.0,
                literal=100 * literal.within,
                joint=100 * joint.within,
                baseline=100 * equal.within,
                reproduced=literal.within == 1.0,
            )
            for how, joint in (("turns", turns), ("random j", random))
        ]
        claims += [
            Claim(
                experiment="disk",
                quantity=f"median error, t = {minutes} min; joint: {how}",
                unit="%",
                literal=100 * float(np.median(literal.errors)),
                joint=100 * float(np.median(joint.errors)),
                baseline=100 * float(np.median(equal.errors)),
            )
            for how, joint in (("turns", turns), ("random j", random))
        ]
        claims += [
            Claim(
                experiment="disk",
                quantity=f"{what}, t = {minutes} min; joint: {how}",
                unit="%",
                literal=100 * literal.all_within if what.startswith("runs") else None,
                joint=100 * (joint.all_within if what.startswith("runs") else float(joint.covered.mean())),
            )
            for how, joint in (("turns", turns), ("random j", random))
            for what in ("runs with all ten within 5 %", "95 % intervals that cover")
        ]
    return Outcome(claims)


def _average_error(name: str, runs: int, **how: int) -> float:
    """The paper's measure: the mean relative error, in per cent."""
    return 100 * float(try_disk(name, runs, **how).errors.mean())


Errors = dict[tuple[str, int], list[float]]


def _sweep(scale: Scale, experiment: str, label: str, values: Sequence[int]) -> tuple[Errors, Figure]:
    """Average errors of all decoders, for each length of epoch, over one parameter."""
    errors = {
        (name, minutes): [
            _average_error(name, _runs(scale, name, epochs, sweep=True), epochs=epochs, **{label: value})
            for value in values
        ]
        for name in DECODERS
        for minutes, epochs in EPOCHS.items()
    }
    panels = {
        f"t = {minutes} min": [
            Line(name, list(values), errors[name, minutes], KINDS[name])  # type: ignore[arg-type]
            for name in DECODERS
        ]
        for minutes in EPOCHS
    }
    shown = {"buckets": "buckets n", "per_instance": "buckets per process m"}[label]
    return errors, Figure(name=experiment, x_label=shown, y_label="average error, %", panels=panels, log_y=True)


def buckets_in_array(scale: Scale) -> Outcome:
    """Fig. 4: errors fall as n grows; m = 5."""
    values = (10, 15, 20, 25, 30, 35, 40)
    errors, figure = _sweep(scale, "fig4-buckets", "buckets", values)
    claims = [
        Claim(
            experiment="n",
            quantity=f"average error at n = 40 over that at n = 10, t = {minutes} min (paper: below 1)",
            unit="ratio",
            literal=errors[LITERAL, minutes][-1] / errors[LITERAL, minutes][0],
            joint=errors[TURNS, minutes][-1] / errors[TURNS, minutes][0],
            baseline=errors[EQUAL, minutes][-1] / errors[EQUAL, minutes][0],
            reproduced=errors[LITERAL, minutes][-1] < errors[LITERAL, minutes][0],
        )
        for minutes in EPOCHS
    ]
    return Outcome([*claims, _best("n", "n = 40, t = 10 min", errors, -1)], [figure])


def buckets_in_subarray(scale: Scale) -> Outcome:
    """Fig. 5: errors are convex in m, so that there is a best m; n = 20."""
    values = (1, 2, 3, 4, 5, 6, 8, 10)
    errors, figure = _sweep(scale, "fig5-per-process", "per_instance", values)

    def best(name: str) -> float:
        return float(values[int(np.argmin(np.mean([errors[name, minutes] for minutes in EPOCHS], axis=0)))])

    inner = 1 < best(LITERAL) < values[-1]
    claim = Claim(
        experiment="m",
        quantity="best m (paper: neither the least nor the largest); joint: turns",
        unit="buckets",
        literal=best(LITERAL),
        joint=best(TURNS),
        reproduced=inner,
    )
    return Outcome([claim, _best("m", "m = 5, t = 10 min", errors, values.index(5))], [figure])


def _best(experiment: str, where: str, errors: Errors, at: int) -> Claim:
    return Claim(
        experiment=experiment,
        quantity=f"average error at {where}; joint: turns",
        unit="%",
        literal=errors[LITERAL, MINUTES][at],
        joint=errors[TURNS, MINUTES][at],
        baseline=errors[EQUAL, MINUTES][at],
    )


def epochs_of_a_query(scale: Scale) -> Outcome:
    """Fig. 6: a query over the first i of ten one-minute epochs; the error grows slightly with i."""
    lengths = list(range(1, MINUTES + 1))
    errors = {name: _by_length(name, _runs(scale, name, MINUTES), lengths) for name in DECODERS}
    lines = [Line(name, lengths, errors[name], KINDS[name]) for name in DECODERS]  # type: ignore[arg-type]
    figure = Figure(
        name="fig6-epochs",
        x_label="epochs of the query",
        y_label="average error, %",
        panels={"n = 20, m = 5, t = 1 min": lines},
        log_y=True,
    )
    claim = Claim(
        experiment="epochs",
        quantity="average error over ten epochs over that of one (paper: slightly above 1); joint: turns",
        unit="ratio",
        literal=errors[LITERAL][-1] / errors[LITERAL][0],
        joint=errors[TURNS][-1] / errors[TURNS][0],
        baseline=errors[EQUAL][-1] / errors[EQUAL][0],
        reproduced=1.0 <= errors[LITERAL][-1] / errors[LITERAL][0] <= 2.0,
    )
    return Outcome([claim], [figure])


def _by_length(name: str, runs: int, lengths: Sequence[int]) -> list[float]:
    """The average error of queries over the first epochs, by their number."""
    spreading, salted, decode = DECODERS[name]
    parameters = BucketArrayParameters(buckets=20, per_instance=5, bits=16, spreading=spreading)
    found = []
    for run in range(runs):
        world = disk_world(FIRST_SEED + run, parameters, epochs=MINUTES, burst=0.3, salted=salted)
        parts = [DiskWorld(world.ids, world.epochs[:length], world.by_epoch[:length]) for length in lengths]
        if name == LITERAL:  # its answer about several epochs is the sum of those about each
            singles = [DiskWorld(world.ids, [epoch], world.by_epoch[:1]) for epoch in world.epochs]
            sums = np.cumsum([[a.value for a in decode(one) if isinstance(a, Estimate)] for one in singles], axis=0)
            found.append(
                [np.mean(np.abs(sums[i - 1] - p.total) / p.total) for i, p in zip(lengths, parts, strict=True)]
            )
        else:
            found.append([_trials([(decode(part), part.total)]).errors.mean() for part in parts])
    return [100 * float(error) for error in np.mean(found, axis=0)]


def disk_memory(_scale: Scale) -> Outcome:
    """Fig. 7: n · b bits; ours with the steps of turns, for ten processes."""

    def used(spreading: str) -> float:
        array = BucketArray(BucketArrayParameters(buckets=40, per_instance=5, bits=16, spreading=spreading))
        world = disk_world(FIRST_SEED, array.parameters)
        return world.epochs[0].memory_bits / 8

    published = used("random")
    rows = (
        ("turns of each process", used("round-robin")),
        ("64 hashed turns", used("hashed-steps")),
    )
    claims = [
        Claim(
            experiment="memory",
            quantity=f"disk accesses, n = 40, b = 16; joint: {how}; baseline: 16 bits for each of ten",
            unit="bytes",
            paper=80.0,
            literal=published,
            joint=own,
            baseline=20.0,
            reproduced=published == 80.0,
        )
        for how, own in rows
    ]
    return Outcome(claims)
