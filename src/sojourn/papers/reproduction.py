"""Running a paper's experiments one after the other; what is done is on disk before the next begins.

A paper's module has a ``TITLE``, a tuple ``EXPERIMENTS`` of functions that take a `Scale` and return an `Outcome`, and
may have ``NOTES`` on how its figures are to be read. Seeds are fixed: the same scale gives the same claims, but for
experiments that measure a real machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter

from sojourn import __version__
from sojourn.core.errors import UsageError
from sojourn.papers.claims import Claim, write_claims
from sojourn.papers.figures import Figure, require_matplotlib, write_figure

__all__ = ["PAPERS", "Outcome", "Scale", "reproduce"]

# The papers by the name their command has, and the module of each.
PAPERS = {
    "lda": "sojourn.papers.lda",
    "lds": "sojourn.papers.lds",
    "colate": "sojourn.papers.colate",
    "mplane": "sojourn.papers.mplane",
    "bits": "sojourn.papers.bits",
    "iotm": "sojourn.papers.iotm",
    "domo": "sojourn.papers.domo",
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
    """Run all experiments of a paper; claims and figures are in `directory` as soon as they are known.

    Files of an earlier run are replaced, one by one as the new ones are known.
    """
    require_matplotlib()
    _make_writable(directory)
    module = import_module(PAPERS[paper])
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
        notes = getattr(module, "NOTES", "")
        write_claims(directory, module.TITLE, f"{remarks}\n\n{notes}".strip(), claims, pictures)
    return claims


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
