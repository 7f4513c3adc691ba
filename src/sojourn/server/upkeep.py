"""Upkeep: what a query unit does again and again beside its requests, each task in a thread of its own.

Retention: epochs, probed segments and answers are removed after a while. Guarantee: an epoch goes only when both its
last measurement and its arrival are older than what is kept, so neither a node that was long away nor one whose clock
is wrong loses what it has just sent. A probed interval goes by its end. Down-sampling: old epochs are merged. Both go
by a clock that is confirmed, and pause while it is not (`store.upkeep` does the work).

Keys of large epochs are entered in the directory after the epoch was stored. All work in small transactions with
pauses between them, so that nodes and queries do not wait. Partitions are made ahead of time.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess
from sojourn.core.units import format_age
from sojourn.server.telemetry import Telemetry
from sojourn.store.epochs import EpochStore
from sojourn.store.upkeep.clock import TrustedClock
from sojourn.store.upkeep.downsampling import MergeStep, merge_some
from sojourn.store.upkeep.partitions import prepare_partitions

JOIN_SECONDS = 30.0
KEYS_SECONDS = 1.0
# After each transaction: other writers, and other threads of this process, have at least as much time as it took.
KEYS_PAUSE_SECONDS, REMOVAL_PAUSE_SECONDS, MERGE_PAUSE_SECONDS = 0.02, 0.05, 0.005
REMOVED_AT_ONCE = 500
EPOCHS = "epochs"
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
PARTITIONS_SECONDS, MERGE_SECONDS = 3600.0, 60.0
_KEYS_LOG = logging.getLogger("sojourn.keys")
_LOG = logging.getLogger("sojourn.retention")
_FAULTS = logging.getLogger("sojourn.upkeep")


class Periodic(ABC):
    """Belongs to one application; `start` and `stop` frame its life. `work` ends soon once `_stopping` is set.

    A task that computes has a `process` for it, whose call under way ends when the task is stopped.
    """

    def __init__(self, name: str, seconds: float, *, process: LimitedProcess | None = None) -> None:
        self._seconds, self._computes_in = seconds, process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failing: dict[str, str] = {}  # what failed in the last round, and why
        self._failed: dict[str, str] = {}  # in this one

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction that is under way."""
        self._stopping.set()
        if self._computes_in is not None:
            self._computes_in.close()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.work()
            except Exception as error:
                # A fault in one round, whoever's data caused it, must not end all rounds to come.
                _FAULTS.error("error: %s went wrong, and goes on: %r", self._thread.name, error)
            for what in self._failing.keys() - self._failed.keys():
                _FAULTS.info("it is over that %s", what)
            self._failing, self._failed = self._failed, {}
            self._stopping.wait(self._seconds)

    def _complain(self, log: logging.Logger, what: str, error: SojournError) -> None:
        """Say what goes wrong in a round, once until a round goes without it: a database may be away for hours."""
        if self._stopping.is_set():
            return
        self._failed[what] = str(error)
        if self._failing.get(what) != str(error):
            log.warning("warning: %s: %s", what, error)

    @abstractmethod
    def work(self) -> None:
        """Do it once; what goes wrong is logged, not raised."""


class KeyLister(Periodic):
    """Lists what `EpochStore.add_encoded` left to be listed."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store
        super().__init__("sojourn-keys", KEYS_SECONDS)

    def work(self) -> None:
        try:
            while self._store.list_keys(pause=self._pause):
                pass
        except _StoppedError:
            return
        except SojournError as error:
            self._complain(_KEYS_LOG, "keys could not be listed", error)

    def _pause(self) -> None:
        if self._stopping.wait(KEYS_PAUSE_SECONDS):
            raise _StoppedError


class _StoppedError(Exception):
    """The query unit ends; the rest is listed when it runs again."""


class PartitionKeeper(Periodic):
    """Makes the partitions of the next days before they are needed; on SQLite there are none."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store
        super().__init__("sojourn-partitions", PARTITIONS_SECONDS)

    def work(self) -> None:
        try:
            with self._store.transaction(writes=True) as connection:
                prepare_partitions(connection, time.time_ns())
        except SojournError as error:
            self._complain(_LOG, "no partitions could be made", error)


class ClockWatch:
    """What retention and merging go by; that it is in doubt, and that it no longer is, is reported once."""

    def __init__(self, clock: TrustedClock, telemetry: Telemetry) -> None:
        self._clock, self._telemetry = clock, telemetry
        self._is_paused = False
        self._lock = threading.Lock()

    def now_ns(self) -> int | None:
        """The time, unless the clock is in doubt."""
        now = self._clock.now_ns()
        with self._lock:
            if (now is None) != self._is_paused:
                self._is_paused = now is None
                self._report()
        return now

    def _report(self) -> None:
        self._telemetry.retention_paused.set(self._is_paused)
        if self._is_paused:
            ahead = format_age(self._clock.ahead_ns or 0)
            text = "the clock is %s ahead of what was last known, and neither nodes nor an operator confirm it"
            _LOG.warning(
                f"warning: {text}; nothing is removed or merged until then (sojourn store confirm-clock)", ahead
            )
        else:
            _LOG.info("the clock is confirmed; retention goes on")


class Ageing(Protocol):
    """What holds rows that are forgotten after a while."""

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of those that are over since before a time; how many."""


class Retention(Periodic):
    """Keeps what is stored, by what it is called, for a time; `EPOCHS` are counted."""

    def __init__(self, stores: Mapping[str, Ageing], telemetry: Telemetry, keep_ns: int, clock: ClockWatch) -> None:
        self._stores, self._telemetry, self._keep_ns = stores, telemetry, keep_ns
        self._clock = clock
        super().__init__("sojourn-retention", min(max(keep_ns / 1e9 / 100, SHORTEST_SECONDS), LONGEST_SECONDS))

    def work(self) -> None:
        """Remove what is too old."""
        try:
            if (now_ns := self._clock.now_ns()) is not None:
                self._remove_old(now_ns - self._keep_ns)
        except SojournError as error:
            self._complain(_LOG, f"old {', '.join(self._stores)} could not be removed", error)

    def _remove_old(self, before_ns: int) -> None:
        for what, store in self._stores.items():
            removed = 0
            while not self._stopping.is_set() and (gone := store.remove_some_before(before_ns, limit=REMOVED_AT_ONCE)):
                removed += gone
                if what == EPOCHS:
                    self._telemetry.epochs_removed.inc(gone)
                self._stopping.wait(REMOVAL_PAUSE_SECONDS)
            if removed:
                _LOG.info("%s %s older than %s were removed", f"{removed:,}", what, format_age(self._keep_ns))


class EpochMerging(Periodic):
    """Merges a store's old epochs, the finest steps first."""

    def __init__(self, store: EpochStore, steps: Sequence[MergeStep], telemetry: Telemetry, clock: ClockWatch) -> None:
        self._store, self._steps = store, sorted(steps, key=lambda step: step.step_ns)
        self._telemetry, self._clock = telemetry, clock
        super().__init__("sojourn-merging", min(MERGE_SECONDS, min(step.after_ns for step in steps) / 1e9))

    def work(self) -> None:
        """Merge what has become old enough."""
        try:
            if (now_ns := self._clock.now_ns()) is not None:
                for step in self._steps:
                    self._merge(step, now_ns)
        except _StoppedError:
            return
        except SojournError as error:
            self._complain(_LOG, "old epochs could not be merged", error)

    def _merge(self, step: MergeStep, now_ns: int) -> None:
        merged = 0
        looked_at = -1
        while looked_at and not self._stopping.is_set():
            looked_at, gone = merge_some(self._store, step, now_ns, pause=self._pause)
            merged += gone
            self._telemetry.epochs_merged.inc(gone)
        if merged:
            every = format_age(step.step_ns)
            _LOG.info(
                "%s epochs older than %s were merged into others of %s",
                f"{merged:,}",
                format_age(step.after_ns),
                every,
            )

    def _pause(self) -> None:
        if self._stopping.wait(MERGE_PAUSE_SECONDS):
            raise _StoppedError
