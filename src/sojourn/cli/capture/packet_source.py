"""Where a command's packets come from: a capture file, or an interface with `-i`; and how a live capture ends.

With `-i` the words behind the options are the filter; without it the first of them is the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sojourn.cli.options import (
    BufferOption,
    CountOption,
    ForOption,
    InterfaceOption,
    PromiscuousOption,
    WordsArgument,
    refuse_files,
)
from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.executors.interrupts import stopping_on_interrupt
from sojourn.core.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.files.reader import CaptureReader
    from sojourn.capture.filters import PacketFilter
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
    from sojourn.capture.filters import PacketFilter

    return PacketFilter(" ".join(words)) if words else None


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
