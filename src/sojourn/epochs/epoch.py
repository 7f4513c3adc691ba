"""`Epoch`: an immutable snapshot of a sketch, with its origin and time frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

from sojourn.core.errors import MismatchError, ParameterError
from sojourn.core.keys import MAX_NAME_BYTES, Key
from sojourn.sketches.parameters import Parameters

if TYPE_CHECKING:
    from sojourn.sketches.sketch import AnySketch

MAX_KEYS = 1 << 20
MAX_SEQUENCE = (1 << 63) - 1
SLEW_UNIT_NS = 100


@lru_cache(maxsize=1024)
def check_names(node: str, stream: str) -> None:
    """Refuse names that no node or stream may have."""
    for name, text in (("node", node), ("stream", stream)):
        size = len(text.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= MAX_NAME_BYTES or not text.isprintable():
            raise ParameterError(
                f"{text[:40]!r} cannot name a {name}",
                where="epoch",
                action=f"use 1 to {MAX_NAME_BYTES} bytes of printable text",
            )


def overlaps(first_ns: int | None, last_ns: int | None, from_ns: int, to_ns: int) -> bool:
    """Whether a frame, which is none in an empty epoch, and a range have an instant in common."""
    return first_ns is not None and last_ns is not None and first_ns <= to_ns and from_ns <= last_ns


class Slew(NamedTuple):
    """How far a kernel has steered a machine's count of time away from its oscillator, which nothing steers.

    ``first`` at the first stamp of an epoch, ``last`` at its last, in units of `SLEW_UNIT_NS`; in between it is at most
    ``bend`` away from the straight line.
    """

    first_ns: int
    last_ns: int
    first: int
    last: int
    bend: int

    def at(self, time_ns: int) -> float:
        """About what it is at a time between both."""
        length_ns = self.last_ns - self.first_ns
        return self.first + (self.last - self.first) * (time_ns - self.first_ns) / length_ns if length_ns else self.last

    def joined(self, later: Slew) -> Slew:
        both = Slew(self.first_ns, later.last_ns, self.first, later.last, 0)
        off = abs(self.last - both.at(self.last_ns)), abs(later.first - both.at(later.first_ns))
        return both._replace(bend=round(max(off)) + max(self.bend, later.bend))

    def moved(self, by_ns: int) -> Slew:
        """The same by a clock that is ahead."""
        return self._replace(first_ns=self.first_ns + by_ns, last_ns=self.last_ns + by_ns)


@dataclass(frozen=True, slots=True)
class KernelClock:
    """What a node's kernel says of its clock: whether something keeps it in step, and how far off it may be at most.

    ``lead_ns`` is how far the stamps of an epoch are ahead of the machine's own count of time, which nobody can set
    (None if that is not known); in an epoch that ``was_set``, some of them may be so by another lead. ``boot`` is the
    time that the machine has been up, each of which has a count of its own (None if that is not known). ``slew`` is
    how the count was steered during the epoch, as far as that is known.
    """

    synchronised: bool
    error_ns: int
    offset_ns: int = 0
    lead_ns: int | None = None
    was_set: bool = False
    boot: int | None = None
    slew: Slew | None = None

    def joined(self, later: KernelClock) -> KernelClock:
        """The clock of two epochs as one, which follow each other."""
        was_set = self.was_set or later.was_set
        if self.boot is not None and later.boot is not None:
            was_set = was_set or self.boot != later.boot
        if self.lead_ns is None or later.lead_ns is None:
            return replace(later, lead_ns=None, was_set=was_set, slew=None)
        was_set = was_set or self.lead_ns != later.lead_ns
        slew = None if was_set or self.slew is None or later.slew is None else self.slew.joined(later.slew)
        return replace(later, was_set=was_set, slew=slew)


def joined_clocks(clocks: Iterable[KernelClock | None]) -> KernelClock | None:
    """The clock of epochs that follow each other, as far as they tell."""
    told = [clock for clock in clocks if clock is not None]
    return reduce(KernelClock.joined, told) if told else None


@dataclass(frozen=True, slots=True)
class Cut:
    """Where an epoch begins and ends among the packets that passed, and what else is known of its completeness.

    ``begins`` and ``ends`` name a place between two packets by a packet that every point sees
    (`segments.fleet.markers`); None where only time or memory made the cut. ``sequences`` numbers, its own and those
    before it, are in the epoch; ``continues`` says that nothing lies between it and the number before these. ``missed``
    packets passed meanwhile that the kernel had no room for.
    """

    begins: int | None = None
    ends: int | None = None
    sequences: int = 1
    continues: bool = False
    missed: int = 0
    clock: KernelClock | None = None

    def joined(self, later: Cut) -> Cut:
        """The cut of both epochs as one, which must follow each other."""
        together = self.sequences + later.sequences
        clock = joined_clocks([self.clock, later.clock])
        return Cut(self.begins, later.ends, together, self.continues, self.missed + later.missed, clock)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What a node recorded in one stretch of time.

    ``node``, ``stream`` and ``sequence`` identify it: a second epoch with the same three is a copy.
    ``keys`` are the instances that were active, where the node reports them (``None`` where not).
    ``cut`` says where among a segment's packets it begins and ends (``None`` where it is cut by time alone).
    """

    node: str
    stream: str
    sequence: int
    sketch: AnySketch
    keys: tuple[Key, ...] | None = None
    cut: Cut | None = None

    def __post_init__(self) -> None:
        check_names(self.node, self.stream)
        if not 0 <= self.sequence <= MAX_SEQUENCE:
            raise ParameterError(f"sequence {self.sequence} is outside 0 … 2⁶³ − 1", where="epoch")
        if self.keys is not None and len(self.keys) > MAX_KEYS:
            raise ParameterError(f"{len(self.keys)} keys exceed {MAX_KEYS}", where="epoch")
        object.__setattr__(self, "sketch", self.sketch.snapshot())

    @property
    def parameters(self) -> Parameters:
        parameters: Parameters = self.sketch.parameters
        return parameters

    @property
    def first_ns(self) -> int | None:
        """Time of the earliest measurement; ``None`` in an empty epoch."""
        return self.sketch.first_ns

    @property
    def last_ns(self) -> int | None:
        """Time of the latest measurement; ``None`` in an empty epoch."""
        return self.sketch.last_ns

    @property
    def recorded(self) -> int:
        """Measurements offered to the sketch, sampled or not."""
        return self.sketch.recorded

    def overlaps(self, from_ns: int, to_ns: int) -> bool:
        """Whether any measurement may lie in ``from_ns … to_ns``."""
        return overlaps(self.first_ns, self.last_ns, from_ns, to_ns)


def merge_epochs(epochs: list[Epoch]) -> AnySketch:
    """One sketch that holds what all the epochs recorded; their parameters (and salts) must agree."""
    if not epochs:
        raise MismatchError("there are no epochs to merge")
    merged = epochs[0].sketch.copy()
    for epoch in epochs[1:]:
        merged = merged.merge(epoch.sketch)
    return merged
