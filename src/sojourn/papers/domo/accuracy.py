"""Domo's accuracy (§VI-B, Fig. 6 to 8): errors, widths of bounds and displacements; by loss, and by network size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.papers.claims import Claim
from sojourn.papers.domo.worlds import NS_PER_MS, PERIOD_S, SEEDS, Judged, World, judge_networks, simulate
from sojourn.papers.figures import Figure, Kind, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.tomography.baselines.published import mnt_arrivals, mnt_bounds, published, published_bounds
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.delays.estimate import estimate

__all__ = ["accuracy", "is_near", "network_scale", "packet_loss"]

NODES = 400
SLOW_PERIOD_S = 60.0
LOSSES = (0.1, 0.2, 0.3)
SIZES = (100, 225, 400)
SLACK = 1.25
_QUANTILES = np.linspace(0.0, 1.0, 201)
_NAMES = {"literal": "Domo as published", "joint": "ours", "mnt": "MNT", "tracing": "MessageTracing"}


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
    found = judge_networks(scale, NODES)
    place = f"{NODES} nodes"
    close = {name: float(100 * (error < 4).mean()) for name, error in found.error.items()}
    share = Claim(
        experiment="accuracy",
        quantity=f"{place}: delays with an error below 4 ms",
        unit="%",
        paper=70.0,
        literal=close["literal"],
        joint=close["joint"],
        baseline=close["mnt"],
        reproduced=close["literal"] >= 70,
    )
    outside = Claim(
        experiment="accuracy",
        quantity=f"{place}: truths outside their bounds, of {len(found.error['joint']):,}",
        unit="delays",
        literal=float(found.outside["literal"]),
        joint=float(found.outside["joint"]),
        baseline=float(found.outside["mnt"]),
    )
    slow = judge_networks(scale, NODES, 0.0, SLOW_PERIOD_S)
    claims = [
        *_claims("accuracy", place, found, PAPER),
        share,
        outside,
        *_displacement_claims("accuracy", place, slow, PAPER, SLOW_PERIOD_S),
    ]
    figures = [*_cdfs("fig6", {place: found}), _node_means(simulate(NODES, SEEDS[scale][0]))]
    return Outcome(claims, figures)


def packet_loss(scale: Scale) -> Outcome:
    """Fig. 7: packets taken out of the traces of the same networks."""
    found = {loss: judge_networks(scale, NODES, loss) for loss in LOSSES}
    claims = [
        claim for loss in LOSSES for claim in _claims("loss", f"{loss:.0%} lost", found[loss], PAPER_BY_LOSS[loss])
    ]
    return Outcome(claims, _cdfs("fig7", {f"{loss:.0%} lost": one for loss, one in found.items()}))


def network_scale(scale: Scale) -> Outcome:
    """Fig. 8: networks of 100, 225 and 400 nodes."""
    found = {nodes: judge_networks(scale, nodes) for nodes in SIZES}
    claims = [
        claim for nodes in SIZES for claim in _claims("scale", f"{nodes} nodes", found[nodes], PAPER_BY_SIZE[nodes])
    ]
    return Outcome(claims, _cdfs("fig8", {f"{nodes} nodes": one for nodes, one in found.items()}))


def _claims(experiment: str, place: str, found: Judged, paper: Published) -> list[Claim]:
    """Mean error, width and displacement; where the paper has figures for the rival, its claim follows."""
    pairs = [
        pair
        for quantity, title, says in (
            ("error", "mean error", paper.error),
            ("width", "mean width of the bounds", paper.width),
        )
        for pair in _pair(experiment, f"{place}: {title}", "ms", found, quantity, "mnt", says)
    ]
    return [*pairs, *_displacement_claims(experiment, place, found, paper, PERIOD_S)]


def _displacement_claims(experiment: str, place: str, found: Judged, paper: Published, period_s: float) -> list[Claim]:
    title = f"{place}, a packet every {period_s:g} s: displacement"
    return _pair(experiment, title, "places", found, "displacement", "tracing", paper.displacement)


def _pair(
    experiment: str,
    title: str,
    unit: str,
    found: Judged,
    quantity: str,
    rival: str,
    paper: tuple[float | None, float | None],
) -> list[Claim]:
    """A claim on the method, and one on its rival where the paper has a figure of it."""
    literal, joint, baseline = (found.mean(quantity, name) for name in ("literal", "joint", rival))
    says, of_rival = paper
    claims = [
        Claim(
            experiment=experiment,
            quantity=title,
            unit=unit,
            paper=says,
            literal=literal,
            joint=joint,
            baseline=baseline,
            reproduced=None if says is None else is_near(literal, says),
        )
    ]
    if of_rival is not None:
        near = of_rival / SLACK <= baseline <= of_rival * SLACK
        name = f"{title} of {_NAMES[rival]}"
        claims.append(
            Claim(experiment=experiment, quantity=name, unit=unit, paper=of_rival, baseline=baseline, reproduced=near)
        )
    return claims


def _cdfs(name: str, found: dict[str, Judged]) -> list[Figure]:
    """Distributions of errors, widths and displacements, one panel for each setting."""
    pictures = (
        ("error", "error of a delay, ms", ("literal", "joint", "mnt")),
        ("width", "width of a bound, ms", ("literal", "joint", "mnt")),
        ("displacement", f"displacement at a period of {PERIOD_S:g} s, places", ("literal", "joint", "tracing")),
    )
    return [
        Figure(
            name=f"{name}-{quantity}",
            x_label=label,
            y_label="share of the delays",
            panels={
                title: [_cdf(getattr(one, quantity), method) for method in methods] for title, one in found.items()
            },
        )
        for quantity, label, methods in pictures
    ]


def _cdf(values: dict[str, FloatArray], method: str) -> Line:
    shares = _QUANTILES[_QUANTILES <= 0.99]  # the last percent would take most of the axis
    return _line(method, np.quantile(values[method], shares).tolist(), shares.tolist())


def _line(method: str, x: Sequence[float], y: Sequence[float]) -> Line:
    kinds: dict[str, Kind] = {"literal": "literal", "joint": "joint"}
    return Line(_NAMES[method], x, y, kinds.get(method, "baseline"))


def _node_means(world: World) -> Figure:
    """Fig. 6(a): the mean delay of every node of one network, nodes in the order of the true ones."""
    trace, visit = world.trace, world.visits
    ours, mnt = bound(trace), mnt_bounds(trace)
    arrivals = {
        "literal": published(trace, published_bounds(trace)).arrival_ns,
        "joint": estimate(trace, ours).arrival_ns,
        "mnt": mnt_arrivals(mnt),
    }
    nodes, place = np.unique(trace.node[visit], return_inverse=True)
    counts = np.bincount(place, minlength=len(nodes))
    true = np.bincount(place, world.delay_ms, len(nodes)) / counts
    order = np.argsort(true)
    lines = [Line("truth", range(len(nodes)), true[order].tolist(), "paper")]
    for method, arrival in arrivals.items():
        delay = (arrival[visit + 1] - arrival[visit]) / NS_PER_MS
        means = (np.bincount(place, delay, len(nodes)) / counts)[order]
        lines.append(_line(method, range(len(nodes)), means.tolist()))
    return Figure(
        name="fig6-node-means",
        x_label="nodes, by their true mean delay",
        y_label="mean delay, ms",
        panels={f"{NODES} nodes": lines},
    )
