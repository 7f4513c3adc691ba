"""Domo's evaluation, run again: Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks".

Fig. 6 to 10, the same methods on traces of CTP in TOSSIM, and the semidefinite relaxation of §IV-A
(`domo.semidefinite`). The traces (a real protocol stack, heavy noise, lost acknowledgements) are not part of the
package: `DATA_VARIABLE` names the folder that holds them; without it they are left out. Times are those of this
process, so they differ from machine to machine; a first round that compiles is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from sojourn.papers.domo.semidefinite import relaxation
from sojourn.papers.domo.worlds import (
    NS_PER_MS,
    PERIOD_S,
    SEEDS,
    Judged,
    World,
    arrivals_of,
    judge,
    judge_networks,
    literal_bounds,
    simulate,
)
from sojourn.papers.mplane import DATA_VARIABLE
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.comparison import (
    published,
    published_bounds,
)
from sojourn.tomography.delays.estimate import Estimates, WindowOptions, estimate
from sojourn.tomography.reading import read_trace, read_truth

NODES = 400
SLOW_PERIOD_S = 60.0
METHODS = ("literal", "joint", "mnt")
SLACK = 1.25  # a figure within a quarter of the paper's counts as reproduced
_QUANTILES = np.linspace(0.0, 1.0, 201)
_NAMES = {"literal": "Domo as published", "joint": "ours", "mnt": "MNT", "tracing": "MessageTracing"}
RATIOS = (0.3, 0.5, 0.7, 0.9)
USUAL_RATIO = 0.5
CUTS = {Scale.SMALL: (100, 500, 2_000, 5_000), Scale.PAPER: (100, 500, 2_000, 5_000, 10_000, 20_000)}
PAPER_MS_PER_DELAY, PAPER_MS_PER_BOUND = 15.0, 192.0
VISIBLE = 1.0  # percent
_EXACT = ConstraintOptions(sums=Sums.EXACT)

Solve = Callable[[World, WindowOptions], Estimates]
SOLVERS: tuple[Solve, Solve] = (
    lambda world, window: published(world.trace, published_bounds(world.trace), window=window),
    lambda world, window: estimate(world.trace, bound(world.trace), window=window),
)
TOSSIM = "TOSSIM traces"
TRACES = {100: "n100_center_20s", 225: "n225_center_20s"}
TRACE_PERIOD = "a packet every 20 s"


@dataclass(frozen=True)
class Published:
    """The paper's figures for one setting: Domo's, and its rival's; None where it gives none."""

    error: tuple[float | None, float | None] = (None, None)
    width: tuple[float | None, float | None] = (None, None)
    displacement: tuple[float | None, float | None] = (None, None)


PAPER = Published((3.58, 9.33), (16.11, 40.97), (0.03, 3.39))
PAPER_BY_LOSS = {
    0.1: Published((3.62, 10.97), (16.21, 41.03), (0.05, 4.02)),
    0.2: Published(),
    0.3: Published((4.31, 12.29), (17.20, 41.14), (0.58, 4.47)),
}
PAPER_BY_SIZE = {100: Published((2.36, 4.51), (12.01, 25.56), (0.001, 2.97)), 225: Published(), 400: PAPER}


def is_near(value: float, paper: float) -> bool:
    """Whether a figure bears out the paper's: within a quarter of it, or better (all are the better the smaller)."""
    return value <= SLACK * paper


def accuracy(scale: Scale) -> Outcome:
    """Fig. 6: 400 nodes, nothing lost; how the displacement depends on the period beside it."""
    found, slow = judge_networks(scale, NODES), judge_networks(scale, NODES, 0.0, SLOW_PERIOD_S)
    place = f"{NODES} nodes"
    close = [float(100 * (found.error[name] < 4).mean()) for name in METHODS]
    what = f"{place}: delays with an error below 4 ms"
    claims = [
        *_claims("accuracy", place, found, PAPER),
        Claim("accuracy", "%", what, *close, paper=70.0, reproduced=close[0] >= 70),
        _outside_claim("accuracy", place, found),
        *_displacement_claims("accuracy", f"{place}, a packet every {SLOW_PERIOD_S:g} s", slow, PAPER),
    ]
    return Outcome(claims, [*_cdfs("fig6", {place: found}), _node_means(simulate(NODES, SEEDS[scale][0]))])


def packet_loss(scale: Scale) -> Outcome:
    """Fig. 7: packets taken out of the traces of the same networks."""
    found = {f"{loss:.0%} lost": judge_networks(scale, NODES, loss) for loss in PAPER_BY_LOSS}
    rows = zip(found.items(), PAPER_BY_LOSS.values(), strict=True)
    claims = [claim for (place, one), paper in rows for claim in _claims("loss", place, one, paper)]
    return Outcome(claims, _cdfs("fig7", found))


def network_scale(scale: Scale) -> Outcome:
    """Fig. 8: networks of 100, 225 and 400 nodes."""
    found = {f"{nodes} nodes": judge_networks(scale, nodes) for nodes in PAPER_BY_SIZE}
    rows = zip(found.items(), PAPER_BY_SIZE.values(), strict=True)
    claims = [claim for (place, one), paper in rows for claim in _claims("scale", place, one, paper)]
    return Outcome(claims, _cdfs("fig8", found))


def _claims(experiment: str, place: str, found: Judged, paper: Published, rate: str = "") -> list[Claim]:
    """Mean error, width and displacement; where the paper has figures for the rival, its claim follows."""
    return [
        *_pair(experiment, f"{place}: mean error", "ms", found, "error", paper.error),
        *_pair(experiment, f"{place}: mean width of the bounds", "ms", found, "width", paper.width),
        *_displacement_claims(experiment, rate or f"{place}, a packet every {PERIOD_S:g} s", found, paper),
    ]


def _displacement_claims(experiment: str, place: str, found: Judged, paper: Published) -> list[Claim]:
    return _pair(experiment, f"{place}: displacement", "places", found, "displacement", paper.displacement)


def _pair(
    experiment: str, title: str, unit: str, found: Judged, quantity: str, paper: tuple[float | None, float | None]
) -> list[Claim]:
    """A claim on the method, and one on its rival where the paper has a figure of it."""
    rival = _rival(quantity)
    means = [found.mean(quantity, name) for name in ("literal", "joint", rival)]
    own, of_rival = paper
    near = None if own is None else is_near(means[0], own)
    claims = [Claim(experiment, unit, title, *means, paper=own, reproduced=near)]
    if of_rival is not None:
        near, name = of_rival / SLACK <= means[2] <= of_rival * SLACK, f"{title} of {_NAMES[rival]}"
        claims.append(Claim(experiment, unit, name, baseline=means[2], paper=of_rival, reproduced=near))
    return claims


def _outside_claim(experiment: str, place: str, found: Judged) -> Claim:
    what = f"{place}: truths outside their bounds, of {len(found.error['joint']):,}"
    return Claim(experiment, "delays", what, *(float(found.outside[name]) for name in METHODS))


def _rival(quantity: str) -> str:
    return "tracing" if quantity == "displacement" else "mnt"


def _cdfs(name: str, found: dict[str, Judged]) -> list[Figure]:
    """Distributions of errors, widths and displacements, one panel for each setting."""
    labels = {
        "error": "error of a delay, ms",
        "width": "width of a bound, ms",
        "displacement": f"displacement at a period of {PERIOD_S:g} s, places",
    }
    shares = _QUANTILES[_QUANTILES <= 0.99]  # the last percent would take most of the axis
    figures = []
    for quantity, label in labels.items():
        methods = ("literal", "joint", _rival(quantity))
        panels = {
            title: [_line(m, np.quantile(getattr(one, quantity)[m], shares).tolist(), shares.tolist()) for m in methods]
            for title, one in found.items()
        }
        figures.append(Figure(f"{name}-{quantity}", label, "share of the delays", panels))
    return figures


def _line(method: str, x: Sequence[float], y: Sequence[float]) -> Line:
    kinds: dict[str, Kind] = {"literal": "literal", "joint": "joint"}
    return Line(_NAMES[method], x, y, kinds.get(method, "baseline"))


def _node_means(world: World) -> Figure:
    """Fig. 6(a): the mean delay of every node of one network, nodes in the order of the true ones."""
    nodes, place = np.unique(world.trace.node[world.visits], return_inverse=True)
    counts = np.bincount(place, minlength=len(nodes))
    true = np.bincount(place, world.delay_ms, len(nodes)) / counts
    order = np.argsort(true)
    lines = [Line("truth", range(len(nodes)), true[order].tolist(), "paper")]
    for method, arrival in arrivals_of(world.trace).items():
        means = (np.bincount(place, world.delays_ms(arrival), len(nodes)) / counts)[order]
        lines.append(_line(method, range(len(nodes)), means.tolist()))
    panels = {f"{NODES} nodes": lines}
    return Figure("fig6-node-means", "nodes, by their true mean delay", "mean delay, ms", panels)


def window_ratio(scale: Scale) -> Outcome:
    """Fig. 9: error and time for a delay by the share of each window that is kept."""
    worlds = [simulate(NODES, seed) for seed in SEEDS[scale]]
    found = [[_solved(worlds, solve, ratio) for ratio in RATIOS] for solve in SOLVERS]
    errors = [[error for error, _ms in rows] for rows in found]
    costs = [[ms for _error, ms in rows] for rows in found]
    claim = partial(Claim, "window ratio")
    claims = [claim("ms", f"mean error, ratio {ratio:g}", *both) for ratio, *both in zip(RATIOS, *errors, strict=True)]
    rises = [100 * (row[-1] / row[0] - 1) for row in errors]
    what = f"error at {RATIOS[-1]:g} over that at {RATIOS[0]:g} (paper: not very significant)"
    claims.append(claim("%", what, *rises, reproduced=rises[0] <= 10))
    usual = [row[RATIOS.index(USUAL_RATIO)] for row in costs]
    what, near = f"time for a delay, ratio {USUAL_RATIO:g}", is_near(usual[0], PAPER_MS_PER_DELAY)
    claims.append(claim("ms", what, *usual, paper=PAPER_MS_PER_DELAY, reproduced=near))
    figures = []
    for name, label, (literal, joint) in (("error", "mean error, ms", errors), ("time", "ms a delay", costs)):
        panels = {f"{NODES} nodes": [_line("literal", RATIOS, literal), _line("joint", RATIOS, joint)]}
        figures.append(Figure(f"fig9-{name}", "effective window ratio", label, panels))
    return Outcome(claims, figures)


def _solved(worlds: list[World], solve: Solve, ratio: float) -> tuple[float, float]:
    """Mean error in ms, and ms of this process for a delay."""
    window = WindowOptions(ratio=ratio)
    solve(simulate(25, 1, packets=4), window)  # compiles
    errors, seconds = [], 0.0
    for world in worlds:
        begin = process_time()
        arrival = solve(world, window).arrival_ns
        seconds += process_time() - begin
        errors.append(np.abs(world.delays_ms(arrival) - world.delay_ms))
    return float(np.concatenate(errors).mean()), 1e3 * seconds / sum(map(len, errors))


def graph_cut(scale: Scale) -> Outcome:
    """Fig. 10: width of the bounds and time for one by the unknowns that a linear program looks at.

    *Literal* takes sums as equations, as Eq. 6 and 7 do where nothing is lost; *joint* is propagation from the same
    statements, which looks at no sub-graph. Programs start from what propagation gives: beyond their sub-graph they
    know that much already, which the paper's do not.
    """
    world, cuts = simulate(NODES, SEEDS[scale][0]), CUTS[scale]
    tiny = simulate(25, 1, packets=4).trace
    bound_linear(tiny, literal_bounds(tiny), _EXACT)  # compiles
    begin = process_time()
    start = literal_bounds(world.trace)
    propagation_ms = _per_bound(world, process_time() - begin)
    widths, costs = [], []
    for cut in cuts:
        begin = process_time()
        widths.append(_width(world, bound_linear(world.trace, start, _EXACT, cut=cut).bounds))
        costs.append(_per_bound(world, process_time() - begin))
    wide, narrower = _width(world, start), 100 * (1 - widths[-1] / widths[0])
    claim = partial(Claim, "graph cut")
    claims = [
        claim("ms", f"mean width of the bounds, cut of {cut:,} unknowns", width, wide)
        for cut, width in zip(cuts, widths, strict=True)
    ]
    what = f"bounds narrower at {cuts[-1]:,} than at {cuts[0]:,} (paper: visibly)"
    claims.append(claim("%", what, narrower, reproduced=narrower >= VISIBLE))
    what, near = f"time for a bound, cut of {cuts[-1]:,} (paper: 10,000)", is_near(costs[-1], PAPER_MS_PER_BOUND)
    claims.append(claim("ms", what, costs[-1], propagation_ms, paper=PAPER_MS_PER_BOUND, reproduced=near))
    figures = []
    for name, label, y, flat in (
        ("fig10-width", "mean width of the bounds, ms", widths, wide),
        ("fig10-time", "ms a bound", costs, propagation_ms),
    ):
        lines = [Line("linear programs", cuts, y, "literal"), Line("propagation", cuts, [flat] * len(cuts))]
        figures.append(Figure(name, "unknowns of a sub-graph", label, {f"{NODES} nodes": lines}, log="x"))
    return Outcome(claims, figures)


def _width(world: World, bounds: Bounds) -> float:
    visit = world.visits
    return float((bounds.most_ns - bounds.least_ns)[visit].mean() / NS_PER_MS)


def _per_bound(world: World, seconds: float) -> float:
    """ms for one of the two bounds of each delay."""
    return 1e3 * seconds / (2 * len(world.visits))


def real_traces(_scale: Scale) -> Outcome:
    """Errors, widths and displacements on every trace that is at hand; the paper has no figures for them."""
    claims: list[Claim] = []
    for nodes, name in TRACES.items():
        folder = _folder(name)
        if folder is None:
            where = f"set {DATA_VARIABLE} to the folder that holds collection/{name}_packets.csv.gz and its _hops"
            claims.append(Claim(TOSSIM, "", f"left out: {where}"))
            continue
        trace = read_trace(folder / f"{name}_packets.csv.gz")
        truth = read_truth(folder / f"{name}_hops.csv.gz", trace)
        found, place = judge(World(trace, truth)), f"{nodes} nodes, {TRACE_PERIOD}"
        claims += _claims(TOSSIM, place, found, Published(), place)
        claims.append(_outside_claim(TOSSIM, f"{nodes} nodes", found))
    return Outcome(claims)


def _folder(name: str) -> Path | None:
    data = os.environ.get(DATA_VARIABLE, "")
    places = [Path(data) / below for below in ("collection", "")] if data else []
    return next((place for place in places if (place / f"{name}_packets.csv.gz").is_file()), None)


TITLE = "Domo: the delay of every packet at every hop"
NOTES = """\
The paper's TOSSIM traces are not at hand and their period is not given. Networks are those of `sojourn lab wireless`
(period 10 s, 10 packets a node, buffers of 64): four at the scale `small`, twelve at `paper`, all delays together.
Times are those of this process and differ from run to run; all else does not.

*Literal* is Domo as published, read so that it works: the order of packets where it is proved instead of Eq. 4;
candidate sets without older local packets; Eq. 6 only where nothing is lost; ε as long as a window. Its bounds take
sums as equations where nothing is lost (by propagation, which comes within 0.5 % of linear programs), and as upper
bounds otherwise, where they are ours. *Joint* is our estimate, and bounds that hold whatever was lost. *Baseline* is
MNT with our proofs of order and our least delay; of displacements it is MessageTracing, each event as late as the
logs allow.

A displacement counts places in the order of all arrivals: it grows with the traffic's rate, so the period is named
beside it. A figure counts as reproduced if it is within a quarter of the paper's, or better; a rival's only if it is
within a quarter."""

EXPERIMENTS = (accuracy, packet_loss, network_scale, window_ratio, graph_cut, relaxation, real_traces)
