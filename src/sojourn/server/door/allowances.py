"""Allowances: what callers have used of the limits, in one process or in memory that several processes map.

Guarantee: processes that share memory share their limits exactly, as if they were one: whichever of them a caller
reaches, it has one rate, and what it has under way anywhere counts. A process that is killed keeps nothing locked (the
kernel ends its locks), and what it had under way is forgotten when its place is cleared. Memory is bounded: callers
that have not been seen for the longest time are forgotten first, which only favours them.
Cost: about ten microseconds a look, nothing that another process has to answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sojourn.server.door.limits import BusyError, Limits, RateLimiter

# A caller has its place among so many rows that lie together: what is looked at for it.
SET_ROWS = 8
RATE_ROWS, TALLY_ROWS = 1 << 14, (1 << 13) + 1  # the last row of a tally is that of all callers
RATE_TABLES, TALLY_TABLES = 3, 2
_RATE = np.dtype([("caller", "u8"), ("left", "f8"), ("since", "f8")])


class Rates(Protocol):
    """Whether a caller may go on."""

    def wait_seconds(self, caller: str | bytes) -> float:
        """0 if the caller may go on (and is charged for it), else the seconds until it may."""

    def give_back(self, caller: str | bytes) -> None:
        """Undo a charge."""


class Tally(Protocol):
    """How much callers have under way."""

    def add(self, caller: str, number: int) -> None:
        """Count so much more, or less, of a caller."""

    def of(self, caller: str) -> int:
        """What a caller has under way."""

    def total(self) -> int:
        """What all have."""


class OwnTally:
    """A tally of this process alone."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, caller: str, number: int) -> None:
        self._counts[caller] += number
        if not self._counts[caller]:
            del self._counts[caller]

    def of(self, caller: str) -> int:
        return self._counts[caller]

    def total(self) -> int:
        return self._counts.total()


@dataclass(frozen=True)
class Allowances:
    """What all requests of a query unit are measured by."""

    requests: Rates  # of a token
    failures: Rates  # of an address
    messages: Rates  # of a node at a broker
    running: Tally  # requests of a token
    buffered: Tally  # bytes of bodies of a token

    @classmethod
    def own(cls, limits: Limits) -> Allowances:
        """Those of a query unit of one process."""

        def rates(per_second: float, burst: int) -> RateLimiter:
            return RateLimiter(per_second, burst, callers=limits.callers)

        return cls(
            requests=rates(limits.requests_per_second, limits.burst),
            failures=rates(limits.failures_per_second, limits.failure_burst),
            messages=rates(limits.requests_per_second, limits.burst),
            running=OwnTally(),
            buffered=OwnTally(),
        )


class SharedAllowances:
    """Memory without a name, for so many processes, which map it by its descriptor; each has a place of its own."""

    def __init__(self, processes: int, descriptor: int | None = None) -> None:
        self._processes = processes
        tally = np.dtype([("caller", "u8"), ("counts", "i8", (processes,))])
        sizes = [RATE_ROWS * _RATE.itemsize] * RATE_TABLES + [TALLY_ROWS * tally.itemsize] * TALLY_TABLES
        self.descriptor = _nameless(sum(sizes)) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, sum(sizes))
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self._rates = [np.frombuffer(self._memory, _RATE, RATE_ROWS, start) for start in starts[:RATE_TABLES]]
        self._tallies = [np.frombuffer(self._memory, tally, TALLY_ROWS, start) for start in starts[RATE_TABLES:]]
        self._lock = _Lock(self.descriptor)

    def at(self, place: int, limits: Limits) -> Allowances:
        """The allowances as the process at a place counts them."""
        requests, failures, messages = self._rates
        running, buffered = (_SharedTally(rows, place, self._lock) for rows in self._tallies)
        usual = limits.requests_per_second, limits.burst
        return Allowances(
            requests=_SharedRates(requests, *usual, self._lock),
            failures=_SharedRates(failures, limits.failures_per_second, limits.failure_burst, self._lock),
            messages=_SharedRates(messages, *usual, self._lock),
            running=running,
            buffered=buffered,
        )

    def clear(self, place: int) -> None:
        """Forget what the process at a place had under way: it has ended."""
        with self._lock.held():
            for rows in self._tallies:
                rows["counts"][:, place] = 0


def _nameless(size: int) -> int:
    """The descriptor of memory that nobody else can open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("sojourn-allowances")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class _Lock:
    """One process at a time, and one of its threads; the kernel ends the lock of a process that is killed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _number(caller: str | bytes) -> int:
    """A caller as a word; 0 is nobody."""
    text = caller.encode() if isinstance(caller, str) else caller
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) or 1


def _places(rows: Any, number: int) -> Any:
    """The rows among which a caller has its place."""
    first = number % (len(rows) // SET_ROWS) * SET_ROWS  # whole sets: the last row of a tally is in none
    return rows[first : first + SET_ROWS]


class _SharedRates:
    """The same as `RateLimiter`, by a clock that all processes of a machine read alike."""

    def __init__(
        self, rows: Any, per_second: float, burst: int, lock: _Lock, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows, self._lock, self._clock = rows, lock, clock
        self._per_second, self._burst = per_second, float(burst)

    def wait_seconds(self, caller: str | bytes) -> float:
        number, now = _number(caller), self._clock()
        places = _places(self._rows, number)
        with self._lock.held():
            (found,) = np.nonzero(places["caller"] == number)
            if len(found):
                place = int(found[0])
                _, left, since = places[place].item()
            else:
                place, left, since = int(places["since"].argmin()), self._burst, now
            left = min(self._burst, left + (now - since) * self._per_second)
            allowed = left >= 1
            places[place] = number, left - 1 if allowed else left, now
        return 0.0 if allowed else (1 - left) / self._per_second

    def give_back(self, caller: str | bytes) -> None:
        number = _number(caller)
        places = _places(self._rows, number)
        with self._lock.held():
            for place in np.nonzero(places["caller"] == number)[0]:
                places["left"][place] = min(self._burst, places["left"][place] + 1)


class _SharedTally:
    """What callers have under way in all processes; each process writes its own column."""

    def __init__(self, rows: Any, place: int, lock: _Lock) -> None:
        self._rows, self._place, self._lock = rows, place, lock

    def add(self, caller: str, number: int) -> None:
        word = _number(caller)
        rows = _places(self._rows, word)
        with self._lock.held():
            (found,) = np.nonzero(rows["caller"] == word)
            if not len(found):
                (found,) = np.nonzero(~rows["counts"].any(axis=1))
            if not len(found):
                raise BusyError("too much is under way", action="try again in a few seconds")
            rows["caller"][found[0]] = word
            rows["counts"][found[0], self._place] += number
            self._rows["counts"][-1, self._place] += number

    def of(self, caller: str) -> int:
        word = _number(caller)
        rows = _places(self._rows, word)
        with self._lock.held():
            return int(rows["counts"][rows["caller"] == word].sum())

    def total(self) -> int:
        with self._lock.held():
            return int(self._rows["counts"][-1].sum())
