"""The report of a paper's experiments: its claims beside what they come to here, and the figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sojourn.core.units import plural
from sojourn.web.charts.curves import Curve, curves
from sojourn.web.charts.tokens import LIGHT
from sojourn.web.report.contents import Column, Contents, Picture, Table
from sojourn.web.report.contents import Figure as Number

if TYPE_CHECKING:
    from sojourn.papers.reproduction import Figure, Line, Reproduction

_KINDS = {
    "paper": ("dotted", LIGHT.grey),
    "literal": ("dashed", LIGHT.orange),
    "joint": ("solid", LIGHT.blue),
    "baseline": ("dashed", LIGHT.purple),
}
_OTHERS = (LIGHT.green, LIGHT.vermillion, LIGHT.sky)


def reproduction_contents(result: Reproduction) -> Contents:
    """What the report of a paper's experiments says."""
    judged = [claim for claim in result.claims if claim.reproduced is not None]
    kept = sum(bool(claim.reproduced) for claim in judged)
    return Contents(
        title=result.title,
        question="Do the paper's claims hold when its experiments are run again, and what do better estimators reach?",
        answer=f"{kept} of {plural(len(judged), 'claim')} that can be judged are borne out here.",
        figures=[
            Number("Claims borne out", f"{kept} of {len(judged)}", is_bad=kept < len(judged)),
            Number("Quantities", f"{len(result.claims):,}", f"at the scale {result.scale}"),
        ],
        pictures=list(_pictures(result.figures)),
        tables=[_table(result)],
        facts={"Paper": result.paper, "Scale": str(result.scale)},
        trust=[
            "Literal is what the published method reaches in our world, joint what our decoder makes of the same "
            "counters, baseline what the named rival reaches. A claim that is not borne out is listed like any other"
        ],
        notes=[line for line in result.remarks.split("\n") if line.strip()],
    )


def _pictures(figures: tuple[Figure, ...]) -> Iterator[Picture]:
    for figure in figures:
        for title, lines in figure.panels.items():
            drawn = curves(list(_curves(lines)), x_name=figure.x_label, y_name=figure.y_label, log=figure.log)
            name = figure.name.replace("-", " ").replace("_", " ")
            yield Picture(f"{name[:1].upper()}{name[1:]}{f': {title}' if title else ''}", drawn)


def _curves(lines: list[Line]) -> Iterator[Curve]:
    """Lines of a kind look alike; a second one of the same kind has another colour."""
    used: dict[str, int] = {}
    for line in lines:
        dash, colour = _KINDS[line.kind]
        before = used.get(line.kind, 0)
        used[line.kind] = before + 1
        own = colour if before == 0 else _OTHERS[(before - 1) % len(_OTHERS)]
        yield Curve(line.name, list(line.x), list(line.y), dash, own)  # type: ignore[arg-type]


def _table(result: Reproduction) -> Table:
    claims = result.claims
    columns = [
        Column("Experiment", [claim.experiment for claim in claims]),
        Column("Quantity", [claim.quantity for claim in claims]),
        Column("Unit", [claim.unit for claim in claims]),
        *(
            Column(name.title(), [getattr(claim, name) for claim in claims], "")
            for name in ("paper", "literal", "joint", "baseline")
        ),
        Column(
            "Borne out", ["" if claim.reproduced is None else "yes" if claim.reproduced else "no" for claim in claims]
        ),
    ]
    return Table("Claims", columns, rows_name="claims")
