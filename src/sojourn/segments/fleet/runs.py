"""Runs: stretches of two points' epochs that begin and end at packets which both points saw.

Each point numbers its epochs, and names the places between them (`segments.fleet.markers`). A name that both points
have is a place in the stream of packets; between two such places, in epochs that follow each other at either point,
both recorded the same packets, but for those lost, or that changed places with a marker. Sketches are linear, so the
epochs of a run are added up, however many one point made of them.

Guarantee: no packet is in two runs, and a run has no gap. A name that a point has twice (a copy, or a packet sent again
as it was) is not used; of names that the two points have in different order, those that fit each other are. Cost: O(n
log n) for n epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sojourn.epochs.epoch import Cut


@dataclass(frozen=True, slots=True)
class PlacedEpoch:
    """An epoch of a point as far as it has to be known to find its place."""

    sequence: int
    cut: Cut
    first_ns: int | None
    last_ns: int | None
    recorded: int
    size_bytes: int = 0

    @property
    def number_before(self) -> int:
        """The number before those that it stands for."""
        return self.sequence - self.cut.sequences

    def follows(self, number: int) -> bool:
        """Whether nothing lies between it and the epoch that ends with a number."""
        return self.cut.continues and self.number_before == number


@dataclass(frozen=True, slots=True)
class Run:
    """The epochs between two places, oldest first; `received` ones may be none, if nothing arrived."""

    sent: tuple[PlacedEpoch, ...]
    received: tuple[PlacedEpoch, ...]

    def follows(self, last: tuple[int, int]) -> bool:
        """Whether it begins where another ended, by that one's last numbers at either point."""
        first = [self.sent[0], *self.received[:1]]
        return all(epoch.follows(number) for epoch, number in zip(first, last, strict=False))

    def end(self, last: tuple[int, int]) -> tuple[int, int]:
        """Its last numbers at either point, after those of the run before."""
        return self.sent[-1].sequence, self.received[-1].sequence if self.received else last[1]

    @property
    def size_bytes(self) -> int:
        """What the point that sent more of it sent."""
        return max(sum(epoch.size_bytes for epoch in end) for end in (self.sent, self.received))


class _Places:
    """A point's epochs, sorted, with the numbers of the places around each, and the places' names."""

    def __init__(self, epochs: Sequence[PlacedEpoch]) -> None:
        self.epochs = epochs
        self.begin: list[int] = []
        self.chain: dict[int, int] = {}
        self.first_epoch: dict[int, int] = {}
        named: dict[int, set[int]] = {}
        place = chain = -1
        for index, epoch in enumerate(epochs):
            if not index or not epoch.follows(epochs[index - 1].sequence):
                place, chain = place + 1, chain + 1
            self.begin.append(place)
            self.first_epoch[place] = index
            self.chain[place] = self.chain[place + 1] = chain
            for name, where in ((epoch.cut.begins, place), (epoch.cut.ends, place + 1)):
                if name is not None:
                    named.setdefault(name, set()).add(where)
            place += 1
        self.named = {name: places.pop() for name, places in named.items() if len(places) == 1}

    def between(self, first: int, last: int) -> tuple[PlacedEpoch, ...]:
        """The epochs between two places of one chain."""
        if first == last:
            return ()
        start = self.first_epoch[first]
        return tuple(self.epochs[start : start + last - first])


def align(sent: Sequence[PlacedEpoch], received: Sequence[PlacedEpoch]) -> list[Run]:
    """The runs of two points' epochs, each in order of their numbers; oldest first, as short as the names allow."""
    before, after = _Places(sent), _Places(received)
    common = sorted({(before.named[name], after.named[name]) for name in before.named.keys() & after.named.keys()})
    runs = []
    places = _in_order(common)
    for (a0, b0), (a1, b1) in pairwise(places):
        if a1 > a0 and before.chain[a0] == before.chain[a1] and after.chain[b0] == after.chain[b1]:
            runs.append(Run(before.between(a0, a1), after.between(b0, b1)))
    return runs


def joined(runs: Sequence[Run], most: int) -> list[Run]:
    """The same with up to so many runs that follow each other as one."""
    together: list[Run] = []
    count, last = most, (-1, -1)
    for run in runs:
        if count < most and run.follows(last):
            before = together[-1]
            together[-1] = Run((*before.sent, *run.sent), (*before.received, *run.received))
            count += 1
        else:
            together.append(run)
            count = 1
        last = run.end(last)
    return together


def _in_order(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of sorted pairs in which both numbers never fall.

    >>> _in_order([(0, 0), (1, 5), (2, 1), (3, 2), (3, 3)])
    [(0, 0), (2, 1), (3, 2), (3, 3)]
    """
    ends: list[int] = []
    last: list[int] = []
    previous = [-1] * len(places)
    for index, (_, other) in enumerate(places):
        at = bisect_right(ends, other)
        previous[index] = last[at - 1] if at else -1
        if at == len(ends):
            ends.append(other)
            last.append(index)
        else:
            ends[at], last[at] = other, index
    chosen = []
    index = last[-1] if last else -1
    while index >= 0:
        chosen.append(places[index])
        index = previous[index]
    return chosen[::-1]
