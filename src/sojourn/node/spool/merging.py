"""Which epochs of a full spool are merged: of the stream that takes the most space, the oldest two that can be.

Two epochs merge when they are of one kind and hold equally many epochs (any two of one kind, where no such pair is
left). Old ones so become few and coarse, new ones keep their times, and an epoch is merged at most as often as the
spool's length can be halved: n epochs cost O(n log n), not O(n²).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from sojourn.core.errors import SojournError
from sojourn.epochs.merging import merged_encoded
from sojourn.node.spool.file import Label, SpooledEpoch, State, spooled

# A merged epoch has to be accepted in one request; beyond this it may hardly be larger than the larger of the two.
MOST_MERGED_BYTES = 4 << 20

_Queue = list[tuple[int, int, Label]]


class MergeQueue:
    """Epochs by stream, kind and weight, the oldest first."""

    def __init__(self, labels: Iterable[Label]) -> None:
        self._streams: dict[str, dict[str, dict[int, _Queue]]] = {}
        self._bytes: dict[str, int] = {}
        for label in labels:
            self.add(label)

    def add(self, label: Label) -> None:
        kinds = self._streams.setdefault(label.stream, {})
        queue = kinds.setdefault(label.merging, {}).setdefault(label.weight, [])
        heapq.heappush(queue, (label.first_ns or 0, label.sequence, label))
        self._bytes[label.stream] = self._bytes.get(label.stream, 0) + label.size_bytes

    def next_pair(self) -> tuple[Label, Label] | None:
        """The two to merge next, taken out of the queue, with the smaller number first; None if there are none."""
        for stream in sorted(self._streams, key=lambda name: -self._bytes[name]):
            pair = self._pair_of(self._streams[stream])
            if pair is not None:
                self._bytes[stream] -= sum(label.size_bytes for label in pair)
                older, newer = sorted(pair, key=lambda label: label.sequence)
                return older, newer
        return None

    def _pair_of(self, kinds: dict[str, dict[int, _Queue]]) -> tuple[Label, Label] | None:
        equal = [queue for weights in kinds.values() for queue in weights.values() if len(queue) > 1]
        if equal:
            queue = min(equal, key=lambda one: one[0][:2])
            return heapq.heappop(queue)[2], heapq.heappop(queue)[2]
        for weights in kinds.values():
            filled = sorted((queue for queue in weights.values() if queue), key=lambda one: one[0][:2])
            if len(filled) > 1:
                return heapq.heappop(filled[0])[2], heapq.heappop(filled[1])[2]
        return None


def merge_until(
    labels: Iterable[Label],
    excess: int,
    *,
    most: int,
    read: Callable[[Label], SpooledEpoch | None],
    replace: Callable[[Label, SpooledEpoch], None],
) -> int:
    """Merge until some bytes are saved, at most so many times; how many merges it took.

    `read` gives an entry's bytes (None where they are damaged); `replace` puts a merged epoch in the place of the newer
    of two, and takes the older one away.
    """
    queue = MergeQueue(labels)
    merges = 0
    while excess > 0 and merges < most and (pair := queue.next_pair()) is not None:
        older, newer = read(pair[0]), read(pair[1])
        if older is None or newer is None:
            for one in (older, newer):
                if one is not None:
                    queue.add(one)
            continue
        merged = _merged(older, newer)
        if merged is None:
            # The older one stays as it is; the newer may still go with others.
            queue.add(newer)
            continue
        replace(older, merged)
        queue.add(merged)
        excess -= older.size_bytes + newer.size_bytes - merged.size_bytes
        merges += 1
    return merges


def _merged(older: SpooledEpoch, newer: SpooledEpoch) -> SpooledEpoch | None:
    """Both as one; None if no counter is wide enough, or nothing would be gained."""
    try:
        both = merged_encoded(older.encoded, newer.encoded)
        merged = spooled(both, State.WAITING, weight=older.weight + newer.weight)
    except SojournError:
        return None
    larger = max(older.size_bytes, newer.size_bytes)
    is_gain = merged.size_bytes < older.size_bytes + newer.size_bytes
    return merged if is_gain and merged.size_bytes <= max(MOST_MERGED_BYTES, larger + larger // 4) else None
