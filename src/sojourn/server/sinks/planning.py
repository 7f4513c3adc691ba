"""Which window of a collection is solved next: its span of time, and the packets that it rests on.

A window has at most so many packets and places (`Limits`); where there are more, shorter windows are planned, down to
packets of one instant, of which as many as fit are taken and the others are late. A collection whose windows took too
much to solve has windows half, a quarter, … as long, of half, a quarter, … as many packets at most.
Cost: spans are tried by counting in the database; packets are read once, when their window is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from sojourn.server.door.limits import Limits
from sojourn.server.sinks.store import CollectionState, LatePackets, SinkStore, StoredPacket
from sojourn.tomography.delays.estimate import WindowSpan, next_span, period_of

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
                return PlannedWindow(_cut(span, packets), packets, period_ns)
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


def _cut(span: WindowSpan, packets: list[StoredPacket]) -> WindowSpan:
    """More packets at one time than a window may have: the span ends with those taken, and the others are late."""
    return replace(span, end_ns=max(span.begin_ns, packets[-1].row[3]) + 1)
