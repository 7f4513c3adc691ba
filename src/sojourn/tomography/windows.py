"""Overlapping time windows: each is solved as a whole, and only its middle is kept.

Packets near a window's ends lack the constraints of packets beyond; a share (`ratio`, Domo's effective time window
ratio, Section IV.B) around the middle is kept of each window, and windows lie so that what is kept covers every packet
once. The first and the last window keep everything up to the trace's ends. Cost: packets are solved 1 / ratio times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The length of a window in generation periods, and the share of it that is kept."""

    periods: float = 4.0
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if not self.periods > 0:
            raise ParameterError(f"a window of {self.periods} periods", action="use more than 0")
        if not 0 < self.ratio <= 1:
            raise ParameterError(f"an effective ratio of {self.ratio}", action="use a share above 0, up to 1")


@dataclass(frozen=True)
class Window:
    """The packets to solve together, and those of them whose answers are kept (both as places in the trace)."""

    packets: Int64Array
    kept: Int64Array


def windows(t0_ns: Int64Array, period_ns: int, options: WindowOptions) -> Iterator[Window]:
    """Windows over packets by generation time; every packet is kept by exactly one."""
    order = np.argsort(t0_ns, kind="stable")
    times = t0_ns[order]
    length = max(int(options.periods * period_ns), 1)
    step = max(int(length * options.ratio), 1)
    margin = (length - step) // 2
    first, last = int(times[0]), int(times[-1])
    begin = first
    while begin <= last:
        # Where nothing was generated there is nothing to solve: there are no more windows than packets.
        begin = max(begin, int(times[np.searchsorted(times, begin)]))
        end = begin + step
        if last - end < margin:
            end = last + 1
        inside = np.searchsorted(times, [begin - margin, end + margin])
        kept = np.searchsorted(times, [begin, end])
        yield Window(np.sort(order[inside[0] : inside[1]]), np.sort(order[kept[0] : kept[1]]))
        begin = end
