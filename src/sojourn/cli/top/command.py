"""`sojourn top`: flows as they are now, the slowest, lossiest or busiest first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.fleet.query import PseudonymOptions
from sojourn.cli.options import TABLE_ROWS, BufferOption, InnerOption, PromiscuousOption, UnitAccess, grouped
from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.units import parse_duration

if TYPE_CHECKING:
    from sojourn.capture.live.reader import LiveReader
    from sojourn.cli.top.frame import Frame, FrameSource
    from sojourn.client.query_unit import Client

HELP = (
    "Watch flows live: of an interface (rate, round trips), between two of this machine's (delay, p99, loss), or of a "
    "query unit's segment."
)
EXAMPLE = """\
[bold]Examples[/bold]

\b
  $ sojourn top -i lan0 -i wan0
  lan0 → wan0  18:42:31  4 flows
  1,920/s packets, 20.7 Mbit/s, delay 19.0 ms, p99 23.5 ms, loss 3.76%

  flow                                             trend  ▼ delay      p99   loss
  10.97.1.2:50126 > 10.97.2.2:5201 tcp      ▃▄▆▇████████  19.1 ms  23.5 ms  5.65%
  10.97.1.2:45104 > 10.97.2.2:5202 udp      ▃▄▅▇████████  19.1 ms  23.3 ms  0.00%

\b
  $ sojourn top -i eth0 tcp port 443
  $ sojourn top --segment uplink --sort p99
  $ sojourn top -i lan0 -i wan0 --once --sort loss --limit 5
  $ sojourn top -i eth0 --format json | jq '.flows[] | select(.p99_ns > 100e6)'

Keys: d, p, l, r sort by delay, p99, loss, rate; q quits.
"""

UNIT_SECONDS, INTERFACE_SECONDS = "5s", "2s"
LEAST_INTERVAL_NS = 100_000_000


@dataclass(frozen=True)
class Watched:
    """What is watched: a group of options."""

    interface: Annotated[
        list[str] | None,
        typer.Option("--interface", "-i", metavar="IFACE", help="This interface; twice: from the first to the second."),
    ] = None
    segment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A segment of the query unit (NAME:reverse is the way back)."),
    ] = None
    directions: Annotated[
        str | None,
        typer.Option(metavar="D,D", help="Two interfaces: packets captured: in, out or both; in,out by default."),
    ] = None
    max_delay: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Two interfaces: no packet is longer on its way; 1s by default."),
    ] = None
    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="A segment: about the latest so long; 1min by default.")
    ] = None
    promiscuous: PromiscuousOption = False
    buffer: BufferOption = None
    inner: InnerOption = False

    def check(self, words: list[str]) -> None:
        """Refuse what would have no effect."""
        count = len(self.interface or [])
        if bool(count) == (self.segment is not None) or count > 2:
            what = "nothing is to be watched" if not count and self.segment is None else "too much is to be watched"
            raise UsageError(what, where="top", action="give -i IFACE, -i IFACE -i IFACE, or --segment NAME")
        live: dict[str, Any] = {"--promiscuous": self.promiscuous, "--buffer": self.buffer, "--inner": self.inner}
        live |= {"a filter": words}
        two = {"--directions": self.directions, "--max-delay": self.max_delay}
        if self.segment is not None:
            _refuse(live | two, "is for interfaces")
        else:
            _refuse({"--window": self.window}, "is for a segment")
        if count == 1:
            _refuse(two, "is for two interfaces")


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise UsageError(f"{name} {why}", where="top", action="leave it out")


@grouped
def top(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="FILTER", help="Interfaces: a filter in tcpdump's syntax.")
    ] = None,
    *,
    watched: Watched,
    sort: Annotated[
        Literal["delay", "p99", "loss", "rate"] | None,
        typer.Option(help="Largest first by this; delay by default, rate for one interface."),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How often anew; 2s by default, 5s for a segment."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Only so many flows; 0 is all. Default: what the screen holds, 20 without one."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one interval and exit, as without a terminal.")] = False,
    output_format: Annotated[
        Literal["table", "json"],
        typer.Option("--format", help="json: an object on a line for each interval, until Ctrl-C."),
    ] = "table",
    hidden: PseudonymOptions,
    unit: UnitAccess,
) -> None:
    from sojourn.cli.top.frame import Sort
    from sojourn.cli.top.screen import View, print_frame, watch

    watched.check(words or [])
    translation = hidden.translation()
    if translation is not None and watched.segment is None:
        raise UsageError("--pseudonyms is for a segment", where="top", action="leave it out")
    with ExitStack() as stack:
        source = _source(stack, watched, " ".join(words or []), interval, partial(unit.client, pseudonyms=translation))
        by = Sort(sort) if sort else source.sorts[0]
        if by not in source.sorts:
            known = ", ".join(source.sorts)
            raise UsageError(f"one interface does not show {by}", where="--sort", action=f"use {known}, or a second -i")
        if output_format == "json":
            _write_json(source, by, limit or None, once=once)
        elif once or not sys.stdout.isatty():
            view = View(source, by, (TABLE_ROWS if limit is None else limit) or None)
            with closing(source.frames()) as frames:
                print_frame(view, next(frames))
        else:
            watch(View(source, by, limit or None))


def _source(
    stack: ExitStack, watched: Watched, where: str, interval: str | None, client: Callable[[], Client]
) -> FrameSource:
    """What frames come from; it is closed with the stack."""
    default = UNIT_SECONDS if watched.segment is not None else INTERFACE_SECONDS
    interval_ns = parse_duration(interval or default, where="--interval")
    if interval_ns < LEAST_INTERVAL_NS:
        raise ParameterError(f"{interval!r} is too short", where="--interval", action="give 100ms or more")
    if watched.segment is not None:
        from sojourn.cli.top.of_unit import SegmentFlows

        window_ns = parse_duration(watched.window or "1min", where="--window")
        if window_ns <= 0:
            raise ParameterError(
                f"{watched.window!r} is no length of time", where="--window", action="give more than 0"
            )
        return SegmentFlows(stack.enter_context(client()), watched.segment, interval_ns, window_ns)
    names = watched.interface or []
    if len(names) == 1:
        from sojourn.capture.decode.decoder import DecodeOptions
        from sojourn.cli.top.one_interface import InterfaceFlows

        options = DecodeOptions(inner=watched.inner, packet_ids=False)
        return InterfaceFlows(_reader(stack, watched, names[0], "both", options, where), interval_ns)
    from sojourn.cli.top.between import FlowsBetween
    from sojourn.segments.record import decode_options

    sides = _directions(watched.directions or "in,out")
    options = decode_options("five-tuple", watched.inner)
    ends = [_reader(stack, watched, name, side, options, where) for name, side in zip(names, sides, strict=True)]
    max_delay_ns = parse_duration(watched.max_delay or "1s", where="--max-delay")
    if max_delay_ns < 0:
        raise ParameterError(f"{watched.max_delay!r} is negative", where="--max-delay", action="give 0 or more")
    return FlowsBetween(*ends, interval_ns=interval_ns, max_delay_ns=max_delay_ns)


def _directions(text: str) -> list[str]:
    sides = text.split(",")
    if len(sides) != 2 or not set(sides) <= {"in", "out", "both"}:
        raise UsageError(f"{text!r} are no two directions", where="--directions", action="write for example in,out")
    return sides


def _reader(stack: ExitStack, watched: Watched, name: str, side: str, options: Any, where: str) -> LiveReader:
    from sojourn.capture.files.reader import filter_of
    from sojourn.cli.options import Live

    live = Live(promiscuous=watched.promiscuous, buffer=watched.buffer)
    return stack.enter_context(live.capture_on(name, direction=side).reader(options, filter_of(where)))


def _write_json(source: FrameSource, by: Any, limit: int | None, *, once: bool) -> None:
    """Frames as lines until Ctrl-C, or one."""
    from sojourn.cli.output import print_json
    from sojourn.core.executors.interrupts import stopping_on_interrupt

    with stopping_on_interrupt(source.stop), closing(source.frames()) as frames:
        for frame in frames:
            print_json(_fields(source, frame, by, limit))
            sys.stdout.flush()
            if once:
                break


def _fields(source: FrameSource, frame: Frame, by: Any, limit: int | None) -> dict[str, object]:
    from sojourn.cli.top.frame import plain_number

    return {
        "of": source.title,
        "end_ns": frame.end_ns,
        "span_ns": frame.span_ns,
        "total": {name: plain_number(name, value) for name, value in frame.total.items()},
        "notes": list(frame.notes),
        "flows": list(frame.rows(frame.order(by, limit))),
    }
