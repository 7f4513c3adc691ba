"""Answers runs as they become complete, beside everything else that a query unit does.

A thread looks every second for pairs of streams that have new epochs at either end, and has them answered in a process
of its own, within limits of time and memory; it stores what comes back. A pair that ends the process is tried alone,
and left out for a while if it does so again. The first time that anything does, kernels are compiled before it counts.

Where more segments are recorded than the machine can answer run by run, runs of a segment that follow each other are
answered as one, up to `MOST_TOGETHER`: what is stored gets coarser instead of later. Nothing else is lost, as sketches
are linear.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.server.door.limits import Limits
from sojourn.server.runs.answering import AnsweredPair, answer_pairs, skip_run
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import KnownPair, Pair, RunStore

PRELOAD = ("sojourn.server.runs.answering",)
LOOK_SECONDS = 1.0
AT_ONCE = 32
RUNS_AT_ONCE = 64
# A round that takes longer has too much to do, and joins runs from then on, until one takes a quarter of it.
LONGEST_ROUND_SECONDS, MOST_TOGETHER = 20.0, 8
LONGEST_PAUSE_SECONDS, COMPILING_SECONDS = 60.0, 300.0
_LOG = logging.getLogger("sojourn.segments")


class RunWorker(Periodic):
    """Belongs to one query unit; `wanted` tells the pairs that are to be answered now."""

    def __init__(self, store: EpochStore, limits: Limits, wanted: Callable[[], Sequence[Pair]]) -> None:
        self._store, self._runs, self._wanted = store, RunStore(store), wanted
        # The first run may have to compile for a while.
        seconds = max(limits.query_seconds, COMPILING_SECONDS)
        within = ProcessLimits(seconds=seconds, memory_bytes=limits.run_memory_bytes)
        self._process = LimitedProcess(within, preload=PRELOAD)
        self._most_bytes = limits.query_decoded_bytes
        self._seen, self._together = 0, 1
        self._most_runs = RUNS_AT_ONCE
        self._is_compiled = False
        self._news: dict[Pair, None] = {}
        self._pauses: dict[Pair, tuple[float, float]] = {}  # until when a pair is left alone, and for how long
        super().__init__("sojourn-runs", LOOK_SECONDS, process=self._process)

    def work(self) -> None:
        begun = time.monotonic()
        try:
            self._answer_new()
        except SojournError as error:
            self._complain(_LOG, "segments could not be answered", error)
        if time.monotonic() - begun < LONGEST_ROUND_SECONDS / 4:
            self._together = max(self._together // 2, 1)

    def _answer_new(self) -> None:
        newest = self._runs.newest()
        if newest != self._seen:
            changed = self._runs.changed_since(self._seen)
            wanted = self._wanted()
            self._news.update(dict.fromkeys(pair for pair in wanted if not changed.isdisjoint(pair.ends)))
            self._pauses = {pair: pause for pair in wanted if (pause := self._pauses.get(pair)) is not None}
            self._seen = newest
        now = time.monotonic()
        ready = [pair for pair in self._news if self._pauses.get(pair, (0.0, 0.0))[0] <= now]
        for start in range(0, len(ready), AT_ONCE):
            some = ready[start : start + AT_ONCE]
            self._answer_all(self._runs.pairs(some))
            if self._stopping.is_set():
                return
            for pair in some:
                self._news.pop(pair, None)
            if time.monotonic() - now > self._together * LONGEST_ROUND_SECONDS:
                self._together = min(2 * self._together, MOST_TOGETHER)

    def _answer_all(self, pairs: Sequence[KnownPair]) -> None:
        """Answer pairs together until nothing is left of them; each alone if that ends the process."""
        left = list(pairs)
        try:
            while left and not self._stopping.is_set():
                left = self._left_of(left, self._answer(left))
        except Exception as error:
            if self._stopping.is_set():
                return
            if isinstance(error, SojournError) and not isinstance(error, ProcessEndedError):
                raise
            # The process ended, or something that nobody foresaw.
            if not self._is_compiled:
                self._compile()
                self._answer_all(self._again(left))
            elif len(left) > 1:
                for pair in self._again(left):
                    self._answer_all([pair])
            elif self._most_runs > 1:
                # One after the other: what the runs before took is not there any more.
                self._most_runs = 1
                try:
                    self._answer_all(self._again(left))
                finally:
                    self._most_runs = RUNS_AT_ONCE
            elif skipped := skip_run(self._store, left[0], str(error)):
                self._runs.add_all([skipped], now_ns=time.time_ns())
                self._answer_all(self._again(left))

    def _compile(self) -> None:
        """Compile what answering needs, without the limits of a question: where nothing is kept yet it exceeds them."""
        self._is_compiled = True
        command = [sys.executable, "-m", "sojourn", "warm-up", "segment"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=COMPILING_SECONDS, check=False)

    def _left_of(self, asked: Sequence[KnownPair], done: Sequence[AnsweredPair]) -> list[KnownPair]:
        """The pairs that are not answered to their end; those of which nothing was have a pause."""
        numbers = {one.number for one in done}
        unfinished = {one.number for one in done if not one.is_whole}
        looked_at = len(asked)
        if sum(len(one.runs) for one in done) >= self._most_runs:
            # Those behind the last one were not looked at.
            looked_at = 1 + max(place for place, pair in enumerate(asked) if pair.number in numbers)
        for pair in asked[:looked_at]:
            if pair.number in numbers:
                self._pauses.pop(pair.pair, None)
            else:
                pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pauses.get(pair.pair, (0.0, LOOK_SECONDS))[1])
                self._pauses[pair.pair] = time.monotonic() + pause, pause
        again = self._again([pair for pair in asked if pair.number in unfinished])
        return [*again, *asked[looked_at:]]

    def _again(self, pairs: Sequence[KnownPair]) -> list[KnownPair]:
        return self._runs.pairs([pair.pair for pair in pairs])

    def _answer(self, pairs: Sequence[KnownPair]) -> list[AnsweredPair]:
        within = {"most_runs": self._most_runs, "most_bytes": self._most_bytes, "together": self._together}
        done = self._process.call(partial(answer_pairs, self._store.engine.url, tuple(pairs), **within))
        self._runs.add_all(done, now_ns=time.time_ns())
        return done
