"""One point's packets in many captures, recorded by as many workers and merged into one recording.

Guarantee: what is merged is what recording all captures one after the other into the same sketches gives, as sketches
are linear; counters get wider where a sum needs it. Which capture is recorded by whom makes no difference. All captures
are recorded under one plan; a capture that cannot be read is an error that names it.

Without an interval there is one epoch of all; with one, an epoch for each stretch of time, whichever captures it lies
in. Cost: the epochs of a capture travel as bytes; one merged epoch for each interval is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO

from sojourn.core.errors import InputError
from sojourn.core.executors.executor import Executor
from sojourn.core.processors import at_most
from sojourn.core.results import Advance, silent
from sojourn.core.units import format_bytes, plural
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import merged_epoch
from sojourn.epochs.wire import decode, encode
from sojourn.segments.record import ns_of, record


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """The epochs of one capture as bytes, how many packets it had, and what is doubtful."""

    epochs: tuple[bytes, ...]
    summary: str
    warnings: tuple[str, ...]


def _record(options: Mapping[str, Any], has_others: bool, path: str) -> _Recorded:
    with at_most(1) if has_others else nullcontext():
        recording = record(path, **options)
        epochs = tuple(encode(epoch) for epoch in recording)
    warnings = tuple(f"{path}: {text}" for text in recording.warnings)
    return _Recorded(epochs=epochs, summary=recording.summary, warnings=warnings)


@dataclass(frozen=True, kw_only=True)
class MergedRecording:
    """The epochs of all captures, oldest first, and what is doubtful of any of them."""

    epochs: tuple[Epoch, ...]
    captures: int
    warnings: tuple[str, ...]

    def write(self, open_file: Callable[[], AbstractContextManager[BinaryIO]]) -> int:
        """Write all epochs; how many bytes they are."""
        with open_file() as file:
            return sum(file.write(encode(epoch)) for epoch in self.epochs)

    def summary(self, size_bytes: int) -> str:
        """What was recorded in a line."""
        packets = plural(sum(epoch.sketch.recorded for epoch in self.epochs), "packet")
        of = f"{plural(self.captures, 'capture')} in {plural(len(self.epochs), 'epoch')}"
        return f"{packets} of {of}, {format_bytes(size_bytes)}"


def record_merged(
    executor: Executor,
    captures: Sequence[str],
    *,
    node: str,
    is_cluster: bool,
    advance: Advance = silent,
    **options: Any,
) -> MergedRecording:
    """Record all captures of one point under one plan, given by the options of `record`, and merge the epochs."""
    interval_ns = ns_of(options.get("interval"), "--interval")
    has_others = is_cluster or (executor.workers > 1 and len(captures) > 1)
    work = partial(_record, {**options, "node": node}, has_others)
    merged: dict[int, Epoch] = {}
    warnings: list[str] = []
    for number, recorded in enumerate(executor.map(work, captures), start=1):
        advance(Path(captures[number - 1]).name, number / len(captures))
        warnings += recorded.warnings
        _merge(merged, map(decode, recorded.epochs), interval_ns)
    if not merged:
        raise InputError(
            "no packet was recorded", where=", ".join(captures[:3]), action="check the captures and the filter"
        )
    in_order = sorted(merged.values(), key=lambda epoch: (epoch.first_ns is None, epoch.first_ns))
    epochs = tuple(replace(epoch, sequence=number) for number, epoch in enumerate(in_order))
    return MergedRecording(epochs=epochs, captures=len(captures), warnings=tuple(dict.fromkeys(warnings)))


def _merge(merged: dict[int, Epoch], epochs: Iterable[Epoch], interval_ns: int) -> None:
    """Add epochs to those of their stretch of time."""
    slots: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        slots.setdefault((epoch.first_ns or 0) // interval_ns if interval_ns else 0, []).append(epoch)
    for slot, some in slots.items():
        known = [merged[slot]] if slot in merged else []
        merged[slot] = reduce(merged_epoch, [*known, *some])
