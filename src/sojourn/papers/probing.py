"""Active probing, the rival: packets sent at random times, whose delays are measured one by one.

Probes leave in a Poisson process and suffer what the traffic suffers, but do not change it (as in the LDA paper). In a
trace of independent delays a probe has the delay and the fate of the packet whose place it falls on, which is a draw
from the same law; in a queue it waits for what is queued at its own time, and is lost if the next packet is.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.lab.queue_red import queue_delay_ns
from sojourn.papers.lda.trials import INTERVAL_NS, Crossing, Trial, relative_error

__all__ = ["PROBE_BITS", "probe_queue", "probe_trace", "send_times"]

PROBE_BITS = 64 * 8


def send_times(random: np.random.Generator, hertz: float, duration_ns: int) -> Int64Array:
    """When the probes of a Poisson process leave, from 0 on; there may be none."""
    return np.sort(random.integers(0, duration_ns, random.poisson(hertz * duration_ns / 1e9)))


def _trial(delay_ns: FloatArray, mean_ns: float, std_ns: float) -> Trial:
    """Errors of the probes' own mean and deviation (n − 1) as estimates of the traffic's."""
    count = len(delay_ns)
    mean = float(delay_ns.mean()) if count else math.nan
    deviation = float(delay_ns.std(ddof=1)) if count > 1 else math.nan
    error = relative_error(deviation, std_ns)
    return Trial(relative_error(mean, mean_ns), error, error, count, value=mean / mean_ns)


def probe_trace(random: np.random.Generator, crossing: Crossing, hertz: float) -> Trial:
    """Probe a trace of independent delays for its one second."""
    packets = len(crossing.sender)
    place = send_times(random, hertz, INTERVAL_NS) * packets // INTERVAL_NS
    arrived = place[crossing.delivered[place]]
    return _trial(crossing.delay_ns[arrived].astype(np.float64), crossing.mean_ns, crossing.std_ns)


def probe_queue(random: np.random.Generator, traffic: Crossing, hertz: float, *, service_ns: int) -> Trial:
    """Probe a queue while its traffic lasts; a probe takes `service_ns` on the link, a packet's time."""
    first, last = int(traffic.sender.time_ns[0]), int(traffic.sender.time_ns[-1])
    times = first + send_times(random, hertz, last - first)
    following = np.searchsorted(traffic.sender.time_ns, times)
    arrived = times[traffic.delivered[following]]
    delay = queue_delay_ns(arrived, traffic.sender.time_ns, traffic.delay_ns, traffic.delivered, service_ns=service_ns)
    return _trial(delay.astype(np.float64), traffic.mean_ns, traffic.std_ns)
