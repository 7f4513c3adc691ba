"""Where, hop by hop, each packet of a collection network waited: one call, one result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import UsageError
from sojourn.core.executors.executor import Executor, open_executor
from sojourn.core.files import FilePath, shown_name
from sojourn.core.results import Advance, Columns, Result, silent
from sojourn.core.units import parse_duration, plural
from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions, Sums, bound
from sojourn.tomography.comparison import (
    evaluate,
    evaluate_baselines,
    mnt_arrivals,
    mnt_bounds,
    published,
    published_bounds,
    unknown_visits,
)
from sojourn.tomography.delays.estimate import WindowOptions, estimate
from sojourn.tomography.delays.nodes import node_delays
from sojourn.tomography.delays.posterior import Intervals, intervals, judge
from sojourn.tomography.reading import DAMAGED, read_trace, read_truth
from sojourn.tomography.trace import CollectionTrace, make_trace

_BLOCK_ROWS = 1 << 14

Method = Literal["domo", "published", "mnt"]


@dataclass(frozen=True, eq=False, repr=False)
class NodesResult(Result):
    """Each node's mean and 95th percentile of delays, and the share spent waiting in line, the slowest first."""

    rows_name = "nodes"

    rows: Columns
    facts: dict[str, Any]
    summary: str = ""

    def columns(self) -> Columns:
        return self.rows

    def fields(self) -> dict[str, object]:
        return {"summary": self.facts}


@dataclass(frozen=True, eq=False, repr=False)
class TomographyResult(Result):
    """The delay at every hop within bounds that hold for certain, and where it likely lies.

    ``nodes`` adds the hops up; ``facts`` tells what the run did and, given a truth, how far it is off; ``source`` names
    the trace.
    """

    rows_name = "hops"

    trace: CollectionTrace
    bounds: Bounds
    arrival_ns: Int64Array
    likely: Intervals | None
    facts: dict[str, Any]
    packet: int | None = None
    warnings: tuple[str, ...] = ()
    source: str = ""

    @cached_property
    def _visits(self) -> Int64Array:
        visits = np.flatnonzero(self.trace.is_visit)
        return visits if self.packet is None else visits[self.trace.owner[visits] == self.packet]

    def __len__(self) -> int:
        return len(self._visits)

    def columns(self) -> Columns:
        return self._hops(self._visits)

    def blocks(self) -> Iterator[Columns]:
        for begin in range(0, max(len(self), 1), _BLOCK_ROWS):
            yield self._hops(self._visits[begin : begin + _BLOCK_ROWS])

    def hops_of(self, packet: int) -> Columns:
        """The rows of one packet, by its place in the trace."""
        return self._hops(np.flatnonzero(self.trace.is_visit & (self.trace.owner == packet)))

    def _hops(self, rows: Int64Array) -> Columns:
        trace, owner = self.trace, self.trace.owner[rows]
        # Numbers that are missing rather than None, so that a Parquet file has the same columns whatever the method.
        none = np.ma.MaskedArray(np.zeros(len(rows), np.int64), mask=True)
        return {
            "origin": trace.origin[owner],
            "seq": trace.shown_sequence[owner],
            "hop": trace.hop[rows],
            "node": trace.node[rows],
            "delay_ns": self.arrival_ns[rows + 1] - self.arrival_ns[rows],
            "low_ns": self.bounds.least_ns[rows],
            "high_ns": self.bounds.most_ns[rows],
            "likely_low_ns": none if self.likely is None else self.likely.low_ns[rows],
            "likely_high_ns": none if self.likely is None else self.likely.high_ns[rows],
            "looping": trace.is_looping[owner],
        }

    def fields(self) -> dict[str, object]:
        return {"summary": self.facts}

    @property
    def nodes(self) -> NodesResult:
        visits = np.flatnonzero(self.trace.is_visit)
        delays = node_delays(self.trace.node[visits], self.arrival_ns[visits], self.arrival_ns[visits + 1])
        return NodesResult(vars(delays), self.facts, self.summary)

    @property
    def summary(self) -> str:
        trace, facts = self.trace, self.facts
        without = int((trace.sum_ns < 0).sum())
        none = f" ({plural(without, 'packet has', 'packets have')} none)" if without else ""
        lines = [
            f"{plural(len(trace), 'packet')}, {plural(facts['unknowns'], 'delay')} to find, "
            f"{plural(trace.gaps, 'packet')} missing; sums of delays taken as {facts['sums']}{none}; "
            f"bounds {facts['bound_width_ms']:.1f} ms wide on average; {facts['seconds']:.1f} s"
        ]
        if "mae_ms" in facts:
            lines.append(
                f"against the truth: mean error {facts['mae_ms']:.2f} ms (MNT {facts['mnt_mae_ms']:.2f} ms), "
                f"{facts['share_under_4ms']:.0%} under 4 ms, {facts['bounds_violated']:,} of {facts['compared']:,} "
                f"outside their bounds (MNT's are {facts['mnt_width_ms']:.1f} ms wide)"
            )
        if facts.get("interval_coverage") is not None:
            lines.append(
                f"95 % intervals hold {facts['interval_coverage']:.1%} of the delays that are not known and are "
                f"{facts['interval_width_ms']:.1f} ms wide on average"
            )
        if "published_mae_ms" in facts:
            lines.append(
                f"baselines: mean error as published {facts['published_mae_ms']:.2f} ms; arrivals are off by "
                f"{facts['displacement']:.2f} places in their order (as published "
                f"{facts['published_displacement']:.2f}, MessageTracing {facts['tracing_displacement']:.2f}) at a "
                f"period of {trace.period_ns / 1e9:.2g} s"
            )
        return "\n".join(lines)


def tomography(
    trace: FilePath | CollectionTrace,
    *,
    packet: str = "",
    truth: FilePath | None = None,
    baselines: bool = False,
    method: Method = "domo",
    window: float = 4.0,
    ratio: float = 0.5,
    omega: int | str | None = None,
    epsilon: int | str = "2.1ms",
    sums: Literal["auto", "exact", "upper", "own", "unused"] = "auto",
    bounds: Literal["propagation", "lp"] = "propagation",
    cut: int = 10_000,
    likely: bool = True,
    workers: int | None = None,
    cluster: str | None = None,
    advance: Advance = silent,
) -> TomographyResult:
    """Estimate the delay of every packet at every hop from the trace of a collection network's sink.

    `packet` (``ORIGIN:SEQ``) keeps the rows of one packet. `truth`, a file of every hop's times, has the facts tell how
    far the answers are off, and with `baselines` how far others' are. A window of so many generation periods is solved
    as a whole, and the share `ratio` of it kept. `omega` is the least delay of a hop (learnt by default), `epsilon` the
    longest time from a packet's time stamp to its entering the queue. With `likely`, 95 % intervals are found too.
    """
    if baselines and truth is None:
        raise UsageError("--baselines compares answers with a truth", action="give it with --truth HOPS")
    options = ConstraintOptions(
        omega_ns=None if omega is None else parse_duration(omega, where="--omega"),
        epsilon_ns=parse_duration(epsilon, where="--epsilon"),
        sums=Sums.UNUSED if method == "mnt" else Sums(sums),
    )
    windows = WindowOptions(periods=window, ratio=ratio)
    with open_executor(workers, cluster) as executor:
        advance("reading", 0.0)
        read = trace if isinstance(trace, CollectionTrace) else read_trace(Path(trace))
        true_ns = None if truth is None else read_truth(Path(truth), read)
        found = _packets_called(read, packet) if packet else []
        chosen = found[0] if found else None
        solver = _Solver(read, options, windows, method, executor, advance)
        result = solver.solve(bounds == "lp", cut, chosen)
        if likely and method == "domo":
            begin = perf_counter()
            around = intervals(result.trace, result.bounds, result.arrival_ns, advance=advance)
            taken_ms = (perf_counter() - begin) * 1e3
            result.facts["ms_per_interval"] = taken_ms / max(result.facts["unknowns"], 1)
            result = replace(result, likely=around)
        if true_ns is not None:
            result.facts.update(_compared(result, true_ns, options))
            if baselines:
                asked = replace(options, sums=Sums(sums))
                result.facts.update(
                    evaluate_baselines(read, true_ns, asked, windows, executor=executor, advance=advance)
                )
    source = "" if isinstance(trace, CollectionTrace) else shown_name(trace)
    return replace(result, packet=chosen, warnings=tuple(_warnings(result, packet, found)), source=source)


def _packets_called(trace: CollectionTrace, name: str) -> list[int]:
    origin, _colon, sequence = name.partition(":")
    if not (origin.isdecimal() and sequence.isdecimal() and len(name) < 40):
        raise UsageError(f"{name!r} is no packet", action="write ORIGIN:SEQ, such as 17:3")
    found = np.flatnonzero((trace.origin == int(origin)) & (trace.shown_sequence == int(sequence)))
    if not len(found):
        raise UsageError(f"the trace has no packet {name}", action="name one that reached the sink")
    places: list[int] = found.tolist()
    return places


@dataclass(frozen=True)
class _Solver:
    """What was asked for, and what works on it."""

    trace: CollectionTrace
    options: ConstraintOptions
    windows: WindowOptions
    method: Method
    executor: Executor
    advance: Advance

    def solve(self, linear: bool, cut: int, packet: int | None) -> TomographyResult:
        """Bounds, arrival times, and what the run took."""
        trace = self.trace
        loading = _load()
        begin = perf_counter()
        bounds, bounding = self._bound(linear, cut, packet)
        bounded = perf_counter()
        arrival, unsolved = self._arrivals(bounds)
        end = perf_counter()
        unknown = unknown_visits(trace)
        width = (bounds.most_ns - bounds.least_ns)[unknown]
        used = "upper bounds" if self.options.sums is not Sums.UNUSED else "unused"
        facts = {
            "method": self.method,
            "packets": len(trace),
            "unknowns": len(unknown),
            "bound_width_ms": float(width.mean() / 1e6) if len(unknown) else 0.0,
            "sums": "equations" if bounds.is_exact else used,
            "omega_ms": float(bounds.omega_ns.max() / 1e6),
            "missing": trace.gaps,
            "looping": int(trace.is_looping.sum()),
            "conflicts": bounds.conflict_count,
            "unsolved": unsolved,
            "workers": self.executor.used,
            "loading_seconds": loading,
            "seconds": end - begin,
            "ms_per_delay": (end - bounded) * 1e3 / max(len(unknown), 1),
            **bounding,
        }
        return TomographyResult(trace, bounds, arrival, None, facts)

    def _bound(self, linear: bool, cut: int, packet: int | None) -> tuple[Bounds, dict[str, object]]:
        """The bounds, and what they took: for each delay bounded, of one packet only where linear programs were."""
        trace = self.trace
        begin = perf_counter()
        bounds = (published_bounds if self.method == "published" else bound)(trace, self.options)
        unknown = unknown_visits(trace)
        took: dict[str, object] = {"bounds": "lp" if linear else "propagation"}
        if linear:
            from sojourn.tomography.bounds.linear_bounds import bound_linear

            answer = bound_linear(
                trace, bounds, self.options, cut=cut, packet=packet, executor=self.executor, advance=self.advance
            )
            bounds = answer.bounds
            took |= {"lp_solves": answer.solves, "lp_unsolved": answer.unsolved}
            if packet is not None:
                unknown = unknown[trace.owner[unknown] == packet]
        return bounds, {"ms_per_bound": (perf_counter() - begin) * 1e3 / max(len(unknown), 1), **took}

    def _arrivals(self, bounds: Bounds) -> tuple[Int64Array, int]:
        """Arrival times by the method asked for, and how many windows it could not solve."""
        if self.method == "mnt":
            return mnt_arrivals(bounds), 0
        solve = published if self.method == "published" else estimate
        answer = solve(self.trace, bounds, self.options, self.windows, executor=self.executor, advance=self.advance)
        return answer.arrival_ns, answer.solves.get("unsolved", 0)


def _load() -> float:
    """Import what solves and load compiled kernels, by a trace of two packets; how many seconds that took."""
    begin = perf_counter()
    tiny = make_trace([(2, k, [2, 1, 0], k, k + 30_000_000, 20_000_000) for k in range(2)])
    estimate(tiny, bound(tiny))
    return perf_counter() - begin


def _compared(result: TomographyResult, true_ns: Int64Array, options: ConstraintOptions) -> dict[str, object]:
    """How far the answers are from the truth, and how far MNT's are."""
    trace, bounds, arrival = result.trace, result.bounds, result.arrival_ns
    ours = evaluate(trace, bounds, arrival, true_ns)
    baseline = mnt_bounds(trace, options)
    mnt = evaluate(trace, baseline, mnt_arrivals(baseline), true_ns)
    # Of looping packets alone; a truth of -1 leaves the others out.
    only = np.where(np.repeat(trace.is_looping, np.diff(trace.start)), true_ns, -1)
    looping = evaluate(trace, bounds, arrival, only).mae_ms if (only >= 0).any() else None
    likely = result.likely
    share, width_ms = (None, None) if likely is None else judge(trace, bounds, likely, true_ns)
    return {
        "compared": ours.unknowns,
        "mae_ms": ours.mae_ms,
        "looping_mae_ms": looping,
        "share_under_4ms": ours.share_under_4ms,
        "bounds_violated": ours.bounds_violated,
        "mnt_mae_ms": mnt.mae_ms,
        "mnt_width_ms": mnt.bound_width_ms,
        "displacement": ours.displacement,
        "interval_coverage": share,
        "interval_width_ms": width_ms,
    }


def _warnings(result: TomographyResult, packet: str, found: list[int]) -> Iterator[str]:
    """What was left out or does not fit together."""
    ignored, bounds = result.trace.ignored, result.bounds
    if len(found) > 1:
        yield f"{len(found)} packets are called {packet}; the first is shown"
    if rows := sum(ignored.values()) - ignored.get(DAMAGED, 0):
        yield f"{plural(rows, 'row')} ignored (-v shows why)"
    if DAMAGED in ignored:
        yield "the trace is damaged; it was read up to there"
    if bounds.conflict_count:
        what = plural(bounds.conflict_count, "constraint contradicts", "constraints contradict")
        yield f"{what} the rest and {'was' if bounds.conflict_count == 1 else 'were'} left out (-v shows which packets)"
    if bounds.pairs_left_out:
        yield f"the order at {plural(bounds.pairs_left_out, 'crowded visit')} is not used"
