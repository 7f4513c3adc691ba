"""From a window's solved delays to arrival times of the packets that it keeps, within the guaranteed bounds."""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, Int64Array
from sojourn.core.kernels import kernel
from sojourn.tomography.constraints import Bounds
from sojourn.tomography.trace import CollectionTrace
from sojourn.tomography.windows import Window

__all__ = ["keep_delays"]


def keep_delays(
    trace: CollectionTrace, bounds: Bounds, window: Window, delay_ns: Int64Array, arrival_ns: Int64Array
) -> None:
    """Take over the delays of the packets kept as arrivals, each brought into what is left of its bounds.

    A solver meets bounds only to its tolerance; going from the origin on, an arrival within reach of the one before
    always exists, as the bounds are a fixpoint.
    """
    is_kept = np.isin(window.packets, window.kept, assume_unique=True)
    _keep(
        trace.start, window.packets, is_kept, delay_ns,
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
