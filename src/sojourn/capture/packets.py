"""Where packets come from: a capture file, or an interface; whoever reads them need not know which.

::

    with open_packets("ingress.pcap.gz", where="tcp port 443") as packets:
        for batch in packets:
            sketch.record_batch(batch)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.files.reader import CaptureReader, filter_of, open_capture
from sojourn.capture.live.interface import Direction
from sojourn.capture.live.reader import BLOCK_BYTES, DEFAULT_RING_BYTES, LiveReader
from sojourn.core.arguments import check_fields
from sojourn.core.errors import ParameterError
from sojourn.core.executors.interrupts import stopping_on_interrupt
from sojourn.core.files import FilePath

if TYPE_CHECKING:
    from sojourn.capture.filters import PacketFilter


@dataclass(frozen=True)
class Interface:
    """A live capture on an interface, until so many seconds or packets, or Ctrl-C.

    ``ring_bytes`` is the memory shared with the kernel; more bridges longer pauses of the reader.
    """

    name: str
    seconds: float | None = None
    packets: int | None = None
    direction: Direction = "both"
    promiscuous: bool = False
    ring_bytes: int = DEFAULT_RING_BYTES

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ring_bytes < 2 * BLOCK_BYTES:
            raise ParameterError(
                f"a buffer of {self.ring_bytes} bytes is too small",
                where="--buffer",
                action=f"give {2 * BLOCK_BYTES} or more",
            )

    def reader(self, options: DecodeOptions | None, packet_filter: PacketFilter | None) -> LiveReader:
        """The capture, which starts when it is iterated."""
        limits: dict[str, Any] = {"seconds": self.seconds, "packets": self.packets, "ring_bytes": self.ring_bytes}
        side: dict[str, Any] = {"direction": self.direction, "promiscuous": self.promiscuous}
        return LiveReader(self.name, options, packet_filter=packet_filter, **side, **limits)


@contextmanager
def open_packets(
    source: FilePath | Interface,
    options: DecodeOptions | None = None,
    *,
    where: str = "",
    strict: bool = False,
) -> Iterator[CaptureReader | LiveReader]:
    """The packets of a file or an interface; a live capture starts when they are iterated.

    In the main thread the first Ctrl-C (or termination) ends a live capture, and what came before it is answered.
    """
    if not isinstance(source, Interface):
        with open_capture(source, options, strict=strict, packet_filter=filter_of(where)) as reader:
            yield reader
        return
    live = source.reader(options, filter_of(where))
    with live, stopping_on_interrupt(live.stop):
        yield live
