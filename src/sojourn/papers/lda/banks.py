"""LDA without knowing the loss rate (§IV-B, Fig. 5): several banks in the same 1024 counters, tuned to different rates.

Ours beside them, in the same counters: the paper's two banks and a "rest" bank that takes every packet they leave (a
first bank of share 1; banks are nested, so no other code is needed), the ladder 1, ½, ¼ … that `sojourn` uses by
default, and one that falls by quarters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.lda.loss import WORST
from sojourn.papers.lda.trials import LAWS, Plan, Shares, Trials, mean_of, plan_of, try_banks, tuned_banks
from sojourn.papers.reproduction import Outcome, Scale

__all__ = ["BANKS", "PAPER_BANKS", "try_unknown_loss", "unknown_loss_rate"]

EXPERIMENT = "banks"
LOSSES = (0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.2)
PAPER_BANKS = {
    "two banks": (0.005, 0.1),
    "three banks": (0.001, 0.01, 0.1),
    "four banks": (0.001, 0.01, 0.05, 0.1),
}
TUNED, FOR_LITTLE, FOR_MUCH = "tuned", "tuned to 0.1 %", "tuned to 10 %"
REST, HALVES, QUARTERS = "two banks and rest", "8 banks by halves", "8 banks by quarters"


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


def try_unknown_loss(plan: Plan, losses: Sequence[float] = LOSSES) -> Trials:
    """Trials of every way to share out the counters."""
    law = next(law for law in LAWS if law.name == WORST)
    return try_banks(plan, law, losses, BANKS)


def unknown_loss_rate(scale: Scale) -> Outcome:
    """Fig. 5: sample size and errors by loss rate."""
    trials = try_unknown_loss(replace(plan_of(scale), salts=10))
    return Outcome(_claims(trials), _figures(trials))


def _percent(trials: Trials, banks: str, loss: float, name: str = "mean_error") -> float:
    return 100 * mean_of(trials[banks, loss], name)


def _claims(trials: Trials) -> list[Claim]:
    def sample(banks: str, loss: float) -> float:
        return mean_of(trials[banks, loss], "samples")

    fewer = max(
        sample("four banks", loss) / min(sample("two banks", loss), sample("three banks", loss)) for loss in (0.1, 0.2)
    )
    order = Claim(
        experiment=EXPERIMENT,
        quantity="sample of 4 banks over that of 2 or 3, from 10 % loss on",
        unit="ratio",
        literal=fewer,
        reproduced=fewer < 1,
    )
    means = [
        Claim(
            experiment=EXPERIMENT,
            quantity=f"mean error at {100 * loss:g} % loss, two banks; joint: and rest",
            unit="%",
            literal=_percent(trials, "two banks", loss),
            joint=_percent(trials, REST, loss),
            baseline=_percent(trials, FOR_LITTLE, loss),
        )
        for loss in LOSSES
    ]
    deviations = [
        Claim(
            experiment=EXPERIMENT,
            quantity=f"deviation error at {100 * loss:g} % loss, two banks",
            unit="%",
            literal=_percent(trials, "two banks", loss, "published_error"),
            joint=_percent(trials, "two banks", loss, "centred_error"),
        )
        for loss in (0.001, 0.01, 0.05)
    ]
    return [order, *means, *deviations]


def _figures(trials: Trials) -> list[Figure]:
    x = [100 * loss for loss in LOSSES]
    figures = []
    for name, figure, label in (
        ("fig5a-sample-size", "samples", "effective sample, packets"),
        ("fig5b-mean-error", "mean_error", "mean error, %"),
        ("fig5c-deviation-error", "published_error", "deviation error, %"),
    ):
        factor = 1 if figure == "samples" else 100
        published, ours = [], []
        for banks in BANKS:
            y = [factor * mean_of(trials[banks, loss], figure) for loss in LOSSES]
            if banks in (TUNED, *PAPER_BANKS, FOR_LITTLE, FOR_MUCH):
                published.append(Line(banks, x, y, "baseline" if banks in (FOR_LITTLE, FOR_MUCH) else "literal"))
            if banks in (TUNED, "two banks", REST, HALVES, QUARTERS):
                own = "centred_error" if figure == "published_error" else figure
                y = [factor * mean_of(trials[banks, loss], own) for loss in LOSSES]
                ours.append(Line(f"{banks}, ours", x, y))
        figures.append(
            Figure(
                name=name,
                x_label="packets lost, %",
                y_label=label,
                panels={"as published": published, "our decoder": ours},
                log_x=True,
                log_y=True,
            )
        )
    return figures
