"""Pictures of the tables that benchmarks write into the documents: a picture is as new as its table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scripts.figures.drawing import GREEN, ORANGE, PINK, Scheme, draw

DOCS = Path(__file__).resolve().parents[2] / "docs"


def table(page: str, name: str, number: int = 0) -> list[dict[str, str]]:
    """The rows of a table between its marks, by its heads."""
    text = (DOCS / page).read_text()
    body = text.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    found = re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE)[number]
    heads, _, *rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in found.strip().splitlines()]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def _number(text: str) -> float:
    return float(re.sub(r"[^\d.\-]", "", text))


def _bars(name: str, rows: list[tuple[str, float]], label: str, ours: str, *, log: bool = False) -> None:
    """Horizontal bars; those whose name has `ours` in another colour than their peers."""
    rows = sorted(rows, key=lambda row: row[1])

    def paint(axes: Any, scheme: Scheme) -> None:
        colours = [scheme.blue if re.search(ours, row[0]) else ORANGE for row in rows]
        bars = axes.barh([row[0] for row in rows], [row[1] for row in rows], color=colours)
        axes.bar_label(bars, fmt=lambda value: f" {value:,.3g}", fontsize=8)
        axes.set(xlabel=label, xscale="log" if log else "linear")
        axes.margins(x=0.12)
        axes.grid(axis="y", visible=False)

    draw(name, paint, height=0.55 + 0.26 * len(rows))


def recording() -> None:
    """Packets recorded a second, sketch by sketch, beside count-min."""
    rows = table("performance.md", "recording")
    chosen = [(row[""], _number(row["million packets/s"])) for row in rows if not row[""].startswith("numpy")]
    _bars("recording", chosen, "million packets a second, one core", r"^(?!count-min)")


def reading_captures() -> None:
    """Whole commands on the same captures, ours and others'."""
    rows = table("performance.md", "captures")
    chosen = [(row[""], _number(row["× tcpdump, whole command"])) for row in rows]
    _bars("reading-captures", chosen, "speed of the whole command, tcpdump -nn -r is 1", "sojourn", log=True)


def decoding() -> None:
    """Time to answer a flow jointly, by flows and memory."""
    rows = table("performance.md", "decoding")
    chosen = [(f"{row['flows']} flows, {row['loss']} lost, {row['memory']}", _number(row["µs a flow"])) for row in rows]
    _bars("decoding", chosen, "µs a flow", ".")


def ingest() -> None:
    """What storing an epoch costs, by the path that it takes."""
    rows = table("performance.md", "ingest")
    chosen = [(f"{row['database']}, {row['path'].strip('`')}", _number(row["CPU an epoch"])) for row in rows]
    _bars("ingest", chosen, "µs of processor time an epoch", r"^(?!.*raw)")


def tomography_costs() -> None:
    """What a delay costs as traces become longer: bounds by propagation, bounds by programs, the estimate."""
    rows = table("performance.md", "tomography")
    delays = [_number(row["delays to find"]) for row in rows]

    def paint(axes: Any, scheme: Scheme) -> None:
        for head, colour, marker in (
            ("a bound, by linear programs", ORANGE, "s"),
            ("a delay", scheme.blue, "o"),
            ("a bound, by propagation", GREEN, "^"),
        ):
            axes.plot(delays, [_number(row[head]) for row in rows], marker=marker, color=colour, label=head)
        axes.set(xscale="log", yscale="log", xlabel="delays to find", ylabel="ms each, processor time", ylim=(1e-3, 10))
        axes.set_xticks(delays, [f"{number:,.0f}" for number in delays])
        axes.minorticks_off()
        axes.legend(loc="upper center", ncols=3)

    draw("tomography-costs", paint, height=2.8)


def coverage() -> None:
    """How many 95 % intervals hold the truth: each estimator in fifteen worlds."""
    rows = table("maths/coverage.md", "coverage")
    laws = ("weibull", "pareto", "normal", "per-flow", "bimodal")
    names: list[str] = []
    points: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        if "%" not in row["loss"]:
            continue
        if row["interval"] not in points:
            names.append(row["interval"])
        cells = [(row["loss"], _number(row[law])) for law in laws if row[law].strip()]
        points.setdefault(row["interval"], []).extend(cells)

    def paint(axes: Any, scheme: Scheme) -> None:
        axes.axvline(95, color=scheme.ink, linewidth=1)
        for loss, colour, shift, marker in (
            ("0.0%", scheme.blue, -0.2, "o"),
            ("0.1%", ORANGE, 0.0, "s"),
            ("1.0%", PINK, 0.2, "^"),
        ):
            spots = [(value, at + shift) for at, name in enumerate(names) for of, value in points[name] if of == loss]
            axes.scatter(*zip(*spots, strict=True), s=14, color=colour, marker=marker, label=f"{loss} lost")
        axes.set(xlabel="intervals that hold the truth, %", xlim=(83, 101), yticks=range(len(names)), yticklabels=names)
        axes.invert_yaxis()
        axes.legend(loc="lower left")

    draw("coverage", paint, height=4.2)
