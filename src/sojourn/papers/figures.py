"""Figures of the reproductions: lines over an axis, written as PNG and SVG (Matplotlib, without a screen)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sojourn.core.errors import UsageError

__all__ = ["Figure", "Kind", "Line", "require_matplotlib", "write_figure"]

Kind = Literal["paper", "literal", "joint", "baseline"]
STYLES = {"paper": ":", "literal": "--", "joint": "-", "baseline": "-."}


@dataclass(frozen=True)
class Line:
    """One curve; its kind decides how it is drawn."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "joint"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One picture; ``name`` is its file's, several ``panels`` (title → lines) stand side by side on one scale."""

    name: str
    x_label: str
    y_label: str
    panels: dict[str, list[Line]]
    log_x: bool = False
    log_y: bool = False


def require_matplotlib() -> None:
    """Say what is missing before minutes of work rather than after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("drawing figures needs the matplotlib package", action="install sojourn[papers]") from None


def write_figure(directory: Path, figure: Figure) -> None:
    """Write ``name.png`` and ``name.svg``."""
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
        if figure.log_x:
            place.set_xscale("log")
            place.xaxis.set_major_formatter(plain)
        if figure.log_y:
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
