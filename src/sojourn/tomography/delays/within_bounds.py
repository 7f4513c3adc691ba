"""From delays to arrival times within the guaranteed bounds."""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import kernel
from sojourn.tomography.bounds.constraints import Bounds
from sojourn.tomography.trace import CollectionTrace
from sojourn.tomography.windows import Window

__all__ = ["keep_delays", "keep_window"]


def keep_window(
    trace: CollectionTrace, bounds: Bounds, window: Window, delay_ns: Int64Array, arrival_ns: Int64Array
) -> None:
    """Take over the delays of the packets that a window keeps, as `keep_delays` does."""
    is_kept = np.isin(window.packets, window.kept, assume_unique=True)
    _keep_bounded(trace, bounds, window.packets, is_kept, delay_ns, arrival_ns)


def keep_delays(trace: CollectionTrace, bounds: Bounds, delay_ns: Int64Array, arrival_ns: Int64Array) -> None:
    """Take over all visits' delays as arrivals, in place, each brought into what is left of its bounds.

    A solver meets bounds only to its tolerance; going from the origin on, an arrival within reach of the one before
    always exists, as the bounds are a fixpoint.
    """
    packets = np.arange(len(trace))
    _keep_bounded(trace, bounds, packets, np.ones(len(packets), np.bool_), delay_ns, arrival_ns)


def _keep_bounded(
    trace: CollectionTrace,
    bounds: Bounds,
    packets: Int64Array,
    is_kept: BoolArray,
    delay_ns: Int64Array,
    arrival_ns: Int64Array,
) -> None:
    _keep(
        trace.start, packets, is_kept, delay_ns,
        bounds.low_ns, bounds.high_ns, bounds.least_ns, bounds.most_ns, arrival_ns,
    )  # fmt: skip


@kernel
def _keep(
    start: Int64Array,
    packets: Int64Array,
    is_kept: BoolArray,
    delay: Int64Array,
    low: Int64Array,
    high: Int64Array,
    least: Int64Array,
    most: Int64Array,
    arrival: Int64Array,
) -> None:
    visit = 0
    for k in range(len(packets)):
        for place in range(start[packets[k]], start[packets[k] + 1] - 1):
            if is_kept[k]:
                earliest = max(low[place + 1], arrival[place] + least[place])
                latest = min(high[place + 1], arrival[place] + most[place])
                within = max(min(arrival[place] + delay[visit], latest), earliest)
                arrival[place + 1] = max(min(within, high[place + 1]), low[place + 1])
            visit += 1
