"""Solves the windows of collections as they close: each in a process with limits on time and memory.

A collection is looked at when packets were appended, when its closing was asked for, and at the start, so that what a
killed query unit left is taken up. Nodes take turns of one window (`FairTurns`), so that one node's work never
keeps others' waiting. Answers and the collection's progress are stored in one transaction; a window that another query
unit has solved meanwhile is dropped. Late packets have their turn behind the next window.

A window that takes more than its limits, or fails, is tried again at half its length, `MOST_HALVINGS` times; then the
whole of it is set aside with the reason, for good. All of that is stored: a restart repeats the attempt that it ended,
and no other. What else goes wrong with a collection is reported with it and tried again when packets come, never more
often than every `RETRY_SECONDS`.
Memory here: the packets of one window for each worker, within their limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.executors.limited import Ended, LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.server.door.limits import Limits
from sojourn.server.sinks.planning import PlannedWindow, WindowPlanner
from sojourn.server.sinks.solving import SolvedWindow, solve_window
from sojourn.server.sinks.store import CollectionState, LatePackets, SinkStore
from sojourn.server.telemetry import Telemetry
from sojourn.tomography.bounds.constraints import learn_omega
from sojourn.tomography.trace import make_trace

HALF_LIFE_SECONDS = 60.0
FORGOTTEN_SECONDS = 0.001
RETRY_SECONDS = 30.0
MOST_HALVINGS = 3
WAITING = 4.0  # wall time for each second of processor time, on a machine that has other things to do
IDLE_SECONDS = 300.0  # after which a process that nobody needs gives its memory back
JOIN_SECONDS = 1.0
LONGEST_TEXT = 200


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


class _FailedError(Exception):
    """What a window did that could not be solved."""


class SinkWorker:
    """Belongs to one application; `start` and `stop` frame its life."""

    def __init__(self, store: SinkStore, late: LatePackets, telemetry: Telemetry, limits: Limits) -> None:
        self._store, self._late, self._telemetry = store, late, telemetry
        self._planner = WindowPlanner(store, late, limits)
        self._turns = FairTurns()
        self._troubles: dict[int, tuple[float, str]] = {}
        self._limits = limits
        most = ProcessLimits(
            seconds=WAITING * limits.window_seconds,
            processor_seconds=limits.window_seconds,
            memory_bytes=limits.window_memory_bytes,
        )
        self._processes = [
            LimitedProcess(most, preload=[solve_window.__module__]) for _ in range(limits.window_workers)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(process,), name="sojourn-windows", daemon=True)
            for process in self._processes
        ]

    def start(self) -> None:
        """Begin, with all collections that there are."""
        for state in self._store.collections():
            self.wake(state.node, state.id)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End at once: a window that is being solved is given up, and solved after the next start."""
        self._turns.close()
        for process in self._processes:
            process.close()
        until = time.monotonic() + JOIN_SECONDS  # what is in the database then is given up, too
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def wake(self, node: str, collection: int) -> None:
        """Look whether a window of the node's collection can be solved."""
        self._turns.add(node, collection)

    def is_busy(self, collection: int) -> bool:
        """Whether the collection waits to be looked at, or is."""
        return self._turns.is_busy(collection)

    def trouble(self, collection: int) -> str | None:
        """Why the collection's next window could not be solved, if so."""
        return self._troubles.get(collection, (0.0, None))[1]

    def forget(self, collection: int) -> None:
        """The collection was removed, and its number may be given again."""
        self._planner.forget(collection)
        self._troubles.pop(collection, None)

    def _run(self, process: LimitedProcess) -> None:
        while not self._turns.is_closed:
            turn = self._turns.take(IDLE_SECONDS)
            if turn is None:
                process.stop()
                continue
            began = time.monotonic()
            again = self._look(turn.item, process)
            self._turns.done(turn, time.monotonic() - began, again=again)

    def _look(self, collection: int, process: LimitedProcess) -> bool:
        """Solve one window if there is one, and whether there may be more; whatever happens, the thread goes on."""
        since, _why = self._troubles.get(collection, (-RETRY_SECONDS, ""))
        if time.monotonic() - since < RETRY_SECONDS:
            return False
        try:
            is_more = self._solve_next(collection, process)
        except SojournError as error:
            self._troubles[collection] = time.monotonic(), str(error)
        except Exception as error:
            fault = f"a fault of ours ({type(error).__name__}: {error})"
            self._troubles[collection] = time.monotonic(), fault[:300]
        else:
            self._troubles.pop(collection, None)
            return is_more
        return False

    def _solve_next(self, collection: int, process: LimitedProcess) -> bool:
        """Solve the collection's next window, and late packets behind it; false if there is nothing to solve yet."""
        state = self._store.state(collection)
        if state is None:
            return False
        window = self._planner.next_window(state)
        if window is None:
            return self._solve_late(state, process, only_due=True)
        try:
            solved = self._solve(state, window, process)
        except _FailedError as failed:
            whole = self._planner.whole(state, window)
            if not self._halve(state):
                count = self._store.set_aside(state, whole, str(failed), period_ns=window.period_ns)
                self._telemetry.packets_set_aside.inc(count)
            return True
        if self._store.keep(state, window.span, window.packets, solved, period_ns=window.period_ns):
            self._telemetry.packets_solved.inc(len(solved.answers))
        if (after := self._store.state(collection)) is not None:
            self._solve_late(after, process, only_due=False)
        return True

    def _solve_late(self, state: CollectionState, process: LimitedProcess, *, only_due: bool) -> bool:
        """Answer the earliest late packets, a window's worth of them; false if there are none."""
        window = self._planner.late_window(state, only_due=only_due)
        if window is None:
            return False
        try:
            solved = self._solve(state, window, process)
        except _FailedError as failed:
            whole, most = self._planner.whole(state, window), self._limits.window_packets
            if not self._halve(state):
                self._telemetry.packets_set_aside.inc(self._late.set_aside(state, whole, str(failed), most=most))
            return True
        self._telemetry.packets_solved.inc(self._late.keep(state, window.span, window.packets, solved))
        return True

    def _halve(self, state: CollectionState) -> bool:
        """Have shorter windows tried; false if they have become short enough."""
        if state.halvings >= MOST_HALVINGS:
            return False
        self._store.halve(state)
        return True

    def _solve(self, state: CollectionState, window: PlannedWindow, process: LimitedProcess) -> SolvedWindow:
        """The window's answers; `_FailedError` if it took too much, or failed."""
        rows, omega_ns = [packet.row for packet in window.packets], self._omega(state)
        try:
            with self._telemetry.window_seconds.time():
                return process.call(solve_window, rows, window.span, omega_ns, state.may_be_exact)
        except Exception as error:
            if (why := _failure(error)) is None:
                raise
            raise _FailedError(why) from error

    def _omega(self, state: CollectionState) -> int:
        """The least delay, learnt from all packets so far that went straight to the sink."""
        rows = self._store.quickest(state.id)
        return learn_omega(make_trace(rows)) if rows else 0


def _failure(error: Exception) -> str | None:
    """What the window did that could not be solved; None if the window is not at fault."""
    if isinstance(error, ProcessEndedError):
        if error.reason in (Ended.STOPPED, Ended.UNSTARTED):
            return None
        return str(error) if error.reason in (Ended.TIME, Ended.MEMORY) else f"failed ({error})"
    if isinstance(error, UsageError):  # a package that is not installed
        return None
    return f"failed ({type(error).__name__}: {error})"[:LONGEST_TEXT]
