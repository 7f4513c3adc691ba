"""Domo's methods on collection traces of a real protocol stack: CTP in TOSSIM, heavy noise, lost acknowledgements.

The traces are not part of the package: `DATA_VARIABLE` names the folder that holds them; without it they are left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from sojourn.papers.claims import Claim
from sojourn.papers.domo.worlds import Judged, World, judge
from sojourn.papers.mplane import DATA_VARIABLE
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.tomography.reading.traces import read_trace, read_truth

__all__ = ["TRACES", "real_traces"]

EXPERIMENT = "TOSSIM traces"
TRACES = {100: "n100_center_20s", 225: "n225_center_20s"}
PERIOD = "a packet every 20 s"


def real_traces(_scale: Scale) -> Outcome:
    """Errors, widths and displacements on every trace that is at hand; the paper has no figures for them."""
    claims: list[Claim] = []
    for nodes, name in TRACES.items():
        folder = _folder(name)
        if folder is None:
            where = f"set {DATA_VARIABLE} to the folder that holds collection/{name}_packets.csv.gz and its _hops"
            claims.append(Claim(experiment=EXPERIMENT, quantity=f"left out: {where}", unit=""))
            continue
        trace = read_trace(folder / f"{name}_packets.csv.gz")
        truth = read_truth(folder / f"{name}_hops.csv.gz", trace)
        claims += _claims(f"{nodes} nodes", judge(World(trace, truth)))
    return Outcome(claims)


def _folder(name: str) -> Path | None:
    data = os.environ.get(DATA_VARIABLE, "")
    places = [Path(data) / below for below in ("collection", "")] if data else []
    return next((place for place in places if (place / f"{name}_packets.csv.gz").is_file()), None)


def _claims(place: str, found: Judged) -> list[Claim]:
    rows = (
        ("error", "mean error", "ms", "mnt"),
        ("width", "mean width of the bounds", "ms", "mnt"),
        ("displacement", "displacement", "places", "tracing"),
    )
    claims = [
        Claim(
            experiment=EXPERIMENT,
            quantity=f"{place}, {PERIOD}: {title}",
            unit=unit,
            literal=found.mean(quantity, "literal"),
            joint=found.mean(quantity, "joint"),
            baseline=found.mean(quantity, rival),
        )
        for quantity, title, unit, rival in rows
    ]
    outside = Claim(
        experiment=EXPERIMENT,
        quantity=f"{place}: truths outside their bounds, of {len(found.error['joint']):,}",
        unit="delays",
        literal=float(found.outside["literal"]),
        joint=float(found.outside["joint"]),
        baseline=float(found.outside["mnt"]),
    )
    return [*claims, outside]
