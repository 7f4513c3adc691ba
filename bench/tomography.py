"""Tomography's growth with the trace, and what workers save: simulated networks of 400 nodes, 10 to 40 packets each.

Growth is in processor time, which other programs disturb least; workers in wall time beside it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

from sojourn.core.executor import LocalExecutor, usable_processors
from sojourn.lab.wireless import WirelessNetwork, run_collection
from sojourn.tomography.bounds_lp import bound_linear
from sojourn.tomography.constraints import bound
from sojourn.tomography.estimate import estimate
from sojourn.tomography.evaluation import unknown_visits
from sojourn.tomography.trace import CollectionTrace, make_trace

__all__ = ["NOTE", "table"]

NODES, PACKETS, SEED = 400, (10, 20, 40), 61
REPETITIONS = 3
NOTE = f"{NODES} nodes, seed {SEED}; linear programs once, the rest best of {REPETITIONS}; kernels loaded before."


def network_trace(packets: int) -> CollectionTrace:
    """What the sink of a simulated network sees."""
    run = run_collection(WirelessNetwork(nodes=NODES, packets_per_node=packets, buffer=64), SEED)
    rows = []
    for p in range(len(run)):
        places = slice(run.start[p], run.start[p + 1])
        times = run.arrival_ns[places]
        path = run.node[places].tolist()
        total = int(run.sum_ms[p]) * 1_000_000
        rows.append((int(run.origin[p]), int(run.sequence[p]), path, int(times[0]), int(times[-1]), total))
    return make_trace(rows)


def _used() -> float:
    """Processor seconds of this process and of the workers that have ended."""
    ours, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime + theirs.ru_utime + theirs.ru_stime


def _timed(run: Callable[[], object], repetitions: int = REPETITIONS) -> tuple[float, float]:
    """Shortest wall and processor seconds."""
    wall, used = [], []
    for _ in range(repetitions):
        begin, before = time.perf_counter(), _used()
        run()
        wall.append(time.perf_counter() - begin)
        used.append(_used() - before)
    return min(wall), min(used)


def table() -> list[str]:
    """Growth, then workers."""
    traces = [network_trace(packets) for packets in PACKETS]
    estimate(traces[0], bound(traces[0]))
    lines = [
        "| packets | delays to find | a bound, by propagation | a bound, by linear programs | a delay |",
        "|---:|---:|---:|---:|---:|",
    ]
    for trace in traces:
        bounds = bound(trace)
        unknowns = len(unknown_visits(trace))
        propagation = _timed(lambda t=trace: bound(t))[1]
        linear = _timed(lambda t=trace, b=bounds: bound_linear(t, b), 1)[1]
        delays = _timed(lambda t=trace, b=bounds: estimate(t, b))[1]
        shares = [f"{1e3 * seconds / unknowns:.4f} ms" for seconds in (propagation, linear, delays)]
        lines.append(f"| {len(trace):,} | {unknowns:,} | {' | '.join(shares)} |")
    return [*lines, "", *_workers(traces[-1])]


def _workers(trace: CollectionTrace) -> list[str]:
    """The longest trace's delays by one worker and by more, on all processors of whoever started this."""
    os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
    bounds = bound(trace)
    lines = ["| workers | wall seconds | × one worker | processor seconds |", "|---:|---:|---:|---:|"]
    first = 0.0
    for workers in sorted({1, 2, usable_processors()}):
        wall, used = _timed(lambda w=workers: estimate(trace, bounds, executor=LocalExecutor(w)))
        first = first or wall
        lines.append(f"| {workers} | {wall:.2f} | {first / wall:.2f} | {used:.2f} |")
    load = os.getloadavg()[0]
    return [*lines, "", f"On {usable_processors()} processors, which others used as well (load {load:.1f})."]
