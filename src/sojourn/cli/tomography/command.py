"""`sojourn tomography`: where, hop by hop, each packet of a collection network waited."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.options import FormatOption, VerboseOption, WriteOption
from sojourn.cli.output import Advance, Format, choose_format, progress, write_rows
from sojourn.cli.tomography.intervals import compare_intervals, find_intervals
from sojourn.cli.tomography.output import hop_blocks, node_blocks, node_columns, packet_columns, print_summary
from sojourn.core.errors import UsageError
from sojourn.core.units import parse_duration

if TYPE_CHECKING:
    from sojourn.core.arrays import Int64Array
    from sojourn.core.executors.executor import Executor
    from sojourn.tomography.bounds.constraints import Bounds, ConstraintOptions
    from sojourn.tomography.trace import CollectionTrace

__all__ = ["tomography"]

_EXAMPLE = """\
[bold]Example[/bold]

  $ sojourn lab wireless --nodes 100 -w trace.csv --truth hops.csv
  $ sojourn tomography trace.csv
  $ sojourn tomography trace.csv --packet 17:3 --bounds lp
  $ sojourn tomography trace.csv --truth hops.csv --format json | jq .summary
"""


_CONFLICTS_SHOWN = 20


class Method(StrEnum):
    """What the delays are estimated by."""

    DOMO = "domo"
    PUBLISHED = "published"
    MNT = "mnt"


class BoundsChoice(StrEnum):
    """What the bounds are found by."""

    PROPAGATION = "propagation"
    LP = "lp"


class SumsChoice(StrEnum):
    """How the sums of delays are read."""

    AUTO = "auto"
    EXACT = "exact"
    UPPER = "upper"
    OWN = "own"
    UNUSED = "unused"


def tomography(
    trace_file: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="The sink's trace: CSV, JSON lines (also .gz) or Parquet; - is stdin."),
    ],
    packet: Annotated[str | None, typer.Option(metavar="ORIGIN:SEQ", help="Only this packet, hop by hop.")] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="HOPS", help="The truth of every hop: tell how far the answers are off.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="With --truth: tell how far the baselines' answers are off as well.")
    ] = False,
    method: Annotated[
        Method,
        typer.Option(
            help="domo: sums and node centres; published: as in Domo's paper; mnt: the middle of MNT's bounds."
        ),
    ] = Method.DOMO,
    window: Annotated[float, typer.Option(min=0.1, help="Length of a window in generation periods.")] = 4.0,
    ratio: Annotated[float, typer.Option(min=0.05, max=1.0, help="Share of each window that is kept.")] = 0.5,
    omega: Annotated[
        str | None, typer.Option(metavar="TIME", help="Least delay of a hop; learnt from the trace by default.")
    ] = None,
    epsilon: Annotated[
        str, typer.Option(metavar="TIME", help="Longest time from a packet's time stamp to its entering the queue.")
    ] = "2.1ms",
    sums: Annotated[
        SumsChoice,
        typer.Option(
            help="Sums of delays are equations (exact), upper bounds (upper), or bound their own packet (own); "
            "auto: by the trace."
        ),
    ] = SumsChoice.AUTO,
    bounds_by: Annotated[
        BoundsChoice,
        typer.Option("--bounds", help="lp: exact bounds by linear programs; much slower, and seldom much narrower."),
    ] = BoundsChoice.PROPAGATION,
    cut: Annotated[
        int, typer.Option(min=10, metavar="N", help="Unknown times that a linear program looks at, at most.")
    ] = 10_000,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Processes at most; by default one for each processor, 1 is none beside."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on a Dask cluster: its scheduler, tcp://HOST:PORT.")
    ] = None,
    verbose: VerboseOption = False,
    output_format: FormatOption = None,
    output: WriteOption = None,
) -> None:
    """Tell where each packet waited: the delay at every hop, within guaranteed bounds, from the sink's trace alone."""
    from sojourn.core.executors.executor import open_executor
    from sojourn.tomography.baselines.published import evaluate_baselines
    from sojourn.tomography.bounds.constraints import ConstraintOptions, Sums
    from sojourn.tomography.reading.traces import read_trace, read_truth
    from sojourn.tomography.windows import WindowOptions

    if baselines and truth is None:
        raise UsageError("--baselines compares answers with a truth", action="give it with --truth HOPS")
    how = choose_format(output_format, output)
    options = ConstraintOptions(
        omega_ns=None if omega is None else parse_duration(omega),
        epsilon_ns=parse_duration(epsilon),
        sums=Sums.UNUSED if method is Method.MNT else Sums(sums),
    )
    with open_executor(workers, cluster) as executor, progress(trace_file.name) as advance:
        advance("reading", 0.0)
        trace = read_trace(trace_file)
        true_ns = None if truth is None else read_truth(truth, trace)
        chosen = None if packet is None else _find_packet(trace, packet)
        task = _Task(trace, options, method, (window, ratio), bounds_by, cut, chosen)
        bounds, arrival, summary = _solve(task, executor, advance)
        likely = None
        if method is Method.DOMO and (truth is not None or chosen is not None or how is not Format.TABLE):
            likely, finding = find_intervals(trace, bounds, arrival, advance)
            summary |= finding
        if true_ns is not None:
            summary |= _compare(trace, bounds, arrival, true_ns, options)
            summary |= compare_intervals(trace, bounds, likely, true_ns)
            if baselines:
                asked = replace(options, sums=Sums(sums))
                windowed = WindowOptions(periods=window, ratio=ratio)
                summary |= evaluate_baselines(trace, true_ns, asked, windowed, executor=executor, advance=advance)
    _warn(trace, bounds, verbose=verbose)
    if how is Format.TABLE and chosen is None:
        write_rows(node_blocks(trace, arrival), how, path=output, table=node_columns())
        print_summary(summary, trace)
        return
    write_rows(
        hop_blocks(trace, bounds, arrival, likely, chosen),
        how,
        path=output,
        name="hops",
        fields={"summary": summary},
        table=packet_columns(),
    )


@dataclass(frozen=True)
class _Task:
    """What was asked for."""

    trace: CollectionTrace
    options: ConstraintOptions
    method: Method
    window: tuple[float, float]
    bounds_by: BoundsChoice
    cut: int
    packet: int | None


def _solve(task: _Task, executor: Executor, advance: Advance) -> tuple[Bounds, Int64Array, dict[str, object]]:
    """Bounds, arrival times, and what the run took."""
    from sojourn.tomography.baselines.published import PublishedOptions, mnt_arrivals, published
    from sojourn.tomography.bounds.constraints import Sums
    from sojourn.tomography.delays.estimate import EstimateOptions, estimate
    from sojourn.tomography.evaluation import unknown_visits
    from sojourn.tomography.windows import WindowOptions

    trace, options = task.trace, task.options
    loading = _load()
    begin = perf_counter()
    bounds, bounding = _bound(task, executor, advance)
    bounded = perf_counter()
    unsolved = 0
    windowed = WindowOptions(periods=task.window[0], ratio=task.window[1])
    if task.method is Method.MNT:
        arrival = mnt_arrivals(bounds)
    elif task.method is Method.PUBLISHED:
        how_published = PublishedOptions(window=windowed)
        literal = published(trace, bounds, options, how_published, executor=executor, advance=advance)
        arrival, unsolved = literal.arrival_ns, literal.solves.get("unsolved", 0)
    else:
        how = EstimateOptions(
            window=windowed,
            tolerance_ns=options.tolerance_ns,
            epsilon_ns=options.epsilon_ns,
        )
        answer = estimate(trace, bounds, how, executor=executor, advance=advance)
        arrival, unsolved = answer.arrival_ns, answer.solves.get("unsolved", 0)
    end = perf_counter()
    unknown = unknown_visits(trace)
    width = (bounds.most_ns - bounds.least_ns)[unknown]
    return (
        bounds,
        arrival,
        {
            "method": str(task.method),
            "packets": len(trace),
            "unknowns": len(unknown),
            "bound_width_ms": float(width.mean() / 1e6) if len(unknown) else 0.0,
            "sums": "equations" if bounds.is_exact else "upper bounds" if options.sums is not Sums.UNUSED else "unused",
            "omega_ms": float(bounds.omega_ns.max() / 1e6),
            "missing": trace.gaps,
            "looping": int(trace.is_looping.sum()),
            "conflicts": bounds.conflict_count,
            "unsolved": unsolved,
            "workers": executor.used,
            "loading_seconds": loading,
            "seconds": end - begin,
            "ms_per_delay": (end - bounded) * 1e3 / max(len(unknown), 1),
            **bounding,
        },
    )


def _load() -> float:
    """Import what solves and load compiled kernels, by a trace of two packets; how many seconds that took."""
    begin = perf_counter()
    from sojourn.tomography.bounds.constraints import bound
    from sojourn.tomography.delays.estimate import estimate
    from sojourn.tomography.trace import make_trace

    tiny = make_trace([(2, k, [2, 1, 0], k, k + 30_000_000, 20_000_000) for k in range(2)])
    estimate(tiny, bound(tiny))
    return perf_counter() - begin


def _bound(task: _Task, executor: Executor, advance: Advance) -> tuple[Bounds, dict[str, object]]:
    """The bounds, and what they took: for each delay bounded, of one packet only where linear programs were."""
    from sojourn.tomography.baselines.published import published_bounds
    from sojourn.tomography.bounds.constraints import bound
    from sojourn.tomography.evaluation import unknown_visits

    trace = task.trace
    begin = perf_counter()
    bounds = (published_bounds if task.method is Method.PUBLISHED else bound)(trace, task.options)
    unknown = unknown_visits(trace)
    told: dict[str, object] = {"bounds": str(task.bounds_by)}
    if task.bounds_by is BoundsChoice.LP:
        from sojourn.tomography.bounds.linear_bounds import bound_linear

        answer = bound_linear(
            trace, bounds, task.options, cut=task.cut, packet=task.packet, executor=executor, advance=advance
        )
        bounds = answer.bounds
        told |= {"lp_solves": answer.solves, "lp_unsolved": answer.unsolved}
        if task.packet is not None:
            unknown = unknown[trace.owner[unknown] == task.packet]
    return bounds, {"ms_per_bound": (perf_counter() - begin) * 1e3 / max(len(unknown), 1), **told}


def _compare(
    trace: CollectionTrace, bounds: Bounds, arrival: Int64Array, true_ns: Int64Array, options: ConstraintOptions
) -> dict[str, object]:
    """How far the answers are from the truth, and how far MNT's are."""
    import numpy as np

    from sojourn.tomography.baselines.published import mnt_arrivals, mnt_bounds
    from sojourn.tomography.evaluation import evaluate

    ours = evaluate(trace, bounds, arrival, true_ns)
    baseline = mnt_bounds(trace, options)
    mnt = evaluate(trace, baseline, mnt_arrivals(baseline), true_ns)
    # Of looping packets alone; a truth of -1 leaves the others out.
    only = np.where(np.repeat(trace.is_looping, np.diff(trace.start)), true_ns, -1)
    looping = evaluate(trace, bounds, arrival, only).mae_ms if (only >= 0).any() else None
    return {
        "compared": ours.unknowns,
        "mae_ms": ours.mae_ms,
        "looping_mae_ms": looping,
        "share_under_4ms": ours.share_under_4ms,
        "bounds_violated": ours.bounds_violated,
        "mnt_mae_ms": mnt.mae_ms,
        "mnt_width_ms": mnt.bound_width_ms,
        "displacement": ours.displacement,
    }


def _find_packet(trace: CollectionTrace, name: str) -> int:
    import numpy as np

    origin, _colon, sequence = name.partition(":")
    if not (origin.isdecimal() and sequence.isdecimal() and len(name) < 40):
        raise UsageError(f"{name!r} is no packet", action="write ORIGIN:SEQ, such as 17:3")
    found = np.flatnonzero((trace.origin == int(origin)) & (trace.shown_sequence == int(sequence)))
    if not len(found):
        raise UsageError(f"the trace has no packet {name}", action="name one that reached the sink")
    if len(found) > 1:
        print(f"sojourn: warning: {len(found)} packets are called {name}; the first is shown", file=sys.stderr)
    return int(found[0])


def _warn(trace: CollectionTrace, bounds: Bounds, *, verbose: bool) -> None:
    """What was left out or does not fit together, on stderr."""
    from sojourn.tomography.reading.row_files import DAMAGED

    if ignored := sum(trace.ignored.values()) - trace.ignored.get(DAMAGED, 0):
        print(
            f"sojourn: warning: {ignored:,} {'rows' if ignored > 1 else 'row'} ignored (-v tells why)", file=sys.stderr
        )
    if DAMAGED in trace.ignored:
        print("sojourn: warning: the trace is damaged; it was read up to there", file=sys.stderr)
    if bounds.conflict_count:
        print(
            f"sojourn: warning: {bounds.conflict_count:,} constraints contradict the rest and were left out "
            "(-v tells which packets)",
            file=sys.stderr,
        )
    if bounds.pairs_left_out:
        print(f"sojourn: warning: the order at {bounds.pairs_left_out:,} crowded visits is not used", file=sys.stderr)
    if not verbose:
        return
    for reason, count in trace.ignored.items():
        print(f"ignored: {count:,} × {reason}", file=sys.stderr)
    for reason, count in trace.notes.items():
        print(f"note: {count:,} × {reason}", file=sys.stderr)
    for conflict in bounds.conflicts[:_CONFLICTS_SHOWN]:
        names = sorted({f"{trace.origin[p]}:{trace.shown_sequence[p]}" for p in (conflict.packet, conflict.other)})
        print(f"conflict: {conflict.kind} of packet {' and '.join(names)}", file=sys.stderr)
    if bounds.conflict_count > _CONFLICTS_SHOWN:
        print(f"conflict: {bounds.conflict_count - _CONFLICTS_SHOWN:,} more", file=sys.stderr)


tomography.__doc__ = f"{tomography.__doc__}\n\n\b\n{_EXAMPLE}"
