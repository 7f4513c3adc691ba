"""When delays were how long: sampled packets of runs counted by time and delay, for a map and a tail.

Counts are of the packets that sampled ones stand for. Delays are corrected by the clock of each run; runs whose delays
no clock tells are not in it. Classes of delays are equally wide by their logarithm, or on a linear scale where delays
are not all above zero. Cost: one pass over the sampled delays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.segments.fleet.answers import RunAnswer
from sojourn.segments.fleet.clocks import ClockAt

CLASSES = 80
LEAST_NS = 1_000.0  # of a logarithmic scale: what is below is noise of clocks


def delay_map(
    answers: Sequence[RunAnswer], clocks: Sequence[ClockAt], groups: Iterable[slice]
) -> dict[str, Any] | None:
    """The stretches that groups of runs make, edges of classes of delays, and packets in each; None without any."""
    stretches = [(rows, _delays(answers[rows], clocks[rows])) for rows in groups]
    known = [delay for _, (delay, _) in stretches if len(delay)]
    if not known:
        return None
    edges = _edges(min(float(one.min()) for one in known), max(float(one.max()) for one in known))
    return {
        "start_ns": [answers[rows.start].interval.first_ns for rows, _ in stretches],
        "end_ns": [answers[rows.stop - 1].interval.last_ns for rows, _ in stretches],
        "edges_ns": edges.tolist(),
        "packets": [
            np.rint(np.histogram(np.clip(delay, edges[0], edges[-1]), edges, weights=weight)[0]).astype(int).tolist()
            for _, (delay, weight) in stretches
        ],
        "effective": _effective(np.concatenate([weight for _, (_, weight) in stretches])),
    }


def _delays(answers: Sequence[RunAnswer], clocks: Sequence[ClockAt]) -> tuple[FloatArray, FloatArray]:
    told = [(one.sampled, clock) for one, clock in zip(answers, clocks, strict=True) if clock.tells_delays]
    delays = [sampled.delay_ns - clock.offset_ns for sampled, clock in told]
    none = np.empty(0)
    return np.concatenate([none, *delays]), np.concatenate([none, *(sampled.weight for sampled, _ in told)])


def _effective(weight: FloatArray) -> int:
    """How many packets drawn alike would tell as much (Kish): a few of large flows stand for very many."""
    return round(float(weight.sum() ** 2 / np.square(weight).sum()))


def _edges(low: float, high: float) -> FloatArray:
    high = max(high, low + 1.0)
    if low <= 0:
        return np.linspace(low, high, CLASSES + 1)
    return np.geomspace(max(low, min(LEAST_NS, high / 2)), high, CLASSES + 1)
