"""Pictures of papers' experiments: the curves that `sojourn reproduce` computes, in the documents' colours."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scripts.figures.drawing import GREEN, ORANGE, PINK, RED, Scheme, draw
from sojourn.papers.reproduction import STYLES, Figure, Scale

# What is shown: paper, experiment, the figure's name there.
SHOWN = {
    "lda-mean-error": ("lda", "delays_and_loss_rates", "fig4a-mean-error"),
    "lds-by-memory": ("lds", "accuracy_by_memory", "accuracy_by_memory"),
    "colate-accuracy": ("colate", "accuracy", "accuracy-median"),
    "sprint-upgrades": ("mplane", "sprint", "sprint-probe-hop-count"),
    "domo-window": ("domo", "window_ratio", ""),
    "iotm-buckets": ("iotm", "buckets_in_array", ""),
    "joint-by-size": ("lds", "accuracy_by_flow_size", "accuracy_by_size"),
    "colate-guarantee": ("colate", "guarantee", "guarantee"),
}


def show(name: str) -> None:
    paper, experiment, wanted = SHOWN[name]
    outcome = getattr(import_module(f"sojourn.papers.{paper}"), experiment)(Scale.SMALL)
    figure: Figure = next(figure for figure in outcome.figures if wanted in ("", figure.name))
    panels = list(figure.panels.items())

    def paint(axes: Any, scheme: Scheme) -> None:
        for number, (title, lines) in enumerate(panels):
            place = axes[number] if len(panels) > 1 else axes
            for line, colour in zip(lines, [scheme.blue, ORANGE, GREEN, PINK, RED, scheme.ink] * 2, strict=False):
                place.plot(line.x, line.y, STYLES[line.kind], color=colour, label=line.name)
            place.set(xlabel=figure.x_label if len(panels) < 3 or number == 1 else "", title=title)
            for axis in figure.log:
                place.set(**{f"{axis}scale": "log"})
        first = axes[0] if len(panels) > 1 else axes
        first.set(ylabel=figure.y_label)
        handles, names = first.get_legend_handles_labels()
        first.figure.legend(handles, names, fontsize=7, loc="outside lower center", ncols=len(names))

    draw(name, paint, panels=len(panels), height=3.2)
