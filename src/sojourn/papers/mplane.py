"""MPlane's deployment, planned again: Kompella et al., "Router Support for Fine-Grained Latency Measurements", §VI.

Fig. 9 on the map that the paper shows (Sprint, AS 1239), and the same on five more, which the paper says are similar.
The maps are not part of the package: `DATA_VARIABLE` names the folder that holds them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from sojourn.core.errors import UsageError
from sojourn.mplane.planning.paths import SegmentCounter, shortest_paths
from sojourn.mplane.planning.topology import read_topology
from sojourn.mplane.planning.upgrades import Strategy, plan_upgrade
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale

TITLE = "MPlane: incremental deployment (Router Support for Fine-Grained Latency Measurements, §VI)"
NOTES = """\
*Literal* is Algorithm 1 (the most-crossed router first), *joint* our `best` strategy (the best set found for each
number of routers), *baseline* routers upgraded at random: the mean over 20 orders, 100 at the scale `paper`. The paper
gives round figures: one counts as reproduced if the literal one is within a quarter of it, or better.

Segments that coincide count once. Maps 1221 and 6461 are not connected; pairs without a path are left out."""
DATA_VARIABLE = "SOJOURN_DATA"
MAPS = {1221: "Telstra", 1239: "Sprint", 1755: "Ebone", 3257: "Tiscali", 3967: "Exodus", 6461: "Abovenet"}
SPRINT = 1239
MOST = 60
_RANDOM_ORDERS = {Scale.SMALL: 20, Scale.PAPER: 100}
_TOLERANCE = 1.25


@dataclass(frozen=True)
class Curve:
    """Over the number of upgraded routers: hops of all probes, and mean and most hops of a segment."""

    hops: list[float]
    mean: list[float]
    longest: list[float]


@dataclass(frozen=True)
class Deployment:
    """A map, and the curves of the three strategies by their name and the column of the claims that they go to."""

    routers: int
    curves: dict[tuple[str, Kind], Curve]


GREEDY: tuple[str, Kind] = ("greedy (Algorithm 1)", "literal")
BEST: tuple[str, Kind] = ("best", "joint")
RANDOM: tuple[str, Kind] = ("random", "baseline")


def map_path(number: int) -> Path:
    """The file of a map, in the folder that the environment names."""
    names = f"{number}.weights.intra"
    action = f"set {DATA_VARIABLE} to the folder that holds topologies/rocketfuel/{names} and the other maps"
    folder = os.environ.get(DATA_VARIABLE, "")
    if not folder:
        raise UsageError("the Rocketfuel maps are not part of Sojourn", where="reproduce mplane", action=action)
    places = [Path(folder) / below / names for below in ("topologies/rocketfuel", "rocketfuel", "")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(f"there is no {names}", where=folder, action=action)
    return found


@cache
def deploy(path: Path, orders: int) -> Deployment:
    """All three strategies on one map, `orders` random orders averaged."""
    counter = SegmentCounter(shortest_paths(read_topology(path)))
    count = min(MOST, counter.paths.routers)

    def run(strategy: Strategy, seed: int = 0) -> Curve:
        steps = [step.segments for step in plan_upgrade(counter, count, strategy=strategy, seed=seed)]
        return Curve([float(s.hops) for s in steps], [s.mean for s in steps], [float(s.longest) for s in steps])

    tries = [run(Strategy.RANDOM, seed) for seed in range(orders)]
    average = Curve(
        *(np.mean([getattr(t, name) for t in tries], axis=0).tolist() for name in ("hops", "mean", "longest"))
    )
    curves = {GREEDY: run(Strategy.GREEDY), BEST: run(Strategy.BEST), RANDOM: average}
    return Deployment(counter.paths.routers, curves)


def sprint(scale: Scale) -> Outcome:
    """Fig. 9: probe hop count and localisation granularity of the Sprint map."""
    found = deploy(map_path(SPRINT), _RANDOM_ORDERS[scale])
    rows = (
        ("probe hop count, no router upgraded", 1e6, "hops", 0),
        ("probe hop count, 45 upgraded", 1e4, "hops", 45),
        ("mean segment, no router upgraded", 4.0, "mean", 0),
        ("mean segment, 50 upgraded", 1.5, "mean", 50),
        ("longest segment, 50 upgraded", None, "longest", 50),
    )
    claims = [_claim("sprint", quantity, found, curve, step, paper=paper) for quantity, paper, curve, step in rows]
    count = float(found.routers)
    routers = Claim("sprint", "routers", "routers of the map", count, paper=315.0, reproduced=found.routers == 315)
    hops = {"Sprint (AS 1239)": _lines(found, "hops")}
    granularity = {"mean": _lines(found, "mean"), "longest": _lines(found, "longest")}
    figures = [
        Figure("sprint-probe-hop-count", "upgraded routers", "probe hop count", hops, log="y"),
        Figure("sprint-granularity", "upgraded routers", "hops of a segment", granularity),
    ]
    return Outcome([routers, *claims], figures)


def all_maps(scale: Scale) -> Outcome:
    """15 % of the routers of each map upgraded: what is left of the probe hop count, and how long a segment is."""
    found = {number: deploy(map_path(number), _RANDOM_ORDERS[scale]) for number in MAPS}
    claims: list[Claim] = []
    left = []
    for number, one in found.items():
        step = round(0.15 * one.routers)
        place = f"{MAPS[number]} (AS {number}), {step} of {one.routers} upgraded"
        left.append([100 * curve.hops[step] / curve.hops[0] for curve in one.curves.values()])
        claims.append(Claim("maps", "%", f"{place}: hop count left", *left[-1]))
        claims.append(_claim("maps", f"{place}: mean segment", one, "mean", step))
    means = [float(mean) for mean in np.mean(left, axis=0)]
    what, near = "mean of the maps, 15 % upgraded: hop count left", means[0] <= _TOLERANCE
    average = Claim("maps", "%", what, *means, paper=1.0, reproduced=near)
    both = [pair for one in found.values() for pair in zip(one.curves[BEST].hops, one.curves[GREEDY].hops, strict=True)]
    gains = [100 * (1 - best / greedy) for best, greedy in both]
    what = f"hops that best saves over greedy (least {min(gains):.3g}), at most"
    figures = []
    for name, label, curve in (
        ("probe-hop-count", "probe hop count", "hops"),
        ("granularity", "mean hops of a segment", "mean"),
    ):
        panels = {f"{MAPS[number]} (AS {number})": _lines(one, curve) for number, one in found.items()}
        figures.append(Figure(f"maps-{name}", "upgraded routers", label, panels, log="y" if curve == "hops" else ""))
    return Outcome([average, *claims, Claim("maps", "%", what, joint=max(gains))], figures)


def _claim(
    experiment: str, quantity: str, found: Deployment, curve: str, step: int, *, paper: float | None = None
) -> Claim:
    values = [float(getattr(one, curve)[step]) for one in found.curves.values()]
    reproduced = None
    if paper is not None:
        is_near = paper / _TOLERANCE <= values[0] <= paper * _TOLERANCE
        reproduced = is_near or (step > 0 and values[0] <= paper)
    return Claim(experiment, "hops", quantity, *values, paper=paper, reproduced=reproduced)


def _lines(found: Deployment, curve: str) -> list[Line]:
    curves = {ends: getattr(one, curve) for ends, one in found.curves.items()}
    return [Line(name, range(len(y)), y, kind) for (name, kind), y in curves.items()]


EXPERIMENTS = (sprint, all_maps)
