"""The front door: open any capture file and iterate over its packets.

::

    with open_capture("ingress.pcap.gz") as capture:
        for batch in capture:
            sketch.record_batch(batch)
    print(capture.packets, capture.ip_packets, capture.ignored, capture.warnings)

Packets come in the order of the file, which need not be that of their times. The counts, the flow table and
the warnings are complete when the iteration has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sojourn.capture.decode.decoder import DecodedPackets, DecodeOptions
from sojourn.capture.decode.frames import Frames
from sojourn.capture.files.pcap import PcapngReader, PcapReader, is_pcap, is_pcapng
from sojourn.capture.files.source import FrameReader, Source, is_gzip, is_zstandard, open_source
from sojourn.core.errors import CaptureError
from sojourn.core.files import FilePath

if TYPE_CHECKING:
    from sojourn.capture.filters import PacketFilter


def filter_of(where: str) -> PacketFilter | None:
    """The filter of tcpdump's syntax, if there is one; libpcap is loaded only then."""
    if not where.strip():
        return None
    from sojourn.capture.filters import PacketFilter

    return PacketFilter(where)


def open_frames(source: Source, *, strict: bool = False) -> FrameReader:
    """The reader for a source's format, told by its first bytes."""
    start = source.window(0, 4).data[:4].tobytes()
    if len(start) < 4:
        problem = source.damage or ("the file is empty" if not start else "the file is too short")
        raise CaptureError(problem, where=f"{source.name}, byte 0", action="give a pcap or pcapng file")
    if is_pcap(start):
        return PcapReader(source, strict=strict)
    if is_pcapng(start):
        return PcapngReader(source, strict=strict)
    raise _no_capture(start, source.name)


def is_capture(start: bytes) -> bool:
    """Whether a file that begins so is a capture, or compressed and may be one."""
    return any(begins(start) for begins in (is_pcap, is_pcapng, is_gzip, is_zstandard))


def require_capture(start: bytes, name: str) -> None:
    """A `CaptureError` if a file that begins so is neither a capture nor compressed."""
    if not is_capture(start):
        raise _no_capture(start, name)


def _no_capture(start: bytes, name: str) -> CaptureError:
    return CaptureError(
        f"not a capture (unknown first bytes {start.hex()})",
        where=f"{name}, byte 0",
        action="give a pcap or pcapng file, plain or compressed with gzip or zstd",
    )


class CaptureReader(DecodedPackets):
    """The packets of one capture file; iterate once, in batches.

    ``packets`` counts all frames of the file, ``ip_packets`` those decoded, ``ignored`` the rest by reason.
    """

    def __init__(
        self,
        source: Source,
        options: DecodeOptions | None = None,
        *,
        strict: bool = False,
        packet_filter: PacketFilter | None = None,
    ) -> None:
        super().__init__(source.name, options)
        self._source = source
        self._frames = open_frames(source, strict=strict)
        self._filter = packet_filter
        self._filtered: Counter[str] = Counter()

    def _accepted(self) -> Iterator[Frames]:
        """The frames that the filter lets through; the others are counted."""
        for frames in self._frames:
            if self._filter is None:
                yield frames
                continue
            accepted, ignored = self._filter.apply(frames)
            self._filtered.update(ignored)
            yield accepted

    @property
    def packets(self) -> int:
        return self._frames.packets

    @property
    def ignored(self) -> dict[str, int]:
        return {**self._filtered, **self._decoder.ignored}

    @property
    def snap_length(self) -> int:
        """The (largest) snap length that the file tells; pcapng tells it as its interfaces appear."""
        return self._frames.snap_length

    @property
    def share_read(self) -> float:
        """How much of the file was read, 0 to 1; 0 for a pipe."""
        return self._source.share_read

    @property
    def warnings(self) -> list[str]:
        return [*self._frames.warnings, *self._offload_warnings(), *self._overflow_warnings()]

    def close(self) -> None:
        self._source.close()


def open_capture(
    path: FilePath,
    options: DecodeOptions | None = None,
    *,
    strict: bool = False,
    packet_filter: PacketFilter | None = None,
) -> CaptureReader:
    """Open a pcap or pcapng file, plain or compressed; ``-`` is stdin.

    With `strict` a damaged file raises a `CaptureError` while iterating, instead of ending with a warning.
    """
    source = open_source(path)
    try:
        return CaptureReader(source, options, strict=strict, packet_filter=packet_filter)
    except BaseException:
        source.close()
        raise
