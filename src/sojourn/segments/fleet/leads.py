"""Two points' times on scales that nobody can set: their machines' own counts, shown as their clocks were at one time.

Each epoch says how far its stamps are ahead of its machine's count (`segments.fleet.steady`). Taken to the leads of one
run, the times of all runs are on two scales that know drift alone: bounds of one run hold in every other, however often
a clock was set in between. Of runs that do not tell their leads times are left as they are.

A machine that is started anew begins another count, which nothing relates to the one before: runs are parted by the
times that both machines were up (`parted_by_boots`), and bounds of one such time hold in no other.

Counts are not straight lines against each other: what keeps clocks in step steers them. Where every run says how
(`epochs.epoch.Slew`), times are taken to the machines' oscillators, which nothing steers: there θ is as good as a
straight line, and what the counts were steered by is added to it in the end.

Cost: some additions a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.epochs.epoch import SLEW_UNIT_NS, KernelClock, Slew
from sojourn.matching.clock.correction import TimedPairs

Kernels = tuple[KernelClock | None, KernelClock | None]
Boots = tuple[int | None, int | None]
# Nobody sets a clock by more, which are 73 years: one that begins at 1970 is set by 56. Sums of such times stay whole.
FARTHEST_NS = 1 << 61


class Leads(NamedTuple):
    """How far the stamps of sender and receiver are ahead of their machines' counts.

    ``steered`` is what counts were steered by until then, where times are taken to the oscillators, in `SLEW_UNIT_NS`.
    """

    sender_ns: int
    receiver_ns: int
    steered: tuple[int, int] | None = None

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

    @classmethod
    def steered_of(cls, runs: Sequence[Kernels]) -> Leads | None:
        """Those of the last run that tells, on the oscillators if all that tell say how counts were steered."""
        told = [kernels for kernels in runs if cls.of(kernels) is not None]
        found, slews = cls.latest(told), [slews_of(kernels) for kernels in told]
        if found is None or not slews or slews[-1] is None or None in slews:
            return found
        return found._replace(steered=(slews[-1][0].last, slews[-1][1].last))

    def since(self, kernels: Kernels) -> Leads:
        """By how much a run's leads are larger than these; nothing for one that does not tell, or nothing credible."""
        found = Leads.of(kernels)
        if found is None:
            return Leads(0, 0)
        moved = Leads(found.sender_ns - self.sender_ns, found.receiver_ns - self.receiver_ns)
        return moved if max(map(abs, moved[:2])) <= FARTHEST_NS else Leads(0, 0)

    def unsteered(self) -> Leads:
        """The same by counts as they were steered."""
        return self._replace(steered=None)

    def steering(self, kernels: Kernels) -> Steering | None:
        """How counts were steered in a run since these leads; None if it does not say, or they are not looked at."""
        slews = slews_of(kernels)
        return None if slews is None or self.steered is None else Steering(slews, self.steered)


class Steering(NamedTuple):
    """How the counts of sender and receiver were steered in a run, and what they had been steered by at some time."""

    slews: tuple[Slew, Slew]
    since: tuple[int, int]

    @property
    def bend_ns(self) -> int:
        """How far either, or both, may be off a straight line."""
        return SLEW_UNIT_NS * (self.slews[0].bend + self.slews[1].bend)

    @property
    def change_ns(self) -> int:
        """By how much more the receiver's count was steered in the run than the sender's."""
        (_, _, first, last, _), (_, _, other_first, other_last, _) = self.slews
        return SLEW_UNIT_NS * (other_last - other_first - (last - first))

    @property
    def unlike_ns(self) -> int:
        """How much longer the run was at one end than at the other."""
        one, other = (slew.last_ns - slew.first_ns for slew in self.slews)
        return abs(other - one)

    def of_end(self, end: int, time_ns: Int64Array) -> FloatArray:
        """What the count of an end was steered by at some of its times; before and after the run as at its ends."""
        slew = self.slews[end]
        share = np.clip((time_ns - slew.first_ns) / max(slew.last_ns - slew.first_ns, 1), 0.0, 1.0)
        ahead: FloatArray = slew.first - self.since[end] + share * (slew.last - slew.first)
        return ahead * SLEW_UNIT_NS

    def apart(self, sender_ns: int, receiver_ns: int) -> float:
        """By how much more the receiver's was than the sender's, at a time of either."""
        one, other = (self.of_end(end, np.array([at]))[0] for end, at in enumerate((sender_ns, receiver_ns)))
        return float(other - one)


def slews_of(kernels: Kernels) -> tuple[Slew, Slew] | None:
    """Those of both ends of a run, if both say so."""
    one, other = (None if clock is None else clock.slew for clock in kernels)
    return None if one is None or other is None or was_set(kernels) else (one, other)


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


def on_leads(pairs: TimedPairs, kernels: Kernels, leads: Leads | None, *, sign: int = 1) -> TimedPairs:
    """A run's packets with the times that they would have had by these leads; none of a run in which one changed.

    Where that is the oscillators' time, raw delays leave room for bends, upwards of packets ahead, downwards (`sign`
    −1) of those that lead back. Runs that do not say how they were steered have none then.
    """
    steering = None if leads is None else leads.steering(kernels)
    if was_set(kernels) or (leads is not None and leads.steered is not None and steering is None):
        none = np.empty(0, np.int64)
        return TimedPairs(none, none)
    moved = Leads(0, 0) if leads is None else leads.since(kernels)
    if steering is not None:
        sent = moved.sender_ns + np.rint(steering.of_end(0, pairs.sent_ns)).astype(np.int64)
        received = moved.receiver_ns + np.rint(steering.of_end(1, pairs.received_ns)).astype(np.int64)
        return TimedPairs(pairs.sent_ns - sent, pairs.received_ns - received + sign * steering.bend_ns)
    if moved == Leads(0, 0):
        return pairs
    return TimedPairs(pairs.sent_ns - moved.sender_ns, pairs.received_ns - moved.receiver_ns)
