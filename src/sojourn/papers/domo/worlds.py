"""Networks for Domo's experiments, and what each method makes of their traces.

*Literal* is Domo as published (`tomography.comparison`; its bounds are those of Eq. 5 to 7 with the sums as equations
where nothing is lost), *joint* ours, *mnt* and *tracing* the paper's two rivals. All read the same trace. A delay
counts if the trace does not state it: at every node of packets with two hops or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.lab.wireless import WirelessNetwork, run_collection
from sojourn.papers.reproduction import Scale
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.comparison import (
    displacements,
    logs_of,
    mnt_arrivals,
    mnt_bounds,
    published,
    published_bounds,
    trace_messages,
    unknown_visits,
)
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.trace import CollectionTrace, make_trace

PERIOD_S = 10.0
SEEDS = {Scale.SMALL: (81, 82, 83, 84), Scale.PAPER: tuple(range(81, 93))}
BUFFER = 64
ROUNDING_MS = 0.001
NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class World:
    """A sink's trace and the true arrival of every place of it (-1 where it is not known)."""

    trace: CollectionTrace
    truth_ns: Int64Array

    @property
    def visits(self) -> Int64Array:
        """The unknown delays whose truth is given."""
        visit = unknown_visits(self.trace)
        return visit[(self.truth_ns[visit] >= 0) & (self.truth_ns[visit + 1] >= 0)]

    def delays_ms(self, arrival_ns: Int64Array | FloatArray) -> FloatArray:
        """Their delays where packets arrive at these times."""
        visit = self.visits
        delay: FloatArray = (arrival_ns[visit + 1] - arrival_ns[visit]) / NS_PER_MS
        return delay

    @property
    def delay_ms(self) -> FloatArray:
        """Their true delays."""
        return self.delays_ms(self.truth_ns)


@dataclass(frozen=True)
class Judged:
    """What the methods reach, by name, for every unknown delay of one or more worlds; times in ms."""

    error: dict[str, FloatArray]
    width: dict[str, FloatArray]
    outside: dict[str, int]  # truths that lie outside their bounds
    displacement: dict[str, FloatArray]

    def mean(self, quantity: str, method: str) -> float:
        return float(getattr(self, quantity)[method].mean())


@cache
def simulate(nodes: int, seed: int, *, loss: float = 0.0, period_s: float = PERIOD_S, packets: int = 10) -> World:
    """A collection network of the lab; `loss` takes packets out of the same run's trace."""
    network = WirelessNetwork(nodes=nodes, packets_per_node=packets, period_s=period_s, buffer=BUFFER, loss=loss)
    run = run_collection(network, seed)
    places = [slice(a, b) for a, b in zip(run.start[:-1].tolist(), run.start[1:].tolist(), strict=True)]
    keys = list(zip(run.origin.tolist(), run.sequence.tolist(), strict=True))
    trace = make_trace(
        (*key, run.node[at].tolist(), int(run.arrival_ns[at.start]), int(run.arrival_ns[at.stop - 1]), int(total))
        for key, at, total in zip(keys, places, run.sum_ms * NS_PER_MS, strict=True)
    )
    times = {key: run.arrival_ns[at] for key, at in zip(keys, places, strict=True)}
    found = zip(trace.origin.tolist(), trace.shown_sequence.tolist(), strict=True)
    return World(trace, np.concatenate([times[key] for key in found]))


def literal_bounds(trace: CollectionTrace) -> Bounds:
    """Eq. 5 to 7 as bounds: sums are equations if no packet is missing, upper bounds otherwise."""
    return bound(trace, ConstraintOptions(sums=Sums.EXACT if trace.is_complete else Sums.UPPER))


def arrivals_of(trace: CollectionTrace) -> dict[str, Int64Array]:
    """By method, when packets arrive at every place."""
    return {
        "literal": published(trace, published_bounds(trace)).arrival_ns,
        "joint": estimate(trace, bound(trace)).arrival_ns,
        "mnt": mnt_arrivals(mnt_bounds(trace)),
    }


def judge(world: World) -> Judged:
    """All methods on one world."""
    trace, visit = world.trace, world.visits
    bounds = {"literal": literal_bounds(trace), "joint": bound(trace), "mnt": mnt_bounds(trace)}
    arrivals = arrivals_of(trace)
    true = world.delay_ms
    error = {name: np.abs(world.delays_ms(arrival) - true) for name, arrival in arrivals.items()}
    least = {name: one.least_ns[visit] / NS_PER_MS for name, one in bounds.items()}
    most = {name: one.most_ns[visit] / NS_PER_MS for name, one in bounds.items()}
    outside = {name: (true < least[name] - ROUNDING_MS) | (true > most[name] + ROUNDING_MS) for name in bounds}
    orders = arrivals | {"tracing": trace_messages(trace, logs_of(trace, world.truth_ns))}
    return Judged(
        error=error,
        width={name: most[name] - least[name] for name in bounds},
        outside={name: int(count.sum()) for name, count in outside.items()},
        displacement={name: displacements(trace, at, world.truth_ns).astype(float) for name, at in orders.items()},
    )


@cache
def judge_networks(scale: Scale, nodes: int, loss: float = 0.0, period_s: float = PERIOD_S) -> Judged:
    """All methods on the networks of the scale, every delay of them together."""
    found = [judge(simulate(nodes, seed, loss=loss, period_s=period_s)) for seed in SEEDS[scale]]
    return Judged(
        error=_together([one.error for one in found]),
        width=_together([one.width for one in found]),
        outside={name: sum(one.outside[name] for one in found) for name in found[0].outside},
        displacement=_together([one.displacement for one in found]),
    )


def _together(found: list[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}
