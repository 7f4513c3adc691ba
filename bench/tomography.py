"""Tomography's growth with the trace, and what workers save: simulated networks of 400 nodes, 10 to 40 packets each.

Both in processor time, which other programs disturb least.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from sojourn.core.executors.executor import LocalExecutor
from sojourn.core.processors import usable_processors
from sojourn.lab.wireless import WirelessNetwork, run_collection
from sojourn.tomography.bounds.constraints import bound
from sojourn.tomography.bounds.linear_bounds import bound_linear
from sojourn.tomography.comparison import unknown_visits
from sojourn.tomography.delays.estimate import estimate
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


def _timed(run: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """The fewest processor seconds."""
    used = []
    for _ in range(repetitions):
        before = time.process_time()
        run()
        used.append(time.process_time() - before)
    return min(used)


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
        propagation = _timed(lambda t=trace: bound(t))
        linear = _timed(lambda t=trace, b=bounds: bound_linear(t, b), 1)
        delays = _timed(lambda t=trace, b=bounds: estimate(t, b))
        shares = [f"{1e3 * seconds / unknowns:.4f} ms" for seconds in (propagation, linear, delays)]
        lines.append(f"| {len(trace):,} | {unknowns:,} | {' | '.join(shares)} |")
    return [*lines, "", *_workers(traces[-1])]


class _Timed:
    """A function whose results come with the worker's number and its processor seconds so far."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, piece: Any) -> tuple[Any, int, float]:
        return self._function(piece), os.getpid(), time.process_time()


class _TimingExecutor(LocalExecutor):
    """Local processes; `longest` is the most processor seconds that one of them took."""

    longest = 0.0

    def map(self, function: Callable[[Any], Any], pieces: Sequence[Any], *, seconds: float = math.inf) -> Any:
        spent: dict[int, float] = {}
        for result, worker, used in super().map(_Timed(function), pieces, seconds=seconds):
            spent[worker] = used
            yield result
        self.longest = max(spent.values()) if os.getpid() not in spent else 0.0


def _workers(trace: CollectionTrace) -> list[str]:
    """The longest trace's delays by one worker and by more, on all processors of whoever started this.

    This process's processor time and that of the busiest worker are what it takes where processors are free.
    """
    os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
    bounds = bound(trace)
    lines = [
        "| workers | this process | busiest worker | × one worker | wall clock |",
        "|---:|---:|---:|---:|---:|",
    ]
    first = 0.0
    for workers in sorted({1, 2, usable_processors()}):
        runs = []
        for _ in range(REPETITIONS):
            executor = _TimingExecutor(workers)
            begin, before = time.perf_counter(), time.process_time()
            estimate(trace, bounds, executor=executor)
            here = time.process_time() - before
            runs.append((here + executor.longest, here, executor.longest, time.perf_counter() - begin))
        total, here, longest, wall = min(runs)
        first = first or total
        lines.append(f"| {workers} | {here:.2f} s | {longest:.2f} s | {first / total:.2f} | {wall:.2f} s |")
    load = os.getloadavg()[0]
    return [*lines, "", f"On {usable_processors()} processors, which others used as well (load {load:.1f})."]
