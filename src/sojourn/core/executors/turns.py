"""Turns that are fair: a lock whose waiters get it in the order in which they came, and work of many owners.

Python's own lock may go to the thread that has just released it, again and again: work done in many short pieces would
keep everybody else waiting as long as if it were one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

HALF_LIFE_SECONDS = 60.0
FORGOTTEN_SECONDS = 0.001


class FairLock:
    """A context manager for several threads; `TimeoutError` where the lock does not come in time."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._state = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._state:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(self._seconds):
            return
        with self._state:
            if not turn.is_set():  # else it was handed over at the last moment
                self._waiting.remove(turn)
                raise TimeoutError

    def __exit__(self, *_: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


@dataclass(frozen=True)
class Turn:
    """An owner's item, to be worked on now; to be handed back by `FairTurns.done`."""

    owner: str
    item: int


@dataclass
class _Owner:
    """What waits, in order and each until its time, and the working time used, which halves again and again."""

    waiting: dict[int, float] = field(default_factory=dict)
    running: int | None = None
    used: float = 0.0
    at: float = 0.0

    def used_by(self, now: float) -> float:
        return float(self.used * 0.5 ** ((now - self.at) / HALF_LIFE_SECONDS))

    def due(self, now: float) -> int | None:
        """The first item whose time has come, unless one is worked on."""
        items = (item for item, time in self.waiting.items() if time <= now)
        return None if self.running is not None else next(items, None)


class FairTurns:
    """Turns of work for many owners: who has used least lately goes first, and nobody has two at once.

    With two workers or more, one owner's long work never keeps another's waiting; an owner's items take turns in the
    order in which they came. Shared by the threads that add items and those that work on them. O(owners that wait) for
    each turn; memory: one entry for each waiting item and each owner of the last minutes.
    """

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
            self._owners.setdefault(owner, _Owner()).waiting.setdefault(item, self._clock())
            self._changed.notify()

    def take(self, timeout: float) -> Turn | None:
        """The next turn; None if there is none for so long, or no more are given."""
        until = self._clock() + timeout
        with self._changed:
            while not self._is_closed:
                now = self._clock()
                if (turn := self._next(now)) is not None:
                    owner = self._owners[turn.owner]
                    del owner.waiting[turn.item]
                    owner.running = turn.item
                    return turn
                if now >= until:
                    break
                times = (time for owner in self._owners.values() for time in owner.waiting.values() if time > now)
                self._changed.wait(min([until, *times]) - now)
            return None

    def done(self, turn: Turn, seconds: float, *, again: bool = False, pause: float = 0.0) -> None:
        """Hand a turn back that took so long; `again` puts its item in line, behind the owner's others, after a pause.

        An item that was added meanwhile waits for the pause as well.
        """
        with self._changed:
            owner, now = self._owners[turn.owner], self._clock()
            owner.used, owner.at, owner.running = owner.used_by(now) + seconds, now, None
            if again or turn.item in owner.waiting:
                owner.waiting[turn.item] = now + pause
            self._forget(now)
            self._changed.notify_all()

    def busy(self) -> set[int]:
        """The items that wait or are worked on."""
        with self._changed:
            owners = self._owners.values()
            return {item for owner in owners for item in (*owner.waiting, owner.running) if item is not None}

    def close(self) -> None:
        """Give no more turns."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self, now: float) -> Turn | None:
        ready = [Turn(name, item) for name, owner in self._owners.items() if (item := owner.due(now)) is not None]
        return min(ready, key=lambda turn: self._owners[turn.owner].used_by(now), default=None)

    def _forget(self, now: float) -> None:
        """Owners without work whose past does not count any more."""
        for name, owner in list(self._owners.items()):
            if not owner.waiting and owner.running is None and owner.used_by(now) < FORGOTTEN_SECONDS:
                del self._owners[name]
