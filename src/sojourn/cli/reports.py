"""`--report FILE.html` of several commands: a page for people beside what is printed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sojourn.core.files import FilePath

if TYPE_CHECKING:
    from sojourn.web.report.report import Reportable

ReportOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write one page of charts and tables, to look at or mail."),
]


def check_report(path: Path | None, inputs: Iterable[FilePath] = ()) -> None:
    """Refuse before the work what cannot be written after it."""
    if path is not None:
        from sojourn.web.report.writing import check_target

        check_target(path, inputs)


def write_report(result: Reportable, path: Path | None, sources: Iterable[FilePath] = ()) -> None:
    """Write the page, if one was asked for."""
    if path is not None:
        from sojourn.web.report.report import report

        report(result, path, sources=list(sources))
