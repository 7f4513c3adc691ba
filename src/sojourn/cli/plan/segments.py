"""`sojourn plan`: how large a sketch has to be, before anything is recorded.

Each sketch is a sub-command of `app`; a module of its own may add another with ``app.command``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.output import Advance, Format, progress
from sojourn.cli.plan.output import PlanReport, print_plan
from sojourn.cli.plan.request import FlowRequest, check_shares, positive
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_bytes, parse_duration, parse_number, parse_share

if TYPE_CHECKING:
    from sojourn.cli.plan.request import Wanted

__all__ = ["Method", "app", "plan_format"]

app = typer.Typer(
    help="Size a sketch: the memory for a wanted error, or the error that a memory buys.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  sojourn plan lds --flows 10000 --rate 20000 --epoch 10s --error 5%",
)


class Method(StrEnum):
    """By which reasoning a sketch is sized."""

    JOINT = "joint"
    PUBLISHED = "published"


RateOption = Annotated[
    float | None, typer.Option("--rate", metavar="N", parser=parse_number, help="Packets per second, such as 20k.")
]
EpochOption = Annotated[str | None, typer.Option("--epoch", metavar="TIME", help="How long one sketch records.")]
LossOption = Annotated[str, typer.Option(metavar="SHARE", help="Share of packets expected to be lost.")]
ErrorOption = Annotated[
    str | None, typer.Option(metavar="SHARE", help="Relative error wanted, such as 5%; 5% if no memory is given.")
]
ConfidenceOption = Annotated[str, typer.Option(metavar="SHARE", help="Share of flows (or runs) within the error.")]
MemoryOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory per point: tell the error that it buys.")
]
StorageOption = Annotated[str | None, typer.Option(metavar="SIZE", help="Disk for epochs: tell how long it lasts.")]
MethodOption = Annotated[
    Method, typer.Option(help="joint: from simulation, with the paper's sizing beside; published: the paper's alone.")
]


def plan_format(asked: Format | None) -> Format:
    """A table, or JSON."""
    if asked not in (None, Format.TABLE, Format.JSON):
        raise UsageError(f"a plan is not written as {asked}", where="plan", action="use table or json")
    return asked or Format.TABLE


@app.command("lda")
def plan_lda(
    rate: RateOption = None,
    epoch: EpochOption = "1s",
    loss: LossOption = "1%",
    error: ErrorOption = None,
    confidence: ConfidenceOption = "95%",
    variation: Annotated[
        float, typer.Option(metavar="N", help="Standard deviation of packets' delays over their mean.")
    ] = 1.0,
    memory: MemoryOption = None,
    storage: StorageOption = None,
    method: MethodOption = Method.JOINT,
    output_format: FormatOption = None,
) -> None:
    """Size an LDA: mean delay of a whole segment under loss.

    Example:  sojourn plan lda --rate 500000 --epoch 1s --loss 1% --error 1%
    """
    from sojourn.cli.plan.request import lda_report

    how = plan_format(output_format)
    if rate is None:
        raise UsageError("the packet rate is missing", where="plan lda", action="give --rate")
    report = lda_report(
        rate=positive(rate, "--rate"),
        epoch_ns=parse_duration(epoch or "1s"),
        loss=parse_share(loss),
        wanted=_wanted(error, confidence, memory),
        variation=positive(variation, "--variation"),
        published_only=method is Method.PUBLISHED,
    )
    _finish(report, how, storage)


def _wanted(error: str | None, confidence: str, memory: str | None) -> Wanted:
    share = None if error is None else parse_share(error)
    return check_shares(share, parse_share(confidence), None if memory is None else parse_bytes(memory))


def _finish(report: PlanReport, how: Format, storage: str | None) -> None:
    print_plan(report, how, storage_bytes=None if storage is None else parse_bytes(storage))
    if not report.is_kept:
        raise typer.Exit(1)


def _add_flow_sketch(name: str, purpose: str, example: str) -> None:
    """A sub-command for a sketch that answers per flow; all take the same options."""

    def command(
        flows: Annotated[
            float | None, typer.Option(metavar="N", parser=parse_number, help="Flows per epoch, such as 10k.")
        ] = None,
        rate: RateOption = None,
        epoch: EpochOption = None,
        capture: Annotated[
            str | None,
            typer.Option("--from", metavar="CAPTURE", help="Take flows, their sizes and the rate from a capture."),
        ] = None,
        loss: LossOption = "0%",
        error: ErrorOption = None,
        confidence: ConfidenceOption = "95%",
        flow_size: Annotated[
            int, typer.Option(metavar="N", help="The promise is for flows of N packets or more.")
        ] = 100,
        tail: Annotated[
            float, typer.Option(metavar="N", help="Pareto tail of flow sizes; smaller means larger elephants.")
        ] = 0.9,
        delay: Annotated[
            str, typer.Option(metavar="TIME", help="Mean delay (COLATE's published equations need it).")
        ] = "10ms",
        memory: MemoryOption = None,
        storage: StorageOption = None,
        method: MethodOption = Method.JOINT,
        output_format: FormatOption = None,
    ) -> None:
        how = plan_format(output_format)
        request = FlowRequest(
            sketch=name,
            flows=None if flows is None else round(flows),
            rate=rate,
            epoch_ns=None if epoch is None else parse_duration(epoch),
            capture=capture,
            loss=parse_share(loss),
            wanted=_wanted(error, confidence, memory),
            flow_size=flow_size,
            tail=tail,
            delay_ns=parse_duration(delay),
            published_only=method is Method.PUBLISHED,
        )
        _run(f"plan {name}", how, storage, request.report)

    app.command(name, help=f"{purpose}\n\nExample:  {example}")(command)


def _run(title: str, how: Format, storage: str | None, make: Callable[[Advance], PlanReport]) -> None:
    with progress(title) as advance:
        report = make(advance)
    _finish(report, how, storage)


_add_flow_sketch(
    "lds",
    "Size an LDS: mean delay, size and loss of every flow.",
    "sojourn plan lds --flows 10000 --rate 20000 --epoch 10s --error 5%",
)
_add_flow_sketch(
    "colate",
    "Size a COLATE counter vector: mean latency of every flow between any two points.",
    "sojourn plan colate --from backbone.pcap.gz --epoch 1s --error 5% --flow-size 1000",
)
_add_flow_sketch(
    "sample",
    "Size a coordinated sample: delay and loss of every flow under heavy loss.",
    "sojourn plan sample --flows 1000 --rate 5000 --epoch 10s --loss 10% --error 5%",
)
_add_flow_sketch(
    "auto",
    "Size cells and samples together (measure --sketch auto).",
    "sojourn plan auto --flows 1000 --rate 5000 --epoch 10s --loss 1% --memory 256KB",
)
