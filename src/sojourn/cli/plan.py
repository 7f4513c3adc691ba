"""`sojourn plan`: how large a sketch has to be, before anything is recorded; each sketch is a sub-command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from sojourn.cli.options import FormatOption, command_group, grouped
from sojourn.cli.output import Format, columns, print_json, progress, write_rows
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_number

app = command_group(
    "Size a sketch: the memory for a wanted error, or the error that a memory buys.",
    "sojourn plan lds --flows 10000 --rate 20000 --epoch 10s --error 5%",
)
_TABLE = [*columns("quantity", left=True), *columns("planned", published="as published")]


EpochOption = Annotated[str | None, typer.Option("--epoch", metavar="TIME", help="How long one sketch records.")]
LossOption = Annotated[str, typer.Option(metavar="SHARE", help="Share of packets expected to be lost.")]
FlowLossOption = Annotated[
    str | None,
    typer.Option("--loss", metavar="SHARE", help="Share of packets expected to be lost; auto: 1%, else none."),
]
MethodOption = Annotated[
    Literal["joint", "published"],
    typer.Option(help="joint: from simulation, with the paper's sizing beside; published: the paper's alone."),
]


@dataclass(frozen=True)
class Wish:
    """What is wanted, and how it is printed."""

    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", parser=parse_number, help="Packets (or measurements) a second: 20k."),
    ] = None
    error: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Relative error wanted, such as 5%; 5% if no memory is given.")
    ] = None
    confidence: Annotated[str, typer.Option(metavar="SHARE", help="Share of flows (or runs) within the error.")] = "95%"
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory per point: show the error that it buys.")
    ] = None
    storage: Annotated[str | None, typer.Option(metavar="SIZE", help="Disk for epochs: show how long it lasts.")] = None
    output_format: FormatOption = None

    def run(self, sketch: str, method: str = "joint", **traffic: Any) -> None:
        """Plan, print, and exit with 1 where the wanted error cannot be reached."""
        from sojourn.segments.planning.result import plan

        if self.output_format not in (None, Format.TABLE, Format.JSON):
            raise UsageError(f"a plan is not written as {self.output_format}", where="plan", action="use table or json")
        known = {name: value for name, value in {"rate": self.rate, **traffic}.items() if value is not None}
        with progress(f"plan {sketch}") as advance:
            result = plan(
                sketch,
                error=self.error,
                confidence=self.confidence,
                memory=self.memory,
                storage=self.storage,
                published=method == "published",
                advance=advance,
                **known,
            )
        if self.output_format is Format.JSON:
            print_json(result.to_dict())
        else:
            write_rows(result.blocks(), Format.TABLE, table=_TABLE)
            print("".join(f"{note}\n" for note in result.notes), end="", file=sys.stderr)
        if result.advice:
            print(f"sojourn: {result.advice}", file=sys.stderr)
        if not result.is_kept:
            raise typer.Exit(1)


@app.command("lda", epilog="Example:  sojourn plan lda --rate 500000 --epoch 1s --loss 1% --error 1%")
@grouped
def plan_lda(
    *,
    wish: Wish,
    epoch: EpochOption = "1s",
    loss: LossOption = "1%",
    variation: Annotated[
        float, typer.Option(metavar="N", help="Standard deviation of packets' delays over their mean.")
    ] = 1.0,
    method: MethodOption = "joint",
) -> None:
    """Size an LDA: mean delay of a whole segment under loss."""
    wish.run("lda", method, epoch=epoch, loss=loss, variation=variation)


@app.command("iotm", epilog="Example:  sojourn plan iotm --instances 10 --rate 50 --period 10min --error 5%")
@grouped
def plan_iotm(
    *,
    wish: Wish,
    instances: Annotated[int | None, typer.Option(metavar="N", help="Processes or flows measured.")] = None,
    period: Annotated[str, typer.Option(metavar="TIME", help="The time that one question spans.")] = "10min",
    tail: Annotated[float, typer.Option(metavar="N", help="Tail of instances' sizes; 1 is Zipf's law.")] = 1.0,
    change: Annotated[
        float, typer.Option(metavar="N", help="Deviation of an instance's rate between epochs, over its mean.")
    ] = 0.5,
    spreading: Annotated[
        Literal["round-robin", "hashed-steps", "random"], typer.Option(help="How measurements spread.")
    ] = "round-robin",
    stat: Annotated[
        Literal["sum", "mean"], typer.Option(help="What is asked: sums, or means (then epochs are planned).")
    ] = "sum",
    buckets: Annotated[int, typer.Option(metavar="N", min=2, help="Means: buckets of the array.")] = 64,
    per_instance: Annotated[int, typer.Option(metavar="N", min=1, help="Means: buckets of an instance.")] = 4,
    variation: Annotated[
        float, typer.Option(metavar="N", help="Means: deviation of an instance's values over their mean.")
    ] = 1.0,
    alike: Annotated[
        str, typer.Option(metavar="TIME", help="Means: how long values stay alike, as a queue does.")
    ] = "500ms",
) -> None:
    """Size a node's bucket array for sums per process or flow, or choose its epochs and salts for means."""
    wish.run(
        "iotm",
        instances=instances,
        period=period,
        tail=tail,
        change=change,
        spreading=spreading,
        stat=stat,
        buckets=buckets,
        per_instance=per_instance,
        variation=variation,
        alike=alike,
    )


@app.command("ledger", epilog="Example:  sojourn plan ledger --rate 100k --flows 1000 --epoch 1s --loss 1%")
@grouped
def plan_ledger(
    *,
    wish: Wish,
    flows: Annotated[
        float | None, typer.Option(metavar="N", parser=parse_number, help="Flows per epoch, such as 10k.")
    ] = None,
    epoch: EpochOption = "1s",
    loss: LossOption = "1%",
    held: Annotated[
        float, typer.Option("--hold", metavar="N", min=1, help="Epochs that the ledger holds until they are asked for.")
    ] = 4,
) -> None:
    """Size receipts and a ledger: exact delay and loss of every flow, where points have memory."""
    wish.run("ledger", flows=None if flows is None else round(flows), epoch=epoch, loss=loss, held=held)


def _add_flow_sketch(name: str, purpose: str, example: str) -> None:
    """A sub-command for a sketch that answers per flow; all take the same options."""

    @grouped
    def command(
        *,
        flows: Annotated[
            float | None, typer.Option(metavar="N", parser=parse_number, help="Flows per epoch, such as 10k.")
        ] = None,
        wish: Wish,
        epoch: EpochOption = None,
        capture: Annotated[
            str | None,
            typer.Option("--from", metavar="CAPTURE", help="Take flows, their sizes and the rate from a capture."),
        ] = None,
        receiver: Annotated[
            str | None,
            typer.Option("--to", metavar="CAPTURE", help="The same traffic at the other point: loss and delays, too."),
        ] = None,
        loss: FlowLossOption = None,
        flow_size: Annotated[
            int | None, typer.Option(metavar="N", help="The promise is for flows of N packets or more, 100.")
        ] = None,
        tail: Annotated[
            float, typer.Option(metavar="N", help="Pareto tail of flow sizes; smaller means larger elephants.")
        ] = 0.9,
        delay: Annotated[
            str, typer.Option(metavar="TIME", help="Mean delay (COLATE's published equations need it).")
        ] = "10ms",
        method: MethodOption = "joint",
    ) -> None:
        count = None if flows is None else round(flows)
        known = {"flows": count, "epoch": epoch, "capture": capture, "receiver": receiver, "loss": loss}
        wish.run(name, method, **known, flow_size=flow_size, tail=tail, delay=delay)

    app.command(name, help=purpose, epilog=f"Example:  sojourn plan {name} {example}")(command)


_add_flow_sketch(
    "lds", "Size an LDS: mean delay, size and loss of every flow.", "--flows 10000 --rate 20000 --epoch 10s --error 5%"
)
_add_flow_sketch(
    "colate",
    "Size a COLATE counter vector: mean latency of every flow between any two points.",
    "--from backbone.pcap.gz --epoch 1s --error 5% --flow-size 1000",
)
_add_flow_sketch(
    "sample",
    "Size a coordinated sample: delay and loss of every flow under heavy loss.",
    "--flows 1000 --rate 5000 --epoch 10s --loss 10% --error 5%",
)
_add_flow_sketch(
    "auto",
    "Size cells and samples together (measure --sketch auto).",
    "--flows 1000 --rate 5000 --epoch 10s --loss 1% --memory 256KB",
)
