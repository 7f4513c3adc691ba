"""What files and interfaces have in common once there are frames: packets in batches, keys, flows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.frames import Frames
from sojourn.capture.decode.transport import TransportBatch
from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import Int64Array
from sojourn.core.batches import PacketBatch
from sojourn.core.errors import UsageError
from sojourn.core.keys import TrafficKey

__all__ = ["DecodedPackets"]


class DecodedPackets(ABC):
    """The packets of one source of frames; iterate once, in batches; a context manager."""

    def __init__(self, name: str, options: DecodeOptions | None) -> None:
        self.name = name
        self._decoder = Decoder(options)
        self._latest: Frames | None = None

    @abstractmethod
    def _accepted(self) -> Iterator[Frames]:
        """The frames to decode, as they come."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    def __iter__(self) -> Iterator[PacketBatch]:
        for frames in self._accepted():
            batch = self._decoder.decode(frames)
            self._latest = frames
            yield batch
        self._latest = None

    def with_transport(self) -> Iterator[tuple[PacketBatch, TransportBatch]]:
        """As iterating, with the transport columns of each batch beside it."""
        for frames in self._accepted():
            batches = self._decoder.decode_transport(frames)
            self._latest = frames
            yield batches
        self._latest = None

    def keys_at(self, rows: Int64Array) -> list[TrafficKey]:
        """The keys of packets by their rows in the batch that was iterated last, where there is no flow table."""
        if self._latest is None:
            raise UsageError("there is no batch to take keys from", where=self.name, action="ask while iterating")
        return self._decoder.keys_at(self._latest, rows)

    @property
    def ip_packets(self) -> int:
        return self._decoder.ip_packets

    @property
    def cut(self) -> Int64Array:
        """Packets of which less than the identity's prefix was captured, by the bytes that there are."""
        return self._decoder.cut

    @property
    def notes(self) -> dict[str, int]:
        return self._decoder.notes

    @property
    def flows(self) -> FlowTable:
        return self._decoder.flows

    def _overflow_warnings(self) -> list[str]:
        """A line where the flow table has left flows out."""
        if not (overflow := self.flows.overflow_packets):
            return []
        bound = f"{overflow} packets belong to flows beyond the first {self.flows.max_flows}"
        return [f"{self.name}: {bound}; raise max_flows to see them"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
