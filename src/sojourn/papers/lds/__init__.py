"""The experiments of "Sketching the Delay" (LDS), on worlds with the statistics of its trace.

The trace is not public; what is compared is the paper's words and figures with the same structure on traffic of the
same sizes. `lds.worlds` says what is assumed of delays; an error's size depends on that more than on anything else, so
each claim names its world.

The oracles of the loss experiment know which packets are whose and which cells can be used (those that lost no packet
of any flow); strangers do not disturb them, and what they are off by is what unusable cells took away:

- the **cell oracle** sees what the flow alone would have put into its usable cells: its mean is over the flow's own
  packets, each counted once for every row that has it in a usable cell. Cells cannot tell much more;
- the **packet oracle** counts each of those packets once, although cells do not show which packets of two rows
  are the same.

Sanjuàs-Cuxart, Duffield, Barlet-Ros and Kompella, "Sketching the Delay: Tracking Temporally Uncorrelated Flow-Level
Latencies" (2011).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.heavy_hitters import find_heavy_hitters
from sojourn.estimation.published.lds import estimate_lds_deviation, estimate_losses, estimate_sizes
from sojourn.lab.traffic import draw_flow_sizes, make_traffic
from sojourn.papers.lds.worlds import (
    FLOWS,
    ROWS,
    SIZE_CLASSES,
    Errors,
    Methods,
    Trial,
    count_min,
    grand_mean,
    law_worlds,
    make_queue_traffic,
    median_percent,
    multi_point,
    pool,
    reference_interpolation,
    run,
)
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.lds import LdsParameters, packet_cells
from sojourn.sketches.weights import FlowWeights

LAWS = ("per-flow", "bimodal", "weibull")
# Median errors that §5.1 states for 70 000 counters, in per cent.
PUBLISHED = {"500–999": 1.2, "1000–4999": 0.4, "≥ 5000": 0.06}
CLOSE = 2.0
SMALL_COLLISION = 50
METHODS: Methods = {"literal": lambda t: t.literal().mean_ns, "joint": lambda t: t.joint.mean_ns}
ALL_METHODS: Methods = {**METHODS, "mean": lambda t: grand_mean(t.traffic)}
METHOD_KINDS: dict[str, Kind] = {"literal": "literal", "joint": "joint", "mean": "baseline"}


def _parameters(flows: int, flows_per_cell: float) -> Callable[[int], LdsParameters]:
    """The sketch of each salt for so many flows."""
    columns = round(flows / flows_per_cell / ROWS)
    return lambda salt: LdsParameters(rows=ROWS, columns=columns, salt=salt)


def collisions(scale: Scale) -> Outcome:
    """§3.1: the share of flows with at most 50 packets of strangers in their cell, one row and the best of four."""
    flows = FLOWS[scale]
    random = np.random.default_rng(100)
    size = draw_flow_sizes(random, flows)
    flow_id = random.integers(0, 2**64, flows, dtype=np.uint64)
    claims = []
    for rows, paper in ((1, 91.0), (ROWS, 98.5)):
        found = count_min(flow_id, size, rows=rows, columns=flows // 2 // rows)
        share = float(100 * np.mean(found - size <= SMALL_COLLISION))
        what = f"flows with a small collision, {rows} row{'s' * (rows > 1)}, flows/cells 2"
        claims.append(Claim("collisions (§3.1)", "%", what, share, paper=paper, reproduced=share >= paper - 2))
    return Outcome(claims)


def accuracy_by_flow_size(scale: Scale) -> Outcome:
    """§5.1, Fig. 10: median error by size, flows/cells = 2, no loss; three laws of delays, several worlds each."""
    flows = FLOWS[scale]
    seeds = range(200, 203) if scale is Scale.SMALL else range(200, 201)
    claims, panels = [], {}
    for law in LAWS:
        errors = pool(law_worlds(law, flows, seeds), _parameters(flows, 2), ALL_METHODS)
        claims += _class_claims(errors, f"accuracy by size (Fig. 10), {law}")
        panels[law] = _class_lines(errors)
    labels = "packets of the flow (least of its class)", "median relative error (%)"
    return Outcome(claims, [Figure("accuracy_by_size", *labels, panels, log="xy")])


def _class_claims(errors: Errors, experiment: str) -> list[Claim]:
    claims, worse = [], 0
    for name, own in errors.classes().items():
        medians = [median_percent(errors.of(method, own)) for method in ALL_METHODS]
        worse += medians[1] > medians[0]
        paper = PUBLISHED.get(name)
        near = None if paper is None else medians[0] <= CLOSE * paper
        what = f"median error, {name} packets ({own.sum()} flows)"
        claims.append(Claim(experiment, "%", what, *medians, paper=paper, reproduced=near))
    return [*claims, Claim(experiment, "", "size classes where joint's median is worse", joint=float(worse))]


def _class_lines(errors: Errors) -> list[Line]:
    classes = errors.classes()
    x = [float(SIZE_CLASSES[name][0]) for name in classes]
    lines = []
    for method, kind in METHOD_KINDS.items():
        y = [max(median_percent(errors.of(method, own)), 1e-4) for own in classes.values()]
        lines.append(Line("mean of all" if method == "mean" else method, x, y, kind))
    return [*lines, Line("paper", [500, 1000, 5000], list(PUBLISHED.values()), "paper")]


def exact_decoding(scale: Scale) -> Outcome:
    """1.5 cells per flow: joint decoding, counts decoded too, over all flows."""
    flows = FLOWS[scale]
    claims = []
    for law in LAWS:
        errors = pool(law_worlds(law, flows, [210]), _parameters(flows, 1 / 1.5), METHODS)
        worst = (100 * float(np.nanquantile(errors.of(method), 0.95)) for method in METHODS)
        claims.append(Claim(f"1.5 cells per flow, {law}", "%", "95th percentile of the error, all flows", *worst))
    return Outcome(claims)


def accuracy_by_memory(scale: Scale) -> Outcome:
    """§5.1, Fig. 9 and 10: a tenth and ten times the cells; more memory must help, and a tenth still beat the mean."""
    flows, cells_per_flow = FLOWS[scale], (0.05, 0.15, 0.5, 1.5, 5.0)
    claims, found = [], []
    for cells in cells_per_flow:
        errors = pool(law_worlds("per-flow", flows, [220]), _parameters(flows, 1 / cells), ALL_METHODS)
        large = errors.sent >= 1000
        literal, joint, mean = (median_percent(errors.of(method, large)) for method in ALL_METHODS)
        found.append((literal, max(joint, 1e-4)))
        what, title = f"median error, ≥ 1000 packets, {cells} cells per flow", "accuracy by memory (Fig. 9)"
        claims.append(Claim(title, "%", what, literal, joint, mean, reproduced=literal < mean))
    y = list(zip(*found, strict=True))
    lines = [Line("literal", cells_per_flow, y[0], "literal"), Line("joint", cells_per_flow, y[1], "joint")]
    panels = {"per-flow, ≥ 1000 packets": lines}
    figure = Figure("accuracy_by_memory", "cells per flow", "median relative error (%)", panels, log="xy")
    return Outcome(claims, [figure])


RIVALS: Methods = {
    "RLI 1 kHz": lambda t: reference_interpolation(t.traffic, rate_hz=1_000),
    "RLI 10 kHz": lambda t: reference_interpolation(t.traffic, rate_hz=10_000),
    "MPE 1 %": lambda t: multi_point(t.traffic, share=0.01),
    "MPE 10 %": lambda t: multi_point(t.traffic, share=0.1),
    "mean of all": lambda t: grand_mean(t.traffic),
}


def comparison_with_interpolation(scale: Scale) -> Outcome:
    """§5.1, Fig. 9: LDS beside RLI and MPE, where delays are correlated in time, and where flows differ."""
    flows = FLOWS[scale]
    claims, panels = [], {}
    for queues, world in ((1, "one queue"), (2, "two queues")):
        traffic = make_queue_traffic(seed=230 + queues, flows=flows, queues=queues)
        missed = float(100 * np.mean(multi_point(traffic, share=0.1) == grand_mean(traffic)))
        title, what = f"against MPE 10 % (Fig. 9), {world}", "flows of which MPE has no packet (paper: more than)"
        claims.append(Claim(title, "%", what, baseline=missed, paper=50.0, reproduced=missed > 50))
        errors = pool([lambda t=traffic: t], _parameters(flows, 2), {**METHODS, **RIVALS})  # type: ignore[misc]
        large = errors.sent > 1000
        for label, chosen in (("> 1000 packets", large), ("> 100 packets", errors.sent > 100), ("all", None)):
            literal, joint = (median_percent(errors.of(method, chosen)) for method in METHODS)
            for rival in RIVALS:
                other = median_percent(errors.of(rival, chosen))
                title, better = f"against {rival} (Fig. 9), {world}", literal < other if queues > 1 else None
                claims.append(Claim(title, "%", f"median error, {label}", literal, joint, other, reproduced=better))
        panels[f"{world}, > 1000 packets"] = _distribution_lines(errors, large)
    return Outcome(claims, [Figure("comparison", "relative error (%)", "share of flows", panels, log="x")])


def _distribution_lines(errors: Errors, chosen: BoolArray) -> list[Line]:
    lines = []
    for method in errors.by_method:
        sorted_errors: FloatArray = np.sort(np.maximum(100 * errors.of(method, chosen), 1e-4))
        y = (np.arange(len(sorted_errors)) + 1) / len(sorted_errors)
        lines.append(Line(method, sorted_errors.tolist(), y.tolist(), METHOD_KINDS.get(method, "baseline")))
    return lines


ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
NEAR_BEST = 1.15
SPREAD = 5
MULTI_BANK = (1.0, 0.5, 0.1, 0.01)
NEARLY_ALL = 98.0
LOSSES = (0.001, 0.005, 0.01)
CLASS_SHARES = (0.9, 0.09, 0.01)
CLASSES = ("bronze", "silver", "gold")
CLASS_WEIGHTS = ((1, 25, 100), (1, 10, 100), (1, 50, 2500))
# Counters of Fig. 12, for the paper's 146 000 flows.
PAPER_FLOWS, COUNTERS = 146_000, (40_000, 100_000)


def _spread_parameters(flows: int, shares: tuple[float, ...], *, salt: int) -> LdsParameters:
    """§5.2's shape: as many columns as for flows/cells = 2, times k."""
    return LdsParameters(rows=ROWS, columns=SPREAD * flows // (2 * ROWS), spread=SPREAD, shares=shares, salt=salt)


def tolerance(scale: Scale) -> Outcome:
    """§2.3.4: α = 0.1 was found a good choice; the error of other values beside it."""
    flows = FLOWS[scale]
    trial = run(make_traffic(seed=300, flows=flows, loss=0.001), _spread_parameters(flows, (1.0,), salt=0))
    medium = trial.sent >= 100
    medians = [median_percent(trial.errors(trial.literal(alpha=alpha).mean_ns)[medium]) for alpha in ALPHAS]
    best, claims = min(medians), []
    for alpha, median in zip(ALPHAS, medians, strict=True):
        near = median <= NEAR_BEST * best if alpha == 0.1 else None
        what = f"median error, ≥ 100 packets, α = {alpha}"
        claims.append(Claim("tolerance α (§2.3.4)", "%", what, median, baseline=best, reproduced=near))
    panels = {"0.1 % loss, k = 5, ≥ 100 packets": [Line("literal", list(ALPHAS), medians, "literal")]}
    return Outcome(claims, [Figure("tolerance", "α", "median relative error (%)", panels)])


def oracle_means(trial: Trial, *, once: bool) -> FloatArray:
    """Each flow's mean over its own packets in usable cells, counted once or once per cell; NaN without any."""
    traffic = trial.traffic
    usable = cell_difference(trial.sender, trial.receiver).usable
    cells = packet_cells(trial.sender.parameters, traffic.sender)
    heard = ((cells >= 0) & usable[cells]).sum(axis=1)
    times = np.where(traffic.delivered, np.minimum(heard, 1) if once else heard, 0)
    flows = len(trial.sent)
    with np.errstate(invalid="ignore"):
        means: FloatArray = np.bincount(traffic.flow, times * traffic.delay_ns, flows) / np.bincount(
            traffic.flow, times, flows
        )
    return means


BANKS = {"all rows 5 %": (0.05,), "all rows 100 %": (1.0,), "multi-bank": MULTI_BANK}
LOSS_METHODS: Methods = {
    "published": lambda t: t.literal().mean_ns,
    "guarded": lambda t: t.literal(score="guarded").mean_ns,
}
ORACLES: Methods = {
    "joint": lambda t: t.joint.mean_ns,
    "cell oracle": lambda t: oracle_means(t, once=False),
    "packet oracle": lambda t: oracle_means(t, once=True),
}


def multi_bank_under_loss(scale: Scale) -> Outcome:
    """§5.2, Fig. 11: rows that sample 1, ½, 0.1 and 0.01 beside all rows at 5 % and at 100 %, under uniform loss."""
    flows = FLOWS[scale]
    claims: list[Claim] = []
    curves: dict[str, list[float]] = {}
    for loss in LOSSES:
        seeds = [310 + round(1000 * loss), 320 + round(1000 * loss)][: 2 if scale is Scale.SMALL else 1]
        errors = {
            name: pool(
                law_worlds("per-flow", flows, seeds, loss=loss),
                lambda salt, p=shares: _spread_parameters(flows, p, salt=salt),  # type: ignore[misc]
                LOSS_METHODS | (ORACLES if name == "multi-bank" else {}),
            )
            for name, shares in BANKS.items()
        }
        claims += _loss_claims(errors, f"{loss:.1%} loss (Fig. 11)")
        claims += _oracle_claims(errors["multi-bank"], f"multi-bank and oracles, {loss:.1%} loss", curves)
    x = [100 * loss for loss in LOSSES]
    kinds = {"joint": "joint", "published": "literal", "guarded": "literal"}
    lines = [Line(name, x, y, kinds.get(name, "baseline")) for name, y in curves.items()]  # type: ignore[arg-type]
    figure = Figure(
        "multi_bank", "loss (%)", "median relative error (%)", {"multi-bank, ≥ 1000 packets": lines}, log="y"
    )
    return Outcome(claims, [figure])


def _loss_claims(banks: dict[str, Errors], experiment: str) -> list[Claim]:
    """How many large flows have an answer, and its error by the published rule and the guarded one.

    The paper finds that rows with different shares answer nearly always, and better than all rows at 5 %.
    """
    claims = []
    medians: dict[str, float] = {}
    for name, errors in banks.items():
        published, guarded = (errors.of(method, errors.sent >= 1000) for method in LOSS_METHODS)
        answered = float(100 * np.mean(~np.isnan(published)))
        medians[name] = median_percent(published)
        often = better = None
        if name == "multi-bank":
            often, better = answered >= NEARLY_ALL, medians[name] < medians["all rows 5 %"]
        claim = partial(Claim, f"{name}, {experiment}", "%")
        what = "median error, ≥ 1000 packets (baseline: guarded choice of cells)"
        claims += [
            claim("flows ≥ 1000 packets with an answer", answered, reproduced=often),
            claim(what, medians[name], baseline=median_percent(guarded), reproduced=better),
        ]
    return claims


def _oracle_claims(errors: Errors, experiment: str, curves: dict[str, list[float]]) -> list[Claim]:
    """Our decoder beside the oracles, on flows that all of them answer."""
    claims = []
    known = ~np.any([np.isnan(column) for column in errors.by_method.values()], axis=0)
    for label, chosen in (("> 100 packets", errors.sent > 100), ("≥ 1000 packets", errors.sent >= 1000)):
        medians = {method: median_percent(errors.of(method, chosen & known)) for method in errors.by_method}
        for oracle in ("cell oracle", "packet oracle"):
            quantity = f"median error, {label} (baseline: {oracle})"
            values = medians["published"], medians["joint"], medians[oracle]
            claims.append(Claim(experiment, "%", quantity, *values))
            if values[2] > 0:
                quantity = f"median error over that of the {oracle}, {label}"
                claims.append(Claim(experiment, "×", quantity, *(value / values[2] for value in values)))
    for name, median in medians.items():
        curves.setdefault(name, []).append(median)
    return claims


def flow_weights(scale: Scale) -> Outcome:
    """§5.3, Fig. 12: three classes of flows by chance, with weights, in two sizes of the sketch."""
    flows = FLOWS[scale]
    traffic = make_traffic(seed=330, flows=flows)
    group = np.random.default_rng(331).choice(len(CLASSES), flows, p=CLASS_SHARES)
    claims = []
    for counters in COUNTERS:
        columns = counters * flows // PAPER_FLOWS // ROWS
        parameters = LdsParameters(rows=ROWS, columns=columns, count_bits=32, sum_bits=64)
        plain = run(traffic, parameters)
        without = plain.errors(plain.literal().mean_ns)
        for weights in CLASS_WEIGHTS:
            of_flow = dict(zip(traffic.truth.flow_id.tolist(), np.array(weights)[group].tolist(), strict=True))
            trial = run(traffic, parameters, weights=FlowWeights(of_flow))
            claims += _weight_claims(trial, group, without, f"{counters:,} counters, weights {weights} (Fig. 12)")
    return Outcome(claims)


def _weight_claims(trial: Trial, group: Int64Array, without: FloatArray, experiment: str) -> list[Claim]:
    literal, joint = trial.errors(trial.literal().mean_ns), trial.errors(trial.joint.mean_ns)
    claims = []
    for number, name in enumerate(CLASSES):
        medians = [median_percent(errors[group == number]) for errors in (literal, joint, without)]
        what, better = f"median error, {name}, all flows (baseline: no weights)", medians[0] < medians[2]
        claims.append(Claim(experiment, "%", what, *medians, reproduced=better if number else None))
    return claims


def sizes_losses_and_heavy_hitters(scale: Scale) -> Outcome:
    """§4.3: sizes never too small, losses, heavy hitters; flows/cells = 2, 0.5 % loss."""
    flows = FLOWS[scale]
    parameters = LdsParameters(rows=ROWS, columns=flows // (2 * ROWS), byte_bits=40)
    trial = run(make_traffic(seed=340, flows=flows, loss=0.005), parameters)
    truth = trial.traffic.truth
    sizes = estimate_sizes(trial.sender, truth.flow_id).value
    lost = estimate_losses(trial.sender, trial.receiver, truth.flow_id).value
    plain = count_min(truth.flow_id, truth.sent, rows=ROWS, columns=parameters.columns)
    large = truth.sent >= 1000
    heavy = find_heavy_hitters(trial.sender, truth.flow_id, 1000)
    name = "sizes and losses (§4.3)"
    below, missed = (
        float(100 * np.mean(marked)) for marked in (sizes < truth.sent, ~np.isin(truth.flow_id[large], heavy.flow_id))
    )
    off = [median_percent(np.abs(size / truth.sent - 1)[large]) for size in (sizes, trial.joint.packets, plain)]
    exact = [float(100 * np.mean((counted == truth.lost)[large])) for counted in (lost, np.rint(trial.joint.lost))]
    listed = f"flows listed as ≥ 1000 packets (true: {large.sum()}; joint: surely)"
    claims = [
        Claim(name, "%", "sizes below the truth", below, paper=0.0, reproduced=below <= 0),
        Claim(name, "%", "median error of the size, ≥ 1000 packets (baseline: count-min)", *off),
        Claim(name, "%", "flows ≥ 1000 packets whose loss is exact", *exact),
        Claim(name, "%", "flows ≥ 1000 packets missed", missed, paper=0.0, reproduced=missed <= 0),
        Claim(name, "flows", listed, float(len(heavy.flow_id)), float(heavy.surely.sum())),
    ]
    return Outcome(claims)


def deviations(scale: Scale) -> Outcome:
    """§4.3: deviations from a flow's cells are rough; the published estimator, the centred one and the joint one."""
    flows = FLOWS[scale]
    claims = []
    for law in ("weibull", "per-flow"):
        traffic = make_traffic(seed=350, flows=flows, delays=law)
        trial = run(traffic, _spread_parameters(flows, (1.0,), salt=0))
        truth = traffic.truth
        large = truth.sent >= 1000
        ends = trial.sender, trial.receiver, truth.flow_id[large]
        published, centred = (estimate_lds_deviation(*ends, method=m) for m in ("published", "centred"))
        stds = (published.std_ns, trial.joint.std_ns[large], centred.std_ns)
        medians = [median_percent(np.abs(std / truth.std_ns[large] - 1)) for std in stds]
        claim, answered = partial(Claim, f"deviations (§4.3), {law}", "%"), float(100 * published.answered.mean())
        claims += [
            claim("median error of the deviation, ≥ 1000 packets (baseline: centred)", *medians),
            claim("flows ≥ 1000 packets with a published deviation", answered),
        ]
    return Outcome(claims)


TITLE = "Sketching the Delay (SDS and LDS)"
EXPERIMENTS = (
    collisions,
    accuracy_by_flow_size,
    exact_decoding,
    accuracy_by_memory,
    comparison_with_interpolation,
    tolerance,
    multi_bank_under_loss,
    flow_weights,
    sizes_losses_and_heavy_hitters,
    deviations,
)
