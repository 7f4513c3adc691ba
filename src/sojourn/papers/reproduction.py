"""Running a paper's experiments one after the other; what is done is on disk before the next begins.

A paper's module has a ``TITLE`` and a tuple ``EXPERIMENTS`` of functions that take a `Scale` and return an `Outcome`.
Seeds are fixed: the same scale gives the same claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from time import perf_counter

from sojourn import __version__
from sojourn.papers.claims import Claim, write_claims
from sojourn.papers.figures import Figure, write_figure

__all__ = ["PAPERS", "Outcome", "Scale", "reproduce"]

# The papers by the name their command has, and the module of each.
PAPERS = {
    "lda": "sojourn.papers.lda",
    "lds": "sojourn.papers.lds",
    "colate": "sojourn.papers.colate",
    "bits": "sojourn.papers.bits",
}


class Scale(StrEnum):
    """How much is simulated: minutes on one core, or as many packets as the paper had."""

    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True)
class Outcome:
    """What one experiment gave."""

    claims: Sequence[Claim]
    figures: Sequence[Figure] = field(default=())


def reproduce(
    paper: str, directory: Path, scale: Scale, *, advance: Callable[[str, float], None] = lambda _step, _share: None
) -> list[Claim]:
    """Run all experiments of a paper; claims and figures are in `directory` as soon as they are known."""
    module = import_module(PAPERS[paper])
    directory.mkdir(parents=True, exist_ok=True)
    experiments: Sequence[Callable[[Scale], Outcome]] = module.EXPERIMENTS
    claims: list[Claim] = []
    pictures: list[str] = []
    began = perf_counter()
    for number, experiment in enumerate(experiments):
        name = experiment.__name__.replace("_", " ")
        advance(name, number / len(experiments))
        outcome = experiment(scale)
        claims += outcome.claims
        for figure in outcome.figures:
            write_figure(directory, figure)
            pictures.append(figure.name)
        done = f"{number + 1} of {len(experiments)} experiments"
        remarks = f"Scale {scale}, sojourn {__version__}, {done}, {perf_counter() - began:.0f} s."
        write_claims(directory, module.TITLE, remarks, claims, pictures)
    return claims
