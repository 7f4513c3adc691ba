"""Observation points to measure between: capture files, which can be read as often as needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sojourn.capture.decoder import DecodeOptions
from sojourn.capture.filters import PacketFilter
from sojourn.capture.flow_table import FlowTable
from sojourn.capture.identity import identity_bytes_for
from sojourn.capture.reader import CaptureReader, open_capture
from sojourn.core.batches import PacketBatch
from sojourn.core.errors import UsageError

__all__ = ["CaptureOptions", "CapturePoint", "with_common_identity"]


@dataclass(frozen=True)
class CaptureOptions:
    """How captures are read; the same for both points."""

    decode: DecodeOptions
    packet_filter: PacketFilter | None = None
    strict: bool = False


class CapturePoint:
    """A capture file as an observation point; what the first pass found stays with it."""

    def __init__(self, path: str, options: CaptureOptions) -> None:
        self.path = path
        self.options = options
        self._reader: CaptureReader | None = None

    @property
    def name(self) -> str:
        return self.path

    def batches(self, *, again: bool = False) -> Iterator[PacketBatch]:
        """One pass over the capture; `again` is quicker and leaves what the first pass found."""
        options = self.options
        decode = replace(options.decode, flow_table=False) if again else options.decode
        with open_capture(self.path, decode, strict=options.strict, packet_filter=options.packet_filter) as reader:
            if not again:
                self._reader = reader
            yield from reader

    @property
    def reader(self) -> CaptureReader:
        """The reader of the first pass: its counts, warnings and flows."""
        if self._reader is None:
            raise UsageError("the capture has not been read", where=self.path)
        return self._reader

    @property
    def flows(self) -> FlowTable:
        return self.reader.flows


def with_common_identity(paths: tuple[str, str], options: CaptureOptions) -> CaptureOptions:
    """Options under which packets have the same identity in both captures, whatever their snap lengths."""
    if "-" in paths:
        raise UsageError(
            "a capture on stdin can be read only once, and measuring reads each twice",
            action="save it to a file, or use record and estimate",
        )
    snaps = []
    for path in paths:
        with open_capture(path, options.decode) as reader:
            next(iter(reader), None)
            snaps.append(reader.snap_length)
    wanted = min(options.decode.identity_bytes, identity_bytes_for(*snaps))
    return replace(options, decode=replace(options.decode, identity_bytes=wanted))
