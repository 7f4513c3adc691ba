"""Observation points to measure between: capture files, which can be read as often as needed.

Packets are told apart by a prefix that both captures hold (`decode.identity`). How much that is, files do not tell
reliably (`editcap -s` leaves no trace in the header): the first batch of each shows it and, where later packets are cut
shorter, the survey does, which is then repeated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import MIN_IDENTITY_BYTES, held_by_most, identity_bytes_for
from sojourn.capture.files.reader import CaptureReader, open_capture
from sojourn.capture.filters import PacketFilter
from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import UsageError
from sojourn.matching.clock.correction import ClockMode
from sojourn.segments.survey import Survey, conclude, read_points

__all__ = ["CaptureOptions", "CapturePoint", "survey_captures", "with_common_identity"]

# The snap length of 64 bytes that tcpdump had by default for years, behind an Ethernet header.
SOUND_IDENTITY_BYTES = 50


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
    snaps, held = [], []
    for path in paths:
        with open_capture(path, options.decode, packet_filter=options.packet_filter) as reader:
            next(iter(reader), None)
            snaps.append(reader.snap_length)
            held.append(held_by_most(reader.cut, reader.ip_packets))
    return _shortened(options, min(identity_bytes_for(*snaps), *held))


def _shortened(options: CaptureOptions, held: int) -> CaptureOptions:
    """The options with an identity of at most `held` bytes, as far as that tells packets apart."""
    wanted = min(options.decode.identity_bytes, max(held, MIN_IDENTITY_BYTES))
    return replace(options, decode=replace(options.decode, identity_bytes=wanted))


def survey_captures(
    paths: tuple[str, str],
    options: CaptureOptions,
    *,
    clock: ClockMode,
    keep_all: bool = False,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> tuple[tuple[CapturePoint, CapturePoint], Survey]:
    """Survey two captures with the longest identity that both hold; the points to go on with, and what was found."""
    options = with_common_identity(paths, options)
    advance("surveying", 0.0)
    points = CapturePoint(paths[0], options), CapturePoint(paths[1], options)
    found = read_points(*points, keep_all=keep_all)
    held = min(held_by_most(point.reader.cut, point.reader.ip_packets) for point in points)
    shorter = _shortened(options, held)
    if shorter != options:
        points = CapturePoint(paths[0], shorter), CapturePoint(paths[1], shorter)
        found = read_points(*points, keep_all=keep_all)
    for point, seen in zip(points, found, strict=True):
        seen.cut_packets = int(point.reader.cut.sum())
    advance("matching packets", 0.4)
    survey = conclude(*found, clock=clock, keep_all=keep_all)
    survey.warnings.extend(_identity_warnings(shorter.decode.identity_bytes, survey))
    return points, survey


def _identity_warnings(identity_bytes: int, survey: Survey) -> list[str]:
    """What a short identity costs: packets that share it can only be paired in their order."""
    if identity_bytes >= SOUND_IDENTITY_BYTES:
        return []
    shared, packets = survey.match.crossing.shared_ids, len(survey.match.sender_fate)
    return [
        f"packets are told apart by their first {identity_bytes} bytes, all that both captures hold of them: "
        f"{shared:,} of {packets:,} have the same as another and are paired in their order; a snap length of 96 helps"
    ]
