"""Conversations: which two flow ids are the two directions of one exchange.

Made from the keys of the flow table; keys that name no source (a destination, a prefix) have no opposite.
Cost: about 10 µs per key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import MismatchError
from sojourn.core.hash_kernels import hash_rows
from sojourn.core.keys import FlowKey, HostPairKey, TrafficKey, VlanFlowKey

__all__ = ["Conversations", "opposite_key"]


def opposite_key(key: TrafficKey) -> TrafficKey | None:
    """The key of the packets that answer, or None if the key does not tell."""
    if isinstance(key, FlowKey):
        return key.reversed()
    if isinstance(key, HostPairKey):
        return HostPairKey(key.dest_ip, key.src_ip)
    if isinstance(key, VlanFlowKey):
        return replace(key, flow=key.flow.reversed())
    return None


@dataclass(frozen=True, eq=False)
class Conversations:
    """Which flow ids are the two directions of one conversation; rows may repeat and be in any order."""

    flow_id: UInt64Array
    reverse_id: UInt64Array

    def __post_init__(self) -> None:
        if len(self.flow_id) != len(self.reverse_id):
            raise MismatchError(f"{len(self.flow_id)} flow ids, {len(self.reverse_id)} reverse ids")

    @classmethod
    def of_keys(cls, keys: Iterable[TrafficKey]) -> Conversations:
        """The conversations that these flows belong to."""
        with_opposite = [(key, other) for key in keys if (other := opposite_key(key)) is not None]
        there = _ids([key for key, _ in with_opposite])
        return cls(there, _ids([other for _, other in with_opposite]))

    def opposite_numbers(self, ids: UInt64Array) -> Int64Array:
        """For each of the distinct `ids`, the row of its opposite direction; −1 where there is none."""
        opposite = np.full(len(ids), -1, np.int64)
        if not len(ids):
            return opposite
        order = np.argsort(ids)
        known = ids[order]
        found = []
        for column in (self.flow_id, self.reverse_id):
            place = np.minimum(np.searchsorted(known, column), len(known) - 1)
            found.append(np.where(known[place] == column, order[place], -1))
        there, back = found
        both = (there >= 0) & (back >= 0) & (there != back)
        opposite[there[both]] = back[both]
        opposite[back[both]] = there[both]
        # Rows that contradict each other leave chains; only mutual pairs are conversations.
        mutual = (opposite >= 0) & (opposite[opposite] == np.arange(len(ids)))
        return np.where(mutual, opposite, -1)


def _ids(keys: list[TrafficKey]) -> UInt64Array:
    """The keys' ids, hashed together by length."""
    rows: dict[int, list[int]] = defaultdict(list)
    encoded = [key.to_bytes() for key in keys]
    for row, data in enumerate(encoded):
        rows[len(data)].append(row)
    ids = np.zeros(len(keys), np.uint64)
    for length, chosen in rows.items():
        table = np.frombuffer(b"".join(encoded[row] for row in chosen), np.uint8)
        ids[chosen] = hash_rows(table.reshape(-1, length), np.uint64(0))
    return ids
