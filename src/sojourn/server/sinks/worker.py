"""Solves the windows of collections as they close: each in a process with limits on time and memory.

A collection is looked at when packets were appended, when its closing was asked for, and at the start, so that what a
killed query unit left is taken up. Nodes take turns of one window (`FairTurns`), so that one node's work never
keeps others' waiting. Answers and the collection's progress are stored in one transaction; a window that another query
unit has solved meanwhile is dropped. Late packets have their turn behind the next window.

A window that takes more than its limits, or fails, is tried again at half its length, `MOST_HALVINGS` times; then the
whole of it is set aside with the reason, for good. All of that is stored: a restart repeats the attempt that it ended,
and no other. What else goes wrong with a collection (a database that is busy, a process that cannot be started) is
reported with it and tried again by itself, with backoff up to `LONGEST_RETRY_SECONDS`.
Memory here: the packets of one window for each worker, within their limits.

Which window is next: one has at most so many packets and places (`Limits`); where there are more, shorter windows are
planned, down to packets of one instant, of which as many as fit are taken and the others are late. A collection whose
windows took too much to solve has windows half, a quarter, … as long, of half, a quarter, … as many packets at most.
Cost: spans are tried by counting in the database; packets are read once, when their window is found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.executors.limited import Ended, LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.core.executors.turns import FairTurns
from sojourn.server.door.limits import Limits
from sojourn.server.sinks.solving import SolvedWindow, solve_window
from sojourn.server.sinks.store import CollectionState, LatePackets, SinkStore, StoredPacket
from sojourn.server.telemetry import Telemetry
from sojourn.tomography.bounds.constraints import learn_omega
from sojourn.tomography.delays.estimate import WindowSpan, next_span, period_of
from sojourn.tomography.trace import make_trace

SAMPLE_PACKETS = 2_000
LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class PlannedWindow:
    """A span, the packets that it rests on, and the period found in them."""

    span: WindowSpan
    packets: list[StoredPacket]
    period_ns: int


class WindowPlanner:
    """Plans for all collections of a store; safe from several threads as long as each has collections of its own."""

    def __init__(self, store: SinkStore, late: LatePackets, limits: Limits) -> None:
        self._store, self._late, self._limits = store, late, limits
        self._guesses: dict[int, tuple[int, int | None]] = {}

    def forget(self, collection: int) -> None:
        """The collection was removed, and its number may be given again."""
        self._guesses.pop(collection, None)

    def next_window(self, state: CollectionState) -> PlannedWindow | None:
        """The next window, if nothing that bears on it can be missing."""
        begin = self._store.first_time(state.id, state.begin_ns or 0)
        if begin is None or state.newest_ns is None:
            return None
        is_closing = state.close_ns is not None and begin <= state.close_ns
        period_ns = state.period_ns or self._first_period(state, begin, is_closing)
        longest = share = 0.5**state.halvings
        while span := next_span(begin, state.newest_ns, period_ns, share=share, is_closing=is_closing):
            if not self._fits(state, span):
                if share >= LEAST_SHARE:
                    share /= 2
                    continue
                packets = self._fitting(state, self._store.load(state, span, self._limits.window_packets))
                # More packets at one time than a window may have: it ends with those taken, and the others are late.
                cut = replace(span, end_ns=max(span.begin_ns, packets[-1].row[3]) + 1)
                return PlannedWindow(cut, packets, period_ns)
            packets = self._store.load(state, span, self._limits.window_packets)
            found = self._period(state, span, packets) if share == longest else None
            if state.windows or found is None or found <= period_ns:
                return PlannedWindow(span, packets, found or period_ns)
            period_ns = found  # the first packets followed each other faster than is usual
        return None

    def late_window(self, state: CollectionState, *, only_due: bool) -> PlannedWindow | None:
        """The window from the earliest late packet on; of too many at one time late ones alone."""
        begin = self._late.first_time(state.id, only_due=only_due)
        if begin is None:
            return None
        newest_ns, period_ns = state.newest_ns or begin, state.period_ns or 1
        share = 0.5**state.halvings
        while span := next_span(begin, newest_ns, period_ns, share=share, is_closing=True):
            if self._fits(state, span):
                packets = self._store.load(state, span, self._limits.window_packets)
                return PlannedWindow(span, packets, period_ns)
            if share < LEAST_SHARE:
                break
            share /= 2
        alone = self._fitting(state, self._late.load(state.id, begin, self._limits.window_packets))
        return PlannedWindow(WindowSpan(begin, begin + 1, begin, begin + 1), alone, period_ns)

    def whole(self, state: CollectionState, window: PlannedWindow) -> WindowSpan:
        """The span that a window was made shorter from, as far as packets have come."""
        begin = window.span.begin_ns
        span = next_span(begin, state.newest_ns or begin, window.period_ns, is_closing=True)
        return span or window.span

    def _fits(self, state: CollectionState, span: WindowSpan) -> bool:
        """Whether a window may have all packets that a span rests on."""
        most_packets, most_places = self._most(state)
        packets, places = self._store.extent(state, span, most_packets + 1)
        return packets <= 1 or (packets <= most_packets and places <= most_places)

    def _fitting(self, state: CollectionState, packets: list[StoredPacket]) -> list[StoredPacket]:
        """The first packets, as many as one window may have, and one at least."""
        most_packets, most_places = self._most(state)
        places = accumulate(len(packet.row[2]) for packet in packets)
        fitting = sum(total <= most_places for total in places)
        return packets[: max(1, min(fitting, most_packets))]

    def _most(self, state: CollectionState) -> tuple[int, int]:
        """Packets and places that a window of the collection may have."""
        limits = self._limits
        return max(1, limits.window_packets >> state.halvings), max(1, limits.window_places >> state.halvings)

    def _first_period(self, state: CollectionState, begin_ns: int, is_closing: bool) -> int:
        """A guess from what has come so far, made anew when that is a quarter more; all of it if that is too little."""
        span = (state.newest_ns or 0) - begin_ns + 1
        guessed_at, found = self._guesses.get(state.id, (0, None))
        if span >= 1.25 * guessed_at or is_closing:
            found = period_of(self._store.latest(state.id, begin_ns + span, SAMPLE_PACKETS))
            self._guesses[state.id] = span, found
        return found or span

    def _period(self, state: CollectionState, span: WindowSpan, packets: list[StoredPacket]) -> int | None:
        """The period of a span, or of what came before it if it has too few packets to tell."""
        found = period_of([packet.row for packet in packets])
        return found or period_of(self._store.latest(state.id, span.until_ns, SAMPLE_PACKETS))


FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
MOST_HALVINGS = 3
WAITING = 4.0  # wall time for each second of processor time, on a machine that has other things to do
IDLE_SECONDS = 300.0  # after which a process that nobody needs gives its memory back
JOIN_SECONDS = 1.0
LONGEST_TEXT = 200


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

    def busy(self) -> set[int]:
        """The collections that wait to be looked at, or are; of another, what is read afterwards is final for now."""
        return self._turns.busy()

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
            is_more, pause = self._look(turn.item, process)
            self._turns.done(turn, time.monotonic() - began, again=is_more, pause=pause)

    def _look(self, collection: int, process: LimitedProcess) -> tuple[bool, float]:
        """Solve one window if there is one; whether there may be more, and how long to leave that.

        Whatever happens, the thread goes on.
        """
        try:
            is_more = self._solve_next(collection, process)
        except Exception as error:
            ours = f"a fault of ours ({type(error).__name__}: {error})"
            what = str(error) if isinstance(error, SojournError) else ours[:300]
            pause = self._troubles.get(collection, (FIRST_RETRY_SECONDS, ""))[0]
            self._troubles[collection] = min(2 * pause, LONGEST_RETRY_SECONDS), what
            return True, pause
        self._troubles.pop(collection, None)
        return is_more, 0.0

    def _solve_next(self, collection: int, process: LimitedProcess) -> bool:
        """Solve the collection's next window, and late packets behind it; false if there is nothing to solve yet."""
        state = self._store.state(collection)
        if state is None:
            return False
        window = self._planner.next_window(state)
        if window is None:
            return self._solve_late(state, process, only_due=True)
        solved = self._solve(state, window, process, partial(self._store.set_aside, period_ns=window.period_ns))
        if solved is None:
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
        set_aside = partial(self._late.set_aside, most=self._limits.window_packets)
        solved = self._solve(state, window, process, set_aside)
        if solved is None:
            return True
        self._telemetry.packets_solved.inc(self._late.keep(state, window.span, window.packets, solved))
        return True

    def _solve(
        self, state: CollectionState, window: PlannedWindow, process: LimitedProcess, set_aside: Callable[..., int]
    ) -> SolvedWindow | None:
        """The window's answers; None if it took too much or failed: shorter ones are tried, then it is set aside."""
        rows, omega_ns = [packet.row for packet in window.packets], self._omega(state)
        try:
            with self._telemetry.window_seconds.time():
                return process.call(solve_window, rows, window.span, omega_ns, state.may_be_exact)
        except Exception as error:
            if (why := _failure(error)) is None:
                raise
        if state.halvings < MOST_HALVINGS:
            self._store.halve(state)
        else:
            self._telemetry.packets_set_aside.inc(set_aside(state, self._planner.whole(state, window), why))
        return None

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
