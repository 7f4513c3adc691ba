"""What a worker does with uploaded files: measure, and write the report, as the command line would.

It works in the upload's own folder and calls files by their names there, so that reports and errors name them as their
owner does, and nothing of this machine. How far it is stands in `PROGRESS`, written a few times a second.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.web.report.report import Reportable

REPORT, PROGRESS = "report.html", "progress.json"
EVERY_SECONDS = 0.25
MOST_LINES = 20


def make_report(folder: str, kind: str, names: Sequence[str], where: str, reverse: bool) -> list[str]:
    """Write the report of some files into their folder; the lines that sum it up, warnings last."""
    from sojourn.web.report.report import report

    os.chdir(folder)
    result = _measured(kind, names, where, reverse)
    _Progress()("writing the report", 1.0)
    report(result, REPORT, sources=names)
    lines = [*result.summary.splitlines(), *(f"warning: {text}" for text in result.warnings)]  # type: ignore[union-attr]
    return lines[:MOST_LINES]


def _measured(kind: str, names: Sequence[str], where: str, reverse: bool) -> Reportable:
    advance = _Progress()
    if kind == "measure":
        from sojourn.segments.measure import measure_files

        return measure_files(*names, where=where, reverse=reverse, timeline=True, advance=advance)
    if kind == "tomography":
        from sojourn.tomography.result import tomography

        return tomography(names[0], workers=1, advance=advance)
    from sojourn.rtt.result import open_rtt

    with open_rtt(names[0], where=where) as run:
        deque(run.samples(advance), maxlen=0)
        return run.result()


class _Progress:
    """Writes how far the work is, for another process to read."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, step: str, share: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        part = Path(f"{PROGRESS}.part")
        part.write_text(json.dumps({"step": step, "share": share}))
        part.replace(PROGRESS)


def read_progress(folder: Path) -> tuple[str, float]:
    """The step that work in a folder is at, and the share done."""
    try:
        found = json.loads((folder / PROGRESS).read_text())
        return str(found["step"]), float(found["share"])
    except (OSError, ValueError, KeyError):
        return "starting", 0.0
