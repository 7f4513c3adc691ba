"""The packets of an interface or a capture as they are, for sketches that record packets (LDA, LDS, COLATE).

Cost: decoding, about 0.15 µs per packet; see `traffic` for guarantees and memory. An interface needs root.
"""

from __future__ import annotations

from typing import ClassVar

from sojourn.capture.decode.transport import TransportBatch
from sojourn.core.arrays import UInt64Array
from sojourn.core.batches import PacketBatch
from sojourn.sources.source import Metric
from sojourn.sources.traffic import TrafficSource

__all__ = ["InterfacePackets"]


class InterfacePackets(TrafficSource[PacketBatch]):
    """Packets with flow id, packet id, time and size."""

    metric: ClassVar[Metric] = Metric("packets", "packets", "flow", "increments")

    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[PacketBatch, UInt64Array]:
        del transport
        return packets, packets.flow_id

    def _join(self, parts: list[PacketBatch]) -> PacketBatch:
        return PacketBatch.concatenate(parts) if parts else PacketBatch.of([], [], [])
