"""The LDA paper, run again: Kompella et al., "Router Support for Fine-Grained Latency Measurements", §III to V.

What LDA costs (hardware areas cannot be run); LDA against loss (§IV, Fig. 4 and 5): five delay laws, bursts of loss,
and banks for a loss rate that is not known; LDA against active probing (§IV-C, Fig. 6).

Fig. 4 has a bank of 1024 counters tuned to the loss rate. Fig. 5 does without knowing it: several banks in the same
1024 counters, tuned to different rates. Ours beside them, in the same counters: the paper's two banks and a "rest" bank
that takes every packet they leave (a first bank of share 1; banks are nested, so no other code is needed), the ladder
1, ½, ¼ … that `sojourn` uses by default, and one that falls by quarters.

Fig. 6 has the paper's bursts of loss; a router's queue is ours. The LDA is the paper's two banks of 512 counters, tuned
to 0.5 and 10 % loss. Probes leave as often as LDA reports (1 Hz), as many packets as LDA sends (7), as many bits (144),
and as many as come near its error (10 000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.lab.traffic import Red, make_queue_traffic
from sojourn.papers.lda.trials import (
    COUNTERS,
    INTERVAL_NS,
    LAWS,
    PAPER_LOAD,
    PROBE_BITS,
    Crossing,
    DelayLaw,
    Plan,
    Shares,
    Trial,
    Trials,
    crossings,
    lda_cells,
    make_trace,
    mean_of,
    plan_of,
    probe_queue,
    probe_trace,
    try_banks,
    try_lda,
    tuned_banks,
)
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.lda import Lda, LdaParameters, tuned_share

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


BANKS: dict[str, Shares] = {
    TUNED: lambda packets, loss: tuned_banks(packets, [loss]),
    **{name: _fixed(losses) for name, losses in PAPER_BANKS.items()},
    FOR_LITTLE: _fixed([0.001]),
    FOR_MUCH: _fixed([0.1]),
    # Three banks: the last two as the paper's two, with a third of the counters each.
    REST: lambda packets, _loss: [1.0, *tuned_banks(packets, [0.005, 0.1, 0.1])[:2]],
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


HERTZ = (1, 7, 144, 10_000)
PROBED_LOSSES = (0.0001, 0.001, 0.0016, 0.005, 0.01, 0.02, 0.05, 0.1)
LITTLE = tuple(loss for loss in PROBED_LOSSES if loss <= 0.01)
BURST = 100.0
LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
DISCIPLINES = {"RED": Red(), "drop-tail": None}
LDA = "LDA"
_probing_claim = partial(Claim, "probing")


def _hertz(rate: int) -> str:
    return f"{rate} Hz"


def try_probing(plan: Plan, losses: Sequence[float] = PROBED_LOSSES) -> Trials:
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
    claims = [
        *_probed_mean_claims(trials),
        *_probed_deviation_claims(trials),
        *_largest_claims(trials),
        *_probed_bound_claims(trials),
    ]
    figures = [
        _probing_figure("fig6a-sample-size", "effective sample, packets", trials, "samples", 1),
        _probing_figure("fig6b-mean-error", "mean error, %", trials, "mean_error", 100),
        _probing_figure("fig6c-deviation-error", "deviation error, %", trials, "published_error", 100),
    ]
    return Outcome(claims, figures)


def _worst(trials: Trials, name: str, figure: str, points: Sequence[float]) -> float:
    """The largest mean error over loss rates (or loads), in per cent."""
    return max(100 * mean_of(trials[name, point], figure) for point in points)


def _probed_mean_claims(trials: Trials) -> list[Claim]:
    little, much = (_worst(trials, LDA, "mean_error", losses) for losses in (LITTLE, PROBED_LOSSES))
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
        _probing_claim(unit, quantity, value, value, baseline, paper=paper, reproduced=near)
        for unit, quantity, paper, value, baseline, near in rows
    ]
    for rate, paper in ((7, 100.0), (144, 11.0)):
        baseline = _worst(trials, _hertz(rate), "mean_error", LITTLE)
        close = at_most(baseline, paper) and at_most(paper, baseline)
        quantity = f"mean error of probes at {rate} Hz, up to 1 % loss"
        claims.append(_probing_claim("%", quantity, baseline=baseline, paper=paper, reproduced=close))
    return claims


def _deviation_errors(trials: Trials, points: Sequence[float]) -> list[float]:
    """LDA as published, centred, and probes at 144 Hz."""
    of = ((LDA, "published_error"), (LDA, "centred_error"), ("144 Hz", "centred_error"))
    return [_worst(trials, name, figure, points) for name, figure in of]


def _probed_deviation_claims(trials: Trials) -> list[Claim]:
    errors = _deviation_errors(trials, [loss for loss in PROBED_LOSSES if loss <= 0.05])
    what, near = "deviation error up to 5 % loss; baseline: 144 Hz", at_most(errors[0], 9.0)
    return [_probing_claim("%", what, *errors, paper=9.0, reproduced=near)]


def _largest_claims(trials: Trials) -> list[Claim]:
    """The worst of ten trials at 0.16 % loss, as in the paper; here its mean over all tens."""
    claims = []
    for name, paper in ((LDA, 0.17), ("7 Hz", 87.0), ("144 Hz", 13.0), ("10000 Hz", 0.15)):
        errors = [trial.mean_error for trial in trials[name, 0.0016]]
        largest = 100 * float(np.mean([max(errors[i : i + 10]) for i in range(0, len(errors), 10)]))
        values = (largest, largest, None) if name == LDA else (None, None, largest)
        quantity, near = f"largest of ten mean errors at 0.16 % loss, {name}", at_most(largest, paper)
        claims.append(_probing_claim("%", quantity, *values, paper=paper, reproduced=near))
    return claims


def _probed_bound_claims(trials: Trials) -> list[Claim]:
    """Half-widths of Eq. 1's 98 % interval, the widest of all trials."""
    claims = []
    for loss, paper in ((0.001, 25.0), (0.1, 100.0)):
        widest = 100 * max(trial.bound for trial in trials[LDA, loss])
        quantity = f"widest 98 % bound of Eq. 1 at {100 * loss:g} % loss"
        claims.append(_probing_claim("%", quantity, widest, paper=paper, reproduced=widest <= paper))
    return claims


def _lines(trials: Trials, points: Sequence[float], x: Sequence[float], figure: str, factor: float) -> list[Line]:
    """LDA as published, our deviation where that is drawn, and the probes."""

    def line(label: str, name: str, field: str, kind: Kind) -> Line:
        return Line(label, x, [factor * mean_of(trials[name, point], field) for point in points], kind)

    lines = [line(LDA, LDA, figure, "literal")]
    if figure == "published_error":
        lines.append(line("LDA, centred", LDA, "centred_error", "joint"))
    return lines + [line(f"probes, {_hertz(rate)}", _hertz(rate), figure, "baseline") for rate in HERTZ]


def _probing_figure(name: str, y_label: str, trials: Trials, figure: str, factor: float) -> Figure:
    lines = _lines(trials, PROBED_LOSSES, [100 * loss for loss in PROBED_LOSSES], figure, factor)
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


TITLE = "LDA: Router Support for Fine-Grained Latency Measurements"
NOTES = """\
Errors are means of |estimate/truth − 1| over the trials of a point: 4 traces × 25 hash salts for the tuned bank, the
bursts and the probing, 4 × 10 elsewhere (the paper has 10 trials). No answer counts as an error of 100 %.

*Literal* is LDA as published, with the sampling α = ½ and Eq. 5; *joint* is our decoder on the same counters, whose
mean is the same, unless the row says otherwise. *Baseline* is active probing in probing and queue, and in banks one
bank tuned to 0.1 % loss. An error "at most" the paper's counts as reproduced up to a quarter above it. Rows without a
paper's figure are ours, but for the four banks, which the paper finds worst at high loss (a ratio below 1).

LDA measures a segment as a whole: the grand mean of all packets, which errors per flow would be compared with, is
LDA's own answer."""
PACKET_BYTES = 1500


def overhead(_scale: Scale) -> Outcome:
    """§IV-C and V: state, control packets of 1500 bytes, and the probes of 64 that the same bandwidth would carry."""
    literal = lda_cells([1.0])
    sender = Lda(literal)
    sender.record_batch(make_trace(0, LAWS[0], plan_of(Scale.SMALL).packets)[0])
    epoch_bits = 8 * len(encode(Epoch("node", "segment", 1, sender)))
    bits = (literal.memory_bits, LdaParameters(rows=COUNTERS).memory_bits)
    packets = [float(-(-one // (8 * PACKET_BYTES))) for one in bits]
    rows = (
        ("kibit", "state of 1024 counters; joint: with digests", 72.0, [one / 1024 for one in bits]),
        ("packets", "control packets per interval; joint: with digests", 7.0, packets),
        ("Hz", "probes in the same bandwidth", 144.0, [one / PROBE_BITS for one in bits]),
    )
    claims = [
        Claim("overhead", unit, what, *values, paper=paper, reproduced=round(values[0]) == paper)
        for unit, what, paper, values in rows
    ]
    wire = Claim("overhead", "kibit", "1024 counters as an epoch on the wire", joint=epoch_bits / 1024)
    return Outcome([*claims, wire])


EXPERIMENTS = (overhead, delays_and_loss_rates, bursts_of_loss, unknown_loss_rate, active_probing, router_queue)
