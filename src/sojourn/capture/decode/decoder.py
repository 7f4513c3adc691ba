"""The decoder: frames of any source in, packets with flow and packet ids out.

`Decoder` keeps what lives from chunk to chunk: the counts by reason, the ports of first fragments and, unless it is
switched off, the flow table. Feed it the chunks of one observation point in their order. `DecodedPackets` is what files
and interfaces share once there are frames: packets in batches, keys, flows.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self, cast

import numpy as np

from sojourn.capture.decode.frames import (
    NOTE_TEXTS,
    REASON_TEXTS,
    SEGMENT_BITS,
    Frames,
    Located,
    counts_by_text,
    empty_counts,
    empty_rows,
)
from sojourn.capture.decode.ids import (
    DEFAULT_IDENTITY_BYTES,
    KEY_BYTES,
    MAX_IDENTITY_BYTES,
    MIN_IDENTITY_BYTES,
    FlowKeying,
    Identity,
    identify,
    key_bytes,
    reverse_ids,
    scratch_bytes,
)
from sojourn.capture.decode.locate import locate
from sojourn.capture.decode.network import FragmentTable
from sojourn.capture.decode.segmentation import LARGEST_UNSPLIT, MOST_PORTION_BYTES, OFFLOADING_OFF, WireSizes
from sojourn.capture.decode.transport import ForwardingBatch, TransportBatch, forwarding_batch, transport_batch
from sojourn.capture.flows.table import DEFAULT_MAX_FLOWS, FlowTable
from sojourn.capture.flows.translation import FlowNames
from sojourn.core.arrays import ClassedBatch, Int64Array, PacketBatch, UInt8Array
from sojourn.core.errors import MismatchError, ParameterError, UsageError
from sojourn.core.hash_kernels import mix_column
from sojourn.core.keys import TrafficKey, key_from_bytes
from sojourn.core.units import plural

_NO_BYTES = np.zeros(0, np.uint8)
_NOBODY_TELLS = np.zeros(0, np.int64)
_PACKET_BYTES = 500  # about what the shortest full packets of a portion may take on the wire


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """What makes a flow, how far packets are unwrapped, and how much of a packet identifies it.

    ``flow_table`` off saves a table's memory and time where only the batches are wanted, ``packet_ids`` off a hash of
    every packet where none is told from another: all ids are 0. With ``names``, packets are named and told apart within
    the flows that another point saw them in. With ``wire``, packets longer than the wire carries are split into those
    that were on it (`segmentation`), by what is known and what will be learnt. With ``dscp``, batches are
    `ClassedBatch`es.
    """

    keying: FlowKeying = field(default_factory=FlowKeying)
    inner: bool = False
    identity: Identity = Identity.PACKET
    identity_bytes: int = DEFAULT_IDENTITY_BYTES
    names: FlowNames | None = None
    wire: WireSizes | None = None
    dscp: bool = False
    flow_table: bool = True
    packet_ids: bool = True
    max_flows: int = DEFAULT_MAX_FLOWS

    def __post_init__(self) -> None:
        if not MIN_IDENTITY_BYTES <= self.identity_bytes <= MAX_IDENTITY_BYTES:
            raise ParameterError(
                f"identity_bytes {self.identity_bytes}",
                action=f"use {MIN_IDENTITY_BYTES} to {MAX_IDENTITY_BYTES}",
            )


class Decoder:
    """Turns frames into packets and counts what it cannot use.

    ``packets`` frames were given, ``ip_packets`` decoded; the rest is in ``ignored``, by reason. ``wire_packets`` are
    what became of those by splitting.
    ``notes`` counts what is worth telling about decoded packets, ``cut`` those of which less than the identity's prefix
    was captured, by what there is.
    """

    def __init__(self, options: DecodeOptions | None = None) -> None:
        self.options = options or DecodeOptions()
        self.packets = 0
        self.ip_packets = self.wire_packets = 0
        self.wire = None if self.options.wire is None else self.options.wire.copy()
        self.flows = FlowTable(self.options.max_flows)
        self._fragments = FragmentTable()
        self._skipped, self._noted = empty_counts()
        keying = self.options.keying
        self._keying = int(keying.mode), keying.prefix_4, keying.prefix_6
        self._rows, self._marks = empty_rows(0), np.zeros(2, np.int64)
        self._decoded, self._made = self._rows, _NO_BYTES
        self._spare = empty_rows(1)
        self.cut = np.zeros(self.options.identity_bytes, np.int64)
        self._scratch = np.zeros(scratch_bytes(self.options.identity_bytes), np.uint8)

    @property
    def ignored(self) -> dict[str, int]:
        return counts_by_text(self._skipped, REASON_TEXTS)

    @property
    def notes(self) -> dict[str, int]:
        return counts_by_text(self._noted, NOTE_TEXTS)

    def decode(self, frames: Frames) -> PacketBatch:
        """The IP packets among `frames`, in their order; those of the wire, if they are to be split."""
        return self._decode(frames, self.wire)[0]

    def observe(self, frames: Frames) -> None:
        """Learn the lengths of the wire's packets from frames, and nothing else."""
        data = _as_bytes(frames)
        rows = self._locate(frames, data)
        if self.wire is not None:
            self.wire.observe(data, rows, self._marks)

    def decode_transport(self, frames: Frames) -> tuple[PacketBatch, TransportBatch]:
        """The IP packets and, row for row, their transport columns."""
        batch, data, rows = self._decode(frames)
        reverse = np.empty(len(rows), np.uint64)
        reverse_ids(data, rows, self._keying, self._scratch, reverse)
        return batch, transport_batch(data, rows, batch.flow_id, reverse)

    def decode_forwarding(self, frames: Frames) -> tuple[PacketBatch, ForwardingBatch]:
        """The IP packets and, row for row, what routers look at and change."""
        batch, data, rows = self._decode(frames)
        return batch, forwarding_batch(data, rows)

    def _decode(self, frames: Frames, wire: WireSizes | None = None) -> tuple[PacketBatch, UInt8Array, Located]:
        data = _as_bytes(frames)
        rows = self._locate(frames, data)
        self._made, prefix = _NO_BYTES, self.options.identity_bytes
        if wire is not None:
            split = wire.split if frames.offload is None else wire.split_as_told
            if (made := split(data, rows, self._marks, prefix)) is not None:
                data, rows = made
                self._made = data
        self.wire_packets += len(rows)
        self._decoded = rows
        batch = self._identify(data, rows)
        if self.options.names is not None:
            flow_id = self.options.names.rename(batch.flow_id)
            batch = replace(batch, flow_id=flow_id, packet_id=mix_column(batch.packet_id ^ flow_id))
        if self.options.dscp:
            batch = ClassedBatch(**vars(batch), dscp=forwarding_batch(data, rows).dscp)
        if self.options.flow_table:
            new = self.flows.update(batch.flow_id, batch.time_ns, batch.size_bytes)
            if len(new):
                keys, sizes = self._key_bytes(data, rows, new)
                if self.options.names is not None:
                    self.options.names.rename_keys(batch.flow_id[new], keys, sizes)
                self.flows.add_keys(keys, sizes)
        return batch, data, rows

    def _locate(self, frames: Frames, data: UInt8Array) -> Located:
        offload = _NOBODY_TELLS if frames.offload is None else frames.offload
        columns = (frames.offset, frames.captured, frames.length, frames.time_ns, frames.link)
        if any(len(column) != len(frames) for column in columns) or len(offload) not in (0, len(frames)):
            raise MismatchError("the columns of the frames have different lengths", where="Frames")
        if len(self._rows) < len(frames):
            self._rows, self._marks = empty_rows(len(frames)), np.zeros(len(frames) + 2, np.int64)
        count = locate(
            data,
            *columns,
            offload,
            self.options.inner,
            self._fragments.keys,
            self._fragments.values,
            self._fragments.times,
            self._skipped,
            self._noted,
            self._rows,
            self._spare,
            self._marks,
        )
        self.packets += len(frames)
        self.ip_packets += count
        return self._rows[:count]

    def _identify(self, data: UInt8Array, rows: Located) -> PacketBatch:
        ids, numbers = np.empty((2, len(rows)), np.uint64), np.empty((2, len(rows)), np.int64)
        batch = PacketBatch(ids[0], ids[1], numbers[0], numbers[1])
        identity = int(self.options.identity) if self.options.packet_ids else -1
        columns = batch.flow_id, batch.packet_id, batch.time_ns, batch.size_bytes
        identify(data, rows, (identity, self.options.identity_bytes), self._keying, self._scratch, self.cut, *columns)
        return batch

    def _key_bytes(self, data: UInt8Array, rows: Located, chosen: Int64Array) -> tuple[UInt8Array, UInt8Array]:
        keys = np.zeros((len(chosen), KEY_BYTES), np.uint8)
        sizes = np.zeros(len(chosen), np.uint8)
        key_bytes(data, rows, chosen, *self._keying, keys, sizes)
        return keys, sizes

    def keys_at(self, frames: Frames, rows: Int64Array) -> list[TrafficKey]:
        """The keys of packets by their rows in the latest batch, which came from `frames`; 5 µs each."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self._decoded):
            raise MismatchError(f"rows beyond the {len(self._decoded)} packets of the latest batch", where="keys_at")
        data = self._made if len(self._made) else _as_bytes(frames)
        keys, sizes = self._key_bytes(data, self._decoded, rows)
        return [cast(TrafficKey, key_from_bytes(key[:size].tobytes())) for key, size in zip(keys, sizes, strict=True)]


def _as_bytes(frames: Frames) -> UInt8Array:
    """The frames' bytes, read-only: kernels take their address, and one type is compiled once."""
    data = frames.data.view()
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise MismatchError("frames need one contiguous array of bytes", where="Frames.data")
    data.flags.writeable = False
    return data


def _portions(frames: Frames) -> Iterator[Frames]:
    """The frames in portions of which not too many packets can become by splitting; ordinary ones as they are."""
    if int(frames.length.max(initial=0)) <= LARGEST_UNSPLIT:
        yield frames
        return
    carried = frames.length
    if frames.offload is not None:  # small segments become more packets than their bytes tell
        segment = frames.offload & SEGMENT_BITS
        carried = np.maximum(carried, np.where(segment, carried // np.maximum(segment, 1) * _PACKET_BYTES, 0))
    if int(carried.sum()) <= MOST_PORTION_BYTES:
        yield frames
        return
    portion = np.cumsum(carried) // MOST_PORTION_BYTES
    starts = [0, *(np.flatnonzero(np.diff(portion)) + 1).tolist(), len(frames)]
    for first, last in itertools.pairwise(starts):
        yield frames.select(slice(first, last))


class DecodedPackets(ABC):
    """The packets of one source of frames; iterate once, in batches; a context manager."""

    def __init__(self, name: str, options: DecodeOptions | None) -> None:
        self.name = name
        self._decoder = Decoder(options)
        self._latest: Frames | None = None

    def identify_by(self, identity_bytes: int) -> None:
        """Tell packets apart by so many bytes; to be called before any is read."""
        self._decoder = Decoder(replace(self._decoder.options, identity_bytes=identity_bytes))

    @abstractmethod
    def _accepted(self) -> Iterator[Frames]:
        """The frames to decode, as they come."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    def __iter__(self) -> Iterator[PacketBatch]:
        for frames in self._accepted():
            for portion in _portions(frames) if self._decoder.wire is not None else (frames,):
                batch = self._decoder.decode(portion)
                self._latest = portion
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

    def wire_sizes(self, packets: int, windows: int) -> WireSizes:
        """What the first so many packets, or windows of them, tell of the lengths of the wire's packets."""
        for frames in itertools.islice(self._accepted(), windows):
            self._decoder.observe(frames)
            if self._decoder.packets >= packets:
                break
        return self._decoder.wire or WireSizes()

    @property
    def wire_packets(self) -> int:
        """The packets that were given: of super-packets, those of the wire."""
        return self._decoder.wire_packets

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

    @property
    def split_packets(self) -> int:
        """Packets longer than the wire carries, which were given as those that were on it."""
        return 0 if self._decoder.wire is None else self._decoder.wire.split_packets

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing of packets that are given, and no reason to doubt them."""
        wire = self._decoder.wire
        if wire is None or not wire.split_packets:
            return []
        return [
            f"{self.name}: {plural(wire.split_packets, 'packet')} put together by offloading (TSO, GRO) split into the "
            f"{wire.made_packets:,} of the wire, each with the time of the whole"
        ]

    def _offload_warnings(self) -> list[str]:
        """A line where packets that no wire carries could not be split."""
        wire = self._decoder.wire
        if wire is None or not wire.left_packets:
            return []
        return [
            f"{self.name}: {plural(wire.left_packets, 'packet')} put together by offloading could not be split, as "
            "neither a SYN nor lengths tell the segment size: capture from the connections' beginning, or with "
            f"offloading off: {OFFLOADING_OFF}"
        ]

    def _overflow_warnings(self) -> list[str]:
        """A line where the flow table has left flows out."""
        if not (overflow := self.flows.overflow_packets):
            return []
        bound = f"{plural(overflow, 'packet')} of flows beyond the first {self.flows.max_flows}"
        return [f"{self.name}: {bound}; raise max_flows to see them"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
