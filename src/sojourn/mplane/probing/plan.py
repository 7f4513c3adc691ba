"""What a node probes and how, and the estimate from an interval's probes: mean with a valid interval, deviation, loss.

Guarantee: never more than `MAX_RATE` probes a second to a target and `MAX_PROBES` an interval.

The mean is that over the interval's time, of the delay that a packet would have had at each moment. Probes leave at the
times of a Poisson process: given how many there are, their times are independent and uniform. So their delays are
independent draws from the interval's delays, however slowly queues build up and drain, and n of them tell as much as n
draws. (For the long-run mean they would not; the monitoring station compares whole intervals for that.)

Queueing delays are skewed, and with some twenty probes Student's interval misses the mean too often, mostly above it.
Hall's monotone transformation of t removes the skewness: P. Hall, "On the removal of skewness by transformation",
J. R. Statist. Soc. B 54 (1992).

What a node probes: the segments to its m-set, each with the address of its far end, as the topology changes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.errors import ParameterError, SojournError, UsageError
from sojourn.core.estimates import Estimate
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.mplane.planning.live_topology import TopologyWatch
from sojourn.mplane.planning.paths import MSets, path_segments
from sojourn.mplane.planning.topology import Topology
from sojourn.mplane.probing.messages import HEADER_BYTES, MAX_MESSAGE, MAX_PROBES, SEAL_BYTES, Sent

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


METHOD = "probes"
LEVEL = 0.95
# Below this the spread of delays cannot be estimated.
LEAST_DELAYS = 3


def mean_of(delays_ns: FloatArray) -> Estimate | None:
    """The mean with its 95 % interval; None of nothing, unbounded where there are fewer than `LEAST_DELAYS`.

    >>> mean_of(np.array([10.0, 11.0, 12.0, 11.0, 16.0])).value
    12.0
    """
    count = len(delays_ns)
    if count == 0:
        return None
    mean = float(delays_ns.mean())
    if count < LEAST_DELAYS:
        return Estimate.around(mean, math.inf, samples=count, method=METHOD)
    deviation = float(delays_ns.std(ddof=1))
    if deviation == 0:
        return Estimate.around(mean, 0.0, samples=count, method=METHOD)
    skewness = float(((delays_ns - mean) ** 3).mean() / delays_ns.std() ** 3)
    # A value of Student's t over √n, as Hall's transformed statistic has it; the interval is where it is not exceeded.
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) / math.sqrt(count)
    low = mean - deviation * _undone(reach, skewness, count)
    high = mean - deviation * _undone(-reach, skewness, count)
    return Estimate(mean, min(low, mean), max(high, mean), count, METHOD)


def _undone(value: float, skewness: float, count: int) -> float:
    """The t/√n whose transformed value is `value`: Hall's g⁻¹, where g(x) = x + ax² + a²x³/3 + a/2n, a = skewness/3."""
    shifted = value - skewness / (6 * count)
    if abs(skewness) < 1e-9:
        return shifted
    return 3 / skewness * (float(np.cbrt(1 + skewness * shifted)) - 1)


def measurement_of(probed: ProbedInterval) -> SegmentMeasurement:
    """The estimate from an interval of probing; a void one has a reason, and counts its probes as sent only."""
    bare = SegmentMeasurement(
        segment=probed.target.segment,
        dscp=probed.dscp,
        interval=probed.interval,
        start_ns=probed.start_ns,
        end_ns=probed.end_ns,
        packets=probed.sent,
        method=METHOD,
        void=probed.void,
    )
    if probed.void is not None:
        return bare
    delays = probed.delays_ns.astype(np.float64)
    deviation = float(delays.std(ddof=1)) if len(delays) > 1 else None
    return bare.estimated(mean_of(delays), std_ns=deviation, lost=max(probed.sent - probed.received, 0))


def m_set_segments(sets: MSets, node: str) -> list[Segment]:
    """The links and virtual links from a node to its m-set, nearest first.

    Where several equal-cost ones lead to a router, one stream of probes takes one of them, it is unknown which: the
    segment is then named by its ends alone.
    """
    names = sets.shortest.topology.names
    upgraded = {name for name, is_upgraded in zip(names, sets.upgraded, strict=True) if is_upgraded}
    found: list[Segment] = []
    for router in sets.of(sets.shortest.topology.router(node)).target.tolist():
        paths = [hops for hops, _ in path_segments(sets.shortest, node, names[router], upgraded).paths]
        own = [hops for hops in paths if not upgraded.intersection(hops[1:-1])]
        found.append(Segment.between(*own[0]) if len(own) == 1 else Segment.between(node, names[router]))
    return found


def m_set_targets(sets: MSets, node: str, addresses: Mapping[str, str], *, port: int) -> list[ProbeTarget]:
    """A node's segments with the addresses of the routers that they lead to."""
    targets = []
    for segment in m_set_segments(sets, node):
        if segment.hops[-1] not in addresses:
            action = "give it in the file of --names (router_id,name)"
            raise UsageError(f"the address of {segment.hops[-1]} is not known", where="probe", action=action)
        targets.append(ProbeTarget(segment, addresses[segment.hops[-1]], port))
    return targets


class MSetTargets:
    """A node's m-set as targets, read from a topology that may change; without addresses a router's name is its own."""

    def __init__(
        self,
        node: str,
        read: Callable[[], Topology],
        upgraded: Sequence[str],
        addresses: Mapping[str, str],
        *,
        port: int,
        is_live: bool,
    ) -> None:
        self._node, self._addresses, self._port, self.is_live = node, addresses, port, is_live
        self._watch = TopologyWatch(read, upgraded)

    def read(self) -> list[ProbeTarget]:
        """What is to be probed now."""
        self._watch.poll(time.time_ns())
        sets = self._watch.sets
        assert sets is not None
        addresses = self._addresses or {name: name for name in sets.shortest.topology.names}
        return m_set_targets(sets, self._node, addresses, port=self._port)

    @contextmanager
    def followed(
        self, every_ns: int, report: Callable[[str], None]
    ) -> Iterator[Callable[[], list[ProbeTarget] | None]]:
        """A function that gives the newest targets once, None until they are read again.

        They are read in the background, so that probes leave in time.
        """
        found: list[list[ProbeTarget]] = []
        over = threading.Event()

        def follow() -> None:
            while not over.wait(every_ns / 1e9):
                try:
                    found[:] = [self.read()]
                except SojournError as error:
                    report(f"{error}; the targets stay")

        thread = threading.Thread(target=follow, name="routing", daemon=True)
        thread.start()
        try:
            yield lambda: found.pop() if found else None
        finally:
            over.set()
            thread.join()
