"""Receipt: which packets arrived, and when those of each flow did in sum; short enough to be sent for every epoch.

A receipt holds

- power sums of the packets' names (`power_sums`), by which whoever has the sender's ledger finds the lost ones;
- a row for each flow: a tag of 32 bits, the number of packets and the sum of their times modulo 2ᵇ;
- *repeats*, one by one: a packet of which the point has seen an identical one before (a copy that the network made, or
  that was sent twice) is in neither of both, but is listed with its id, its flow and its time. Therefore the names of a
  receipt are distinct, and copies harm nothing while their list has room.

Guarantee: whatever a receipt could not keep, it says. Flows beyond its rows are dropped by their tags (`limit`: flows
with smaller tags are complete), repeats beyond the list are counted (``unlisted``). Receipts of one stream merge, and
the merged one says as much of both as either could alone; a packet seen in both of them counts twice.
Where two receipts of different numbers of packets differ in groups, the finer one folds (`PowerSums.minus`).
Size: when it is frozen, a receipt folds to as many groups and sums as its packets need, whatever it was planned for: at
1 % loss about 0.5 bits for each packet; and some 11 bytes for each flow. The rest are zeros, which epochs compress.
Memory while recording: 8 bytes for each counter, 256 for the waiting names of a group, 16 for each remembered id.
Time: three look-ups in tables and t powers for each packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import Int64Array, PacketBatch, UInt64Array
from sojourn.core.errors import MismatchError, UsageError
from sojourn.core.hash_kernels import mix, mix_column
from sojourn.core.kernels import inlined, kernel, signed
from sojourn.sketches.ledgers.power_sums import (
    LANES,
    NAME_FUNCTION,
    PRIME,
    PowerSums,
    add_powers,
    group_of,
    name_of,
    threshold_for,
)
from sojourn.sketches.parameters import Field, Kind, Parameters, Table, integer
from sojourn.sketches.sketch import Sketch

TAG_FUNCTION = NAME_FUNCTION + 1
MOST_GROUPS, MOST_SUMS, MOST_THRESHOLD, MOST_FLOWS = 1 << 16, 1 << 22, 1024, 1 << 20
WIDEST_SUM_BITS = 63
EVERY_TAG = 1 << 32
# The ends may fold differently where the packets that one of them lacks make the difference; sums suffice for both.
FOLDING_DOUBT = 0.02
_HALF = np.uint64(32)
_ONE, _0 = np.uint64(1), np.uint64(0)
# What is known of the whole: columns of the first table.
GROUPS, SUMS, DROPPED, UNLISTED, CUT = range(5)
# Columns of a flow's row.
GAP, PACKETS, SUM = range(3)


@dataclass(frozen=True, kw_only=True)
class ReceiptParameters(Parameters):
    """The most that a receipt can say; ``run`` and ``loss_ppm`` tell how much of it a number of packets needs, which
    are taken to be ``least`` at least: receipts that are merged have no more sums than the one with the fewest.

    ``run`` packets make a group, of which ``loss_ppm`` in a million are lost. ``remembered`` ids of packets are known
    again, at least.
    """

    kind = "receipt"
    # Long stretches of zeros behind what was used: a fifth of the bytes that the fastest way leaves.
    compression = 6

    groups: int = integer("g", 1, MOST_GROUPS)
    threshold: int = integer("t", 2, MOST_THRESHOLD)
    run: int = integer("n", 1, 2**20, default=4096)
    loss_ppm: int = integer("l", 1, 500_000, default=10_000)
    flows: int = integer("f", 1, MOST_FLOWS)
    repeats: int = integer("r", 1, 2**16, default=64)
    remembered: int = integer("m", 1, 2**26, default=1 << 16)
    sum_bits: int = integer("b", 16, WIDEST_SUM_BITS, default=52)
    max_delay_ns: int = integer("delay", 1, 2**62, default=10_000_000_000)
    salt: int = integer("salt", 0, 2**64 - 1, default=0)
    least: int = integer("least", 0, 2**40, default=0)

    def _check_together(self) -> None:
        if self.groups & (self.groups - 1):
            raise self.error(f"{self.groups} groups", "use a power of two")
        if self.groups * self.threshold > MOST_SUMS:
            raise self.error(f"{self.groups} groups of {self.threshold} sums", f"use {MOST_SUMS} sums at most")

    def tables(self) -> tuple[Table, ...]:
        whole = (
            Field("groups", 17, Kind.COUNT),
            Field("sums", 11, Kind.COUNT),
            Field("dropped", 40, Kind.COUNT),
            Field("unlisted", 40, Kind.COUNT),
            Field("cut", 32, Kind.KEPT),
        )
        flow = (
            Field("gap", 32, Kind.KEPT),
            Field("packets", 40, Kind.COUNT),
            Field("sum", self.sum_bits, Kind.MODULAR),
        )
        repeat = (Field("id", 64, Kind.KEPT), Field("flow", 32, Kind.KEPT), Field("time", 63, Kind.KEPT))
        return (
            Table("whole", 1, whole),
            Table("counts", self.groups, (Field("count", 40, Kind.COUNT),)),
            Table("sums", self.groups * self.threshold, (Field("power_sum", 32, Kind.KEPT),)),
            Table("flows", self.flows, flow),
            Table("repeats", self.repeats, repeat),
        )

    @property
    def memory_bits(self) -> int:
        """The counters, and what recording takes beside them: waiting names, an index of flows, remembered ids."""
        index = 64 * _power_above(2 * self.flows) + 64 * 2 * _power_above(2 * self.remembered)
        return super().memory_bits + 32 * LANES * self.groups + index

    @cached_property
    def name_salt(self) -> np.uint64:
        return np.uint64(hashing.salt_for(NAME_FUNCTION, self.salt))

    @cached_property
    def tag_salt(self) -> np.uint64:
        return np.uint64(hashing.salt_for(TAG_FUNCTION, self.salt))

    def tags(self, flow_id: UInt64Array) -> Int64Array:
        """The tags of flows."""
        tags: Int64Array = np.maximum(mix_column(flow_id ^ self.tag_salt) >> _HALF, _ONE).astype(np.int64)
        return tags

    def needed(self, packets: int) -> tuple[int, int]:
        """The groups, and the sums of each, that so many packets need of those there are."""
        packets = max(packets, self.least)
        loss = self.loss_ppm / 10**6
        groups = min(self.groups, _power_above(-(-packets // self.run)))
        each = packets / groups
        if groups > 1 and packets * (1 - min(1.5 * loss, 0.5) - FOLDING_DOUBT) < self.run * (groups // 2):
            each *= 2
        # These may be those that arrived.
        return groups, min(self.threshold, threshold_for(each * loss / (1 - loss)))


def _power_above(count: int) -> int:
    """The smallest power of two that is not below a count."""
    return 1 << max(0, count - 1).bit_length()


class Recent:
    """Ids of packets that were seen lately: between `size` and twice as many, in two tables that take turns.

    A point has one for all its receipts, so that a copy is known again although an epoch has ended meanwhile.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.ids = np.zeros((2, _power_above(2 * size)), np.uint64)
        self.state = np.zeros(2, np.int64)  # the table in use, and how many are in it


class _Columns(NamedTuple):
    """What recording writes, as the kernel takes it."""

    recent: UInt64Array
    turn: Int64Array
    waiting: UInt64Array
    waits: Int64Array
    counts: Int64Array
    sums: Int64Array
    places: Int64Array  # of flows' rows, by tag
    flows: Int64Array
    repeats: Int64Array
    whole: Int64Array  # rows of flows, repeats, and the columns of the first table from DROPPED on


class _Shape(NamedTuple):
    """The parameters, as the kernel takes them."""

    name_salt: np.uint64
    tag_salt: np.uint64
    threshold: int
    remembered: int


ROWS, LISTED = 0, 1


@inlined
def _was_seen(recent: UInt64Array, turn: Int64Array, packet_id: np.uint64, hashed: np.uint64, most: int) -> bool:
    """Whether an id was seen lately; it is from now on. Id 0 marks an empty place, and passes for 1."""
    wanted = max(packet_id, _ONE)
    mask = np.uint64(recent.shape[1] - 1)
    other = 1 - turn[0]
    place = hashed & mask
    while recent[other, place] != _0:
        if recent[other, place] == wanted:
            return True
        place = (place + _ONE) & mask
    if turn[1] >= most:
        turn[0], turn[1] = other, 0
        recent[other, :] = _0
    active = turn[0]
    place = hashed & mask
    while recent[active, place] != _0:
        if recent[active, place] == wanted:
            return True
        place = (place + _ONE) & mask
    recent[active, place] = wanted
    turn[1] += 1
    return False


@inlined
def _row_of(places: Int64Array, flows: Int64Array, whole: Int64Array, tag: int) -> int:
    """The row of a flow, a new one if it has none yet; −1 where there is no room. The index has rows from 1 on."""
    mask = places.shape[0] - 1
    place = tag & mask
    while places[place] != 0:
        if flows[places[place] - 1, GAP] == tag:
            return signed(places[place] - 1)
        place = (place + 1) & mask
    row = whole[ROWS]
    if row == flows.shape[0]:
        return signed(-1)
    places[place] = row + 1
    flows[row, GAP], flows[row, PACKETS], flows[row, SUM] = tag, 0, 0
    whole[ROWS] += 1
    return signed(row)


@kernel
def _record(
    columns: _Columns,
    batch: tuple[UInt64Array, UInt64Array, Int64Array],
    start: int,
    shape: _Shape,
) -> int:
    """Record packets from `start` on; the first that needs a row where none is free, or how many there are."""
    flow_id, packet_id, time_ns = batch
    names, powers = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    groups = columns.counts.shape[0]
    whole = columns.whole
    for i in range(start, len(packet_id)):
        tag = signed(max(mix(flow_id[i] ^ shape.tag_salt) >> _HALF, _ONE))
        row = signed(-1)
        if tag < EVERY_TAG - whole[CUT]:
            row = _row_of(columns.places, columns.flows, whole, tag)
            if row < 0:
                return i
        hashed = mix(packet_id[i] ^ shape.name_salt)
        if _was_seen(columns.recent, columns.turn, packet_id[i], hashed, shape.remembered):
            if whole[LISTED] == columns.repeats.shape[0]:
                whole[UNLISTED] += 1
            else:
                at = whole[LISTED]
                columns.repeats[at, 0] = np.int64(packet_id[i])
                columns.repeats[at, 1] = tag
                columns.repeats[at, 2] = time_ns[i]
                whole[LISTED] += 1
            continue
        if row < 0:
            whole[DROPPED] += 1
        else:
            columns.flows[row, PACKETS] += 1
            columns.flows[row, SUM] += time_ns[i]
        group = group_of(hashed, groups)
        columns.counts[group, 0] += 1
        columns.waiting[group, columns.waits[group]] = name_of(hashed)
        columns.waits[group] += 1
        if columns.waits[group] == LANES:
            names[:] = columns.waiting[group]
            add_powers(columns.sums[group], names, LANES, shape.threshold, powers)
            columns.waits[group] = 0
    return len(packet_id)


@kernel
def _settle(waiting: UInt64Array, waits: Int64Array, sums: Int64Array, threshold: int) -> None:
    """Add the powers of all names that wait."""
    powers = np.empty(LANES, np.uint64)
    for group in range(len(waits)):
        if waits[group]:
            add_powers(sums[group], waiting[group], waits[group], threshold, powers)
            waits[group] = 0


class Receipt(Sketch[ReceiptParameters, PacketBatch]):
    """What arrived at one observation point, or was sent there."""

    parameters_type = ReceiptParameters

    def __init__(self, parameters: ReceiptParameters) -> None:
        self._columns: _Columns | None = None
        self.recent: Recent | None = None  # that of the receipt before, where a point has one
        super().__init__(parameters)

    @property
    def arrays(self) -> list[Int64Array]:
        """The tables: flows in the order of their tags, sums below p."""
        if self._columns is not None:
            self._fill_tables(self._columns)
        return self._tables

    @arrays.setter
    def arrays(self, tables: list[Int64Array]) -> None:
        self._tables = tables

    def _begin(self) -> _Columns:
        """What recording writes; the receipt must be empty."""
        p = self.parameters
        if self._tables[1].any():
            raise UsageError("a receipt that was merged or decoded records no more", where=p.kind, action="begin anew")
        recent = self.recent = self.recent or Recent(p.remembered)
        sums = np.zeros((p.groups, p.threshold), np.int64)
        waiting, waits = np.zeros((p.groups, LANES), np.uint64), np.zeros(p.groups, np.int64)
        counts, places = np.zeros((p.groups, 1), np.int64), np.zeros(_power_above(2 * p.flows), np.int64)
        rows = np.zeros((p.flows, 3), np.int64), np.zeros((p.repeats, 3), np.int64), np.zeros(5, np.int64)
        return _Columns(recent.ids, recent.state, waiting, waits, counts, sums, places, *rows)

    def _record(self, batch: PacketBatch) -> int:
        if self._columns is None:
            self._columns = self._begin()
        p, row = self.parameters, 0
        shape = _Shape(p.name_salt, p.tag_salt, p.threshold, p.remembered)
        columns = batch.flow_id, batch.packet_id, batch.time_ns
        while (row := _record(self._columns, columns, row, shape)) < len(batch):
            _drop_upper_half(self._columns)
        return row

    def _fill_tables(self, columns: _Columns) -> None:
        p, (whole, counts, sums, flows, repeats) = self.parameters, self._tables
        _settle(columns.waiting, columns.waits, columns.sums, p.threshold)
        whole[0] = p.groups, p.threshold, columns.whole[DROPPED], columns.whole[UNLISTED], columns.whole[CUT]
        counts[:], repeats[:] = columns.counts, columns.repeats
        sums[:, 0] = columns.sums.ravel() % PRIME
        _fill_flows(flows, columns.flows[: columns.whole[ROWS]])

    def freeze(self) -> Self:
        tables, self._columns = self.arrays, None
        if not self._frozen and tables[1].any():
            _write_sums(tables, self.power_sums.folded(*self._smallest(int(tables[1].sum()))))
        return super().freeze()

    def _smallest(self, packets: int) -> tuple[int, int]:
        groups, sums = self.parameters.needed(packets)
        return min(groups, int(self._tables[0][0, GROUPS])), min(sums, int(self._tables[0][0, SUMS]))

    @property
    def power_sums(self) -> PowerSums:
        """Its groups' counts and sums, as many as it has."""
        whole, counts, sums, *_ = self.arrays
        if not counts.any():
            p = self.parameters
            return PowerSums(np.zeros(p.groups, np.int64), np.zeros((p.groups, p.threshold), np.int64))
        groups, threshold = (int(size) for size in whole[0, : SUMS + 1])
        used = sums[: groups * threshold, 0].reshape(groups, threshold)
        return PowerSums(counts[:groups, 0].copy(), used.copy())

    @property
    def flows(self) -> FlowSums:
        """Its rows of flows."""
        rows = self.arrays[3]
        rows = rows[: int(np.count_nonzero(rows[:, GAP]))]
        centred = self.parameters.places["sum"][2].canonical(rows[:, SUM])
        return FlowSums(np.cumsum(rows[:, GAP]), rows[:, PACKETS].copy(), centred)

    @property
    def repeats(self) -> Repeats:
        """The packets that were seen before, in the order in which they came."""
        rows = self.arrays[4]
        rows = rows[: int(np.count_nonzero(rows[:, 1]))]
        return Repeats(rows[:, 0].view(np.uint64), rows[:, 1].copy(), rows[:, 2].copy())

    @property
    def limit(self) -> int:
        """Flows with tags from here on were dropped, in part or altogether."""
        return EVERY_TAG - int(self.arrays[0][0, CUT])

    @property
    def unlisted(self) -> int:
        """Repeats of which nothing is known but their number."""
        return int(self.arrays[0][0, UNLISTED])

    def _combined(self, other: Self, *, sign: int) -> Self:
        if sign < 0:
            raise UsageError("flows that a receipt dropped cannot come back", where=self.parameters.kind)
        self.parameters.require_equal(other.parameters)
        result, full = type(self)(self.parameters), [r for r in (self, other) if r.arrays[1].any() or r.unlisted]
        whole, _, _, flows, repeats = tables = result._tables
        whole[0, DROPPED:CUT] = self.arrays[0][0, DROPPED:CUT] + other.arrays[0][0, DROPPED:CUT]
        whole[0, CUT] = max(self.arrays[0][0, CUT], other.arrays[0][0, CUT])
        if full:
            _write_sums(tables, full[0].power_sums if len(full) == 1 else self.power_sums.plus(other.power_sums))
        rows = np.concatenate([np.column_stack((f.tag, f.packets, f.time_sum)) for f in (self.flows, other.flows)])
        _put_flows(flows, whole[0], rows)
        both = np.concatenate([r.arrays[4][: len(r.repeats)] for r in (self, other)])
        both = both[np.lexsort((both[:, 1], both[:, 0], both[:, 2]))]
        repeats[: min(len(both), len(repeats))] = both[: len(repeats)]
        whole[0, UNLISTED] += max(0, len(both) - len(repeats))
        return result

    def shifted(self, offset_ns: int) -> Self:
        """The receipt that a clock ahead by `offset_ns` would have given."""
        result = self.copy()
        result._tables[3][:, SUM] += offset_ns * result._tables[3][:, PACKETS]
        result._tables[4][: len(self.repeats), 2] += offset_ns
        return result

    def follow(self, before: Self | None) -> None:
        """Know again the packets that were seen before."""
        self.recent = self.recent if before is None else before.recent

    def reset(self) -> None:
        self._columns = None
        super().reset()

    def check(self) -> None:
        """Refuse tables that recording could not have filled (`epochs.wire` asks for decoded ones)."""
        p, (whole, counts, sums, flows, repeats) = self.parameters, self._tables
        groups, threshold = (int(size) for size in whole[0, : SUMS + 1])
        if groups > p.groups or threshold > p.threshold or (groups & (groups - 1)) or bool(groups) != bool(threshold):
            raise MismatchError(f"{groups} groups of {threshold} sums are not possible", where="whole")
        if counts[groups:].any() or sums[groups * threshold :].any() or (sums >= PRIME).any() or (sums < 0).any():
            raise MismatchError("a sum is not below p, or belongs to no group", where="sums")
        used = flows[:, GAP] > 0
        if (used[1:] > used[:-1]).any() or flows[~used].any() or (flows[used, PACKETS] < 1).any():
            raise MismatchError("rows of flows are not possible", where="flows")
        if int(flows[:, GAP].sum()) >= EVERY_TAG - int(whole[0, CUT]):
            raise MismatchError("a flow's tag lies beyond the limit", where="flows.gap")
        listed = repeats[:, 1] > 0
        if (listed[1:] > listed[:-1]).any() or repeats[~listed].any():
            raise MismatchError("the list of repeats has gaps", where="repeats")
        packets = int(counts.sum())
        if packets != int(flows[:, PACKETS].sum()) + int(whole[0, DROPPED]):
            raise MismatchError("the flows' packets do not add up to those of the groups", where="flows.packets")
        if packets + int(listed.sum()) + int(whole[0, UNLISTED]) != self.recorded:
            raise MismatchError("the packets do not add up to those recorded", where="counts")


@dataclass(frozen=True, eq=False)
class FlowSums:
    """Flows by their tags, in order: packets (without repeats), and the sum of their times modulo 2ᵇ, centred."""

    tag: Int64Array
    packets: Int64Array
    time_sum: Int64Array


@dataclass(frozen=True, eq=False)
class Repeats:
    """Packets that were seen before."""

    packet_id: UInt64Array
    tag: Int64Array
    time_ns: Int64Array

    def __len__(self) -> int:
        return len(self.tag)


def _write_sums(tables: list[Int64Array], found: PowerSums) -> None:
    """The sums into the first cells of their tables; zeros behind them."""
    whole, counts, sums, *_ = tables
    whole[0, : SUMS + 1] = found.groups, found.threshold
    counts[:], sums[:] = 0, 0
    counts[: found.groups, 0] = found.counts
    sums[: found.sums.size, 0] = found.sums.ravel()


def _drop_upper_half(columns: _Columns) -> None:
    """Make room: keep the flows with the smaller tags, each of them complete."""
    flows, whole = columns.flows, columns.whole
    rows = flows[: whole[ROWS]].copy()
    limit = int(np.partition(rows[:, GAP], len(rows) // 2)[len(rows) // 2])
    keep = rows[:, GAP] < limit
    whole[DROPPED] += rows[~keep, PACKETS].sum()
    whole[CUT] = EVERY_TAG - limit
    kept = rows[keep]
    flows[:] = 0
    flows[: len(kept)] = kept
    whole[ROWS] = len(kept)
    _fill_places(columns.places, kept)


@kernel
def _fill_places(places: Int64Array, rows: Int64Array) -> None:
    places[:] = 0
    mask = places.shape[0] - 1
    for row in range(len(rows)):
        place = rows[row, GAP] & mask
        while places[place] != 0:
            place = (place + 1) & mask
        places[place] = row + 1


def _put_flows(flows: Int64Array, whole: Any, rows: Int64Array) -> None:
    """Rows of tags, packets and sums, some of them of one flow, into a table; what has no room is dropped."""
    tags, where = np.unique(rows[:, GAP], return_inverse=True)
    added = np.zeros((len(tags), 3), np.int64)
    added[:, GAP] = tags
    np.add.at(added[:, PACKETS], where, rows[:, PACKETS])
    np.add.at(added[:, SUM], where, rows[:, SUM])
    if len(tags) > len(flows):
        whole[CUT] = max(int(whole[CUT]), EVERY_TAG - int(tags[len(flows)]))
    keep = added[:, GAP] < EVERY_TAG - int(whole[CUT])
    whole[DROPPED] += added[~keep, PACKETS].sum()
    _fill_flows(flows, added[keep])


def _fill_flows(flows: Int64Array, rows: Int64Array) -> None:
    """Rows with tags into a table in their order, each with its distance to the one before; those without packets (all
    of which were repeats) are left out."""
    rows = rows[rows[:, PACKETS] > 0]
    rows = rows[np.argsort(rows[:, GAP], kind="stable")]
    flows[:] = 0
    flows[: len(rows)] = rows
    flows[1 : len(rows), GAP] = np.diff(rows[:, GAP])
