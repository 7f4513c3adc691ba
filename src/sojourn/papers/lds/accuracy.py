"""LDS paper, §3 and §5.1: collisions, accuracy by flow size and memory, the comparison with interpolating methods."""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray
from sojourn.core.hash_kernels import bucket_matrix, salt_table
from sojourn.lab.traffic import draw_flow_sizes
from sojourn.papers.baselines import grand_mean, multi_point, reference_interpolation
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.lds.worlds import (
    ROWS,
    SIZE_CLASSES,
    Errors,
    Methods,
    flows_of,
    law_worlds,
    make_queue_traffic,
    median_percent,
    pool,
)
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.lds import LdsParameters

__all__ = [
    "accuracy_by_flow_size",
    "accuracy_by_memory",
    "collisions",
    "comparison_with_interpolation",
    "exact_decoding",
]

LAWS = ("per-flow", "bimodal", "weibull")
# Median errors that §5.1 states for 70 000 counters, in per cent.
PUBLISHED = {"500–999": 1.2, "1000–4999": 0.4, "≥ 5000": 0.06}
CLOSE = 2.0
SMALL_COLLISION = 50
METHODS: Methods = {"literal": lambda t: t.literal().mean_ns, "joint": lambda t: t.joint.mean_ns}
ALL_METHODS: Methods = {**METHODS, "mean": lambda t: grand_mean(t.traffic)}


def _columns(flows: int, flows_per_cell: float) -> int:
    return round(flows / flows_per_cell / ROWS)


def collisions(scale: Scale) -> Outcome:
    """§3.1: the share of flows with at most 50 packets of strangers in their cell, one row and the best of four."""
    flows = flows_of(scale)
    random = np.random.default_rng(100)
    size = draw_flow_sizes(random, flows)
    flow_id = random.integers(0, 2**64, flows, dtype=np.uint64)
    claims = []
    for rows, paper in ((1, 91.0), (ROWS, 98.5)):
        columns = flows // 2 // rows
        cells = bucket_matrix(flow_id, salt_table(rows, 0), np.uint64(columns))
        held = np.array([np.bincount(cells[:, row], size, columns) for row in range(rows)])
        strangers = held[np.arange(rows), cells].min(axis=1) - size
        share = float(100 * np.mean(strangers <= SMALL_COLLISION))
        claims.append(
            Claim(
                experiment="collisions (§3.1)",
                quantity=f"flows with a small collision, {rows} row{'s' * (rows > 1)}, flows/cells 2",
                unit="%",
                paper=paper,
                literal=share,
                reproduced=share >= paper - 2,
            )
        )
    return Outcome(claims)


def accuracy_by_flow_size(scale: Scale) -> Outcome:
    """§5.1, Fig. 10: median error by size, flows/cells = 2, no loss; three laws of delays, several worlds each."""
    flows = flows_of(scale)
    seeds = range(200, 203) if scale is Scale.SMALL else range(200, 201)
    claims, panels = [], {}
    for law in LAWS:
        errors = pool(
            law_worlds(law, flows, seeds),
            lambda salt: LdsParameters(rows=ROWS, columns=_columns(flows, 2), salt=salt),
            ALL_METHODS,
        )
        claims += _class_claims(errors, f"accuracy by size (Fig. 10), {law}")
        panels[law] = _class_lines(errors)
    return Outcome(claims, [_size_figure("accuracy_by_size", panels)])


def _class_claims(errors: Errors, experiment: str) -> list[Claim]:
    claims, worse = [], 0
    for name, own in errors.classes().items():
        literal, joint, mean = (median_percent(errors.of(method, own)) for method in ALL_METHODS)
        worse += joint > literal
        paper = PUBLISHED.get(name)
        claims.append(
            Claim(
                experiment=experiment,
                quantity=f"median error, {name} packets ({own.sum()} flows)",
                unit="%",
                paper=paper,
                literal=literal,
                joint=joint,
                baseline=mean,
                reproduced=None if paper is None else literal <= CLOSE * paper,
            )
        )
    claims.append(
        Claim(experiment=experiment, quantity="size classes where joint's median is worse", unit="", joint=float(worse))
    )
    return claims


def _class_lines(errors: Errors) -> list[Line]:
    classes = errors.classes()
    x = [float(SIZE_CLASSES[name][0]) for name in classes]
    lines = []
    for method, kind in (("literal", "literal"), ("joint", "joint"), ("mean", "baseline")):
        y = [max(median_percent(errors.of(method, own)), 1e-4) for own in classes.values()]
        lines.append(Line("mean of all" if method == "mean" else method, x, y, kind))  # type: ignore[arg-type]
    return lines


def _size_figure(name: str, panels: dict[str, list[Line]]) -> Figure:
    paper = Line("paper", [500, 1000, 5000], list(PUBLISHED.values()), "paper")
    return Figure(
        name=name,
        x_label="packets of the flow (least of its class)",
        y_label="median relative error (%)",
        panels={title: [*lines, paper] for title, lines in panels.items()},
        log_x=True,
        log_y=True,
    )


def exact_decoding(scale: Scale) -> Outcome:
    """1.5 cells per flow: joint decoding, counts decoded too, over all flows."""
    flows = flows_of(scale)
    claims = []
    for law in LAWS:
        errors = pool(
            law_worlds(law, flows, [210]),
            lambda salt: LdsParameters(rows=ROWS, columns=_columns(flows, 1 / 1.5), salt=salt),
            METHODS,
        )
        literal, joint = (100 * float(np.nanquantile(errors.of(method), 0.95)) for method in METHODS)
        quantity = "95th percentile of the error, all flows"
        claims.append(
            Claim(experiment=f"1.5 cells per flow, {law}", quantity=quantity, unit="%", literal=literal, joint=joint)
        )
    return Outcome(claims)


def accuracy_by_memory(scale: Scale) -> Outcome:
    """§5.1, Fig. 9 and 10: a tenth and ten times the cells; more memory must help, and a tenth still beat the mean."""
    flows = flows_of(scale)
    claims, x = [], []
    literal_y: list[float] = []
    joint_y: list[float] = []
    for cells_per_flow in (0.05, 0.15, 0.5, 1.5, 5.0):
        errors = pool(
            law_worlds("per-flow", flows, [220]),
            lambda salt, c=cells_per_flow: LdsParameters(rows=ROWS, columns=_columns(flows, 1 / c), salt=salt),  # type: ignore[misc]
            ALL_METHODS,
        )
        large = errors.sent >= 1000
        literal, joint, mean = (median_percent(errors.of(method, large)) for method in ALL_METHODS)
        x.append(cells_per_flow)
        literal_y.append(literal)
        joint_y.append(max(joint, 1e-4))
        claims.append(
            Claim(
                experiment="accuracy by memory (Fig. 9)",
                quantity=f"median error, ≥ 1000 packets, {cells_per_flow} cells per flow",
                unit="%",
                literal=literal,
                joint=joint,
                baseline=mean,
                reproduced=literal < mean,
            )
        )
    lines = [Line("literal", x, literal_y, "literal"), Line("joint", x, joint_y, "joint")]
    figure = Figure(
        name="accuracy_by_memory",
        x_label="cells per flow",
        y_label="median relative error (%)",
        panels={"per-flow, ≥ 1000 packets": lines},
        log_x=True,
        log_y=True,
    )
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
        claims.append(
            Claim(
                experiment=f"against MPE 10 % (Fig. 9), {world}",
                quantity="flows of which MPE has no packet (paper: more than)",
                unit="%",
                paper=50.0,
                baseline=missed,
                reproduced=missed > 50,
            )
        )
        errors = pool(
            [lambda t=traffic: t],  # type: ignore[misc]
            lambda salt: LdsParameters(rows=ROWS, columns=_columns(flows, 2), salt=salt),
            {**METHODS, **RIVALS},
        )
        for label, chosen in (
            ("> 1000 packets", errors.sent > 1000),
            ("> 100 packets", errors.sent > 100),
            ("all", None),
        ):
            literal, joint = (median_percent(errors.of(method, chosen)) for method in METHODS)
            for rival in RIVALS:
                other = median_percent(errors.of(rival, chosen))
                claims.append(
                    Claim(
                        experiment=f"against {rival} (Fig. 9), {world}",
                        quantity=f"median error, {label}",
                        unit="%",
                        literal=literal,
                        joint=joint,
                        baseline=other,
                        reproduced=literal < other if queues > 1 else None,
                    )
                )
        panels[f"{world}, > 1000 packets"] = _distribution_lines(errors, errors.sent > 1000)
    figure = Figure(
        name="comparison",
        x_label="relative error (%)",
        y_label="share of flows",
        panels=panels,
        log_x=True,
    )
    return Outcome(claims, [figure])


def _distribution_lines(errors: Errors, chosen: BoolArray) -> list[Line]:
    lines = []
    for method in errors.by_method:
        sorted_errors: FloatArray = np.sort(np.maximum(100 * errors.of(method, chosen), 1e-4))
        y = (np.arange(len(sorted_errors)) + 1) / len(sorted_errors)
        kind = method if method in METHODS else "baseline"
        lines.append(Line(method, sorted_errors.tolist(), y.tolist(), kind))  # type: ignore[arg-type]
    return lines
