"""The time that retention and merging go by: the wall clock, as long as something besides itself confirms it.

A wall clock that jumps ahead would make everything old at once, and what is removed does not come back. So a time is
trusted only if one of these holds:

- it is what the monotonic clock, which nobody sets, makes of the time that was trusted last, within `STEP_NS`. The last
  one is in the store, too: after a restart the clock may have gone on by `STEP_NS` without a further word;
- the nodes say so: half or more of those that were heard of in the last hour date their newest measurement within
  `STEP_NS` of it, or later, by clocks of their own;
- an operator says so (`confirm`).

Otherwise there is no time to go by (None), and nothing is removed or merged until there is. Clocks that are set back
make nothing old, and are followed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median_low

from sqlalchemy import Connection, select

from sojourn.store.database import EPOCHS, NODES, Database, fact, set_facts

STEP_NS = 3_600_000_000_000
HEARD_NS = 3_600_000_000_000
# Time that a machine sleeps passes, too.
_UNSET_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
TRUSTED, CONFIRMED = "trusted_ns", "clock_confirmed_ns"


def _ticks_ns() -> int:
    return time.clock_gettime_ns(_UNSET_CLOCK)


class TrustedClock:
    """The clock of one store's upkeep; safe from several threads. ``ahead_ns``: how far ahead one in doubt is."""

    def __init__(
        self,
        database: Database,
        *,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = _ticks_ns,
    ) -> None:
        self._database, self._wall, self._monotonic = database, wall, monotonic
        self._trusted: tuple[int, int] | None = None  # a time, and when that was by the monotonic clock
        self._lock = threading.Lock()
        self.ahead_ns: int | None = None

    def now_ns(self) -> int | None:
        """The time, unless it is in doubt."""
        with self._lock:
            wall, tick = self._wall(), self._monotonic()
            with self._database.transaction() as connection:
                if self._trusted is None:
                    self._trusted = _last_known(connection, wall), tick
                expected = self._trusted[0] + tick - self._trusted[1]
                if wall - expected > STEP_NS and not _is_confirmed(connection, wall):
                    self.ahead_ns = wall - expected
                    return None
            self._trusted, self.ahead_ns = (wall, tick), None
            with self._database.transaction(writes=True) as connection:
                set_facts(connection, **{TRUSTED: wall})
            return wall


def _last_known(connection: Connection, wall_ns: int) -> int:
    """The last time that was trusted; in a store that knows none the arrival of its last epoch, if it has any."""
    known = fact(connection, TRUSTED)
    if known is not None:
        return int(known)
    last: int | None = connection.execute(select(EPOCHS.c.received_ns).order_by(EPOCHS.c.id.desc()).limit(1)).scalar()
    return wall_ns if last is None else last


def _is_confirmed(connection: Connection, wall_ns: int) -> bool:
    said = fact(connection, CONFIRMED)
    if said is not None and abs(wall_ns - int(said)) <= STEP_NS:
        return True
    heard = (NODES.c.last_seen_ns > wall_ns - HEARD_NS) & NODES.c.newest_ns.is_not(None)
    times = list(connection.execute(select(NODES.c.newest_ns).where(heard)).scalars())
    return bool(times) and median_low(times) >= wall_ns - STEP_NS


def confirm(database: Database, *, now_ns: int | None = None) -> int:
    """Note that the wall clock is right, and what it says."""
    now = time.time_ns() if now_ns is None else now_ns
    with database.transaction(writes=True) as connection:
        set_facts(connection, **{CONFIRMED: now})
    return now
