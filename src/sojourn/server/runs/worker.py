"""Answers runs as they become complete, beside everything else that a query unit does.

A thread looks every second for pairs of streams that have new epochs at either end, and has them answered in a process
of its own, within limits of time and memory; it stores what comes back. A pair that ends the process, or fails in a way
that nobody foresaw, is tried alone, and left out for a while if it does so again: no pair keeps others waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.server.door.limits import Limits
from sojourn.server.runs.answering import AnsweredPair, answer_pairs
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import KnownPair, Pair, RunStore

PRELOAD = ("sojourn.server.runs.answering",)
LOOK_SECONDS = 1.0
AT_ONCE = 32
RUNS_AT_ONCE = 64
LEFT_OUT_SECONDS, COMPILING_SECONDS = 300.0, 300.0
_LOG = logging.getLogger("sojourn.segments")


class RunWorker(Periodic):
    """Belongs to one query unit; `wanted` tells the pairs that are to be answered now."""

    def __init__(self, store: EpochStore, limits: Limits, wanted: Callable[[], Sequence[Pair]]) -> None:
        self._store, self._runs, self._wanted = store, RunStore(store), wanted
        # The first run may have to compile for a while.
        seconds = max(limits.query_seconds, COMPILING_SECONDS)
        within = ProcessLimits(seconds=seconds, memory_bytes=limits.query_memory_bytes)
        self._process = LimitedProcess(within, preload=PRELOAD)
        self._most_bytes = limits.query_decoded_bytes
        self._seen = 0
        self._left_out: dict[int, float] = {}
        super().__init__("sojourn-runs", LOOK_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        self._process.close()
        super().stop()

    def work(self) -> None:
        try:
            self._answer_new()
        except SojournError as error:
            if not self._stopping.is_set():
                _LOG.warning("warning: segments could not be answered: %s", error)

    def _answer_new(self) -> None:
        newest = self._runs.newest()
        if newest == self._seen:
            return
        changed = self._runs.changed_since(self._seen)
        wanted = [pair for pair in self._wanted() if not changed.isdisjoint(pair.ends)]
        pairs = self._runs.pairs(wanted)
        now = time.monotonic()
        waiting = [pair for pair in pairs if self._left_out.get(pair.number, 0.0) <= now]
        for start in range(0, len(waiting), AT_ONCE):
            self._answer_all(waiting[start : start + AT_ONCE])
            if self._stopping.is_set():
                return
        self._seen = newest

    def _answer_all(self, pairs: Sequence[KnownPair]) -> None:
        """Answer pairs together until nothing is left of them; each alone if that ends the process."""
        try:
            left = list(pairs)
            while left and not self._stopping.is_set():
                done = self._answer(left)
                unfinished = {one.number for one in done if not one.is_whole}
                # Those behind the last one may not have been looked at, if so many runs were answered.
                full = sum(len(one.runs) for one in done) >= RUNS_AT_ONCE
                last = max((left.index(p) for p in left if p.number in {d.number for d in done}), default=len(left))
                rest = left[last + 1 :] if full else []
                left = [*self._again([p for p in left if p.number in unfinished]), *rest]
        except Exception as error:
            if self._stopping.is_set():
                return
            if isinstance(error, SojournError) and not isinstance(error, ProcessEndedError):
                raise
            if len(pairs) == 1:
                name = "/".join(pairs[0].pair.ends[0])
                _LOG.warning("warning: runs from %s are left out for a while: %s", name, error)
                self._left_out[pairs[0].number] = time.monotonic() + LEFT_OUT_SECONDS
                return
            for pair in pairs:
                self._answer_all([pair])

    def _again(self, pairs: Sequence[KnownPair]) -> list[KnownPair]:
        return self._runs.pairs([pair.pair for pair in pairs])

    def _answer(self, pairs: Sequence[KnownPair]) -> list[AnsweredPair]:
        within = {"most_runs": RUNS_AT_ONCE, "most_bytes": self._most_bytes}
        done = self._process.call(partial(answer_pairs, self._store.engine.url, tuple(pairs), **within))
        now = time.time_ns()
        for one in done:
            self._runs.add(one.number, one.runs, until=one.until, now_ns=now)
        return done
