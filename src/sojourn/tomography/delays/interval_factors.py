"""How many deviations a delay's interval reaches below and above its mean: factors fitted on simulated worlds.

Written by `python -m bench.tomography_fit --write`; do not edit. The logarithm of a factor is linear in the features of
`intervals.features`, here in the same order.
"""

from __future__ import annotations

__all__ = ["ABOVE", "BELOW"]

BELOW = (0.255, -0.266, 0.659, 0.067, 0.268)
ABOVE = (-0.111, -0.491, 0.328, 0.466, 0.111)
