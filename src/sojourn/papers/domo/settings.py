"""What Domo's two settings do (§VI-C, Fig. 9 and 10): the effective window ratio, and the size of the graph cut.

Times are those of this process, so they differ from machine to machine; a first round that compiles is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import numpy as np

from sojourn.papers.claims import Claim
from sojourn.papers.domo.accuracy import is_near
from sojourn.papers.domo.worlds import NS_PER_MS, SEEDS, World, literal_bounds, simulate
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.tomography.baselines.published import PublishedOptions, published, published_bounds
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.delays.estimate import EstimateOptions, Estimates, estimate
from sojourn.tomography.windows import WindowOptions

__all__ = ["graph_cut", "window_ratio"]

NODES = 400
RATIOS = (0.3, 0.5, 0.7, 0.9)
USUAL_RATIO = 0.5
CUTS = {Scale.SMALL: (100, 500, 2_000, 5_000), Scale.PAPER: (100, 500, 2_000, 5_000, 10_000, 20_000)}
PAPER_MS_PER_DELAY, PAPER_MS_PER_BOUND = 15.0, 192.0
VISIBLE = 1.0  # percent
_EXACT = ConstraintOptions(sums=Sums.EXACT)

Solve = Callable[[World, WindowOptions], Estimates]


def window_ratio(scale: Scale) -> Outcome:
    """Fig. 9: error and time for a delay by the share of each window that is kept."""
    worlds = [simulate(NODES, seed) for seed in SEEDS[scale]]
    methods: dict[str, Solve] = {"literal": _solve_literal, "joint": _solve_joint}
    found = {name: [_solved(worlds, solve, ratio) for ratio in RATIOS] for name, solve in methods.items()}
    errors = {name: [error for error, _ms in rows] for name, rows in found.items()}
    costs = {name: [ms for _error, ms in rows] for name, rows in found.items()}
    usual, rises = RATIOS.index(USUAL_RATIO), {name: 100 * (row[-1] / row[0] - 1) for name, row in errors.items()}
    claims = [
        Claim(
            experiment="window ratio",
            quantity=f"mean error, ratio {ratio:g}",
            unit="ms",
            literal=errors["literal"][place],
            joint=errors["joint"][place],
        )
        for place, ratio in enumerate(RATIOS)
    ]
    claims += [
        Claim(
            experiment="window ratio",
            quantity=f"error at {RATIOS[-1]:g} over that at {RATIOS[0]:g} (paper: not very significant)",
            unit="%",
            literal=rises["literal"],
            joint=rises["joint"],
            reproduced=rises["literal"] <= 10,
        ),
        Claim(
            experiment="window ratio",
            quantity=f"time for a delay, ratio {USUAL_RATIO:g}",
            unit="ms",
            paper=PAPER_MS_PER_DELAY,
            literal=costs["literal"][usual],
            joint=costs["joint"][usual],
            reproduced=is_near(costs["literal"][usual], PAPER_MS_PER_DELAY),
        ),
    ]
    return Outcome(claims, [_figure("fig9-error", "mean error, ms", errors), _figure("fig9-time", "ms a delay", costs)])


def _solve_literal(world: World, window: WindowOptions) -> Estimates:
    return published(world.trace, published_bounds(world.trace), options=PublishedOptions(window=window))


def _solve_joint(world: World, window: WindowOptions) -> Estimates:
    return estimate(world.trace, bound(world.trace), EstimateOptions(window=window))


def _solved(worlds: list[World], solve: Solve, ratio: float) -> tuple[float, float]:
    """Mean error in ms, and ms of this process for a delay."""
    window = WindowOptions(ratio=ratio)
    solve(simulate(25, 1, packets=4), window)  # compiles
    errors, seconds = [], 0.0
    for world in worlds:
        begin = process_time()
        arrival = solve(world, window).arrival_ns
        seconds += process_time() - begin
        visit = world.visits
        errors.append(np.abs((arrival[visit + 1] - arrival[visit]) / NS_PER_MS - world.delay_ms))
    return float(np.concatenate(errors).mean()), 1e3 * seconds / sum(map(len, errors))


def _figure(name: str, label: str, values: dict[str, list[float]]) -> Figure:
    lines = [
        Line("Domo as published", RATIOS, values["literal"], "literal"),
        Line("ours", RATIOS, values["joint"], "joint"),
    ]
    panels = {f"{NODES} nodes": lines}
    return Figure(name=name, x_label="effective window ratio", y_label=label, panels=panels)


def graph_cut(scale: Scale) -> Outcome:
    """Fig. 10: width of the bounds and time for one by the unknowns that a linear program looks at.

    *Literal* takes sums as equations, as Eq. 6 and 7 do where nothing is lost; *joint* is propagation from the same
    statements, which looks at no sub-graph. Programs start from what propagation gives: beyond their sub-graph they
    know that much already, which the paper's do not.
    """
    world = simulate(NODES, SEEDS[scale][0])
    bound_linear(simulate(25, 1, packets=4).trace, literal_bounds(simulate(25, 1, packets=4).trace), _EXACT)  # compiles
    begin = process_time()
    start = literal_bounds(world.trace)
    propagation_ms = _per_bound(world, process_time() - begin)
    widths, costs = [], []
    for cut in CUTS[scale]:
        begin = process_time()
        widths.append(_width(world, bound_linear(world.trace, start, _EXACT, cut=cut).bounds))
        costs.append(_per_bound(world, process_time() - begin))
    wide, narrower = _width(world, start), 100 * (1 - widths[-1] / widths[0])
    claims = [
        Claim(
            experiment="graph cut",
            quantity=f"mean width of the bounds, cut of {cut:,} unknowns",
            unit="ms",
            literal=width,
            joint=wide,
        )
        for cut, width in zip(CUTS[scale], widths, strict=True)
    ]
    claims += [
        Claim(
            experiment="graph cut",
            quantity=f"bounds narrower at {CUTS[scale][-1]:,} than at {CUTS[scale][0]:,} (paper: visibly)",
            unit="%",
            literal=narrower,
            reproduced=narrower >= VISIBLE,
        ),
        Claim(
            experiment="graph cut",
            quantity=f"time for a bound, cut of {CUTS[scale][-1]:,} (paper: 10,000)",
            unit="ms",
            paper=PAPER_MS_PER_BOUND,
            literal=costs[-1],
            joint=propagation_ms,
            reproduced=is_near(costs[-1], PAPER_MS_PER_BOUND),
        ),
    ]
    cuts, flat = CUTS[scale], len(CUTS[scale])
    figures = [
        Figure(
            name=name,
            x_label="unknowns of a sub-graph",
            y_label=label,
            panels={f"{NODES} nodes": [Line("linear programs", cuts, y, "literal"), Line("propagation", cuts, z)]},
            log_x=True,
        )
        for name, label, y, z in (
            ("fig10-width", "mean width of the bounds, ms", widths, [wide] * flat),
            ("fig10-time", "ms a bound", costs, [propagation_ms] * flat),
        )
    ]
    return Outcome(claims, figures)


def _width(world: World, bounds: Bounds) -> float:
    visit = world.visits
    return float((bounds.most_ns - bounds.least_ns)[visit].mean() / NS_PER_MS)


def _per_bound(world: World, seconds: float) -> float:
    """ms for one of the two bounds of each delay."""
    return 1e3 * seconds / (2 * len(world.visits))
