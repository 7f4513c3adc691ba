"""A live interface with the face of a capture file: packets in batches, counts, flows and warnings.

::

    with LiveReader("eth0", seconds=10) as live:
        for batch in live:
            sketch.record_batch(batch)
    print(live.packets, live.ip_packets, live.ignored, live.warnings)

The capture starts with the iteration and ends after so many seconds or packets, or with `stop`, which may be called
from a signal handler: what came before the stop is still given. A quiet interface gives an empty batch every 0.2 s, so
that the caller can do other things.

Guarantee: every packet that the kernel did not drop is given once; drops are counted and told in a warning.
``packets`` = ``ip_packets`` + the sum of ``ignored``, as for a file.
Memory: the ring (32 MiB by default) and the flow table. Nothing is compiled while packets wait: the decoder has seen a
made-up packet before, and `rehearsal` gives it to whoever comes behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sojourn.capture.decode.decoder import DecodedPackets, DecodeOptions, Decoder
from sojourn.capture.decode.frames import Frames, Offload
from sojourn.capture.decode.segmentation import LARGEST_ON_A_LINK, OFFLOADING_OFF
from sojourn.capture.decode.transport import TransportBatch
from sojourn.capture.filters import LINK_ETHERNET, PacketFilter
from sojourn.capture.live.interface import Direction, LiveCapture
from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import ParameterError
from sojourn.core.units import plural

DROPPED = "dropped by the kernel"
DEFAULT_RING_BYTES, BLOCK_BYTES = 32 << 20, 1 << 18
RETIRE_MS = 60
# A packet has surely been handed over so long after its time: two retirements of a block, and some.
HANDED_OVER_NS = 2 * RETIRE_MS * 1_000_000 + 80_000_000

_OUTSIDE = ("before the start", "after the stop")
_WORDS = {"other direction": "not in the captured direction"}  # "other direction" is what flows take
_LEAST_HEADER_BYTES, _LINK_BYTES = 256, 64  # with room for options and extension headers
_ETHERNET = "0200000000020200000000010800"
_ADDRESSES = "0000400040060000c0000201c0000202"  # and what is before them: 192.0.2.1 > 192.0.2.2
_SEGMENT = "9c40075b000000010000000180180000000000000101080a0000000100000001c000"  # TCP 40000 > 1883, MQTT's PINGREQ
_REHEARSED = _ETHERNET + "45000036" + _ADDRESSES + _SEGMENT
# A connection is opened with segments of 1460 bytes, and has one of 2948.
_SPLIT = (
    _ETHERNET + "4500002c" + _ADDRESSES + "9c40075b000000000000000060020000" + "00000000020405b4",
    _ETHERNET + "45000bb8" + _ADDRESSES + _SEGMENT,
)
_TOLD = int(Offload.TCP) << 16 | 1448


def rehearsal(options: DecodeOptions | None = None) -> tuple[PacketBatch, TransportBatch]:
    """A made-up packet, decoded apart: whoever works on it once has compiled what real packets will need.

    >>> len(rehearsal()[0])
    1
    """
    frames = _made_up(*_SPLIT)
    Decoder(options).decode(frames)
    Decoder(options).decode(replace(frames, offload=np.array([0, _TOLD])))
    return Decoder(options).decode_transport(_made_up(_REHEARSED))


def _made_up(*packets: str) -> Frames:
    data = [bytes.fromhex(packet) for packet in packets]
    size = np.array([len(packet) for packet in data], np.int64)
    moment, link = np.full(len(data), time.time_ns()), np.full(len(data), LINK_ETHERNET, np.int64)
    return Frames(np.frombuffer(b"".join(data), np.uint8), np.cumsum(size) - size, size, size, moment, link)


def _header_bytes(options: DecodeOptions) -> int:
    """The bytes of a frame that tell its packet and flow; 0 where more of it is looked into."""
    return 0 if options.inner else max(_LEAST_HEADER_BYTES, options.identity_bytes + _LINK_BYTES)


class LiveReader(DecodedPackets):
    """The packets of one interface; iterate once, in batches.

    Of an interface whose super-packets are split (`DecodeOptions.wire`), transport columns end with the headers.
    A batch's transport columns point into the ring and are valid until the next batch is asked for; the columns of a
    `PacketBatch` are copies.
    """

    def __init__(
        self,
        interface: str,
        options: DecodeOptions | None = None,
        *,
        seconds: float | None = None,
        packets: int | None = None,
        packet_filter: PacketFilter | None = None,
        direction: Direction = "both",
        promiscuous: bool = False,
        ring_bytes: int = DEFAULT_RING_BYTES,
        poll_seconds: float = 0.2,
    ) -> None:
        """Prepare the capture; `seconds` and `packets` limit it, whichever comes first.

        A larger ring (a multiple of 256 KiB is used) bridges longer pauses of the reader. A quiet interface gives an
        empty batch after `poll_seconds`; with 0 it never waits.
        """
        for name, limit in (("seconds", seconds), ("packets", packets)):
            if limit is not None and limit <= 0:
                raise ParameterError(f"{name} is {limit}", where=interface, action="give more than 0")
        super().__init__(interface, options)
        self._seconds, self._limit = seconds, packets
        self._poll_seconds = poll_seconds
        self._begun_ns = self._longest = 0
        self.complete_until_ns = 0  # all packets before this time have been given
        rehearsal(options)
        self._capture = LiveCapture(
            interface,
            filter=packet_filter,
            direction=direction,
            promiscuous=promiscuous,
            block_size=BLOCK_BYTES,
            blocks=ring_bytes // BLOCK_BYTES,
            retire_ms=RETIRE_MS,
            offload=self._decoder.wire is not None,
            header_bytes=_header_bytes(self._decoder.options),
        )

    @property
    def capture(self) -> LiveCapture:
        """The capture itself, to start or stop several at one moment."""
        return self._capture

    def start(self) -> None:
        """Capture from now on; iterating does it too."""
        self._capture.start()

    def stop(self, at_ns: int | None = None) -> None:
        """End the capture at a time (now, when none is given)."""
        self._capture.stop(at_ns)

    def _accepted(self) -> Iterator[Frames]:
        self.start()
        if self._decoder.wire is not None:
            self._decoder.wire.largest_bytes = max(LARGEST_ON_A_LINK, self._capture.longest_frame)
        self._begun_ns = time.time_ns()
        asked_ns = self._begun_ns
        chunks = self._capture.chunks(seconds=self._seconds, packets=self._limit, poll_seconds=self._poll_seconds)
        for frames in chunks:
            latest = int(frames.time_ns[-1]) if len(frames) else asked_ns
            self._longest = max(self._longest, int(frames.length.max(initial=0)))
            yield frames
            # Only now: the caller has worked on what is before this time.
            self.complete_until_ns = max(self.complete_until_ns, latest - HANDED_OVER_NS)
            asked_ns = time.time_ns()

    @property
    def packets(self) -> int:
        return self._decoder.packets + sum(self._left_out().values())

    def _left_out(self) -> dict[str, int]:
        statistics = self._capture.statistics()
        left_out = {_WORDS.get(text, text): n for text, n in statistics.ignored.items() if text not in _OUTSIDE}
        return {DROPPED: statistics.dropped, **left_out}

    @property
    def dropped(self) -> int:
        """Packets for which the kernel found no room in the ring."""
        return self._capture.statistics().dropped

    @property
    def ignored(self) -> dict[str, int]:
        """By reason; the kernel's drops are there even when there are none."""
        return {**self._left_out(), **self._decoder.ignored}

    @property
    def snap_length(self) -> int:
        return self._capture.snap_length

    @property
    def share_read(self) -> float:
        """How much of the time or of the packets is through, 0 to 1; 0 without a limit."""
        elapsed = (time.time_ns() - self._begun_ns) / 1e9 if self._begun_ns else 0.0
        by_time = elapsed / self._seconds if self._seconds else 0.0
        by_count = self._decoder.packets / self._limit if self._limit else 0.0
        return min(1.0, max(by_time, by_count))

    @property
    def warnings(self) -> list[str]:
        said = []
        statistics = self._capture.statistics()
        if statistics.dropped:
            share = statistics.dropped / max(statistics.seen, 1)
            said.append(
                f"{self.name}: the kernel dropped {statistics.dropped:,} of {statistics.seen:,} packets ({share:.2%}), "
                f"the ring was full {statistics.freezes:,} times; use a filter, or a larger --buffer"
            )
        return said + self._offload_warnings() + self._overflow_warnings()

    @property
    def offload_problem(self) -> str:
        """Why packets of the wire are not known, as offloading put them together; empty where they are."""
        wire = self._decoder.wire
        if wire is None:
            is_long = self._longest > self._capture.longest_frame
            what = f"packets of up to {self._longest:,} bytes were put together by offloading, the wire had others"
            return what if is_long else ""
        if wire.left_packets:
            long = plural(wire.left_packets, "packet")
            return f"{long} put together by offloading could not be split into those of the wire"
        if self._capture.receives_large:
            return "the card puts received packets together (LRO) and does not tell what the wire carried"
        return ""

    def _offload_warnings(self) -> list[str]:
        problem = self.offload_problem
        return [f"{self.name}: {problem}; {self.offloading_off}"] if problem else []

    @property
    def offloading_off(self) -> str:
        """The command that turns offloading off on this interface."""
        return OFFLOADING_OFF.replace("IFACE", self.name)

    def close(self) -> None:
        self._capture.close()
