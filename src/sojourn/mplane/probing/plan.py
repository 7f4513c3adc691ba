"""What is probed and how, and what came of an interval of probing.

Guarantee: never more than `MAX_RATE` probes a second to a target and `MAX_PROBES` an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import ParameterError
from sojourn.mplane.measurements import Segment
from sojourn.mplane.probing.kernel_stamps import Sent
from sojourn.mplane.probing.keys import SEAL_BYTES
from sojourn.mplane.probing.messages import HEADER_BYTES, MAX_MESSAGE, MAX_PROBES

__all__ = ["MAX_RATE", "ProbePlan", "ProbeTarget", "ProbedInterval", "poisson_times"]

MAX_RATE = 1000.0
SHORTEST_NS, LONGEST_NS = 50_000_000, 600_000_000_000


@dataclass(frozen=True)
class ProbeTarget:
    """A segment, and the reflector at its far end."""

    segment: Segment
    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """How every target is probed; `rate` is probes per second, `size` a probe's UDP payload, `key` signs messages."""

    interval_ns: int = 1_000_000_000
    rate: float = 20.0
    size: int = 64
    dscp: int = 0
    sent: Sent = Sent.WIRE
    seed: int | None = None
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        bounds = (
            ("an interval in ns", self.interval_ns, SHORTEST_NS, LONGEST_NS),
            ("a rate", self.rate, 0.01, MAX_RATE),
            ("a size", self.size, HEADER_BYTES + (SEAL_BYTES if self.key else 0), MAX_MESSAGE),
            ("a DSCP", self.dscp, 0, 63),
            ("probes in an interval", self.rate * self.interval_ns / 1e9, 0, MAX_PROBES / 2),
        )
        for what, value, least, most in bounds:
            if not least <= value <= most:
                raise ParameterError(f"{value:g} is too small or large for {what}", action=f"use {least} to {most:g}")


@dataclass(eq=False)
class ProbedInterval:
    """One interval of one target, probe by probe: ns of sending and receiving, 0 where there was no stamp."""

    target: ProbeTarget
    dscp: int
    interval: int
    start_ns: int
    end_ns: int
    due_ns: Int64Array = field(repr=False)
    sent_ns: Int64Array = field(repr=False)
    received_ns: Int64Array = field(repr=False)
    sent: int = 0
    late: int = 0
    copies: int = 0
    void: str | None = None

    @property
    def delays_ns(self) -> Int64Array:
        """Of the probes that were stamped at both ends."""
        both = (self.sent_ns > 0) & (self.received_ns > 0)
        return self.received_ns[both] - self.sent_ns[both]

    @property
    def received(self) -> int:
        return int(np.count_nonzero(self.received_ns))


def poisson_times(random: np.random.Generator, rate: float, duration_ns: int) -> Int64Array:
    """When the probes of an interval leave, from 0 on: a Poisson process, at most `MAX_PROBES`."""
    count = min(int(random.poisson(rate * duration_ns / 1e9)), MAX_PROBES)
    return np.sort(random.integers(0, duration_ns, count))
