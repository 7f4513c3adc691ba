"""`sojourn measure`: one-way delay, jitter and loss of every flow between two captures or two interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.cli.options import (
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
from sojourn.cli.output import progress
from sojourn.cli.segments.options import SketchOptions
from sojourn.cli.segments.output import print_segment
from sojourn.core.errors import UsageError
from sojourn.core.units import plural

if TYPE_CHECKING:
    from sojourn.capture.packets import Interface

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn measure ingress.pcap.gz egress.pcap.gz --memory 128KB --truth --limit 2
  ingress.pcap.gz → egress.pcap.gz; 5,519 packets travel the other way and are not measured
  44,829 packets sent, 36,308 received, 8,521 lost (19.01%)
  mean delay 24.3 ms, 95 % 23.9 ms … 24.7 ms, standard deviation 6.58 ms
  truth: mean 24.3 ms, deviation 7.52 ms
  source      port  destination  port  proto  packets  lost     mean  …

  $ sojourn measure in.pcap out.pcap --sketch exact --format json
  $ sojourn measure in.pcap out.pcap --interval 1s --markers -w flows.csv
  $ sojourn measure in.pcap out.pcap udp port 5000

Live, on the router between the two, what enters at lan0 and leaves at wan0:

  $ sojourn measure -i lan0 -i wan0 --for 10s
"""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SENDER RECEIVER [FILTER]...",
        help="Captures at the sending and the receiving point (none with -i), then a filter in tcpdump's syntax.",
    ),
]


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
        typer.Option(metavar="TIME", help="Live: no packet is longer on its way; waited before and after. Default: 1s"),
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
    strict: StrictOption = False

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value}


@grouped
def measure(
    captures: Captures,
    live: Interfaces,
    recorded: SketchOptions,
    output: Output,
    words: Words = None,
    truth: Annotated[bool, typer.Option("--truth", help="Match every packet too and show the truth.")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="Measure receiver → sender.")] = False,
    key: KeyOption = "five-tuple",
    inner: InnerOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Measure one-way delay, jitter and loss of every flow between two captures or interfaces."""
    from sojourn.segments.measure import measure_files, measure_interfaces

    common = recorded.given() | {"truth": truth, "reverse": reverse, "key": key, "inner": inner}
    points, asked = words or [], captures.given()
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
            _refuse(given, "is for a live capture", "give -i SENDER_IFACE -i RECEIVER_IFACE, or leave it out")
            if len(points) < 2:
                raise UsageError(
                    "two points are needed",
                    where="measure",
                    action="give captures SENDER RECEIVER, or -i IFACE -i IFACE",
                )
            where = " ".join(points[2:])
            result = measure_files(points[0], points[1], where=where, advance=advance, **asked, **common)
    print_segment(result, output, verbose=verbose)


measure.__doc__ = f"{measure.__doc__}\n\n\b\n{_EXAMPLE}"


def _refuse(given: Mapping[str, object], why: str, action: str) -> None:
    """An option that would have no effect is a misunderstanding."""
    if given:
        name = next(iter(given)).replace("duration", "for").replace("_", "-")
        raise UsageError(f"--{name} {why}", where="measure", action=action)
