"""Pairing of packets that are in memory: which packet of one observation point is which packet of the other.

The rules are `joining`'s, whose joiner does the work. Neither point needs to be in time order, and the clocks may
differ by any amount: the delays (raw: the receiver's clock minus the sender's) of packets that occur once at each point
say which delays are plausible, the central 99.8 %, widened by `SLACK_NS`, for packets that occur once; widened by half
their range, for identical packets. Where there are copies the join is repeated with what the first one told of delays
and of points that mirror.

Cost: sorting each point by time, and the join; about 0.15 µs and 100 bytes per packet.

`PacketSample` keeps the same packets at every observation point, in fixed memory. A packet is kept when the hash of its
id lies below a threshold; whenever the sample is full the threshold halves and what no longer qualifies goes. Two
points sample the same packets below the smaller of their thresholds, so that matching the two samples is matching a
random share of the packets: enough for clocks and directions.

Memory: `capacity` × 24 bytes. Time: one hash per packet, O(1); a capture of at most `capacity` packets is kept whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sojourn.core import hashing
from sojourn.core.arrays import BoolArray, Int64Array, PacketBatch, UInt8Array, UInt64Array
from sojourn.core.errors import InputError
from sojourn.core.hash_kernels import mix_column
from sojourn.matching.join_table import RECEIVER, SENDER, Columns
from sojourn.matching.joining import Alone, Joiner, JoinSettings, Pairs

UNMATCHED, MATCHED, DUPLICATE = 0, 1, 2

SLACK_NS = 300_000_000_000
LEAST_MARGIN_NS = 1_000_000
MAX_TIME_NS = 3 << 60  # sums of two differences of such times stay inside of 64 bits
MAX_PACKETS = 1 << 31
MIRRORED_SHARE = 0.01
SINGLE_SHARE = 0.1
PLAUSIBLE_SHARES = (0.001, 0.999)
SAMPLED_DELAYS = 1_000_000


@dataclass(frozen=True, eq=False)
class PacketPairs:
    """The pairs, in the order of the receiver's clock, and what became of every row of both points.

    ``copied`` pairs have other packets like them; ``mirrored`` points show packets twice.
    ``sender_status`` and ``receiver_status`` hold `UNMATCHED`, `MATCHED` or `DUPLICATE` per row. ``shared_ids`` counts
    the sender's packets whose identity another one of them has, ``unpaired_copies`` those of them that are unmatched
    while another one is matched, ``ambiguous`` those that were on their way together, as far as delays tell: which of
    them arrived is unknown. Where every packet has copies no delay is known, and nothing tells.
    """

    sender_row: Int64Array
    receiver_row: Int64Array
    sent_ns: Int64Array
    received_ns: Int64Array
    sender_status: UInt8Array
    receiver_status: UInt8Array
    copied: BoolArray
    mirrored: tuple[bool, bool] = (False, False)
    shared_ids: int = 0
    unpaired_copies: int = 0
    ambiguous: int = 0

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
    settings = JoinSettings(duplicate_ns=duplicate_ns, most_rows=MAX_PACKETS)
    for batch, name in ((sender, "sender"), (receiver, "receiver")):
        _check(batch, name)
    orders = [np.argsort(batch.time_ns, kind="stable") for batch in (sender, receiver)]
    columns = [_columns(batch, order) for batch, order in zip((sender, receiver), orders, strict=True)]
    joined = _join_all(columns, settings)
    shared = _shared(sender.packet_id)
    repeated = None
    if joined.has_copies:
        repeated = _Repeated(shared[orders[SENDER]], _shared(receiver.packet_id)[orders[RECEIVER]])
    copied = joined.pairs.copied != 0
    if repeated is not None and repeated.leaves_enough(joined.pairs):
        copied = repeated.has(joined.pairs)
    else:
        repeated = None
    low, high, low_of_copies, high_of_copies = plausible_delays(joined.raw_delay_ns[~copied])
    mirrored = joined.mirrored
    if joined.has_copies:
        settings = replace(settings, low_ns=low_of_copies, high_ns=high_of_copies, mirrored=mirrored)
        joined = _join_all(columns, settings)
    raw = joined.raw_delay_ns
    kept = np.flatnonzero((joined.pairs.copied != 0) | ((raw >= low) & (raw <= high)))
    kept = kept[np.argsort(joined.pairs.receiver_position[kept])]
    rows = (joined.pairs.sender_position[kept], joined.pairs.receiver_position[kept])
    copied = joined.pairs.copied != 0 if repeated is None else repeated.has(joined.pairs)
    statuses = []
    for side, (order, positions) in enumerate(zip(orders, rows, strict=True)):
        status = np.zeros(len(order), np.uint8)
        status[order[positions]] = MATCHED
        status[order[joined.copies(side)]] = DUPLICATE
        statuses.append(status)
    sender_row, receiver_row = (order[positions] for order, positions in zip(orders, rows, strict=True))
    return PacketPairs(
        sender_row,
        receiver_row,
        sender.time_ns[sender_row],
        receiver.time_ns[receiver_row],
        statuses[SENDER],
        statuses[RECEIVER],
        copied[kept],
        mirrored,
        *_copies(sender.packet_id[shared], statuses[SENDER][shared]),
        _together(sender.select(shared), statuses[SENDER][shared], high_of_copies - low_of_copies),
    )


def _columns(batch: PacketBatch, order: Int64Array) -> Columns:
    time_ns = batch.time_ns[order]
    return Columns(batch.packet_id[order], np.zeros(len(order), np.int64), time_ns, time_ns)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """Whether packets of each point, in its order, have copies there, however far away: the joiner forgets these."""

    at_sender: BoolArray
    at_receiver: BoolArray

    def leaves_enough(self, pairs: Pairs) -> bool:
        """Whether enough packets occur once to tell delays; polls that are always the same tell their own, mostly."""
        single = int(np.count_nonzero(~self.has(pairs)))
        return single > 0 and single >= SINGLE_SHARE * int(np.count_nonzero(pairs.copied == 0))

    def has(self, pairs: Pairs) -> BoolArray:
        """Pairs that the joiner met copies of, or whose identity occurs again at either point."""
        found: BoolArray = (pairs.copied != 0) | self.at_sender[pairs.sender_position]
        return found | self.at_receiver[pairs.receiver_position]


@dataclass(frozen=True, eq=False)
class _Joined:
    """All of two points, joined."""

    pairs: Pairs
    alone: Alone
    shadows: tuple[int, int]

    @property
    def raw_delay_ns(self) -> Int64Array:
        return self.pairs.received_ns - self.pairs.sent_ns

    @property
    def has_copies(self) -> bool:
        return bool(self.pairs.copied.any() or self.alone.is_copy.any() or any(self.shadows))

    @property
    def mirrored(self) -> tuple[bool, bool]:
        """Whether each point shows packets twice: a share of them closely follow a copy and most of these have no
        partner. Fewer are packets that hosts sent twice, some of which were lost."""
        shadows = self.alone.is_receiver[self.alone.is_shadow]
        alone = self.alone.is_receiver
        found = []
        for side, is_receiver in ((SENDER, False), (RECEIVER, True)):
            copies = int(np.count_nonzero(shadows == is_receiver))
            packets = len(self.pairs) + int(np.count_nonzero(alone == is_receiver))
            found.append(2 * copies > self.shadows[side] and copies > MIRRORED_SHARE * packets)
        return found[SENDER], found[RECEIVER]

    def copies(self, side: int) -> Int64Array:
        """The positions of a point's unmatched packets that are copies of others."""
        return self.alone.select(self.alone.is_copy & (self.alone.is_receiver == (side == RECEIVER))).position


def _join_all(columns: list[Columns], settings: JoinSettings) -> _Joined:
    joiner = Joiner(settings)
    for side in (SENDER, RECEIVER):
        joiner.take(side, columns[side])
        joiner.end(side)
    parts = [(pairs.copy(), alone) for pairs, alone in joiner.join()]
    alone = [part for _, part in parts] + list(joiner.flush())
    pairs = (
        Pairs(*(np.concatenate(c) for c in zip(*(vars(p).values() for p, _ in parts), strict=True))) if parts else None
    )
    return _Joined(
        pairs or Pairs(*np.empty((7, 0), np.int64)),
        Alone(*(np.concatenate(c) for c in zip(*(vars(a).values() for a in alone), strict=True)))
        if alone
        else Alone(*np.empty((5, 0), np.int64)),
        joiner.shadows,
    )


def _shared(packet_id: UInt64Array) -> BoolArray:
    """Which have the id of another."""
    order = np.argsort(packet_id, kind="stable")
    like_next = np.diff(packet_id[order]) == 0
    shared = np.zeros(len(order), np.bool_)
    shared[order[1:][like_next]] = shared[order[:-1][like_next]] = True
    return shared


def _copies(ids: UInt64Array, status: UInt8Array) -> tuple[int, int]:
    """How many share an id, and how many of these are unmatched although another one is matched."""
    return len(ids), int(np.count_nonzero(np.isin(ids[status == UNMATCHED], ids[status == MATCHED])))


def _together(batch: PacketBatch, status: UInt8Array, width_ns: int) -> int:
    """How many have the id of another that was sent less than `width_ns` before or after; duplicates aside."""
    rows = np.flatnonzero(status != DUPLICATE)
    rows = rows[np.lexsort((batch.time_ns[rows], batch.packet_id[rows]))]
    packet_id, time_ns = batch.packet_id[rows], batch.time_ns[rows]
    near = (packet_id[1:] == packet_id[:-1]) & (np.diff(time_ns) < width_ns)
    return int(np.count_nonzero(np.r_[near, False] | np.r_[False, near])) if len(rows) else 0


def _check(batch: PacketBatch, name: str) -> None:
    if len(batch) >= MAX_PACKETS:
        raise InputError(f"{len(batch)} packets", where=name, action="split the capture; 2³¹ are the limit")
    if len(batch) and not 0 <= batch.time_ns.min() <= batch.time_ns.max() < MAX_TIME_NS:
        raise InputError(
            "a packet's time lies outside 1970…2079", where=name, action="repair the capture's time stamps"
        )


def plausible_delays(single_delays: Int64Array) -> tuple[int, int, int, int]:
    """Plausible raw delays: low, high for packets that occur once; low, high for identical packets."""
    widest = MAX_TIME_NS
    if not len(single_delays):
        return -widest, widest, -widest, widest
    sample = single_delays[:: len(single_delays) // SAMPLED_DELAYS + 1]
    low, high = (int(q) for q in np.quantile(sample, PLAUSIBLE_SHARES, method="inverted_cdf"))
    slack = max(SLACK_NS, high - low)
    margin = max(LEAST_MARGIN_NS, (high - low) // 2)
    bounds = low - slack, high + slack, low - margin, high + margin
    return tuple(min(max(bound, -widest), widest) for bound in bounds)  # type: ignore[return-value]


EVERYTHING = 2**64 - 1
_SALT = np.uint64(hashing.salt_for(1 << 23, 0))


def _qualifies(packet_id: UInt64Array, threshold: int) -> BoolArray:
    return mix_column(packet_id ^ _SALT) <= np.uint64(threshold)


class PacketSample:
    """The packets of one observation point whose hashes are smallest."""

    def __init__(self, capacity: int = 1 << 18) -> None:
        self.capacity = capacity
        self.threshold = EVERYTHING
        self.count = 0
        self._flow_id = np.empty(capacity, np.uint64)
        self._packet_id = np.empty(capacity, np.uint64)
        self._time_ns = np.empty(capacity, np.int64)

    def add(self, batch: PacketBatch) -> None:
        """Offer a batch."""
        row = 0
        while row < len(batch):
            chosen = np.flatnonzero(_qualifies(batch.packet_id[row:], self.threshold)) + row
            room = self.capacity - self.count
            row = int(chosen[room]) if len(chosen) > room else len(batch)
            self._take(batch, chosen[:room])
            if row < len(batch):
                self._halve()

    def _take(self, batch: PacketBatch, chosen: Int64Array) -> None:
        target = slice(self.count, self.count + len(chosen))
        self._flow_id[target] = batch.flow_id[chosen]
        self._packet_id[target] = batch.packet_id[chosen]
        self._time_ns[target] = batch.time_ns[chosen]
        self.count += len(chosen)

    def _halve(self) -> None:
        self.threshold //= 2
        self._keep(self._below(self.threshold))

    def _below(self, threshold: int) -> BoolArray:
        return _qualifies(self._packet_id[: self.count], threshold)

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
