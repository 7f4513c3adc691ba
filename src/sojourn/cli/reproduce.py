"""`sojourn reproduce`: a paper's experiments, run again, with its claims beside what they come to here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, columns, progress, say, write_rows
from sojourn.cli.reports import ReportOption, check_report, write_report
from sojourn.core.errors import UsageError
from sojourn.papers.reproduction import Scale, claims_json
from sojourn.papers.reproduction import reproduce as run

HELP = "Run a paper's experiments again: its claims, its method, ours and the baselines side by side."
EXAMPLE = "Example:  sojourn reproduce lda --out lda --scale small"
PaperName = Literal["lda", "lds", "colate", "mplane", "bits", "iotm", "domo"]


TABLE = [
    *columns("experiment", "quantity", "unit", left=True),
    *columns("paper", "literal", "joint", "baseline", show="{:.3g}".format),
    *columns("reproduced", show=lambda yes: "yes" if yes else "no", left=True),
]


def reproduce(
    paper: Annotated[PaperName, typer.Argument(help="Which paper.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Directory for claims.md, claims.json and the figures; made if needed, files replaced.",
        ),
    ],
    scale: Annotated[
        Scale, typer.Option(help="small: under five minutes on one core; paper: as many packets as the paper had.")
    ] = Scale.SMALL,
    report: ReportOption = None,
    output_format: FormatOption = None,
) -> None:
    """Run, print the claims, and leave them with the figures in DIR; files of an earlier run there are replaced."""
    how = output_format or Format.TABLE
    if how is Format.PARQUET:
        raise UsageError("claims are not written as Parquet", where="reproduce", action="use json or csv")
    check_report(report)
    share_done = 0.0
    with progress(f"reproduce {paper}") as show:

        def advance(step: str, share: float) -> None:
            nonlocal share_done
            share_done = share
            show(step, share)

        try:
            result = run(paper, out, scale, advance=advance)
        except KeyboardInterrupt:
            done = f"the experiments that were done are in {out / 'claims.md'}"
            say(f"interrupted; {done if share_done else 'nothing was done yet'}")
            raise typer.Exit(130) from None
    claims = claims_json(result.claims)
    block = {column.name: [claim[column.name] for claim in claims] for column in TABLE}
    write_rows([block], how, name="claims", fields={"paper": paper, "scale": scale.value}, table=TABLE)
    write_report(result, report)
