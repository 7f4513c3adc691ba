"""`sojourn measure`: one-way delay, jitter and loss of every flow between two captures or two interfaces.

The options and the report that `record` and `estimate` share with it are declared here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from sojourn.cli.capture.flows import flow_columns
from sojourn.cli.options import (
    TABLE_ROWS,
    BufferOption,
    ForOption,
    InnerOption,
    KeyOption,
    Live,
    Output,
    PromiscuousOption,
    StrictOption,
    VerboseOption,
    grouped,
    refuse_files,
)
from sojourn.cli.output import Block, Format, TableColumn, choose_format, loss_style, progress, warn, write_rows
from sojourn.cli.reports import ReportOption, check_report, write_report
from sojourn.core.errors import ParameterError, UsageError, harmless
from sojourn.core.units import format_duration, plural

if TYPE_CHECKING:
    from sojourn.capture.packets import Interface
    from sojourn.core.results import Result
    from sojourn.segments.result import SegmentResult


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "—"


def _time(value: float | None) -> str:
    return "—" if value is None else format_duration(value)


FLOW_COLUMNS = flow_columns("source", "destination", "proto", rank=5)
_THERE = flow_columns("there from", "there to")[:-1]
RECEIVERS_COLUMNS = [
    replace(column, name=f"receiver_{column.name}", show=lambda value: str(value or ""), rank=6) for column in _THERE
]
COLUMNS = [
    TableColumn("start_ns", "from (s)", lambda ns: f"{ns / 1e9:.3f}"),
    *FLOW_COLUMNS,
    *RECEIVERS_COLUMNS,
    TableColumn("dscp", "dscp", _number),
    TableColumn("packets", "packets", _number),
    TableColumn("packets_low", "at least", _number, rank=7),
    TableColumn("packets_high", "at most", _number, rank=7),
    TableColumn("lost", "lost", _number, style=loss_style),
    TableColumn("lost_low", "at least", _number, rank=2),
    TableColumn("lost_high", "at most", _number, rank=2),
    TableColumn("mean_ns", "mean", _time),
    TableColumn("low_ns", "from", rank=1),
    TableColumn("high_ns", "to (95 %)", rank=1),
    TableColumn("p50_ns", "median", _time, rank=3),
    TableColumn("p99_ns", "p99", _time, rank=1),
    TableColumn("std_ns", "deviation", _time, rank=3),
    TableColumn("jitter_ns", "jitter", _time, rank=2),
    TableColumn("true_mean_ns", "true mean", _time),
    TableColumn("true_lost", "true lost", _number),
    TableColumn("reason", "no answer because", lambda reason: reason or "", justify="left", rank=4),
]


def print_result(result: Result, output: Output, columns: Sequence[TableColumn] = COLUMNS) -> None:
    """Write the answer: the summary and a table of flows, or what the format says."""
    if output.how is not Format.TABLE:
        output.write(result, columns)
        return
    print("\n".join(map(harmless, result.summary.split("\n"))), flush=True)
    if not len(result):
        return
    shown = result.select(output.sort, (TABLE_ROWS if output.limit is None else output.limit) or None)
    blocks = _without_exact(list(map(_with_bounds, shown.blocks())))
    table = [column for column in columns if column.name in blocks[0]]
    view = replace(output.view, sort="", limit=None)
    write_rows(blocks, output.how, path=output.output, table=table, view=view)


def print_segment(result: SegmentResult, output: Output, *, verbose: bool = False) -> None:
    """The same with what a segment's answer has beside it on stderr: warnings before any number, notes after them."""
    warn(result.warnings)
    print_result(result, output)
    for note in result.notes:
        print(harmless(note), file=sys.stderr)
    for text, count in result.ignored.items() if verbose else ():
        print(f"ignored: {count:,} × {text}", file=sys.stderr)


def _without_exact(blocks: list[Block]) -> list[Block]:
    """The blocks without the ends of numbers of packets that are all exact."""
    for number in ("packets", "lost"):
        low, high = f"{number}_low", f"{number}_high"
        if all(list(block.get(low, ())) == list(block.get(high, ())) for block in blocks):
            blocks = [{name: column for name, column in b.items() if name not in (low, high)} for b in blocks]
    return blocks


def _with_bounds(block: Block) -> Block:
    """The block with its intervals in words: `exact` where the delay of every delivered packet is known."""
    if "low_ns" not in block:
        return block
    from sojourn.segments.result import bounds_text, is_exact

    names = ("low_ns", "high_ns", "samples", "packets", "lost")
    shown = []
    for values in zip(*(block[name] for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        # Where losses are not known, what was delivered is at most what was sent.
        delivered = (row["packets"] or 0) - (row["lost"] or 0)
        shown.append(("exact", "exact") if is_exact(row, delivered) else bounds_text(row["low_ns"], row["high_ns"]))
    return {**block, "low_ns": [low for low, _ in shown], "high_ns": [high for _, high in shown]}


@dataclass(frozen=True)
class SketchOptions:
    """What is recorded, and how it is decoded."""

    sketch: Annotated[
        Literal["auto", "lds", "colate", "sample", "lda", "ledger", "exact"] | None,
        typer.Option(
            help="exact: match every packet (measure's default); auto: cells and samples, the best of both (record's); "
            "lds, colate, sample: one structure per flow; lda: the whole segment; ledger (measure's): exact, in two "
            "bits a packet, where points have memory."
        ),
    ] = None
    method: Annotated[
        Literal["literal", "joint"],
        typer.Option(help="lds, colate: decode all flows jointly, or flow by flow as published."),
    ] = "joint"
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the sketches at each point; 1MB by default.")
    ] = None
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter of the sketch; repeatable."),
    ] = None

    def given(self) -> dict[str, Any]:
        """As the functions of `segments` take it."""
        pairs = [text.partition("=") for text in self.parameter or []]
        for name, equals, value in pairs:
            if not (name and equals and value):
                raise ParameterError(f"parameter {name!r} has no value", action="write NAME=VALUE, such as rows=4")
        changes = {name.strip(): value.strip() for name, _, value in pairs}
        chosen = {} if self.sketch is None else {"sketch": self.sketch}
        return {**chosen, "method": self.method, "memory": self.memory, "parameters": changes}


_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn measure ingress.pcap.gz egress.pcap.gz --limit 2
  ingress.pcap.gz → egress.pcap.gz; 5,519 packets travel the other way and are not measured
  44,829 packets sent, 36,308 received, 8,521 lost (19.01%)
  mean delay 24.3 ms, exact, standard deviation 7.52 ms
  source      port  destination  port  proto  packets  lost     mean   from  …

What a sketch of 128 KB at each point would have said, beside the truth:

  $ sojourn measure in.pcap out.pcap --sketch auto --memory 128KB --truth
  $ sojourn measure in.pcap out.pcap --interval 1s -w flows.csv
  $ sojourn measure in.pcap out.pcap udp port 5000
  $ sojourn measure in.pcap out.pcap --report delays.html

Between two machines on which nothing is installed, while packets pass:

  $ sojourn measure <(ssh a tcpdump -U -w - net 10/8) <(ssh b tcpdump -U -w - net 10/8) --interval 10s

Live, on the router between the two, what enters at lan0 and leaves at wan0:

  $ sojourn measure -i lan0 -i wan0 --for 10s
"""


@dataclass(frozen=True)
class Interfaces:
    """What only a live measurement takes, as the user wrote it."""

    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface", "-i", metavar="IFACE", help="Capture live: give it twice, for the sender and the receiver."
        ),
    ] = None
    duration: ForOption = None
    directions: Annotated[
        str | None,
        typer.Option(
            metavar="D,D", help="Live: packets captured at sender and receiver: in, out or both; in,out by default."
        ),
    ] = None
    max_delay: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="No packet is longer on its way: captures matched exactly, as found in them; live, 1s, waited too.",
        ),
    ] = None
    promiscuous: PromiscuousOption = False
    buffer: BufferOption = None
    flows: Annotated[int | None, typer.Option(min=1, help="Live: flows expected; 1000 by default.")] = None
    loss: Annotated[
        float | None, typer.Option(min=0, max=1, help="Live: share of packets expected to be lost; 0.01 by default.")
    ] = None

    def ends(self) -> list[Interface]:
        """The sender's and the receiver's interface."""
        names, directions = self.interface or [], (self.directions or "in,out").split(",")
        if len(names) != 2:
            raise UsageError(
                f"{plural(len(names), 'interface')} given",
                where="measure",
                action="give two: -i SENDER_IFACE -i RECEIVER_IFACE (rtt and record take one)",
            )
        if len(directions) != 2 or not set(directions) <= {"in", "out", "both"}:
            raise UsageError(
                f"{self.directions!r} are no two directions", where="--directions", action="write for example in,out"
            )
        live = Live(duration=self.duration, promiscuous=self.promiscuous, buffer=self.buffer)
        return [live.capture_on(name, direction=way) for name, way in zip(names, directions, strict=True)]

    def expected(self) -> dict[str, Any]:
        """What to expect of the traffic, where it is given."""
        values = {"max_delay": self.max_delay, "flows": self.flows, "loss": self.loss}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Captures:
    """What only captures can be asked for, as the user wrote it."""

    error: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Choose the memory by the error wanted, such as 5% (captures only)."),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="With --error: the share of flows that shall be within it; 95% by default."),
    ] = None
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also answer for every stretch of this length (1s, 500ms).")
    ] = None
    markers: Annotated[bool, typer.Option("--markers", help="End intervals at packets that both points saw.")] = False
    clock: Annotated[
        str | None,
        typer.Option(help="auto (the default) corrects what packets contradict, none nothing, offset=TIME that much."),
    ] = None
    identity: Annotated[
        Literal["packet", "payload"] | None,
        typer.Option(
            help="What packets are told apart by: packet (the default), or payload where a device between the points "
            "translates addresses or ports."
        ),
    ] = None
    by: Annotated[
        Literal["dscp"] | None,
        typer.Option(help="dscp: also answer for the packets of each DSCP, as the sender sent them."),
    ] = None
    strict: StrictOption = False

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value not in (None, False)}


@grouped
def measure(
    captures: Captures,
    live: Interfaces,
    recorded: SketchOptions,
    output: Output,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SENDER RECEIVER [FILTER]...",
            help="Captures at the sending and the receiving point (none with -i), then a filter in tcpdump's syntax.",
        ),
    ] = None,
    truth: Annotated[bool, typer.Option("--truth", help="Match every packet too and show the truth.")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="Measure receiver → sender.")] = False,
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    histogram: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write every flow's delays in buckets of 1.6 % (exact answers only)."),
    ] = None,
    report: ReportOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Measure one-way delay, jitter and loss of every flow between two captures or interfaces."""
    from sojourn.segments.measure import measure_files, measure_interfaces

    common = recorded.given() | {"truth": truth, "reverse": reverse, "key": key, "inner": inner}
    points, asked = words or [], captures.given()
    common["by"] = asked.pop("by", None)
    if histogram is not None:
        _check_histogram(histogram, recorded.sketch)
    check_report(report, [] if live.interface else points[:2])
    with progress("measure") as advance:
        if live.interface:
            if asked.get("clock") in ("auto", "none"):
                asked.pop("clock")
            _refuse(asked, "is for captures: interfaces have one clock and are read once", "use record and estimate")
            refuse_files(points, "measure")
            sender, receiver = live.ends()
            where = " ".join(points)
            result = measure_interfaces(sender, receiver, where=where, advance=advance, **live.expected(), **common)
        else:
            given = {name: value for name, value in vars(live).items() if value not in (None, False, [])}
            if "max_delay" in given:
                asked["max_delay"] = given.pop("max_delay")
            _refuse(given, "is for a live capture", "give -i SENDER_IFACE -i RECEIVER_IFACE, or leave it out")
            if len(points) < 2:
                raise UsageError(
                    "two points are needed",
                    where="measure",
                    action="give captures SENDER RECEIVER, or -i IFACE -i IFACE",
                )
            where = " ".join(points[2:])
            asked["timeline"] = report is not None
            tell = partial(_tell, to=sys.stdout if output.how is Format.TABLE else sys.stderr)
            result = measure_files(points[0], points[1], where=where, advance=advance, interim=tell, **asked, **common)
    print_segment(result, output, verbose=verbose)
    write_report(result, report)
    if histogram is not None:
        write_rows([result.histogram()], choose_format(None, histogram), path=histogram, name="buckets")


def _check_histogram(path: Path, sketch: str | None) -> None:
    """Refuse before the work what cannot be written after it."""
    choose_format(None, path)
    if sketch not in (None, "exact"):
        raise UsageError("a sketch has no histogram of delays", where="--histogram", action="use --sketch exact")


def _tell(part: SegmentResult, to: TextIO) -> None:
    """One interval of a measurement that goes on: a line, behind what the first packets told of the clock."""
    for note in part.notes:
        print(harmless(note), file=sys.stderr)
    start = datetime.fromtimestamp(part.aggregate["start_ns"] / 1e9, UTC)
    print(f"{start:%H:%M:%S.%f}"[:-3], "; ".join(part.summary.split("\n")), file=to, flush=True)


measure.__doc__ = f"{measure.__doc__}\n\n\b\n{_EXAMPLE}"


def _refuse(given: Mapping[str, object], why: str, action: str) -> None:
    """An option that would have no effect is a misunderstanding."""
    if given:
        name = next(iter(given)).replace("duration", "for").replace("_", "-")
        raise UsageError(f"--{name} {why}", where="measure", action=action)
