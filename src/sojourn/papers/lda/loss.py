"""LDA against loss (§IV, Fig. 4 and 5): five delay laws, bursts of loss, and banks for a loss rate that is not known.

Fig. 4 has a bank of 1024 counters tuned to the loss rate. Fig. 5 does without knowing it: several banks in the same
1024 counters, tuned to different rates. Ours beside them, in the same counters: the paper's two banks and a "rest" bank
that takes every packet they leave (a first bank of share 1; banks are nested, so no other code is needed), the ladder
1, ½, ¼ … that `sojourn` uses by default, and one that falls by quarters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from sojourn.papers.lda.trials import (
    COUNTERS,
    LAWS,
    PAPER_LOAD,
    DelayLaw,
    Plan,
    Shares,
    Trial,
    Trials,
    crossings,
    lda_cells,
    mean_of,
    plan_of,
    try_banks,
    try_lda,
    tuned_banks,
)
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.lda import tuned_share

_claim = partial(Claim, "tuned bank")
LOSSES = (0.0001, 0.001, 0.01, 0.02, 0.05, 0.06, 0.1, 0.2)
PUBLISHED, OURS = "α = ½", "α = 1"
WORST = "Weibull 0.6"  # the law with the largest deviation for its mean
BURSTS = (0, 10, 100, 1000)
SLACK = 1.25
BANK_LOSSES = (0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.2)
PAPER_BANKS = {
    "two banks": (0.005, 0.1),
    "three banks": (0.001, 0.01, 0.1),
    "four banks": (0.001, 0.01, 0.05, 0.1),
}
TUNED, FOR_LITTLE, FOR_MUCH = "tuned", "tuned to 0.1 %", "tuned to 10 %"
REST, HALVES, QUARTERS = "two banks and rest", "8 banks by halves", "8 banks by quarters"


def at_most(value: float, paper: float) -> bool:
    """Whether an error bears out "at most `paper`": a mean over 100 trials is itself uncertain by a twelfth."""
    return value <= SLACK * paper


def try_laws(plan: Plan, laws: Sequence[DelayLaw] = LAWS, losses: Sequence[float] = LOSSES) -> dict[str, Trials]:
    """Trials by law of a bank that knows the loss rate; for the worst law also with the sampling best for the mean."""
    banks: dict[str, Shares] = {PUBLISHED: lambda packets, loss: tuned_banks(packets, [loss])}
    best: dict[str, Shares] = {OURS: lambda packets, loss: tuned_banks(packets, [loss], load=1.0)}
    return {law.name: try_banks(plan, law, losses, banks | best if law.name == WORST else banks) for law in laws}


def delays_and_loss_rates(scale: Scale) -> Outcome:
    """Fig. 4: sample size, errors of mean and deviation, and Eq. 1's bounds, by loss rate and delay law."""
    plan = plan_of(scale)
    found = try_laws(plan)
    claims = [*_sample_claims(plan, found), *_mean_claims(found), *_bound_claims(found), *_deviation_claims(found)]
    means, deviations = dict.fromkeys((PUBLISHED, OURS), "mean_error"), {"Eq. 5": "published_error"}
    figures = [
        _figure("fig4a-mean-error", "mean error, %", found, means),
        _bounds_figure(found[WORST]),
        _figure("fig4c-deviation-error", "deviation error, %", found, deviations | {"centred": "centred_error"}),
    ]
    return Outcome(claims, figures)


def worst(found: dict[str, Trials], name: str, *, law: str = "", losses: Sequence[float]) -> float:
    """The largest mean error, in per cent, over laws whose name begins with `law` and over loss rates."""
    chosen = [trials for of, trials in found.items() if of.startswith(law)]
    return max(100 * mean_of(trials[PUBLISHED, loss], name) for trials in chosen for loss in losses)


def _sample_claims(plan: Plan, found: dict[str, Trials]) -> list[Claim]:
    """Eq. 2 bounds the expected sample from below, with α = ½."""

    def over_bound(banks: str) -> float:
        ratios = []
        for loss in (0.01, 0.02, 0.05, 0.1, 0.2):
            bound = PAPER_LOAD * (1 - PAPER_LOAD) * COUNTERS / (plan.packets * loss + 1) * plan.packets * (1 - loss)
            ratios.append(mean_of(found[WORST][banks, loss], "samples") / bound)
        return fmean(ratios)

    literal, joint = over_bound(PUBLISHED), over_bound(OURS)
    what = "sample over Eq. 2's bound; joint: α = 1"
    return [_claim("ratio", what, literal, joint, paper=2.0, reproduced=literal >= 1.8)]


def _mean_claims(found: dict[str, Trials]) -> list[Claim]:
    rows = []
    for loss, paper in ((0.001, 0.3), (0.2, 4.0)):
        joint = 100 * mean_of(found[WORST][OURS, loss], "mean_error")
        what = f"mean error at {100 * loss:g} % loss, worst law; joint: α = 1"
        rows.append((what, worst(found, "mean_error", losses=[loss]), joint, paper))
    at_six = [100 * trial.mean_error for trials in found.values() for trial in trials[PUBLISHED, 0.06]]
    for name, value, paper in (("average", fmean(at_six), 0.2), ("largest", max(at_six), 3.0)):
        rows.append((f"mean error at 6 % loss, {name} of all trials", value, value, paper))
    return [
        _claim("%", what, literal, joint, paper=paper, reproduced=at_most(literal, paper))
        for what, literal, joint, paper in rows
    ]


def _bound_claims(found: dict[str, Trials]) -> list[Claim]:
    """Eq. 1's 98 % bound is over three standard errors wide; our 95 % interval is under two."""
    trials = [trial for (banks, _), trials in found[WORST].items() if banks == PUBLISHED for trial in trials]
    inside = 100 * fmean(trial.mean_error <= trial.bound for trial in trials)
    covered, what = 100 * mean_of(trials, "covered"), "inside Eq. 1's 98 % bound; joint: our 95 % interval"
    return [_claim("%", what, inside, covered, paper=100.0, reproduced=inside >= 98)]


def _deviation_claims(found: dict[str, Trials]) -> list[Claim]:
    claims = []
    for law, most, paper in (("Weibull", 0.05, 10.0), ("Weibull", 0.2, 10.0), ("Pareto", 0.2, 50.0)):
        losses = [loss for loss in LOSSES if loss <= most]
        errors = [worst(found, name, law=law, losses=losses) for name in ("published_error", "centred_error")]
        what, near = f"deviation error up to {100 * most:g} % loss, worst {law}", at_most(errors[0], paper)
        claims.append(_claim("%", what, *errors, paper=paper, reproduced=near))
    return claims


def _figure(name: str, y_label: str, found: dict[str, Trials], curves: dict[str, str]) -> Figure:
    """One panel per family of laws; the first curve is the published method's."""
    panels: dict[str, list[Line]] = {"Weibull": [], "Pareto": []}
    for law, trials in found.items():
        family, shape = law.split()
        for place, (curve, figure) in enumerate(curves.items()):
            banks = OURS if curve == OURS else PUBLISHED
            if (banks, LOSSES[0]) in trials:
                y = [100 * mean_of(trials[banks, loss], figure) for loss in LOSSES]
                kind: Kind = "joint" if place else "literal"
                panels[family].append(Line(f"{shape}, {curve}", [100 * loss for loss in LOSSES], y, kind))
    return Figure(name, "packets lost, %", y_label, panels, log="xy")


def _bounds_figure(trials: Trials) -> Figure:
    """Fig. 4(b): five trials' estimates, and the bound of the trial that had fewest samples."""
    x = [100 * loss for loss in LOSSES]
    bounds = [max(trial.bound for trial in trials[PUBLISHED, loss]) for loss in LOSSES]
    values = [[trials[PUBLISHED, loss][i].value for loss in LOSSES] for i in range(5)]
    lines = [Line(f"trial {i + 1}", x, y, "literal") for i, y in enumerate(values)]
    lines += [Line(f"Eq. 1, {sign}98 %", x, [1 + float(f"{sign}1") * b for b in bounds], "paper") for sign in "+-"]
    return Figure("fig4b-bounds", "packets lost, %", "estimated over true mean", {WORST: lines}, log="x")


def bursts_of_loss(scale: Scale) -> Outcome:
    """§IV: the distribution of losses within an interval does not matter, only their number."""
    plan, loss = plan_of(scale), 0.01
    trials: dict[int, list[Trial]] = {burst: [] for burst in BURSTS}
    for burst, collected in trials.items():
        for number, _, crossing in crossings(plan, LAWS[0], [loss], burst=burst):
            share = tuned_share(COUNTERS, crossing.losses, load=PAPER_LOAD)
            # The sample's size as a share of what so many losses leave, since bursts make their number vary.
            scale_to = crossing.losses / (plan.packets * loss)
            for salt in range(plan.salts):
                trial = try_lda(crossing, lda_cells([share], salt=number * plan.salts + salt))
                collected.append(replace(trial, samples=trial.samples * scale_to))
    claims = []
    for burst in BURSTS[1:]:
        ratio = mean_of(trials[burst], "samples") / mean_of(trials[0], "samples")
        what, near = f"sample, bursts of {burst} over independent losses", abs(ratio - 1) < 0.05
        claims.append(Claim("bursts", "ratio", what, ratio, ratio, paper=1.0, reproduced=near))
    curves: tuple[tuple[str, str, Kind], ...] = (
        ("mean", "mean_error", "literal"),
        ("deviation, Eq. 5", "published_error", "literal"),
        ("deviation, centred", "centred_error", "joint"),
    )
    x = [max(1, burst) for burst in BURSTS]
    lines = [Line(name, x, [100 * mean_of(trials[b], of) for b in BURSTS], kind) for name, of, kind in curves]
    figure = Figure("bursts", "mean length of a run of lost packets (1 % lost)", "error, %", {WORST: lines}, log="x")
    return Outcome(claims, [figure])


def _fixed(losses: Sequence[float]) -> Shares:
    return lambda packets, _loss: tuned_banks(packets, losses)


def _with_rest(packets: int, _loss: float) -> Sequence[float]:
    """Three banks: the last two as the paper's two, with a third of the counters each."""
    return [1.0, *tuned_banks(packets, [0.005, 0.1, 0.1])[:2]]


BANKS: dict[str, Shares] = {
    TUNED: lambda packets, loss: tuned_banks(packets, [loss]),
    **{name: _fixed(losses) for name, losses in PAPER_BANKS.items()},
    FOR_LITTLE: _fixed([0.001]),
    FOR_MUCH: _fixed([0.1]),
    REST: _with_rest,
    HALVES: lambda _packets, _loss: [2.0**-i for i in range(8)],
    QUARTERS: lambda _packets, _loss: [4.0**-i for i in range(8)],
}


def try_unknown_loss(plan: Plan, losses: Sequence[float] = BANK_LOSSES) -> Trials:
    """Trials of every way to share out the counters."""
    law = next(law for law in LAWS if law.name == WORST)
    return try_banks(plan, law, losses, BANKS)


def unknown_loss_rate(scale: Scale) -> Outcome:
    """Fig. 5: sample size and errors by loss rate."""
    trials = try_unknown_loss(replace(plan_of(scale), salts=10))
    return Outcome(_bank_claims(trials), _bank_figures(trials))


def _percent(trials: Trials, banks: str, loss: float, name: str = "mean_error") -> float:
    return 100 * mean_of(trials[banks, loss], name)


def _bank_claims(trials: Trials) -> list[Claim]:
    two, three, four = ([mean_of(trials[n, loss], "samples") for loss in (0.1, 0.2)] for n in PAPER_BANKS)
    fewer = max(f / min(a, b) for a, b, f in zip(two, three, four, strict=True))
    what = "sample of 4 banks over that of 2 or 3, from 10 % loss on"
    claims = [Claim("banks", "ratio", what, fewer, reproduced=fewer < 1)]
    for loss in BANK_LOSSES:
        what = f"mean error at {100 * loss:g} % loss, two banks; joint: and rest"
        errors = (_percent(trials, banks, loss) for banks in ("two banks", REST, FOR_LITTLE))
        claims.append(Claim("banks", "%", what, *errors))
    for loss in (0.001, 0.01, 0.05):
        what = f"deviation error at {100 * loss:g} % loss, two banks"
        errors = (_percent(trials, "two banks", loss, name) for name in ("published_error", "centred_error"))
        claims.append(Claim("banks", "%", what, *errors))
    return claims


def _bank_figures(trials: Trials) -> list[Figure]:
    x = [100 * loss for loss in BANK_LOSSES]
    figures = []
    for name, figure, label in (
        ("fig5a-sample-size", "samples", "effective sample, packets"),
        ("fig5b-mean-error", "mean_error", "mean error, %"),
        ("fig5c-deviation-error", "published_error", "deviation error, %"),
    ):
        factor = 1 if figure == "samples" else 100
        published, ours = [], []
        for banks in BANKS:
            y = [factor * mean_of(trials[banks, loss], figure) for loss in BANK_LOSSES]
            if banks in (TUNED, *PAPER_BANKS, FOR_LITTLE, FOR_MUCH):
                published.append(Line(banks, x, y, "baseline" if banks in (FOR_LITTLE, FOR_MUCH) else "literal"))
            if banks in (TUNED, "two banks", REST, HALVES, QUARTERS):
                own = "centred_error" if figure == "published_error" else figure
                y = [factor * mean_of(trials[banks, loss], own) for loss in BANK_LOSSES]
                ours.append(Line(f"{banks}, ours", x, y))
        figures.append(
            Figure(name, "packets lost, %", label, {"as published": published, "our decoder": ours}, log="xy")
        )
    return figures
