"""`sojourn plan iotm`: how large a node's bucket array has to be."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import FormatOption
from sojourn.cli.plan.output import PlanReport, print_plan
from sojourn.cli.plan.request import check_shares
from sojourn.cli.plan.segments import (
    ConfidenceOption,
    ErrorOption,
    MemoryOption,
    StorageOption,
    plan_format,
)
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_bytes, parse_duration, parse_number, parse_share

if TYPE_CHECKING:
    from sojourn.cli.plan.request import Wanted
    from sojourn.sketches.sizing.iotm import IotmPlan, Workload

__all__ = ["add_to"]

EXAMPLE = "sojourn plan iotm --instances 10 --rate 50 --period 10min --error 5%"


class Spreading(StrEnum):
    """Which of an instance's buckets takes the next measurement."""

    ROUND_ROBIN = "round-robin"
    HASHED_STEPS = "hashed-steps"
    RANDOM = "random"


def add_to(app: typer.Typer) -> None:
    """Make it a sub-command of `sojourn plan`."""
    app.command("iotm", help=f"Size a node's bucket array: sums per process or flow.\n\nExample:  {EXAMPLE}")(plan_iotm)


def plan_iotm(
    instances: Annotated[int | None, typer.Option(metavar="N", help="Processes or flows measured.")] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", parser=parse_number, help="Measurements per second, of all."),
    ] = None,
    period: Annotated[str, typer.Option(metavar="TIME", help="The time that one question spans.")] = "10min",
    error: ErrorOption = None,
    confidence: ConfidenceOption = "95%",
    tail: Annotated[float, typer.Option(metavar="N", help="Tail of instances' sizes; 1 is Zipf's law.")] = 1.0,
    change: Annotated[
        float, typer.Option(metavar="N", help="Deviation of an instance's rate between epochs, over its mean.")
    ] = 0.5,
    spreading: Annotated[Spreading, typer.Option(help="How measurements spread.")] = Spreading.ROUND_ROBIN,
    memory: MemoryOption = None,
    storage: StorageOption = None,
    output_format: FormatOption = None,
) -> None:
    """Size a node's bucket array."""
    from sojourn.sketches.sizing.iotm import Workload, plan_bucket_array

    how = plan_format(output_format)
    if instances is None or rate is None:
        raise UsageError("the workload is not known", where="plan iotm", action="give --instances and --rate")
    wanted = check_shares(
        None if error is None else parse_share(error),
        parse_share(confidence),
        None if memory is None else parse_bytes(memory),
    )
    workload = Workload(instances=instances, rate=rate, period_ns=parse_duration(period), tail=tail, change=change)
    plan = plan_bucket_array(
        workload,
        error=wanted.error,
        confidence=wanted.confidence,
        memory_bytes=wanted.memory_bytes,
        spreading=spreading.value,
    )
    report = _report(workload, plan, wanted)
    print_plan(report, how, storage_bytes=None if storage is None else parse_bytes(storage))
    if not report.is_kept:
        raise typer.Exit(1)


def _report(workload: Workload, plan: IotmPlan, wanted: Wanted) -> PlanReport:
    from sojourn.sketches.sizing.iotm import error_at, published_deviation

    measured = workload.measurements / plan.epochs
    report = PlanReport("iotm", measured, plan.epoch_ns, error=wanted.error, confidence=wanted.confidence)
    report.traffic = {
        "instances": workload.instances,
        "rate": workload.rate,
        "period_ns": workload.period_ns,
        "tail": workload.tail,
        "change": workload.change,
    }
    kept = plan.is_kept or (wanted.memory_bytes is not None and not wanted.error_given)
    report.set_plan({"bucket_array": plan.parameters.to_mapping()}, plan.memory_bits, kept=kept)
    report.expected = {
        "epochs": plan.epochs,
        "error": plan.error,
        "median_error": plan.median_error,
        "answers_within": plan.share,
    }
    sizes = workload.sizes
    relative = published_deviation(sizes, n=plan.parameters.buckets, m=plan.parameters.per_instance) / sizes
    report.set_published(
        {"error": error_at(relative, wanted.confidence), "median_error": error_at(relative, 0.5)}, only=False
    )
    if not kept:
        report.advice = (
            f"at best {plan.share:.0%} of answers are within the error; ask for a larger one, measure longer, or let"
            " measurements take turns (--spreading round-robin)"
        )
    return report
