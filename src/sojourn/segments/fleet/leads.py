"""Two points' times on scales that nobody can set: their machines' own counts, shown as their clocks were at one time.

Each epoch says how far its stamps are ahead of its machine's count (`segments.fleet.steady`). Taken to the leads of one
run, the times of all runs are on two scales that know drift alone: bounds of one run hold in every other, however often
a clock was set in between. Of runs that do not tell their leads times are left as they are.

A machine that is started anew begins another count, which nothing relates to the one before: runs are parted by the
times that both machines were up (`parted_by_boots`), and bounds of one such time hold in no other.

Cost: one addition a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sojourn.epochs.epoch import KernelClock
from sojourn.matching.clock.correction import TimedPairs

Kernels = tuple[KernelClock | None, KernelClock | None]
Boots = tuple[int | None, int | None]
# Nobody sets a clock by more, which are 73 years: one that begins at 1970 is set by 56. Sums of such times stay whole.
FARTHEST_NS = 1 << 61


class Leads(NamedTuple):
    """How far the stamps of sender and receiver are ahead of their machines' counts."""

    sender_ns: int
    receiver_ns: int

    @classmethod
    def of(cls, kernels: Kernels) -> Leads | None:
        """Those of a run; None if it does not tell them."""
        one, other = kernels
        if one is None or other is None or one.lead_ns is None or other.lead_ns is None or was_set(kernels):
            return None
        return cls(one.lead_ns, other.lead_ns)

    @classmethod
    def latest(cls, runs: Iterable[Kernels]) -> Leads | None:
        """Those of the last run that tells."""
        return next((found for kernels in reversed([*runs]) if (found := cls.of(kernels)) is not None), None)

    def since(self, kernels: Kernels) -> Leads:
        """By how much a run's leads are larger than these; nothing for one that does not tell, or nothing credible."""
        found = Leads.of(kernels)
        if found is None:
            return Leads(0, 0)
        moved = Leads(found.sender_ns - self.sender_ns, found.receiver_ns - self.receiver_ns)
        return moved if max(map(abs, moved)) <= FARTHEST_NS else Leads(0, 0)


def boots_of(kernels: Kernels) -> Boots:
    """Which times of sender and receiver being up a run is of; None for one that does not tell."""
    one, other = kernels
    return None if one is None else one.boot, None if other is None else other.boot


def may_be_of(boots: Boots, others: Boots) -> bool:
    """Whether both may be the same, as far as they tell."""
    return all(one is None or other is None or one == other for one, other in zip(boots, others, strict=True))


def parted_by_boots(runs: Sequence[Kernels]) -> list[tuple[Boots, list[int]]]:
    """The places of runs during which the same boots of both machines were up; one that does not tell is with the last.

    >>> first, second = (KernelClock(False, 0, boot=boot) for boot in (1, 2))
    >>> parted_by_boots([(first, None), (first, first), (first, second), (first, None), (None, first)])
    [((1, 1), [0, 1, 4]), ((1, 2), [2, 3])]
    """
    found: list[tuple[Boots, list[int]]] = []
    for place, kernels in enumerate(runs):
        boots = boots_of(kernels)
        at = next((i for i in reversed(range(len(found))) if may_be_of(boots, found[i][0])), None)
        if at is None:
            found.append((boots, [place]))
            continue
        known, places = found[at]
        one, other = (told if before is None else before for before, told in zip(known, boots, strict=True))
        places.append(place)
        found[at] = (one, other), places
    return found


def was_set(kernels: Kernels) -> bool:
    """Whether either clock was set within the epochs of a run."""
    return any(clock is not None and clock.was_set for clock in kernels)


def on_leads(pairs: TimedPairs, kernels: Kernels, leads: Leads | None) -> TimedPairs:
    """A run's packets with the times that they would have had by these leads; none of a run in which one changed."""
    if was_set(kernels):
        none = np.empty(0, np.int64)
        return TimedPairs(none, none)
    moved = Leads(0, 0) if leads is None else leads.since(kernels)
    if moved == (0, 0):
        return pairs
    return TimedPairs(pairs.sent_ns - moved.sender_ns, pairs.received_ns - moved.receiver_ns)
