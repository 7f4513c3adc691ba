"""`sojourn lab`: worlds to try the other commands on, with their truth; those of routers are in `routed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, choose_format, is_known_ending, progress, write_rows
from sojourn.core.units import parse_duration, parse_share, plural

app = typer.Typer(
    help="Worlds to try the other commands on: generated with their truth, or a network of real routers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:  sojourn lab wireless --nodes 100 -w trace.csv,  sojourn lab up six.csv",
)


@app.callback()
def _worlds() -> None:
    """Every world is a sub-command."""


@app.command(epilog="Example:  sojourn lab wireless --nodes 225 --ack-loss 5% -w trace.csv --truth hops.csv")
def wireless(
    output: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="TRACE", help="Write the sink's trace to a file.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="HOPS", help="Write the truth of every hop to another file.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=2, max=2_000, help="Nodes, the sink included.")] = 400,
    packets: Annotated[int, typer.Option(min=1, help="Packets that each node sends.")] = 10,
    period: Annotated[str, typer.Option(metavar="TIME", help="Time between two packets of a node.")] = "10s",
    ack_loss: Annotated[str, typer.Option(metavar="SHARE", help="Acknowledgements lost.")] = "0%",
    loss: Annotated[str, typer.Option(metavar="SHARE", help="Packets taken out of the trace.")] = "0%",
    buffer: Annotated[int, typer.Option(min=1, max=10_000, help="Packets that a node's queue holds.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same network.")] = 1,
    output_format: FormatOption = None,
) -> None:
    """Simulate a wireless collection network: what its sink sees, as `sojourn tomography` reads it."""
    from sojourn.lab.wireless import WirelessNetwork, run_collection

    network = WirelessNetwork(
        nodes=nodes,
        packets_per_node=packets,
        period_s=parse_duration(period) / 1e9,
        buffer=buffer,
        ack_loss=parse_share(ack_loss),
        loss=parse_share(loss),
    )
    with progress("simulating") as advance:
        advance(f"{nodes} nodes", 0.0)
        run = run_collection(network, seed)
    write_rows(run.packets(), _rows_format(output_format, output), path=output, name="packets")
    if truth is not None:
        asked = None if is_known_ending(truth) else output_format
        write_rows(run.hops(), _rows_format(asked, truth), path=truth, name="hops")
    lost = "".join(f", {count:,} lost ({reason})" for reason, count in run.lost.items() if count)
    print(f"{plural(len(run), 'packet')} of {plural(nodes - 1, 'node')} at the sink{lost}", file=sys.stderr)


def _rows_format(asked: Format | None, path: Path | None) -> Format:
    how = choose_format(asked, path)
    return Format.CSV if how is Format.TABLE else how
