"""`sojourn estimate`: the answer from two points' epochs; with `--heavy` the flows over a threshold at the sender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sojourn.cli.options import Output, grouped
from sojourn.cli.output import TableColumn
from sojourn.cli.segments.measure import FLOW_COLUMNS, print_result, print_segment

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn estimate in.epochs out.epochs --limit 5
  $ sojourn estimate in.epochs out.epochs --flow '10.81.0.2:44244 > 10.82.0.2:5202 udp'
  $ sojourn estimate in.epochs out.epochs --sizes flows.json --format json
  $ sojourn estimate in.epochs out.epochs --heavy 1%

Sizes are what sojourn flows --format json writes at the sender; COLATE needs them.
"""

HEAVY_COLUMNS = [
    *FLOW_COLUMNS,
    TableColumn("packets_low", "packets from", "{:,}".format),
    TableColumn("packets_high", "to", "{:,}".format),
    TableColumn("surely", "over it", lambda surely: "surely" if surely else "maybe", justify="left"),
]


@grouped
def estimate(
    output: Output,
    sender: Annotated[str, typer.Argument(metavar="SENDER_EPOCHS", help="Written by sojourn record.")],
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER_EPOCHS", help="Written by sojourn record.")],
    flow: Annotated[list[str] | None, typer.Option("--flow", metavar="KEY", help="Only this flow; repeatable.")] = None,
    sizes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Flow sizes at the sender: JSON of sojourn flows.")
    ] = None,
    method: Annotated[
        Literal["literal", "joint"],
        typer.Option(help="joint: decode all flows together (needs all keys); literal: one by one, as published."),
    ] = "joint",
    clock: Annotated[str, typer.Option(help="none, or offset=TIME that the receiver's clock is ahead.")] = "none",
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also answer per interval, as given to record.")
    ] = None,
    heavy: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|PACKETS", help="Instead: the flows with so many packets (1000) or that share (1%)."
        ),
    ] = None,
) -> None:
    """Estimate delay and loss of every flow from two points' epochs."""
    if heavy is not None:
        from sojourn.segments.heavy import find_heavy

        print_result(find_heavy(sender, heavy, flows=flow or None), output, HEAVY_COLUMNS)
        return
    from sojourn.segments.measure import estimate as estimate_epochs

    result = estimate_epochs(
        sender, receiver, flows=flow or None, sizes=sizes, method=method, clock=clock, interval=interval
    )
    print_segment(result, output)


estimate.__doc__ = f"{estimate.__doc__}\n\n\b\n{_EXAMPLE}"
