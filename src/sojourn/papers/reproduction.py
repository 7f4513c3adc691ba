"""Running a paper's experiments one after the other; what is done is on disk before the next begins.

A paper's module has a ``TITLE``, a tuple ``EXPERIMENTS`` of functions that take a `Scale` and return an `Outcome`
(claims, and figures of lines over an axis), and may have ``NOTES`` on how its figures are to be read. Seeds are fixed:
the same scale gives the same claims, but for experiments that measure a real machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Literal

from sojourn import __version__
from sojourn.core.errors import UsageError
from sojourn.core.results import Advance, silent

# The papers by the name their command has, and the module of each.
PAPERS = {name: f"sojourn.papers.{name}" for name in ("lda", "lds", "colate", "mplane", "bits", "iotm", "domo")}
COLUMNS = ("experiment", "quantity", "unit", "paper", "literal", "joint", "baseline", "reproduced")

Kind = Literal["paper", "literal", "joint", "baseline"]
STYLES = {"paper": ":", "literal": "--", "joint": "-", "baseline": "-."}


class Scale(StrEnum):
    """How much is simulated: minutes on one core, or as many packets as the paper had."""

    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True)
class Claim:
    """One quantity of one experiment: what the paper says of it, beside what its method and ours reach here.

    ``literal`` is what the published method reaches in our world, ``joint`` what our decoder makes of the same
    counters, ``baseline`` what the quantity's named rival reaches, ``paper`` the published figure; None where there is
    none. ``reproduced`` is whether the literal figure bears the paper's out; one that does not is printed like any
    other.
    """

    experiment: str
    unit: str
    quantity: str
    literal: float | None = None
    joint: float | None = None
    baseline: float | None = None
    paper: float | None = field(default=None, kw_only=True)
    reproduced: bool | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Line:
    """One curve; its kind decides how it is drawn."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "joint"


@dataclass(frozen=True)
class Figure:
    """One picture: ``panels`` (title → lines) side by side on one scale; ``log`` names the logarithmic axes.

    ``name`` is its file's.
    """

    name: str
    x_label: str
    y_label: str
    panels: dict[str, list[Line]]
    log: Literal["", "x", "y", "xy"] = ""


@dataclass(frozen=True)
class Outcome:
    """What one experiment gave."""

    claims: Sequence[Claim]
    figures: Sequence[Figure] = field(default=())


@dataclass(frozen=True)
class Reproduction:
    """What all experiments of a paper gave; ``remarks`` say how they were run and how figures are to be read."""

    paper: str
    title: str
    scale: Scale
    remarks: str
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]


def reproduce(paper: str, directory: Path, scale: Scale, *, advance: Advance = silent) -> Reproduction:
    """Run all experiments of a paper; claims and figures are in `directory` as soon as they are known.

    Files of an earlier run are replaced, one by one as the new ones are known.
    """
    require_matplotlib()
    _make_writable(directory)
    module = import_module(PAPERS[paper])
    experiments: Sequence[Callable[[Scale], Outcome]] = module.EXPERIMENTS
    claims: list[Claim] = []
    pictures: list[Figure] = []
    remarks = ""
    began = perf_counter()
    for number, experiment in enumerate(experiments):
        advance(experiment.__name__.replace("_", " "), number / len(experiments))
        outcome = experiment(scale)
        claims += outcome.claims
        for figure in outcome.figures:
            _write_figure(directory, figure)
            pictures.append(figure)
        done = f"{number + 1} of {len(experiments)} experiments"
        run = f"Scale {scale}, sojourn {__version__}, {done}, {perf_counter() - began:.0f} s."
        remarks = f"{run}\n\n{getattr(module, 'NOTES', '')}".strip()
        _write_claims(directory, module.TITLE, remarks, claims, [figure.name for figure in pictures])
    return Reproduction(paper, module.TITLE, scale, remarks, tuple(claims), tuple(pictures))


def require_matplotlib() -> None:
    """Name what is missing before minutes of work rather than after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("drawing figures needs the matplotlib package", action="install sojourn[papers]") from None


def _make_writable(directory: Path) -> None:
    """Make the directory where there is none, and see that files can be made in it."""
    if directory.exists() and not directory.is_dir():
        raise UsageError("it is a file", where=str(directory), action="give a directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        what = f"nothing can be written there ({error.strerror or error})"
        raise UsageError(what, where=str(directory), action="give a directory of your own") from None


def claims_json(claims: Sequence[Claim]) -> list[dict[str, object]]:
    """The claims as plain rows; what is not a finite number is null."""
    return [{name: _plain(getattr(claim, name)) for name in COLUMNS} for claim in claims]


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _shown(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|--:|--:|--:|--:|---|"]
    lines += ["| " + " | ".join(_shown(getattr(claim, name)) for name in COLUMNS) + " |" for claim in claims]
    return "\n".join(lines)


def _write_claims(directory: Path, title: str, remarks: str, claims: Sequence[Claim], figures: Sequence[str]) -> None:
    """Write ``claims.json`` and ``claims.md`` (remarks, table, figures by name), each as a whole or not at all."""
    rows = json.dumps(claims_json(claims), ensure_ascii=False, indent=1, allow_nan=False)
    pictures = "".join(f"\n![{name}]({name}.svg)\n" for name in figures)
    _replace(directory / "claims.json", rows + "\n")
    _replace(directory / "claims.md", f"# {title}\n\n{remarks}\n\n{claims_table(claims)}\n{pictures}")


def _replace(path: Path, text: str) -> None:
    """Put a whole file in the place of an old one, so that stopping in between leaves the old one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _write_figure(directory: Path, figure: Figure) -> None:
    """Write ``name.png`` and ``name.svg`` (Matplotlib, without a screen)."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, LogFormatter

    canvas = Canvas(figsize=(1.5 + 4.2 * len(figure.panels), 4.2), layout="constrained")
    axes = canvas.subplots(1, len(figure.panels), sharey=True, squeeze=False)[0]
    plain = FuncFormatter(lambda value, _place: f"{value:g}")
    following = [*list(figure.panels.values())[1:], []]
    for place, (title, lines), after in zip(axes, figure.panels.items(), following, strict=True):
        for line in lines:
            place.plot(line.x, line.y, STYLES[line.kind], label=line.name, marker="." if len(line.x) < 30 else "")
        place.set_title(title)
        place.set_xlabel(figure.x_label)
        if "x" in figure.log:
            place.set_xscale("log")
            place.xaxis.set_major_formatter(plain)
        if "y" in figure.log:
            place.set_yscale("log")
            place.yaxis.set_major_formatter(plain)
            place.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        place.grid(visible=True, alpha=0.3)
        # Panels that show the same lines share the last one's legend.
        if [line.name for line in lines] != [line.name for line in after]:
            place.legend(fontsize="small")
    axes[0].set_ylabel(figure.y_label)
    canvas.savefig(directory / f"{figure.name}.png", dpi=120)
    canvas.savefig(directory / f"{figure.name}.svg", metadata={"Date": None})
