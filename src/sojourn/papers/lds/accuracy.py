"""LDS paper, §3 and §5.1: collisions, accuracy by flow size and memory, the comparison with interpolating methods."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.lab.traffic import draw_flow_sizes
from sojourn.papers.lds.worlds import (
    ROWS,
    SIZE_CLASSES,
    Errors,
    Methods,
    count_min,
    flows_of,
    grand_mean,
    law_worlds,
    make_queue_traffic,
    median_percent,
    multi_point,
    pool,
    reference_interpolation,
)
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.lds import LdsParameters

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
    flows = flows_of(scale)
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
    flows = flows_of(scale)
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
    flows = flows_of(scale)
    claims = []
    for law in LAWS:
        errors = pool(law_worlds(law, flows, [210]), _parameters(flows, 1 / 1.5), METHODS)
        worst = (100 * float(np.nanquantile(errors.of(method), 0.95)) for method in METHODS)
        claims.append(Claim(f"1.5 cells per flow, {law}", "%", "95th percentile of the error, all flows", *worst))
    return Outcome(claims)


def accuracy_by_memory(scale: Scale) -> Outcome:
    """§5.1, Fig. 9 and 10: a tenth and ten times the cells; more memory must help, and a tenth still beat the mean."""
    flows, cells_per_flow = flows_of(scale), (0.05, 0.15, 0.5, 1.5, 5.0)
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
    flows = flows_of(scale)
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
