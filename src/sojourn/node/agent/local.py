"""The node's own query engine: the epochs that wait in its spool, asked without a query unit.

The function that answers is the query unit's, so the same epochs give the same answer. Epochs that were acknowledged
have left the spool: they are the query unit's to answer for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sojourn.core.errors import UsageError, WireError
from sojourn.core.keys import key_id, parse_key
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode
from sojourn.estimation.buckets.queries import (
    FOREVER_NS,
    RangeAnswer,
    RangeQuery,
    Stat,
    answer_fields,
    answer_instances,
    answer_largest,
    answer_total,
)
from sojourn.node.spool.earlier import earlier_files
from sojourn.node.spool.file import FILE_NAME, reading
from sojourn.sources.registry import source_type

__all__ = ["ask_spool", "spooled_epochs"]

FIELDS = (
    "value", "low", "high", "unit", "samples", "method", "epochs", "live", "covered", "stat", "instance", "reason",
    "notes",
)  # fmt: skip


def spooled_epochs(directory: Path) -> list[Epoch]:
    """All epochs in a spool, and those that were open at their last checkpoint; reads only, also while an agent writes.

    Damaged ones are left out: the agent is who sets them aside, and reports it.
    """
    if not directory.is_dir():
        raise UsageError("there is no spool", where=str(directory), action="give the agent's --spool directory")
    epochs: dict[tuple[str, int], Epoch] = {}
    for epoch in _readable_epochs(directory):
        epochs.setdefault((epoch.stream, epoch.sequence), epoch)
    return list(epochs.values())


def _readable_epochs(directory: Path) -> Iterator[Epoch]:
    for data in _spooled_bytes(directory):
        with suppress(WireError, TypeError):
            yield decode(data)


def _spooled_bytes(directory: Path) -> Iterator[bytes]:
    path = directory / FILE_NAME
    if path.exists():
        with reading(path) as connection:
            for (data,) in connection.execute("SELECT data FROM entries ORDER BY stream, sequence"):
                yield data
    for file in earlier_files(directory):
        if file.entry is not None:
            yield file.entry.data


def ask_spool(directory: Path, stream: str | None, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers to a question about a stream (the only one, if none is named), in the query unit's form."""
    metric = source_type(str(question["metric"])).metric
    name, top = question.get("instance"), question.get("top")
    if question.get("tag") or (top and name is not None):
        raise UsageError(
            "a spool is asked about one instance, the largest, or the whole", where="--spool", action="leave one out"
        )
    epochs = spooled_epochs(directory)
    streams = sorted({epoch.stream for epoch in epochs})
    if stream is not None and stream not in streams:
        spooled = ", ".join(streams) or "nothing"
        raise UsageError(f"the spool holds no stream {stream[:40]!r}", where="--stream", action=f"it holds {spooled}")
    if stream is None and len(streams) > 1:
        raise UsageError(f"the spool holds {', '.join(streams)}", where="--spool", action="name one with --stream")
    epochs = [epoch for epoch in epochs if stream in (None, epoch.stream)]
    until = question["to_ns"]
    stat: Stat = question["stat"] or ("mean" if metric.values == "samples" else "sum")
    asked = RangeQuery(
        from_ns=question["from_ns"],
        to_ns=FOREVER_NS if until is None else until,
        stat=stat,
        method=question["method"],
        cut=question["cut"],
    )
    found: list[tuple[str | None, RangeAnswer]]
    if top:
        found = [*answer_largest(epochs, top, asked, unit=metric.unit)]
    elif name is None:
        found = [(None, answer_total(epochs, asked, unit=metric.unit))]
    else:
        found = [(name, answer_instances(epochs, [key_id(parse_key(name))], asked, unit=metric.unit)[0])]
    rest: dict[str, Any] = {"unit": metric.unit, "stat": stat, "live": False, "notes": []}
    answers = [{**answer_fields(answer), **rest, "instance": instance} for instance, answer in found]
    return [{field: answer[field] for field in FIELDS} for answer in answers]
