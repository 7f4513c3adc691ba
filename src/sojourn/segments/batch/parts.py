"""Many pairs of captures, or of files of epochs: each pair is measured by a worker of its own, and all are added up.

Guarantee: a part's answer is what `measure`, or `estimate`, says of that pair alone, whatever works on it: here, in
processes beside this one, or on a cluster. A pair that cannot be measured is a part with an error, and keeps no other
from being measured. Packets are matched within a pair: those on their way where one capture ends and the next begins
are left out by both.

A worker takes one processor: files are read ahead by threads only where there is no other worker.
Cost: what travels of a part is its totals and, if they are asked for, its flows.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.executors.executor import Executor
from sojourn.core.processors import at_most
from sojourn.core.results import Advance, Columns, Result, silent
from sojourn.core.units import format_duration, plural
from sojourn.segments.result import SegmentResult

MOST_PARTS = 100_000
_TOTALS = (
    "sent",
    "received",
    "lost",
    "mean_ns",
    "std_ns",
    "low_ns",
    "high_ns",
    "p50_ns",
    "p99_ns",
    "samples",
    "method",
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Where the packets of a part were seen: two captures, or two files of epochs."""

    sender: str
    receiver: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """What was found of a pair, or why nothing was; flows, where they were asked for."""

    pair: Pair
    totals: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    flows: Columns | None = None
    error: str | None = None


Measuring = Callable[[str, str], SegmentResult]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """What a worker does with a pair."""

    measure: Measuring
    with_flows: bool
    has_others: bool

    def __call__(self, pair: Pair) -> Part:
        try:
            with at_most(1) if self.has_others else nullcontext():
                result = self.measure(pair.sender, pair.receiver)
            flows = dict(result.columns()) if self.with_flows else None
        except SojournError as error:
            return Part(pair=pair, error=str(error))
        except OSError as error:
            where = error.filename or f"{pair.sender}, {pair.receiver}"
            return Part(pair=pair, error=f"{where}: {error.strerror or error}")
        totals = {name: result.aggregate[name] for name in _TOTALS if name in result.aggregate}
        return Part(pair=pair, totals=totals, warnings=tuple(result.warnings), flows=flows)


def measured_parts(
    executor: Executor,
    pairs: Sequence[Pair],
    measure: Measuring,
    *,
    is_cluster: bool,
    with_flows: bool = False,
    advance: Advance = silent,
) -> Iterator[Part]:
    """The parts of all pairs in order, each as soon as it is there; `measure` travels to the workers."""
    has_others = is_cluster or (executor.workers > 1 and len(pairs) > 1)
    work = _Piece(measure=measure, with_flows=with_flows, has_others=has_others)
    advance(plural(len(pairs), "part"), 0.0)
    for number, part in enumerate(executor.map(work, pairs), start=1):
        advance(Path(part.pair.sender).name, number / len(pairs))
        yield part


def captures_measure(options: Mapping[str, Any]) -> Measuring:
    """How two captures are measured under these options of `measure_files`."""
    from sojourn.segments.measure import measure_files

    return partial(measure_files, **options)


def epochs_measure(options: Mapping[str, Any]) -> Measuring:
    """How two files of epochs are answered under these options of `estimate`."""
    from sojourn.segments.measure import estimate

    return partial(estimate, **options)


def pairs_of(senders: str, receivers: str) -> list[Pair]:
    """The files of two directories, or that fit two patterns, in order of their names."""
    first, second = (_files(place, where) for place, where in ((senders, "SENDERS"), (receivers, "RECEIVERS")))
    if len(first) != len(second):
        what = f"{plural(len(first), 'file')} of the sender, {len(second)} of the receiver"
        action = "give as many of both: they are paired in order of their names"
        raise UsageError(what, where=f"{senders}, {receivers}", action=action)
    return [Pair(sender=one, receiver=other) for one, other in zip(first, second, strict=True)]


def _files(place: str, where: str) -> list[str]:
    if os.path.isdir(place):
        found = [entry.path for entry in os.scandir(place) if entry.is_file() and not entry.name.startswith(".")]
    else:
        found = [path for path in glob.glob(place) if os.path.isfile(path)]
    if not found:
        raise UsageError(
            "there is no such file", where=place, action=f"{where}: give a directory, or a pattern in quotes"
        )
    if len(found) > MOST_PARTS:
        raise UsageError(f"{len(found):,} files exceed {MOST_PARTS:,}", where=place, action="take them in turns")
    return sorted(found)


@dataclass(frozen=True, repr=False)
class BatchResult(Result):
    """What parts add up to, and each part: a row with its totals, or its error."""

    parts: Sequence[Part]

    rows_name: ClassVar[str] = "parts"

    def columns(self) -> Columns:
        rows: dict[str, list[Any]] = {
            "part": list(range(1, len(self.parts) + 1)),
            "sender": [part.pair.sender for part in self.parts],
            "receiver": [part.pair.receiver for part in self.parts],
        }
        for name in _TOTALS:
            rows[name] = [part.totals.get(name) for part in self.parts]
        return {**rows, "error": [part.error for part in self.parts]}

    @property
    def failed(self) -> list[Part]:
        """The parts that could not be measured."""
        return [part for part in self.parts if part.error is not None]

    @property
    def aggregate(self) -> dict[str, Any]:
        """All packets of all parts; losses are known if those of all parts are, bounds are as wide as theirs are."""
        known = [part.totals for part in self.parts if part.error is None]
        timed = [(totals, totals["received"]) for totals in known if totals["mean_ns"] is not None]
        packets = sum(count for _, count in timed)
        lost = [totals["lost"] for totals in known]
        found: dict[str, Any] = {
            "parts": len(known),
            "failed": len(self.failed),
            "sent": sum(totals["sent"] for totals in known),
            "received": sum(totals["received"] for totals in known),
            "lost": None if None in lost else sum(lost),
            **dict.fromkeys(("mean_ns", "std_ns", "low_ns", "high_ns")),
            "samples": sum(totals["samples"] for totals in known),
        }
        if not packets:
            return found

        def average(name: str) -> int | None:
            if any(totals[name] is None for totals, _ in timed):
                return None
            mean: float = sum(totals[name] * count for totals, count in timed) / packets
            return round(mean)

        found |= {name: average(name) for name in ("mean_ns", "low_ns", "high_ns")}
        if all(totals["std_ns"] is not None for totals, _ in timed):
            middle = sum(totals["mean_ns"] * count for totals, count in timed) / packets
            moment = sum(count * (totals["std_ns"] ** 2 + (totals["mean_ns"] - middle) ** 2) for totals, count in timed)
            found["std_ns"] = round(math.sqrt(moment / packets))
        return found

    def fields(self) -> dict[str, object]:
        return {"aggregate": self.aggregate}

    @property
    def summary(self) -> str:
        a = self.aggregate
        lost = "lost unknown" if a["lost"] is None else f"{a['lost']:,} lost"
        failed = f", {a['failed']:,} failed" if a["failed"] else ""
        lines = [
            f"{plural(a['parts'], 'part')}{failed}",
            f"{plural(a['sent'], 'packet')} sent, {a['received']:,} received, {lost}",
        ]
        if a["mean_ns"] is not None:
            deviation = "" if a["std_ns"] is None else f", standard deviation {format_duration(a['std_ns'])}"
            lines.append(f"mean delay {format_duration(a['mean_ns'])}{deviation}")
        return "\n".join(lines)


def flow_blocks(parts: Iterator[Part], kept: list[Part]) -> Iterator[Columns]:
    """The flows of parts as they come, each row with its part; the parts themselves, without flows, are put aside."""
    for part in parts:
        kept.append(Part(pair=part.pair, totals=part.totals, warnings=part.warnings, error=part.error))
        if part.flows:
            rows = len(next(iter(part.flows.values())))
            if rows:
                yield {"part": [len(kept)] * rows, **part.flows}
