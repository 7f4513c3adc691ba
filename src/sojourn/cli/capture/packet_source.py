"""Where a command's packets come from: a capture file, or an interface with `-i`; and how a live capture ends.

With `-i` the words behind the options are the filter; without it the first of them is the capture.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from types import FrameType

    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.filters.language import PacketFilter
    from sojourn.capture.live.interface import Direction
    from sojourn.capture.live.reader import LiveReader

__all__ = [
    "BufferOption",
    "CountOption",
    "DirectionName",
    "ForOption",
    "InterfaceOption",
    "LiveLimits",
    "PromiscuousOption",
    "WordsArgument",
    "filter_of",
    "open_packets",
    "refuse_files",
    "ring_bytes_of",
    "seconds_of",
    "stopping_on_interrupt",
]


class DirectionName(StrEnum):
    """Which packets of an interface are captured."""

    IN = "in"
    OUT = "out"
    BOTH = "both"

    @property
    def literal(self) -> Direction:
        return self.value


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CAPTURE [FILTER]...",
        help="pcap or pcapng file, plain, gzip or zstd; - is stdin; none with -i. Then a filter in tcpdump's syntax.",
    ),
]
InterfaceOption = Annotated[
    str, typer.Option("--interface", "-i", metavar="IFACE", help="Capture live on this interface.")
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="Capture so long (10s, 5min); else until Ctrl-C.")
]
CountOption = Annotated[
    int | None, typer.Option("--count", "-c", min=1, metavar="N", help="End the live capture after N packets.")
]
PromiscuousOption = Annotated[
    bool, typer.Option("--promiscuous", help="Capture frames for others too, until the end of the capture.")
]

BufferOption = Annotated[
    str | None,
    typer.Option("--buffer", "-B", metavar="SIZE", help="Ring shared with the kernel, per interface. Default: 32MiB."),
]


@dataclass(frozen=True)
class LiveLimits:
    """What only a live capture takes, as the user wrote it."""

    duration: str | None = None
    count: int | None = None
    promiscuous: bool = False
    buffer: str | None = None
    direction: DirectionName = DirectionName.BOTH

    def refuse_without_interface(self, command: str) -> None:
        """An option that would have no effect is a misunderstanding."""
        if self != LiveLimits():
            raise UsageError(
                "--for, --count, --promiscuous, --buffer and --direction are for a live capture",
                where=command,
                action="give -i INTERFACE, or leave them out",
            )


def seconds_of(duration: str | None) -> float | None:
    """The value of `--for`."""
    if duration is None:
        return None
    length = parse_duration(duration)
    if length <= 0:
        raise ParameterError(f"{duration!r} is no time to capture for", where="--for", action="give more than 0")
    return length / 1e9


def ring_bytes_of(buffer: str | None) -> int:
    """The value of `--buffer`."""
    from sojourn.capture.live.reader import BLOCK_BYTES, DEFAULT_RING_BYTES

    size = DEFAULT_RING_BYTES if buffer is None else parse_bytes(buffer)
    if size < 2 * BLOCK_BYTES:
        raise ParameterError(f"{buffer!r} is too small", where="--buffer", action=f"give {2 * BLOCK_BYTES} or more")
    return size


def filter_of(words: list[str]) -> PacketFilter | None:
    """The filter that the words are, if there are any."""
    from sojourn.capture.filters.language import PacketFilter

    return PacketFilter(" ".join(words)) if words else None


def refuse_files(words: list[str], command: str) -> None:
    """Beside `-i`, words are a filter; a file among them is a misunderstanding."""
    files = [word for word in words if word == "-" or Path(word).is_file()]
    if files:
        raise UsageError(f"{files[0]} is a file, beside -i", where=command, action="give files or interfaces, not both")


@contextmanager
def open_packets(
    words: list[str] | None,
    interface: str,
    limits: LiveLimits,
    *,
    command: str,
    options: DecodeOptions,
    strict: bool,
) -> Iterator[CaptureReader | LiveReader]:
    """The packets asked for; a live capture starts when they are iterated, and ends with the first Ctrl-C."""
    rest = words or []
    if not interface:
        limits.refuse_without_interface(command)
        if not rest:
            raise UsageError("one source is needed", where=command, action="give a CAPTURE, or -i INTERFACE")
        from sojourn.capture.files.reader import open_capture

        with open_capture(rest[0], options, strict=strict, packet_filter=filter_of(rest[1:])) as reader:
            yield reader
        return
    refuse_files(rest, command)
    from sojourn.capture.live.reader import LiveReader

    live = LiveReader(
        interface,
        options,
        seconds=seconds_of(limits.duration),
        packets=limits.count,
        packet_filter=filter_of(rest),
        direction=limits.direction.literal,
        promiscuous=limits.promiscuous,
        ring_bytes=ring_bytes_of(limits.buffer),
    )
    with live, stopping_on_interrupt(live.stop):
        yield live


@contextmanager
def stopping_on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C (or termination) stops and lets the answer come; a second one ends the program."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number, previous in before.items():
            signal.signal(number, previous)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
