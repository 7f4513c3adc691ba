"""Solves the windows of collections as they close: one at a time, in a thread of its own beside the event loop.

A collection is looked at when packets were appended, when its closing was asked for, and at the start, so that what a
killed query unit left is taken up. Answers and the collection's progress are stored in one transaction; a window that
another query unit has solved meanwhile is dropped. Late packets have their turn behind the next window. What goes wrong
with a collection is told with it and tried again when packets come, never more often than every `RETRY_SECONDS`.
Memory: the packets of one window, within its limits; where there are more, shorter windows are solved.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from itertools import accumulate

from sojourn.core.errors import SojournError
from sojourn.server.limits import Limits
from sojourn.server.sink_late import LatePackets
from sojourn.server.sink_store import CollectionState, SinkStore, StoredPacket
from sojourn.server.telemetry import Telemetry
from sojourn.tomography.constraints import ConstraintOptions, learn_omega
from sojourn.tomography.stretches import SolvedStretch, Stretch, next_stretch, period_of, solve_stretch
from sojourn.tomography.trace import make_trace

__all__ = ["SinkWorker"]

RETRY_SECONDS = 30.0
SAMPLE_PACKETS = 2_000
LEAST_SHARE = 1e-6
MOST_FAILURES = 3
JOIN_SECONDS = 30.0


class SinkWorker:
    """Belongs to one application; `start` and `stop` frame its life."""

    def __init__(self, store: SinkStore, late: LatePackets, telemetry: Telemetry, limits: Limits) -> None:
        self._store, self._late, self._telemetry, self._limits = store, late, telemetry, limits
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._pending: set[int] = set()
        self._current: int | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._guesses: dict[int, tuple[int, int | None]] = {}
        self._failures: dict[tuple[int, int], int] = {}
        self._troubles: dict[int, tuple[float, str]] = {}
        self._thread = threading.Thread(target=self._run, name="sojourn-windows", daemon=True)

    def start(self) -> None:
        """Begin, with all collections that there are."""
        self._thread.start()
        for state in self._store.collections():
            self.wake(state.id)

    def stop(self) -> None:
        """End after the window that is being solved."""
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join(JOIN_SECONDS)

    def wake(self, collection: int) -> None:
        """Look whether a window of the collection can be solved."""
        with self._lock:
            if collection not in self._pending:
                self._pending.add(collection)
                self._waiting.put(collection)

    def is_busy(self, collection: int) -> bool:
        """Whether the collection waits to be looked at, or is."""
        with self._lock:
            return collection in self._pending or collection == self._current

    def trouble(self, collection: int) -> str | None:
        """Why the collection's next window could not be solved, if so."""
        return self._troubles.get(collection, (0.0, None))[1]

    def forget(self, collection: int) -> None:
        """The collection was removed, and its number may be given again."""
        self._guesses.pop(collection, None)
        self._troubles.pop(collection, None)

    def _run(self) -> None:
        while (collection := self._waiting.get()) is not None and not self._stopping.is_set():
            self._look(collection)

    def _look(self, collection: int) -> None:
        """Solve what can be; whatever happens, the thread goes on.

        From here on the collection may be put in line again, so that no packet that comes meanwhile goes unseen.
        """
        with self._lock:
            self._pending.discard(collection)
            self._current = collection
        since, _why = self._troubles.get(collection, (-RETRY_SECONDS, ""))
        if time.monotonic() - since >= RETRY_SECONDS:
            try:
                while not self._stopping.is_set() and self._solve_next(collection):
                    pass
                self._troubles.pop(collection, None)
            except SojournError as error:
                self._troubles[collection] = time.monotonic(), str(error)
            except Exception as error:
                fault = f"a fault of ours ({type(error).__name__}: {error})"
                self._troubles[collection] = time.monotonic(), fault[:300]
        with self._lock:
            self._current = None

    def _solve_next(self, collection: int) -> bool:
        """Solve the collection's next window, and late packets behind it; false if there is nothing to solve yet."""
        state = self._store.state(collection)
        if state is None:
            return False
        planned = self._plan(state)
        if planned is None:
            return self._solve_late(state, only_due=True)
        stretch, packets, period_ns = planned
        with self._telemetry.window_seconds.time():
            solved = self._solve(state, stretch, packets)
        if self._store.keep(state, stretch, packets, solved, period_ns=period_ns):
            self._telemetry.packets_solved.inc(len(solved.answers))
        if (after := self._store.state(collection)) is not None:
            self._solve_late(after, only_due=False)
        return True

    def _solve_late(self, state: CollectionState, *, only_due: bool) -> bool:
        """Answer the earliest late packets, a window's worth of them; false if there are none."""
        begin = self._late.first_time(state.id, only_due=only_due)
        if begin is None:
            return False
        stretch, packets = self._plan_late(state, begin)
        with self._telemetry.window_seconds.time():
            solved = self._solve(state, stretch, packets)
        self._telemetry.packets_solved.inc(self._late.keep(state, stretch, packets, solved))
        return True

    def _solve(self, state: CollectionState, stretch: Stretch, packets: list[StoredPacket]) -> SolvedStretch:
        """The stretch's answers; none if solving it fails for the third time, so that the others come to their turn."""
        try:
            options = ConstraintOptions(omega_ns=self._omega(state))
            rows = [packet.row for packet in packets]
            solved = solve_stretch(rows, stretch, options, may_be_exact=state.may_be_exact)
        except SojournError:
            raise
        except Exception:
            failing = state.id, stretch.begin_ns
            self._failures[failing] = self._failures.get(failing, 0) + 1
            if self._failures[failing] < MOST_FAILURES:
                raise
            solved = SolvedStretch({}, state.may_be_exact, 0, False)
        self._failures.pop((state.id, stretch.begin_ns), None)
        return solved

    def _plan(self, state: CollectionState) -> tuple[Stretch, list[StoredPacket], int] | None:
        """The next stretch, its packets and their period, if nothing that bears on it can be missing."""
        begin = self._store.first_time(state.id, state.begin_ns or 0)
        if begin is None or state.newest_ns is None:
            return None
        is_closing = state.close_ns is not None and begin <= state.close_ns
        period_ns = state.period_ns or self._first_period(state, begin, is_closing)
        share = 1.0
        while stretch := next_stretch(begin, state.newest_ns, period_ns, share=share, is_closing=is_closing):
            packets = self._store.load(state, stretch, self._limits.window_packets + 1)
            fitting = self._fitting(packets)
            if len(fitting) < len(packets):
                if share < LEAST_SHARE:
                    return _cut(stretch, fitting), fitting, period_ns
                share /= 2
                continue
            found = self._period(state, stretch, packets) if share == 1 else None
            if state.windows or found is None or found <= period_ns:
                return stretch, packets, found or period_ns
            period_ns = found  # the first packets followed each other faster than is usual
        return None

    def _plan_late(self, state: CollectionState, begin_ns: int) -> tuple[Stretch, list[StoredPacket]]:
        """The stretch from a late packet on, and the packets it rests on; of too many at one time late ones alone."""
        newest_ns, period_ns = state.newest_ns or begin_ns, state.period_ns or 1
        share = 1.0
        while stretch := next_stretch(begin_ns, newest_ns, period_ns, share=share, is_closing=True):
            packets = self._store.load(state, stretch, self._limits.window_packets + 1)
            if len(self._fitting(packets)) == len(packets):
                return stretch, packets
            if share < LEAST_SHARE:
                break
            share /= 2
        alone = self._fitting(self._late.load(state.id, begin_ns, self._limits.window_packets))
        return Stretch(begin_ns, begin_ns + 1, begin_ns, begin_ns + 1), alone

    def _fitting(self, packets: list[StoredPacket]) -> list[StoredPacket]:
        """The first packets, as many as one window may have, and one at least."""
        places = accumulate(len(packet.row[2]) for packet in packets)
        fitting = sum(total <= self._limits.window_places for total in places)
        return packets[: max(1, min(fitting, self._limits.window_packets))]

    def _first_period(self, state: CollectionState, begin_ns: int, is_closing: bool) -> int:
        """A guess from what has come so far, made anew when that is a quarter more; all of it if that is too little."""
        span = (state.newest_ns or 0) - begin_ns + 1
        guessed_at, found = self._guesses.get(state.id, (0, None))
        if span >= 1.25 * guessed_at or is_closing:
            found = period_of(self._store.latest(state.id, begin_ns + span, SAMPLE_PACKETS))
            self._guesses[state.id] = span, found
        return found or span

    def _period(self, state: CollectionState, stretch: Stretch, packets: list[StoredPacket]) -> int | None:
        """The period of a stretch, or of what came before it if it has too few packets to tell."""
        found = period_of([packet.row for packet in packets])
        return found or period_of(self._store.latest(state.id, stretch.until_ns, SAMPLE_PACKETS))

    def _omega(self, state: CollectionState) -> int:
        """The least delay, learnt from all packets so far that went straight to the sink."""
        rows = self._store.quickest(state.id)
        return learn_omega(make_trace(rows)) if rows else 0


def _cut(stretch: Stretch, packets: list[StoredPacket]) -> Stretch:
    """More packets at one time than a window may have: the stretch ends with those taken, and the others are late."""
    return replace(stretch, end_ns=max(stretch.begin_ns, packets[-1].row[3]) + 1)
