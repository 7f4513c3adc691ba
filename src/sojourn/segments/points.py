"""Observation points to measure between: capture files, which can be read as often as needed.

Packets are told apart by a prefix that both captures hold (`decode.identity`). How much that is, files do not tell
reliably (`editcap -s` leaves no trace in the header): where their headers promise more than the packets hold, the
survey shows it and is repeated once.

A pipe can be read only once, and measuring reads each capture twice: what comes through one is kept in a temporary file
of at most `MOST_PIPED_BYTES`.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import MIN_IDENTITY_BYTES, held_by_most, identity_bytes_for
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.capture.filters import PacketFilter
from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import CaptureError, InputError, UsageError
from sojourn.core.units import format_bytes
from sojourn.matching.clock.correction import ClockMode
from sojourn.segments.survey import PointSurvey, Survey, conclude, read_points

# The snap length of 64 bytes that tcpdump had by default for years, behind an Ethernet header.
SOUND_IDENTITY_BYTES = 50
MOST_PIPED_BYTES = 4 << 30
PIPE_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class CaptureOptions:
    """How captures are read; the same for both points."""

    decode: DecodeOptions
    packet_filter: PacketFilter | None = None
    strict: bool = False


class CapturePoint:
    """A capture file as an observation point; what the first pass found stays with it."""

    def __init__(self, path: str, options: CaptureOptions, *, name: str = "") -> None:
        self.path, self.name = path, name or path
        self.options = options
        self._reader: CaptureReader | None = None

    def _open(self, decode: DecodeOptions) -> CaptureReader:
        options = self.options
        try:
            return open_capture(self.path, decode, strict=options.strict, packet_filter=options.packet_filter)
        except CaptureError as error:
            raise CaptureError(error.what, where=self.named(error.where), action=error.action) from None

    def named(self, text: str) -> str:
        """A text with the name that the user knows instead of the file's that a pipe is kept in."""
        return text.replace(self.path, self.name)

    def open(self) -> CaptureReader:
        """Begin the first pass; the header is read."""
        self._reader = self._open(self.options.decode)
        return self._reader

    def batches(self, *, again: bool = False) -> Iterator[PacketBatch]:
        """One pass over the capture; `again` is quicker and leaves what the first pass found."""
        first = self._reader or self.open() if not again else None
        with first or self._open(replace(self.options.decode, flow_table=False)) as reader:
            yield from reader

    @property
    def reader(self) -> CaptureReader:
        """The reader of the first pass: its counts, warnings and flows."""
        if self._reader is None:
            raise UsageError("the capture has not been read", where=self.name)
        return self._reader

    @property
    def flows(self) -> FlowTable:
        return self.reader.flows

    def identify_by(self, identity_bytes: int) -> None:
        """Tell packets apart by so many bytes, in this pass and the next."""
        decode = replace(self.options.decode, identity_bytes=identity_bytes)
        self.options = replace(self.options, decode=decode)
        if self._reader is not None:
            self._reader.identify_by(identity_bytes)


def kept_pipes(paths: tuple[str, str], stack: ExitStack) -> tuple[tuple[str, str], list[str]]:
    """Paths that can be read again, and a note for each pipe; what was kept of pipes goes when the stack is closed."""
    if paths == ("-", "-"):
        raise UsageError("both captures cannot come from stdin", where="measure", action="save one to a file")
    kept = [_temporary_file(stack) if _is_pipe(path) else None for path in paths]
    with ThreadPoolExecutor(2) as pool:  # whoever writes both may write them in turns
        sizes = list(pool.map(_keep, paths, kept))
    first, second = (path if file is None else file.name for path, file in zip(paths, kept, strict=True))
    notes = [
        f"{_shown(path)} is a pipe: {format_bytes(size)} of it were kept in a temporary file, to be read twice"
        for path, size in zip(paths, sizes, strict=True)
        if size
    ]
    return (first, second), notes


def _temporary_file(stack: ExitStack) -> tempfile._TemporaryFileWrapper[bytes]:
    return stack.enter_context(tempfile.NamedTemporaryFile(suffix=".pcap"))


def _is_pipe(path: str) -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path == "-" else os.stat(path).st_mode
    except (OSError, ValueError):
        return path == "-"
    return path == "-" or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


def _keep(path: str, file: IO[bytes] | None) -> int:
    """Copy a pipe to a file; how many bytes came."""
    if file is None:
        return 0
    size = 0
    with open(0 if path == "-" else path, "rb", closefd=path != "-") as pipe:
        while block := pipe.read(PIPE_BLOCK_BYTES):
            size += len(block)
            if size > MOST_PIPED_BYTES:
                raise InputError(
                    f"more than {format_bytes(MOST_PIPED_BYTES)} come through this pipe",
                    where=_shown(path),
                    action="save it to a file, or use record and estimate",
                )
            file.write(block)
    file.flush()
    return size


def survey_captures(
    points: tuple[CapturePoint, CapturePoint],
    *,
    clock: ClockMode,
    keep_all: bool = False,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> Survey:
    """Survey two captures with the longest identity that both hold."""
    advance("surveying", 0.0)
    found = _read(points, keep_all)
    held = min(held_by_most(point.reader.cut, point.reader.ip_packets) for point in points)
    wanted = min(held, identity_bytes_for(*(point.reader.snap_length for point in points)))
    if _shorten(points, wanted):
        found = _read(points, keep_all)
    for point, seen in zip(points, found, strict=True):
        seen.cut_packets = int(point.reader.cut.sum())
    advance("matching packets", 0.4)
    survey = conclude(*found, clock=clock, keep_all=keep_all)
    survey.warnings.extend(_identity_warnings(points[0].options.decode.identity_bytes, survey))
    return survey


def _read(points: tuple[CapturePoint, CapturePoint], keep_all: bool) -> tuple[PointSurvey, PointSurvey]:
    """One pass over both captures, by the identity that their headers allow."""
    with ExitStack() as stack:
        snaps = [stack.enter_context(point.open()).snap_length for point in points]
        _shorten(points, identity_bytes_for(*snaps))
        return read_points(*points, keep_all=keep_all)


def _shorten(points: tuple[CapturePoint, CapturePoint], held: int) -> bool:
    """Tell packets apart by at most `held` bytes, as far as that suffices; whether that is a change."""
    before = points[0].options.decode.identity_bytes
    wanted = min(before, max(held, MIN_IDENTITY_BYTES))
    if wanted < before:
        for point in points:
            point.identify_by(wanted)
    return wanted < before


def _identity_warnings(identity_bytes: int, survey: Survey) -> list[str]:
    """What a short identity costs: packets that share it can only be paired in their order."""
    if identity_bytes >= SOUND_IDENTITY_BYTES:
        return []
    shared, packets = survey.match.crossing.shared_ids, len(survey.match.sender_fate)
    return [
        f"packets are told apart by their first {identity_bytes} bytes, all that both captures hold of them: "
        f"{shared:,} of {packets:,} have the same as another and are paired in their order; a snap length of 96 helps"
    ]
