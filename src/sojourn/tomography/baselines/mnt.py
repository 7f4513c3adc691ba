"""The baseline that Domo is compared with: MNT's bounds, which know nothing of sums of delays.

A node's own packets, whose generation times are known, bracket each packet that it forwards; packets that passed the
same forwarders tighten that further; the estimate is the middle of an arrival's bounds. It is given the same proofs of
order and the same least delay as ours, so that what sets the two apart is S and the estimate.

Keller, Beutel and Thiele, "How Was Your Journey?", as Domo's Section VI.A uses it. Cost: that of the bounds.
"""

from __future__ import annotations

from dataclasses import replace

from sojourn.core.arrays import Int64Array
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.trace import CollectionTrace

__all__ = ["mnt_arrivals", "mnt_bounds"]


def mnt_bounds(trace: CollectionTrace, options: ConstraintOptions | None = None) -> Bounds:
    """Bounds from order and FIFO queues alone."""
    return bound(trace, replace(options or ConstraintOptions(), sums=Sums.UNUSED))


def mnt_arrivals(bounds: Bounds) -> Int64Array:
    """MNT's estimate of every arrival: the middle of its bounds."""
    return (bounds.low_ns + bounds.high_ns) // 2
