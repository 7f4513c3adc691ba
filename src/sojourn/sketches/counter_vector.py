"""Counter vector: sums of time stamps per flow, comparable between any two observation points.

n counters of b bits; flow f owns the m counters H(f, 1) … H(f, m), shared with other flows. A packet's
time stamp goes into one of them, chosen by the *choice* of j:

- ``packet``: by the packet's hash, so that both points choose the same counter (coordinated);
- ``random``: independently at each point (as published; `estimation.published.colate.mean` says what that costs).

With several ``shares`` there is one vector per share (the loss variant): a packet's hash maps it to one
vector at every point, and each vector counts its packets. With ``count_bits`` every counter also counts
its packets, which makes a lost packet visible in the one counter it spoils. With ``digest_bits`` it also keeps the
XOR of its packets' digests, as the cells of LDS do: equal counts of different packets (in flight at an epoch's edge)
are then visible, too.

Guarantee: published form (``wrap`` off): every counter is the exact sum of its time stamps, counted from
`origin_ns` in steps of `resolution_ns`; the vector is full before a counter leaves its range or the sum
of all counters exceeds `threshold` (T). With ``wrap``, sums are kept modulo 2ᵇ: differences are exact
while every delay is at most `max_delay_ns`, which the vector ensures by being full in time. Coordinated packets of a
single vector are then rounded to steps at a place that their hash draws, the same at both points: a delay is right on
average whatever the stamps' own resolution (rounded down, whole microseconds at one end and nanoseconds at the other
differ by half a step).
Memory: vectors × (n × (b + count + digest bits) + packet counter). Time: one flow hash, one packet hash (two with a
digest), O(1).

Shahzad and Liu, "Noise Can Help: Accurate and Efficient Per-flow Latency Measurement without Packet
Probing and Time Stamping", §3.1 and §1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.hash_kernels import bucket, mix, salt_table, to_range
from sojourn.core.kernels import kernel
from sojourn.sketches.lda import DIGEST_FUNCTION, bank_of, disjoint_thresholds, modular_capacity
from sojourn.sketches.parameters import (
    Field,
    Kind,
    Parameters,
    Table,
    choice,
    counter_limit,
    flag,
    integer,
    probabilities,
)
from sojourn.sketches.sketch import Sketch

PACKET_FUNCTION = 1 << 21
PACKET_COUNTER_BITS = 48
_DRAW_GAMMA = np.uint64(hashing.GOLDEN_GAMMA)


@dataclass(frozen=True, kw_only=True)
class CounterVectorParameters(Parameters):
    """Size of a counter vector, what its counters hold and how packets choose them."""

    kind = "counter_vector"

    counters: int = integer("n", 1, 2**28)
    per_flow: int = integer("m", 1, 2**16)
    bits: int = integer("b", 2, 64, default=56)
    count_bits: int = integer("c", 0, 64, default=0)
    choice: str = choice("j", ("packet", "random"), default="packet")
    shares: tuple[float, ...] = probabilities("p", default=(1.0,))
    wrap: bool = flag("wrap", default=True)
    threshold: int = integer("T", 0, 2**63 - 1, default=0)
    origin_ns: int = integer("origin", -(2**63), 2**63 - 1, default=0)
    resolution_ns: int = integer("unit", 1, 2**40, default=1)
    max_delay_ns: int = integer("delay", 1, 2**62, default=10_000_000_000)
    salt: int = integer("salt", 0, 2**64 - 1, default=0)
    digest_bits: int = integer("d", 0, 64, default=0)

    def _check_together(self) -> None:
        if abs(sum(self.shares) - 1) > 1e-6:
            raise self.error(f"shares add up to {sum(self.shares):g}", "give the vectors shares that sum to 1")
        if self.digest_bits and not self.count_bits:
            raise self.error("a digest needs a count beside it", "set count_bits, or digest_bits 0")
        if self.wrap and self.choice == "random":
            raise self.error(
                "independent choice needs plain sums", "set wrap off and origin_ns to the start of the epoch"
            )
        if self.wrap and self.threshold:
            raise self.error("a wrapping vector has no threshold", "set wrap off or threshold 0")
        if self.packet_limit < 1:
            raise self.error(
                f"a counter of {self.bits} bits cannot hold a delay of {self.max_delay_ns} ns",
                "widen bits, coarsen resolution_ns or lower max_delay_ns",
            )

    @property
    def vectors(self) -> int:
        return len(self.shares)

    @property
    def packet_limit(self) -> int:
        """Packets in one counter up to which a wrapped difference is sure to be exact."""
        if not self.wrap:
            return counter_limit(64)
        return modular_capacity(self.bits, -(-self.max_delay_ns // self.resolution_ns))

    @property
    def count_limit(self) -> int:
        """Where a counter's own count stops; 0 without a count array."""
        return min(counter_limit(self.count_bits), self.packet_limit) if self.count_bits else 0

    @property
    def is_dithered(self) -> bool:
        """Whether packets are rounded where their hash says; with several vectors that part of it chooses one."""
        return self.wrap and self.choice == "packet" and self.vectors == 1 and 1 < self.resolution_ns <= 1 << 32

    def tables(self) -> tuple[Table, ...]:
        kind = Kind.MODULAR if self.wrap else Kind.COUNT
        count = (Field("count", self.count_bits, Kind.COUNT),) if self.count_bits else ()
        digest = (Field("digest", self.digest_bits, Kind.DIGEST),) if self.digest_bits else ()
        fields = (Field("sum", self.bits, kind), *count, *digest)
        packets = (Field("packets", PACKET_COUNTER_BITS, Kind.COUNT),)
        return (
            Table("counters", self.counters * self.vectors, fields),
            Table("vectors", self.vectors, packets),
        )

    @cached_property
    def function_salts(self) -> UInt64Array:
        return salt_table(self.per_flow, self.salt)

    @cached_property
    def shape(self) -> _Shape:
        return _Shape(
            function_salts=self.function_salts,
            thresholds=disjoint_thresholds(self.shares),
            packet_salt=np.uint64(hashing.salt_for(PACKET_FUNCTION, self.salt)),
            digest_salt=np.uint64(hashing.salt_for(DIGEST_FUNCTION, self.salt)),
            digest_mask=np.uint64((1 << self.digest_bits) - 1),
            coordinated=self.choice == "packet",
            origin_ns=self.origin_ns,
            resolution_ns=self.resolution_ns,
            dithered=self.is_dithered,
            sum_limit=0 if self.wrap else counter_limit(self.bits),
            count_limit=self.count_limit,
        )


class _Shape(NamedTuple):
    """How packets find their counters, and where counters are full, as the kernel reads it.

    `sum_limit` 0 stands for wrapping sums, `count_limit` 0 for no count array.
    """

    function_salts: UInt64Array
    thresholds: UInt64Array
    packet_salt: np.uint64
    digest_salt: np.uint64
    digest_mask: np.uint64
    coordinated: bool
    origin_ns: int
    resolution_ns: int
    dithered: bool
    sum_limit: int
    count_limit: int


@kernel
def _record(
    counters: Int64Array,
    vector_packets: Int64Array,
    flow_id: UInt64Array,
    packet_id: UInt64Array,
    time_ns: Int64Array,
    draw: np.uint64,
    total_room: int,
    packets_room: int,
    shape: _Shape,
) -> int:
    """One pass over the packets; the index of the first that does not fit."""
    per_flow = np.uint64(shape.function_salts.shape[0])
    vectors = shape.thresholds.shape[0]
    size = counters.shape[0] // vectors
    for i in range(len(flow_id)):
        if i >= packets_room:
            return i
        packet_hash = mix(packet_id[i] ^ shape.packet_salt)
        j = to_range(packet_hash, per_flow)
        if not shape.coordinated:
            j = to_range(mix((draw + np.uint64(i)) * _DRAW_GAMMA), per_flow)
        vector = max(bank_of(packet_hash, shape.thresholds), 0) if vectors > 1 else 0
        target = vector * size + bucket(flow_id[i], shape.function_salts[j], np.uint64(size))
        stamp = time_ns[i] - shape.origin_ns
        if shape.dithered:
            # The upper bits have chosen the counter.
            stamp += to_range(packet_hash << np.uint64(32), np.uint64(shape.resolution_ns))
        if shape.resolution_ns > 1:
            stamp //= shape.resolution_ns
        if shape.sum_limit:
            if counters[target, 0] > shape.sum_limit - stamp or stamp > total_room:
                return i
            total_room -= stamp
        if shape.count_limit:
            if counters[target, 1] >= shape.count_limit:
                return i
            counters[target, 1] += 1
            if shape.digest_mask:
                counters[target, 2] ^= np.int64(mix(packet_id[i] ^ shape.digest_salt) & shape.digest_mask)
        counters[target, 0] += stamp
        vector_packets[vector, 0] += 1
    return len(flow_id)


@kernel
def _packet_counters(flow_id: UInt64Array, packet_id: UInt64Array, size: np.uint64, shape: _Shape) -> Int64Array:
    counters = np.empty(len(flow_id), np.int64)
    per_flow = np.uint64(shape.function_salts.shape[0])
    for i in range(len(flow_id)):
        j = to_range(mix(packet_id[i] ^ shape.packet_salt), per_flow)
        counters[i] = bucket(flow_id[i], shape.function_salts[j], size)
    return counters


def packet_counters(parameters: CounterVectorParameters, batch: PacketBatch) -> Int64Array:
    """The counter of each packet in a single vector, chosen by the packet: what an all-knowing judge needs."""
    if parameters.vectors > 1 or parameters.choice != "packet":
        raise ParameterError("packets have no counter that is known afterwards", where=parameters.kind)
    return _packet_counters(batch.flow_id, batch.packet_id, np.uint64(parameters.counters), parameters.shape)


class CounterVector(Sketch[CounterVectorParameters, PacketBatch]):
    """COLATE's structure at one observation point; ``seed`` drives random choice of j."""

    parameters_type = CounterVectorParameters

    def __init__(self, parameters: CounterVectorParameters, *, seed: int = 0) -> None:
        super().__init__(parameters)
        self._draws = hashing.mix64(seed & hashing.MASK)

    def _record(self, batch: PacketBatch) -> int:
        p = self.parameters
        if not p.wrap and int(batch.time_ns.min()) < p.origin_ns:
            raise ParameterError(
                f"a packet at {batch.time_ns.min()} ns precedes origin_ns {p.origin_ns}",
                where=p.kind,
                action="set origin_ns to the start of the epoch",
            )
        room = 0 if p.wrap else self._room_below_threshold(), self._packets_room()
        columns = batch.flow_id, batch.packet_id, batch.time_ns
        counters, packets = self.arrays
        taken = _record(counters, packets, *columns, np.uint64(self._draws), *room, p.shape)
        self._draws = (self._draws + taken) & hashing.MASK
        return taken

    def _room_below_threshold(self) -> int:
        """T − t_X: what the sum of all counters may still grow by."""
        threshold = self.parameters.threshold or counter_limit(64)
        recorded: list[int] = self.arrays[0][:, 0].tolist()
        return threshold - sum(recorded)

    def _packets_room(self) -> int:
        """Packets until a wrapped sum could be ambiguous; unbounded where counts watch each cell."""
        p = self.parameters
        limit = counter_limit(PACKET_COUNTER_BITS)
        if p.wrap and not p.count_bits:
            limit = min(limit, p.packet_limit)
        return max(0, limit - self.recorded)
