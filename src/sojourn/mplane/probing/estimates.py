"""From the probes of an interval to what is said of its segment: mean with an interval that is true, deviation, loss.

The mean meant is that over the interval's time, of the delay that a packet would have had at each moment. Probes leave
at the times of a Poisson process: given how many there are, their times are independent and uniform. So their delays
are independent draws from what the interval held, however slowly queues build up and drain, and n of them say as much
as n draws. (For the long-run mean they would not; the monitoring station compares whole intervals for that.)

Queueing delays are skewed, and with some twenty probes Student's interval misses the mean too often, mostly above it.
Hall's monotone transformation of t takes the skewness out: P. Hall, "On the removal of skewness by transformation",
J. R. Statist. Soc. B 54 (1992).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import Estimate
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.mplane.probing.plan import ProbedInterval

__all__ = ["LEAST_DELAYS", "mean_of", "measurement_of"]

METHOD = "probes"
LEVEL = 0.95
# Fewer delays tell nothing of their spread.
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
    """What an interval of probing says of its segment; a void one says why, and counts its probes as sent only."""
    delays = probed.delays_ns.astype(np.float64) if probed.void is None else np.empty(0)
    mean = mean_of(delays)
    is_bounded = mean is not None and math.isfinite(mean.high - mean.low)
    return SegmentMeasurement(
        segment=probed.target.segment,
        dscp=probed.dscp,
        interval=probed.interval,
        start_ns=probed.start_ns,
        end_ns=probed.end_ns,
        packets=probed.sent,
        lost=max(probed.sent - probed.received, 0) if probed.void is None else 0,
        mean_ns=mean.value if mean else None,
        low_ns=mean.low if mean and is_bounded else None,
        high_ns=mean.high if mean and is_bounded else None,
        std_ns=float(delays.std(ddof=1)) if len(delays) > 1 else None,
        method=METHOD,
        void=probed.void,
    )
