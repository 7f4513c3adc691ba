"""`sojourn lab`: worlds to try the other commands on, with their truth; those of routers are in `lab_routed`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Block, Format, choose_format, progress, write_rows
from sojourn.core.units import parse_duration, parse_share

if TYPE_CHECKING:
    from sojourn.lab.wireless import CollectionRun

__all__ = ["app"]

app = typer.Typer(
    help="Worlds to try the other commands on: generated with their truth, or a network of real routers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:  sojourn lab wireless --nodes 100 -w trace.csv,  sojourn lab up six.csv",
)
_BLOCK_PACKETS = 1 << 14


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
    write_rows(_packets(run), _rows_format(output_format, output), path=output, name="packets")
    if truth is not None:
        write_rows(_hops(run), _rows_format(None, truth), path=truth, name="hops")
    lost = "".join(f", {count:,} lost ({reason})" for reason, count in run.lost.items() if count)
    print(f"{len(run):,} packets of {nodes - 1:,} nodes at the sink{lost}", file=sys.stderr)


def _rows_format(asked: Format | None, path: Path | None) -> Format:
    how = choose_format(asked, path)
    return Format.CSV if how is Format.TABLE else how


def _packets(run: CollectionRun) -> Iterator[Block]:
    for begin in range(0, max(len(run), 1), _BLOCK_PACKETS):
        chosen = slice(begin, begin + _BLOCK_PACKETS)
        start, end = run.start[:-1][chosen], run.start[1:][chosen]
        yield {
            "origin": run.origin[chosen],
            "seq": run.sequence[chosen],
            "path": ["-".join(map(str, run.node[a:b].tolist())) for a, b in zip(start, end, strict=True)],
            "t0_s": run.arrival_ns[start] / 1e9,
            "t_sink_s": run.arrival_ns[end - 1] / 1e9,
            "sum_of_delays_s": run.sum_ms[chosen] / 1e3,
        }


def _hops(run: CollectionRun) -> Iterator[Block]:
    import numpy as np

    for begin in range(0, max(len(run), 1), _BLOCK_PACKETS):
        last = min(begin + _BLOCK_PACKETS, len(run))
        lengths = np.diff(run.start[begin : last + 1])
        places = np.arange(run.start[begin], run.start[last])
        hop = places - np.repeat(run.start[begin:last], lengths)
        waits = np.ones(len(places), np.bool_)
        waits[np.cumsum(lengths) - 1] = False
        yield {
            "origin": np.repeat(run.origin[begin:last], lengths)[waits],
            "seq": np.repeat(run.sequence[begin:last], lengths)[waits],
            "hop_index": hop[waits],
            "node": run.node[places][waits],
            "t_arrival_s": run.arrival_ns[places][waits] / 1e9,
            "t_departure_s": run.arrival_ns[places[waits] + 1] / 1e9,
        }
