"""Pairing: which packet of one observation point is which packet of the other.

Guarantee: packets pair only with packets of the same 64-bit identity, each at most once, and the older
copy first. Neither point needs to be in time order. What is not paired is either unmatched or, where a
point shows more copies of a packet than the other and the extra copy follows within ``duplicate_ns``, a
duplicate (a mirror port that sees a packet enter and leave); an extra copy at the receiver that could
still have come from the packet that was paired, or that follows its paired copy within `LATE_COPY_NS`, is a
duplicate made by the network.

Sanity windows. The delays (raw: the receiver's clock minus the sender's) of packets that occur once at
each point say which delays are plausible, whatever the clocks' offset: the central 99.8 %, widened by
`SLACK_NS`, for packets that occur once; widened by half their range, for identical packets, so that
after a loss the next copy does not take the lost one's place.

Cost: a stable radix sort of each side by identity and one merge, O(packets), 24 bytes per packet and side
while it runs; about 0.15 µs per packet.

`PacketSample` keeps the same packets at every observation point, in fixed memory. A packet is kept when the hash of its
id lies below a threshold; whenever the sample is full the threshold halves and what no longer qualifies goes. Two
points sample the same packets below the smaller of their thresholds, so that matching the two samples is matching a
random share of the packets: enough for clocks and directions.

Memory: `capacity` × 24 bytes. Time: one hash per packet, O(1); a capture of at most `capacity` packets is kept whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt8Array, UInt64Array
from sojourn.core.errors import InputError, ParameterError
from sojourn.core.hash_kernels import mix, mix_column
from sojourn.core.kernels import inlined, kernel

Rows: TypeAlias = NDArray[np.uint32]
Side: TypeAlias = tuple[UInt64Array, Rows, Int64Array, UInt8Array]

UNMATCHED, MATCHED, DUPLICATE = 0, 1, 2

SLACK_NS = 30_000_000_000
LEAST_MARGIN_NS = 1_000_000
LATE_COPY_NS = 1_000_000_000  # a network's second copy may wait in a queue; a host that repeats itself is slower
MAX_TIME_NS = 3 << 60  # sums of two differences of such times stay inside of 64 bits
MAX_PACKETS = 1 << 31
PLAUSIBLE_SHARES = (0.001, 0.999)
SAMPLED_DELAYS = 1_000_000

_BYTE = np.uint64(255)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@dataclass(frozen=True, eq=False)
class PacketPairs:
    """The pairs, in the order of the receiver's clock, and what became of every row of both points.

    ``sender_status`` and ``receiver_status`` hold `UNMATCHED`, `MATCHED` or `DUPLICATE` per row. ``shared_ids`` counts
    the sender's packets whose identity another one of them has, ``unpaired_copies`` those of them that are unmatched
    while another one is matched.
    """

    sender_row: Int64Array
    receiver_row: Int64Array
    sent_ns: Int64Array
    received_ns: Int64Array
    sender_status: UInt8Array
    receiver_status: UInt8Array
    shared_ids: int = 0
    unpaired_copies: int = 0

    def __len__(self) -> int:
        return len(self.sender_row)

    @cached_property
    def raw_delay_ns(self) -> Int64Array:
        """The receiver's time minus the sender's, before any clock is corrected."""
        return self.received_ns - self.sent_ns


def pair_packets(sender: PacketBatch, receiver: PacketBatch, *, duplicate_ns: int = 100_000) -> PacketPairs:
    """Pair the packets of two observation points.

    >>> a = PacketBatch.of([1, 1, 1], [10, 11, 12], [100, 200, 300])
    >>> b = PacketBatch.of([1, 1], [12, 10], [350, 160])
    >>> pair_packets(a, b).raw_delay_ns
    array([60, 50])
    """
    if duplicate_ns < 0:
        raise ParameterError(f"duplicate_ns is {duplicate_ns}", action="use 0 or more")
    for batch, name in ((sender, "sender"), (receiver, "receiver")):
        _check(batch, name)
    receiver_order = np.argsort(receiver.time_ns, kind="stable")
    sent_ids, sent_rows = _sort_by_id(sender.packet_id, np.argsort(sender.time_ns, kind="stable"))
    got_ids, got_rows = _sort_by_id(receiver.packet_id, receiver_order)
    singles = _single_delays(sent_ids, sent_rows, got_ids, got_rows, sender.time_ns, receiver.time_ns)
    partner = np.full(len(receiver), -1, np.int64)
    sender_status = np.zeros(len(sender), np.uint8)
    receiver_status = np.zeros(len(receiver), np.uint8)
    _pair_all(
        (sent_ids, sent_rows, sender.time_ns, sender_status),
        (got_ids, got_rows, receiver.time_ns, receiver_status),
        _windows(singles),
        duplicate_ns,
        partner,
    )
    receiver_row = receiver_order[receiver_status[receiver_order] == MATCHED]
    sender_row = partner[receiver_row]
    return PacketPairs(
        sender_row,
        receiver_row,
        sender.time_ns[sender_row],
        receiver.time_ns[receiver_row],
        sender_status,
        receiver_status,
        *_copies(sent_ids, sender_status[sent_rows]),
    )


def _copies(sorted_ids: UInt64Array, status: UInt8Array) -> tuple[int, int]:
    """How many have the id of another, and how many of these are unmatched although another one is matched."""
    like_next = sorted_ids[1:] == sorted_ids[:-1]
    shared = np.r_[like_next, False] | np.r_[False, like_next] if len(sorted_ids) else np.zeros(0, np.bool_)
    ids, status = sorted_ids[shared], status[shared]
    return len(ids), int(np.count_nonzero(np.isin(ids[status == UNMATCHED], ids[status == MATCHED])))


def _check(batch: PacketBatch, name: str) -> None:
    if len(batch) >= MAX_PACKETS:
        raise InputError(f"{len(batch)} packets", where=name, action="split the capture; 2³¹ are the limit")
    if len(batch) and not 0 <= batch.time_ns.min() <= batch.time_ns.max() < MAX_TIME_NS:
        raise InputError(
            "a packet's time lies outside 1970…2079", where=name, action="repair the capture's time stamps"
        )


def _windows(single_delays: Int64Array) -> Int64Array:
    """Plausible raw delays: low, high for packets that occur once; low, high for identical packets."""
    widest = MAX_TIME_NS
    if not len(single_delays):
        return np.array([-widest, widest, -widest, widest], np.int64)
    sample = single_delays[:: len(single_delays) // SAMPLED_DELAYS + 1]
    low, high = (int(q) for q in np.quantile(sample, PLAUSIBLE_SHARES, method="inverted_cdf"))
    slack = max(SLACK_NS, high - low)
    margin = max(LEAST_MARGIN_NS, (high - low) // 2)
    bounds = [low - slack, high + slack, low - margin, high + margin]
    return np.array([min(max(bound, -widest), widest) for bound in bounds], np.int64)


def _sort_by_id(packet_id: UInt64Array, order: Int64Array) -> tuple[UInt64Array, Rows]:
    """The ids in ascending order and their rows, equal ids in the given order."""
    return _radix_sort(packet_id[order], order.astype(np.uint32))


@kernel
def _radix_sort(ids: UInt64Array, rows: Rows) -> tuple[UInt64Array, Rows]:
    """Stable radix sort, a byte at a time; a byte that all ids share costs only its count."""
    n = ids.shape[0]
    other_ids = np.empty_like(ids)
    other_rows = np.empty_like(rows)
    for digit in range(8):
        shift = np.uint64(8 * digit)
        place = np.zeros(256, np.int64)
        for i in range(n):
            place[(ids[i] >> shift) & _BYTE] += 1
        if place.max() == n:
            continue
        total = np.int64(0)
        for b in range(256):
            total, place[b] = total + place[b], total
        for i in range(n):
            b = (ids[i] >> shift) & _BYTE
            j = place[b]
            place[b] = j + 1
            other_ids[j] = ids[i]
            other_rows[j] = rows[i]
        ids, other_ids = other_ids, ids
        rows, other_rows = other_rows, rows
    return ids, rows


@inlined
def _end_of_group(ids: UInt64Array, start: int) -> int:
    """One past the last row that has the same id as `start`."""
    end = start + 1
    while end < ids.shape[0] and ids[end] == ids[start]:
        end += 1
    return end


@kernel
def _single_delays(
    sent_ids: UInt64Array,
    sent_rows: Rows,
    got_ids: UInt64Array,
    got_rows: Rows,
    sent_ns: Int64Array,
    got_ns: Int64Array,
) -> Int64Array:
    """The raw delays of the packets that occur exactly once at each point."""
    delays = np.empty(min(sent_ids.shape[0], got_ids.shape[0]), np.int64)
    found = i = j = 0
    while i < sent_ids.shape[0] and j < got_ids.shape[0]:
        if sent_ids[i] < got_ids[j]:
            i += 1
        elif sent_ids[i] > got_ids[j]:
            j += 1
        else:
            i_end = _end_of_group(sent_ids, i)
            j_end = _end_of_group(got_ids, j)
            if i_end - i == 1 and j_end - j == 1:
                delays[found] = got_ns[got_rows[j]] - sent_ns[sent_rows[i]]
                found += 1
            i, j = i_end, j_end
    return delays[:found]


@inlined
def _mark_extra_copies(
    side: Side,
    start: int,
    end: int,
    other_copies: int,
    duplicate_ns: int,
) -> None:
    """Of more copies than the other point has, those close behind a kept copy are duplicates."""
    _, rows, time_ns, status = side
    excess = end - start - max(other_copies, 1)
    kept = start
    for k in range(start + 1, end):
        if excess > 0 and time_ns[rows[k]] - time_ns[rows[kept]] <= duplicate_ns:
            status[rows[k]] = DUPLICATE
            excess -= 1
        else:
            kept = k


@inlined
def _pair_group(
    sender: Side,
    receiver: Side,
    i: int,
    i_end: int,
    j: int,
    j_end: int,
    low: int,
    high: int,
    partner: Int64Array,
) -> None:
    """Pair the copies of one packet, oldest first, skipping those too old or too young for each other."""
    _, sent_rows, sent_ns, sender_status = sender
    _, got_rows, got_ns, receiver_status = receiver
    last = -1
    last_got_ns = got_ns[got_rows[j]]
    while j < j_end:
        got = got_rows[j]
        if receiver_status[got] == DUPLICATE:
            j += 1
            continue
        while i < i_end and (sender_status[sent_rows[i]] == DUPLICATE or got_ns[got] - sent_ns[sent_rows[i]] > high):
            i += 1
        if i < i_end and got_ns[got] - sent_ns[sent_rows[i]] >= low:
            sender_status[sent_rows[i]] = MATCHED
            receiver_status[got] = MATCHED
            partner[got] = sent_rows[i]
            last = i
            last_got_ns = got_ns[got]
            i += 1
        elif last >= 0 and (
            got_ns[got] - sent_ns[sent_rows[last]] <= high or got_ns[got] - last_got_ns <= LATE_COPY_NS
        ):
            receiver_status[got] = DUPLICATE
        j += 1


@kernel
def _pair_all(
    sender: Side,
    receiver: Side,
    windows: Int64Array,
    duplicate_ns: int,
    partner: Int64Array,
) -> None:
    """Merge the two sorted sides; fills the statuses and the sender's row of every matched receiver row."""
    sent_ids, got_ids = sender[0], receiver[0]
    i = j = 0
    while i < sent_ids.shape[0] or j < got_ids.shape[0]:
        take_sender = i < sent_ids.shape[0] and (j >= got_ids.shape[0] or sent_ids[i] <= got_ids[j])
        take_receiver = j < got_ids.shape[0] and (i >= sent_ids.shape[0] or got_ids[j] <= sent_ids[i])
        i_end = _end_of_group(sent_ids, i) if take_sender else i
        j_end = _end_of_group(got_ids, j) if take_receiver else j
        if i_end - i > 1:
            _mark_extra_copies(sender, i, i_end, j_end - j, duplicate_ns)
        if j_end - j > 1:
            _mark_extra_copies(receiver, j, j_end, i_end - i, duplicate_ns)
        if take_sender and take_receiver:
            single = i_end - i == 1 and j_end - j == 1
            low, high = (windows[0], windows[1]) if single else (windows[2], windows[3])
            _pair_group(sender, receiver, i, i_end, j, j_end, low, high, partner)
        i, j = i_end, j_end


@kernel
def index_ids(ids: UInt64Array) -> tuple[Int64Array, UInt64Array]:
    """Number the distinct ids in order of appearance: each row's number, and the ids.

    An open-addressing table that doubles at half full: O(rows), 24 bytes per distinct id.
    """
    numbers = np.empty(ids.shape[0], np.int64)
    distinct = np.empty(1024, np.uint64)
    table = np.full(2048, -1, np.int64)
    count = 0
    for i in range(ids.shape[0]):
        mask = np.uint64(table.shape[0] - 1)
        slot = ((ids[i] * _GOLDEN) >> _HALF) & mask
        while table[slot] >= 0 and distinct[table[slot]] != ids[i]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            if count == distinct.shape[0]:
                distinct, table = _doubled(distinct)
                mask = np.uint64(table.shape[0] - 1)
                slot = ((ids[i] * _GOLDEN) >> _HALF) & mask
                while table[slot] >= 0:
                    slot = (slot + np.uint64(1)) & mask
            distinct[count] = ids[i]
            table[slot] = count
            count += 1
        numbers[i] = table[slot]
    return numbers, distinct[:count].copy()


@inlined
def _doubled(distinct: UInt64Array) -> tuple[UInt64Array, Int64Array]:
    size = distinct.shape[0]
    grown = np.empty(2 * size, np.uint64)
    grown[:size] = distinct
    table = np.full(4 * size, -1, np.int64)
    mask = np.uint64(table.shape[0] - 1)
    for k in range(size):
        slot = ((grown[k] * _GOLDEN) >> _HALF) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = k
    return grown, table


EVERYTHING = 2**64 - 1
_SALT = np.uint64(hashing.salt_for(1 << 23, 0))


@kernel
def _select(packet_id: UInt64Array, threshold: np.uint64, chosen: Int64Array, start: int) -> tuple[int, int]:
    """Rows from `start` on that qualify, until `chosen` is full; how many, and the row to go on from."""
    count = 0
    for row in range(start, len(packet_id)):
        if mix(packet_id[row] ^ _SALT) <= threshold:
            if count == len(chosen):
                return count, row
            chosen[count] = row
            count += 1
    return count, len(packet_id)


class PacketSample:
    """The packets of one observation point whose hashes are smallest."""

    def __init__(self, capacity: int = 1 << 18) -> None:
        self.capacity = capacity
        self.threshold = EVERYTHING
        self.count = 0
        self._flow_id = np.empty(capacity, np.uint64)
        self._packet_id = np.empty(capacity, np.uint64)
        self._time_ns = np.empty(capacity, np.int64)
        self._chosen = np.empty(capacity, np.int64)

    def add(self, batch: PacketBatch) -> None:
        """Offer a batch."""
        row = 0
        while row < len(batch):
            room = self._chosen[: self.capacity - self.count]
            count, row = _select(batch.packet_id, np.uint64(self.threshold), room, row)
            chosen, target = room[:count], slice(self.count, self.count + count)
            self._flow_id[target] = batch.flow_id[chosen]
            self._packet_id[target] = batch.packet_id[chosen]
            self._time_ns[target] = batch.time_ns[chosen]
            self.count += count
            if row < len(batch):
                self._halve()

    def _halve(self) -> None:
        self.threshold //= 2
        self._keep(self._below(self.threshold))

    def _below(self, threshold: int) -> BoolArray:
        return mix_column(self._packet_id[: self.count] ^ _SALT) <= np.uint64(threshold)

    def _keep(self, rows: BoolArray) -> None:
        kept = int(np.count_nonzero(rows))
        for column in (self._flow_id, self._packet_id, self._time_ns):
            column[:kept] = column[: self.count][rows]
        self.count = kept

    def packets(self, threshold: int = EVERYTHING) -> PacketBatch:
        """The sampled packets below a threshold, in the order in which they came."""
        rows = np.flatnonzero(self._below(min(threshold, self.threshold)))
        sizes = np.zeros(len(rows), np.int64)
        return PacketBatch(self._flow_id[rows], self._packet_id[rows], self._time_ns[rows], sizes)

    @property
    def share(self) -> float:
        """The share of all packets that the sample holds, in expectation."""
        return (self.threshold + 1) / 2**64


def common_sample(sender: PacketSample, receiver: PacketSample) -> tuple[PacketBatch, PacketBatch]:
    """The packets that both points would have kept."""
    threshold = min(sender.threshold, receiver.threshold)
    return sender.packets(threshold), receiver.packets(threshold)
