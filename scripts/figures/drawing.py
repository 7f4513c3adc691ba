"""How a picture looks: colours that everyone can tell apart, a light and a dark scheme, SVG without times or ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt  # after the backend is chosen

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"

# Okabe and Ito's colours, told apart whatever colours the reader sees; black becomes the ink of the scheme.
BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"


@dataclass(frozen=True)
class Scheme:
    """Where a picture is shown: ink and faint ink on a background."""

    suffix: str
    ink: str
    faint: str
    paper: str
    blue: str


SCHEMES = (Scheme("", "#222222", "#cccccc", "#ffffff", BLUE), Scheme("-dark", "#e6e6e6", "#555b66", "#1e2129", SKY))

Paint = Callable[[Any, Scheme], None]


def draw(name: str, paint: Paint, *, width: float = 7.2, height: float = 3.6, panels: int = 1) -> None:
    """Have `paint` fill the axes (a list, where there are several panels), once for each scheme."""
    for scheme in SCHEMES:
        with mpl.rc_context(_settings(name, scheme)):
            figure, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained")
            paint(axes, scheme)
            save(name, scheme, figure)


def save(name: str, scheme: Scheme, figure: Any) -> None:
    """Write one variant, whole or not at all."""
    path = PICTURES / f"{name}{scheme.suffix}.svg"
    new = path.with_suffix(".new")
    figure.savefig(new, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    lines = [line.rstrip() for line in new.read_text().splitlines()]
    new.write_text("\n".join(lines) + "\n")
    new.rename(path)


def _settings(name: str, scheme: Scheme) -> dict[str, Any]:
    return {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "sans-serif"],
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": scheme.faint,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
        "axes.edgecolor": scheme.ink,
        "axes.labelcolor": scheme.ink,
        "axes.titlesize": 9,
        "text.color": scheme.ink,
        "xtick.color": scheme.ink,
        "ytick.color": scheme.ink,
        "legend.frameon": False,
        "figure.facecolor": scheme.paper,
        "axes.facecolor": scheme.paper,
        "savefig.facecolor": scheme.paper,
        "axes.prop_cycle": mpl.cycler(color=[scheme.blue, ORANGE, GREEN, PINK, RED]),
    }
