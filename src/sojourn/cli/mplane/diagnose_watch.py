"""`sojourn mplane diagnose --watch`: a path's verdict as it changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sojourn.cli.mplane.watch import WatchTimes

if TYPE_CHECKING:
    from sojourn.core.errors import SojournError
    from sojourn.mplane.measurements import Segment, SegmentMeasurement
    from sojourn.mplane.station.diagnosis import Diagnosis, Window

__all__ = ["RecentSegments", "watch_verdicts"]

# What comes later than this after its interval is no longer waited for.
LATE_NS = 60_000_000_000


class RecentSegments:
    """Measurements as they come, without reading all of them again: a baseline, and those of the last `keep_ns`.

    `read` gives those whose intervals begin in a range of time. An interval that was incomplete is replaced.
    """

    def __init__(
        self, read: Callable[[int, int], list[SegmentMeasurement]], before: Window | None, *, keep_ns: int
    ) -> None:
        self._read, self._before, self._keep_ns = read, before, keep_ns
        self._rows: dict[tuple[Segment, int, str, int], SegmentMeasurement] = {}
        self._read_ns: int | None = None

    def rows(self, now_ns: int) -> list[SegmentMeasurement]:
        """All that there is at a time, after one more reading."""
        oldest = now_ns - self._keep_ns
        since = oldest if self._before is None else min(oldest, self._before.from_ns)
        fresh = self._read(max(since, 0) if self._read_ns is None else self._read_ns - LATE_NS, 2**63 - 1)
        self._read_ns = now_ns
        self._rows.update({(one.segment, one.dscp, one.method, one.start_ns): one for one in fresh})
        self._rows = {place: one for place, one in self._rows.items() if self._is_kept(one, oldest)}
        return list(self._rows.values())

    def _is_kept(self, one: SegmentMeasurement, oldest_ns: int) -> bool:
        in_baseline = self._before is not None and self._before.from_ns <= one.start_ns < self._before.to_ns
        return in_baseline or one.start_ns >= oldest_ns


def watch_verdicts(look: Callable[[int], Diagnosis], times: WatchTimes, how: str) -> None:
    """Print the verdict, and then every other one, until the time is over or Ctrl-C."""
    from sojourn.cli.capture.packet_source import stopping_on_interrupt
    from sojourn.cli.mplane.path_output import print_verdict
    from sojourn.mplane.planning.polling import Patience, repeatedly
    from sojourn.mplane.station.diagnosis import new_verdicts

    patience = Patience(times.every_ns, times.for_ns)
    with stopping_on_interrupt(patience.stop):
        for result in new_verdicts(repeatedly(lambda: look(time.time_ns()), patience, _say_silent)):
            print_verdict(result, how)
            sys.stdout.flush()


def _say_silent(error: SojournError) -> None:
    print(f"sojourn: {error}; the last verdict stands until it answers", file=sys.stderr, flush=True)
