"""An agent whose machine's clock is wrong: it is off, runs too fast or too slow, or is set.

``python -m sojourn.lab.chain.shifted_agent FAULT -c FILE`` is ``sojourn agent -c FILE`` on a machine with such a clock;
the fault is a `ClockFault` as JSON. It is a program of the lab, so that the agent itself has nothing of the kind.

Guarantee: every time that the agent takes from its machine, of packets and of its own doing, is the one that the faulty
clock would have shown at that moment; the packets are the same. The kernel says of such a clock what it says of every
one that nobody keeps in step.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.host.settings import read_tables
from sojourn.epochs.epoch import KernelClock
from sojourn.node.agent import column_recorder
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.agent.running import run_agent
from sojourn.segments.fleet.steady import Reading, read_lead
from sojourn.sources.source import SourceBatch
from sojourn.sources.traffic import TrafficSource


@dataclass(frozen=True, kw_only=True)
class ClockFault:
    """What a clock shows of the true time: ahead by an offset, by a drift since a time, by steps, each from a time on.

    >>> fast = ClockFault(drift_ppm=50, since_ns=0)
    >>> fast.shown(20_000_000)
    20001000
    """

    offset_ns: int = 0
    drift_ppm: float = 0.0
    since_ns: int = 0
    steps: tuple[tuple[int, int], ...] = ()  # when, and by how much

    @overload
    def shown(self, true_ns: int) -> int: ...
    @overload
    def shown(self, true_ns: Int64Array) -> Int64Array: ...
    def shown(self, true_ns: int | Int64Array) -> int | Int64Array:
        """The times that the clock shows at true ones."""
        if isinstance(true_ns, int):
            return int(self.shown(np.array([true_ns], np.int64))[0])
        drift = np.rint((true_ns - self.since_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)
        shown: Int64Array = true_ns + self.offset_ns + drift
        for at_ns, by_ns in self.steps:
            shown = shown + np.where(true_ns >= at_ns, by_ns, 0)
        return shown

    def set_by(self, true_ns: int) -> int:
        """By how much it was set until then, which the machine's own count of time does not follow; its drift it has.

        >>> ClockFault(offset_ns=5, drift_ppm=50, steps=((100, 7), (200, -3))).set_by(150)
        12
        """
        return self.offset_ns + sum(by_ns for at_ns, by_ns in self.steps if true_ns >= at_ns)

    def now(self) -> int:
        """What it shows now."""
        return self.shown(time.time_ns())

    @property
    def program(self) -> tuple[str, ...]:
        """The agent with this clock, to be started with an agent's options."""
        return (sys.executable, "-m", "sojourn.lab.chain.shifted_agent", json.dumps(asdict(self)))


# NTP_PHASE_LIMIT, beyond which Linux does not follow the error of a clock.
UNKEPT = KernelClock(False, 16_000_000_000, 0)


def live_by(clock: ClockFault) -> None:
    """From now on packets of this process have the times that the clock showed, which nobody keeps in step."""
    poll = TrafficSource.poll

    def shifted(source: TrafficSource[Any], now_ns: int) -> SourceBatch[Any]:
        del now_ns  # the agent's time; what is waited for is of the kernel's
        found = poll(source, time.time_ns())
        return replace(found, rows=replace(found.batch, time_ns=clock.shown(found.batch.time_ns)))

    def ahead() -> Reading | None:
        reading = read_lead()
        return None if reading is None else reading._replace(lead_ns=reading.lead_ns + clock.set_by(time.time_ns()))

    column_recorder.kernel_clock = lambda: UNKEPT  # type: ignore[attr-defined]
    column_recorder.read_lead = ahead  # type: ignore[attr-defined]
    TrafficSource.poll = shifted  # type: ignore[method-assign,assignment]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(fault: str, flag: str, configuration: str) -> None:
    if flag != "-c":
        raise SystemExit(f"{flag}: give -c FILE")
    clock = ClockFault(**json.loads(fault))
    live_by(clock)
    settled = configuration_of(read_tables(Path(configuration)), where=configuration)
    run_agent(settled, report=_say, clock=clock.now)


if __name__ == "__main__":
    main(*sys.argv[1:])
