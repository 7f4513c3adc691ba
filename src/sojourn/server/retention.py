"""Retention: epochs and probed segments are forgotten after a while, a few at a time, in a thread of its own.

Guarantee: an epoch goes only when both its last measurement and its arrival are older than what is kept, so neither a
node that was long away nor one whose clock is wrong loses what it has just sent. A probed interval goes by its end.
Rows go in small transactions with pauses between them, so that nodes and queries do not wait.
"""

from __future__ import annotations

import logging
import threading
import time

from sojourn.core.errors import SojournError
from sojourn.core.units import format_duration
from sojourn.epochs.store import EpochStore
from sojourn.server.segments import SegmentStore
from sojourn.server.telemetry import Telemetry

__all__ = ["EpochKeeper"]

BATCH = 500
PAUSE_SECONDS = 0.05
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
JOIN_SECONDS = 30.0
_LOG = logging.getLogger("sojourn.retention")


class EpochKeeper:
    """Keeps a store's epochs and probed segments for a time; `start` and `stop` frame its life."""

    def __init__(self, store: EpochStore, segments: SegmentStore, telemetry: Telemetry, keep_ns: int) -> None:
        self._store, self._segments, self._telemetry, self._keep_ns = store, segments, telemetry, keep_ns
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sojourn-retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the rows that are being removed."""
        self._stopping.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        pause = min(max(self._keep_ns / 1e9 / 100, SHORTEST_SECONDS), LONGEST_SECONDS)
        while True:
            try:
                self._remove_old()
            except SojournError as error:
                _LOG.warning("warning: old epochs could not be removed: %s", error)
            if self._stopping.wait(pause):
                return

    def _remove_old(self) -> None:
        before_ns = time.time_ns() - self._keep_ns
        for what, store in (("epochs", self._store), ("probed intervals", self._segments)):
            removed = 0
            while not self._stopping.is_set() and (gone := store.remove_some_before(before_ns, limit=BATCH)):
                removed += gone
                if store is self._store:
                    self._telemetry.epochs_removed.inc(gone)
                self._stopping.wait(PAUSE_SECONDS)
            if removed:
                _LOG.info("%s %s older than %s were removed", f"{removed:,}", what, format_duration(self._keep_ns))
