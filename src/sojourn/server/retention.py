"""Retention: epochs and probed segments are forgotten after a while, a few at a time, in a thread of its own.

Guarantee: an epoch goes only when both its last measurement and its arrival are older than what is kept, so neither a
node that was long away nor one whose clock is wrong loses what it has just sent. A probed interval goes by its end.
Rows go in small transactions with pauses between them, so that nodes and queries do not wait.
"""

from __future__ import annotations

import logging
import time

from sojourn.core.errors import SojournError
from sojourn.core.units import format_duration
from sojourn.server.periodic import Periodic
from sojourn.server.telemetry import Telemetry
from sojourn.store.epochs import EpochStore
from sojourn.store.segments import SegmentStore

__all__ = ["EpochKeeper"]

BATCH = 500
PAUSE_SECONDS = 0.05
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
_LOG = logging.getLogger("sojourn.retention")


class EpochKeeper(Periodic):
    """Keeps a store's epochs and probed segments for a time."""

    def __init__(self, store: EpochStore, segments: SegmentStore, telemetry: Telemetry, keep_ns: int) -> None:
        self._store, self._segments, self._telemetry, self._keep_ns = store, segments, telemetry, keep_ns
        super().__init__("sojourn-retention", min(max(keep_ns / 1e9 / 100, SHORTEST_SECONDS), LONGEST_SECONDS))

    def work(self) -> None:
        """Remove what is too old."""
        try:
            self._remove_old()
        except SojournError as error:
            _LOG.warning("warning: old epochs could not be removed: %s", error)

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
