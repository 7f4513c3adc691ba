"""Turns of work for many owners: who has used least lately goes first, and nobody has two at once.

Guarantee: with two workers or more, one owner's long work never keeps another's waiting; an owner's items take turns in
the order in which they came. O(owners that wait) for each turn; memory: one entry for each waiting item and each owner
of the last minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["FairTurns", "Turn"]

HALF_LIFE_SECONDS = 60.0
FORGOTTEN_SECONDS = 0.001


@dataclass(frozen=True)
class Turn:
    """An owner's item, to be worked on now; to be handed back by `FairTurns.done`."""

    owner: str
    item: int


@dataclass
class _Owner:
    """What waits, in order, and the working time used, which halves again and again."""

    waiting: dict[int, None] = field(default_factory=dict)
    running: int | None = None
    used: float = 0.0
    at: float = 0.0

    def used_by(self, now: float) -> float:
        return float(self.used * 0.5 ** ((now - self.at) / HALF_LIFE_SECONDS))


class FairTurns:
    """Shared by the threads that add items and those that work on them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def add(self, owner: str, item: int) -> None:
        """Put an item in line, unless it waits already."""
        with self._changed:
            self._owners.setdefault(owner, _Owner()).waiting.setdefault(item)
            self._changed.notify()

    def take(self, timeout: float) -> Turn | None:
        """The next turn; None if there is none for so long, or no more are given."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next() is not None, timeout)
            name = None if self._is_closed else self._next()
            if name is None:
                return None
            owner = self._owners[name]
            item = next(iter(owner.waiting))
            del owner.waiting[item]
            owner.running = item
            return Turn(name, item)

    def done(self, turn: Turn, seconds: float, *, again: bool = False) -> None:
        """Hand a turn back that took so long; `again` puts its item in line, behind the owner's others."""
        with self._changed:
            owner, now = self._owners[turn.owner], self._clock()
            owner.used, owner.at, owner.running = owner.used_by(now) + seconds, now, None
            if again:
                owner.waiting.setdefault(turn.item)
            self._forget(now)
            self._changed.notify_all()

    def is_busy(self, item: int) -> bool:
        """Whether an item waits or is worked on."""
        with self._changed:
            return any(item in owner.waiting or item == owner.running for owner in self._owners.values())

    def close(self) -> None:
        """Give no more turns."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self) -> str | None:
        now = self._clock()
        ready = [name for name, owner in self._owners.items() if owner.waiting and owner.running is None]
        return min(ready, key=lambda name: self._owners[name].used_by(now), default=None)

    def _forget(self, now: float) -> None:
        """Owners without work whose past does not count any more."""
        for name, owner in list(self._owners.items()):
            if not owner.waiting and owner.running is None and owner.used_by(now) < FORGOTTEN_SECONDS:
                del self._owners[name]
