"""`sojourn mplane router`: delay and loss between the interfaces of this router, measured inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import CaFileOption, FormatOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.cli.output import Block, Format, columns, say, write_rows
from sojourn.core.errors import UsageError
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.core.units import format_duration, parse_bytes, parse_duration, plural

if TYPE_CHECKING:
    from sojourn.mplane.measurements import SegmentMeasurement
    from sojourn.mplane.router.recorder import RouterRecorder, RouterSettings
    from sojourn.node.agent.router_unit import RouterUnit

_TABLE = [
    *columns("segment", left=True),
    *columns("dscp", "intervals"),
    *columns("packets", "lost", show="{:,}".format),
    *columns(mean_ns="mean", low_ns="from", high_ns="to", std_ns="std", show=format_duration),
    *columns("void", left=True),
]
_FIELDS = ("dscp", "interval", "start_ns", "end_ns", "packets", "lost", "mean_ns", "low_ns", "high_ns", "std_ns")


def router(
    name: Annotated[str, typer.Option("--name", metavar="ROUTER", help="This router's name; the token's node.")],
    interface: Annotated[
        list[str],
        typer.Option(
            "--interface",
            metavar="IFACE=NEIGHBOUR",
            help="An interface and whom it faces, two or more; NEIGHBOUR@ADDRESS where the address is not found out.",
        ),
    ],
    dscp: Annotated[str, typer.Option(metavar="N,N,…", help="The classes to measure.")] = "0",
    interval: Annotated[str, typer.Option(metavar="TIME", help="Length of an interval.")] = "1s",
    max_delay: Annotated[
        str, typer.Option(metavar="TIME", help="A Start or End that takes longer counts as lost.")
    ] = "2s",
    server: Annotated[str | None, typer.Option(metavar="URL", help="The query unit that epochs go to.")] = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    spool: Annotated[
        Path | None,
        typer.Option("--write", "-w", metavar="DIR", help="Where epochs wait for the server; without one they stay."),
    ] = None,
    spool_limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Bound of DIR; beyond it the oldest intervals are given up.")
    ] = "64MB",
    rows: Annotated[int, typer.Option(min=16, help="Rows of each of an LDA's three banks.")] = 512,
    buffer: Annotated[
        str, typer.Option("--buffer", "-B", metavar="SIZE", help="Ring for each interface and each pair of them.")
    ] = "8MiB",
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long to measure; without it until Ctrl-C.")
    ] = None,
    output_format: FormatOption = None,
) -> None:
    """Measure delay and loss inside this router, between its interfaces, class by class; needs root.

    Prints a line per segment and class in the end; with --format jsonl or
    csv a line per interval, as it closes.

    Example:  sojourn mplane router --name r2 --interface eth0=r1 --interface eth1=r3 --dscp 0,46 --for 10s
    """
    from sojourn.cli.fleet.serve import default_data
    from sojourn.mplane.router.forwarding import look_up, parse_facing
    from sojourn.mplane.router.recorder import RouterRecorder
    from sojourn.node.agent.router_unit import RouterUnit
    from sojourn.node.spool.spool import Spool

    if not is_name(name):
        raise UsageError(f"{name[:40]!r} cannot name a router", where="--name", action=f"use {NAME_RULE}")
    if output_format is Format.PARQUET:
        raise UsageError("intervals are printed as they close", where="--format", action="use jsonl or csv")
    settings = _settings(dscp, interval, max_delay, rows, buffer)
    seconds = parse_duration(duration) / 1e9 if duration else None
    recorder = RouterRecorder(name, look_up([parse_facing(text) for text in interface]), settings)
    if server and spool is None:
        spool = default_data() / "router-spool" / name  # outlives this run
    transport = UnitAccess(server, token, token_file, ca_file).transport(name, spool) if server else None
    kept = Spool(spool, limit_bytes=parse_bytes(spool_limit)) if spool else None
    unit = RouterUnit(recorder, kept, transport, report=say)
    _print(unit, recorder, output_format or Format.TABLE, seconds)


def _settings(dscp: str, interval: str, max_delay: str, rows: int, buffer: str) -> RouterSettings:
    from sojourn.mplane.router.recorder import DEFAULT_LDA, RouterSettings

    try:
        dscps = tuple(int(word) for word in dscp.split(","))
    except ValueError:
        raise UsageError(f"{dscp!r} are no classes", where="--dscp", action="write numbers such as 0,46") from None
    return RouterSettings(
        dscps=dscps,
        interval_ns=parse_duration(interval),
        max_delay_ns=parse_duration(max_delay),
        parameters=replace(DEFAULT_LDA, rows=rows),
        ring_bytes=parse_bytes(buffer),
    )


def _print(unit: RouterUnit, recorder: RouterRecorder, how: Format, seconds: float | None) -> None:
    from sojourn.core.executors.interrupts import stopping_on_interrupt

    with stopping_on_interrupt(unit.stop):
        if how is Format.TABLE:
            write_rows([_summary(one for some in unit.run(seconds=seconds) for one in some)], how, table=_TABLE)
        else:
            write_rows(_blocks(unit.run(seconds=seconds)), how, name="intervals")
    counts = recorder.counts
    lines = [
        f"{plural(counts.packets, 'packet')} in {plural(counts.intervals, 'interval')} ({counts.idle:,} without any, "
        f"{counts.void.total():,} void), {unit.cpu_share:.1%} of a CPU",
        f"{plural(unit.sent, 'epoch')} sent, {unit.waiting:,} waiting",
        *(f"{plural(count, 'packet')} left out: {reason}" for reason, count in sorted(recorder.left_out.items())),
    ]
    for line in lines:
        say(line)


def _blocks(lists: Iterable[list[SegmentMeasurement]]) -> Iterator[Block]:
    for measurements in lists:
        values = {name: [getattr(one, name) for one in measurements] for name in (*_FIELDS, "void")}
        yield {"segment": [str(one.segment) for one in measurements], **values}


def _summary(measurements: Iterable[SegmentMeasurement]) -> Block:
    from sojourn.mplane.router.epochs import summarise

    summaries = summarise(measurements)
    names = ("dscp", "intervals", "packets", "lost", "mean_ns", "low_ns", "high_ns", "std_ns")
    values = {name: [getattr(one, name) for one in summaries] for name in names}
    void = [", ".join(f"{n} {why}" for why, n in sorted(one.void.items())) for one in summaries]
    return {"segment": [str(one.segment) for one in summaries], **values, "void": void}
