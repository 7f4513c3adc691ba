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
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.segments import SegmentCounter
from sojourn.mplane.planning.topology_files import read_topology
from sojourn.mplane.planning.upgrade import Strategy, plan_upgrade
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale

__all__ = ["DATA_VARIABLE", "EXPERIMENTS", "MAPS", "NOTES", "TITLE", "all_maps", "sprint"]

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
    """A map, and the curves of the three strategies on it."""

    routers: int
    greedy: Curve
    best: Curve
    random: Curve


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
    return Deployment(counter.paths.routers, run(Strategy.GREEDY), run(Strategy.BEST), average)


def sprint(scale: Scale) -> Outcome:
    """Fig. 9: probe hop count and localisation granularity of the Sprint map."""
    found = deploy(map_path(SPRINT), _RANDOM_ORDERS[scale])
    rows = (
        ("probe hop count, no router upgraded", "hops", 1e6, "hops", 0),
        ("probe hop count, 45 upgraded", "hops", 1e4, "hops", 45),
        ("mean segment, no router upgraded", "hops", 4.0, "mean", 0),
        ("mean segment, 50 upgraded", "hops", 1.5, "mean", 50),
        ("longest segment, 50 upgraded", "hops", None, "longest", 50),
    )
    claims = [
        _claim("sprint", quantity, unit, found, curve, step, paper=paper) for quantity, unit, paper, curve, step in rows
    ]
    routers = Claim(
        experiment="sprint",
        quantity="routers of the map",
        unit="routers",
        paper=315.0,
        literal=float(found.routers),
        reproduced=found.routers == 315,
    )
    hops = Figure(
        name="sprint-probe-hop-count",
        x_label="upgraded routers",
        y_label="probe hop count",
        panels={"Sprint (AS 1239)": _lines(found, "hops")},
        log_y=True,
    )
    granularity = Figure(
        name="sprint-granularity",
        x_label="upgraded routers",
        y_label="hops of a segment",
        panels={"mean": _lines(found, "mean"), "longest": _lines(found, "longest")},
    )
    return Outcome([routers, *claims], [hops, granularity])


def all_maps(scale: Scale) -> Outcome:
    """15 % of the routers of each map upgraded: what is left of the probe hop count, and how long a segment is."""
    found = {number: deploy(map_path(number), _RANDOM_ORDERS[scale]) for number in MAPS}
    claims: list[Claim] = []
    for number, one in found.items():
        step = round(0.15 * one.routers)
        place = f"{MAPS[number]} (AS {number}), {step} of {one.routers} upgraded"
        literal, joint, baseline = _shares_left(one, step)
        left = f"{place}: hop count left"
        claims += [
            Claim(experiment="maps", quantity=left, unit="%", literal=literal, joint=joint, baseline=baseline),
            _claim("maps", f"{place}: mean segment", "hops", one, "mean", step),
        ]
    literal, joint, baseline = np.mean([_shares_left(one, round(0.15 * one.routers)) for one in found.values()], axis=0)
    average = Claim(
        experiment="maps",
        quantity="mean of the maps, 15 % upgraded: hop count left",
        unit="%",
        paper=1.0,
        literal=float(literal),
        joint=float(joint),
        baseline=float(baseline),
        reproduced=bool(literal <= _TOLERANCE),
    )
    gains = [_gains(one) for one in found.values()]
    gain = Claim(
        experiment="maps",
        quantity=f"hops that best saves over greedy (least {min(map(min, gains)):.3g}), at most",
        unit="%",
        joint=max(map(max, gains)),
    )
    figures = [
        Figure(
            name=f"maps-{name}",
            x_label="upgraded routers",
            y_label=label,
            panels={f"{MAPS[number]} (AS {number})": _lines(one, curve) for number, one in found.items()},
            log_y=curve == "hops",
        )
        for name, label, curve in (
            ("probe-hop-count", "probe hop count", "hops"),
            ("granularity", "mean hops of a segment", "mean"),
        )
    ]
    return Outcome([average, *claims, gain], figures)


def _shares_left(found: Deployment, step: int) -> tuple[float, float, float]:
    """Percent of the probe hop count left by greedy, best and random upgrade."""
    greedy, best, random = (100 * one.hops[step] / one.hops[0] for one in (found.greedy, found.best, found.random))
    return greedy, best, random


def _gains(found: Deployment) -> list[float]:
    """By number of upgraded routers, the percentage of hops that `best` saves over greedy."""
    both = zip(found.best.hops, found.greedy.hops, strict=True)
    return [100 * (1 - best / greedy) for best, greedy in both]


def _strategies(found: Deployment) -> dict[str, Curve]:
    """The curves by the column of the claims that they go to."""
    return {"literal": found.greedy, "joint": found.best, "baseline": found.random}


def _claim(
    experiment: str, quantity: str, unit: str, found: Deployment, curve: str, step: int, *, paper: float | None = None
) -> Claim:
    values = {name: float(getattr(one, curve)[step]) for name, one in _strategies(found).items()}
    is_near = None if paper is None else paper / _TOLERANCE <= values["literal"] <= paper * _TOLERANCE
    is_better = paper is not None and step > 0 and values["literal"] <= paper
    reproduced = None if paper is None else bool(is_near or is_better)
    return Claim(experiment=experiment, quantity=quantity, unit=unit, paper=paper, reproduced=reproduced, **values)


def _lines(found: Deployment, curve: str) -> list[Line]:
    upgraded = range(len(found.greedy.hops))
    return [
        Line("greedy (Algorithm 1)", upgraded, getattr(found.greedy, curve), "literal"),
        Line("best", upgraded, getattr(found.best, curve), "joint"),
        Line("random", upgraded, getattr(found.random, curve), "baseline"),
    ]


EXPERIMENTS = (sprint, all_maps)
