"""LDA against active probing (§IV-C, Fig. 6): the paper's bursts of loss, and a router's queue.

The LDA is the paper's two banks of 512 counters, tuned to 0.5 and 10 % loss. Probes leave as often as LDA reports
(1 Hz), as many packets as LDA sends (7), as many bits (144), and as many as come near its error (10 000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from sojourn.lab.traffic import Red, make_queue_traffic
from sojourn.papers.lda.loss import PAPER_BANKS, WORST, at_most
from sojourn.papers.lda.trials import (
    INTERVAL_NS,
    LAWS,
    Crossing,
    Plan,
    Trials,
    crossings,
    lda_cells,
    mean_of,
    plan_of,
    probe_queue,
    probe_trace,
    try_lda,
    tuned_banks,
)
from sojourn.papers.reproduction import Claim, Figure, Line, Outcome, Scale

HERTZ = (1, 7, 144, 10_000)
LOSSES = (0.0001, 0.001, 0.0016, 0.005, 0.01, 0.02, 0.05, 0.1)
LITTLE = tuple(loss for loss in LOSSES if loss <= 0.01)
BURST = 100.0
LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
DISCIPLINES = {"RED": Red(), "drop-tail": None}
LDA = "LDA"
Kind = Literal["literal", "joint", "baseline"]
_claim = partial(Claim, "probing")


def _hertz(rate: int) -> str:
    return f"{rate} Hz"


def try_probing(plan: Plan, losses: Sequence[float] = LOSSES) -> Trials:
    """Trials of LDA and of probes on the same traces, by name and loss rate."""
    law = next(law for law in LAWS if law.name == WORST)
    shares = tuned_banks(plan.packets, PAPER_BANKS["two banks"])
    trials: Trials = {(name, loss): [] for name in (LDA, *map(_hertz, HERTZ)) for loss in losses}
    for number, loss, crossing in crossings(plan, law, losses, burst=BURST):
        random = np.random.default_rng((number, round(loss * 1e6)))
        for salt in range(plan.salts):
            trials[LDA, loss].append(try_lda(crossing, lda_cells(shares, salt=number * plan.salts + salt)))
            for rate in HERTZ:
                trials[_hertz(rate), loss].append(probe_trace(random, crossing, rate))
    return trials


def active_probing(scale: Scale) -> Outcome:
    """Fig. 6, with losses in bursts of 100 packets."""
    trials = try_probing(plan_of(scale))
    claims = [*_mean_claims(trials), *_deviation_claims(trials), *_largest_claims(trials), *_bound_claims(trials)]
    figures = [
        _figure("fig6a-sample-size", "effective sample, packets", trials, "samples", 1),
        _figure("fig6b-mean-error", "mean error, %", trials, "mean_error", 100),
        _figure("fig6c-deviation-error", "deviation error, %", trials, "published_error", 100),
    ]
    return Outcome(claims, figures)


def _worst(trials: Trials, name: str, figure: str, points: Sequence[float]) -> float:
    """The largest mean error over loss rates (or loads), in per cent."""
    return max(100 * mean_of(trials[name, point], figure) for point in points)


def _mean_claims(trials: Trials) -> list[Claim]:
    little, much = (_worst(trials, LDA, "mean_error", losses) for losses in (LITTLE, LOSSES))
    ratios = [mean_of(trials["144 Hz", x], "mean_error") / mean_of(trials[LDA, x], "mean_error") for x in LITTLE]
    least = min(ratios)
    factor = float(np.median(ratios)) ** 2  # errors fall with the root of the number of probes
    probes = _worst(trials, "144 Hz", "mean_error", LITTLE)
    rows = (
        ("%", "mean error up to 1 % loss; baseline: 144 Hz", 1.0, little, probes, at_most(little, 1.0)),
        ("%", "mean error up to 10 % loss", 4.0, much, None, at_most(much, 4.0)),
        ("ratio", "error at 144 Hz over LDA's, least up to 1 % loss", 10.0, least, None, least >= 10),
        ("ratio", "bandwidth of probes as good as LDA, up to 1 % loss", 55.0, factor, None, factor >= 50),
    )
    claims = [
        _claim(unit, quantity, value, value, baseline, paper=paper, reproduced=near)
        for unit, quantity, paper, value, baseline, near in rows
    ]
    for rate, paper in ((7, 100.0), (144, 11.0)):
        baseline = _worst(trials, _hertz(rate), "mean_error", LITTLE)
        close = at_most(baseline, paper) and at_most(paper, baseline)
        quantity = f"mean error of probes at {rate} Hz, up to 1 % loss"
        claims.append(_claim("%", quantity, baseline=baseline, paper=paper, reproduced=close))
    return claims


def _deviation_errors(trials: Trials, points: Sequence[float]) -> list[float]:
    """LDA as published, centred, and probes at 144 Hz."""
    of = ((LDA, "published_error"), (LDA, "centred_error"), ("144 Hz", "centred_error"))
    return [_worst(trials, name, figure, points) for name, figure in of]


def _deviation_claims(trials: Trials) -> list[Claim]:
    errors = _deviation_errors(trials, [loss for loss in LOSSES if loss <= 0.05])
    what, near = "deviation error up to 5 % loss; baseline: 144 Hz", at_most(errors[0], 9.0)
    return [_claim("%", what, *errors, paper=9.0, reproduced=near)]


def _largest_claims(trials: Trials) -> list[Claim]:
    """The worst of ten trials at 0.16 % loss, as in the paper; here its mean over all tens."""
    claims = []
    for name, paper in ((LDA, 0.17), ("7 Hz", 87.0), ("144 Hz", 13.0), ("10000 Hz", 0.15)):
        errors = [trial.mean_error for trial in trials[name, 0.0016]]
        largest = 100 * float(np.mean([max(errors[i : i + 10]) for i in range(0, len(errors), 10)]))
        values = (largest, largest, None) if name == LDA else (None, None, largest)
        quantity, near = f"largest of ten mean errors at 0.16 % loss, {name}", at_most(largest, paper)
        claims.append(_claim("%", quantity, *values, paper=paper, reproduced=near))
    return claims


def _bound_claims(trials: Trials) -> list[Claim]:
    """Half-widths of Eq. 1's 98 % interval, the widest of all trials."""
    claims = []
    for loss, paper in ((0.001, 25.0), (0.1, 100.0)):
        widest = 100 * max(trial.bound for trial in trials[LDA, loss])
        quantity = f"widest 98 % bound of Eq. 1 at {100 * loss:g} % loss"
        claims.append(_claim("%", quantity, widest, paper=paper, reproduced=widest <= paper))
    return claims


def _lines(trials: Trials, points: Sequence[float], x: Sequence[float], figure: str, factor: float) -> list[Line]:
    """LDA as published, our deviation where that is drawn, and the probes."""

    def line(label: str, name: str, field: str, kind: Kind) -> Line:
        return Line(label, x, [factor * mean_of(trials[name, point], field) for point in points], kind)

    lines = [line(LDA, LDA, figure, "literal")]
    if figure == "published_error":
        lines.append(line("LDA, centred", LDA, "centred_error", "joint"))
    return lines + [line(f"probes, {_hertz(rate)}", _hertz(rate), figure, "baseline") for rate in HERTZ]


def _figure(name: str, y_label: str, trials: Trials, figure: str, factor: float) -> Figure:
    lines = _lines(trials, LOSSES, [100 * loss for loss in LOSSES], figure, factor)
    panels = {f"{WORST}, losses in bursts": lines}
    return Figure(name, "packets lost, %", y_label, panels, log="xy")


def try_queue(plan: Plan, red: Red | None, loads: Sequence[float] = LOADS) -> Trials:
    """Trials of LDA and of probes in a queue, by name and load."""
    shares = tuned_banks(plan.packets, PAPER_BANKS["two banks"])
    trials: Trials = {(name, load): [] for name in (LDA, *map(_hertz, HERTZ)) for load in loads}
    for number in range(plan.traces):
        for load in loads:
            made = make_queue_traffic(seed=number, packets=plan.packets, load=load, red=red, duration_ns=INTERVAL_NS)
            crossing = Crossing(made.sender, made.receiver, made.delay_ns, made.delivered)
            random = np.random.default_rng((number, round(load * 100)))
            service_ns = round(load * INTERVAL_NS / plan.packets)
            for salt in range(plan.salts):
                trials[LDA, load].append(try_lda(crossing, lda_cells(shares, salt=number * plan.salts + salt)))
                for rate in HERTZ:
                    trials[_hertz(rate), load].append(probe_queue(random, crossing, rate, service_ns=service_ns))
    return trials


def router_queue(scale: Scale) -> Outcome:
    """Correlated delays, and losses that follow them: the queue of a router at rising load (not in the paper)."""
    plan = plan_of(scale)
    plan = replace(plan, packets=plan.packets * 3 // 10, salts=10)
    found = {name: try_queue(plan, red) for name, red in DISCIPLINES.items()}
    claims = [claim for name, trials in found.items() for claim in _queue_claims(name, trials)]
    panels = {name: _lines(trials, LOADS, LOADS, "mean_error", 100) for name, trials in found.items()}
    figure = Figure("queue-mean-error", "load", "mean error, %", panels, log="y")
    return Outcome(claims, [figure])


def _queue_claims(name: str, trials: Trials) -> list[Claim]:
    """Probes see the time's average of the queue, and packets, which come in trains, a longer one."""
    mean, probes = (_worst(trials, who, "mean_error", LOADS) for who in (LDA, "144 Hz"))
    bias = 100 * max(abs(mean_of(trials["10000 Hz", load], "value") - 1) for load in LOADS)
    claim = partial(Claim, f"queue, {name}", "%")
    return [
        claim("mean error, worst load; baseline: 144 Hz", mean, mean, probes),
        claim("deviation error, worst load; baseline: 144 Hz", *_deviation_errors(trials, LOADS)),
        claim("bias of the mean at 10 000 Hz, worst load", baseline=bias),
    ]
