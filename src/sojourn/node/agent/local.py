"""The node's own query engine: the epochs that wait in its spool, asked without a query unit.

The function that answers is the query unit's, so the same epochs give the same answer. Epochs that were acknowledged
have left the spool: they are the query unit's to answer for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.core.errors import UsageError, WireError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode
from sojourn.estimation.buckets.queries import FOREVER_NS, RangeQuery, Stat
from sojourn.estimation.buckets.questions import Question, answer_streams
from sojourn.node.spool.earlier import earlier_files
from sojourn.node.spool.file import FILE_NAME, reading
from sojourn.sources.registry import source_type


@dataclass(frozen=True)
class Spooled:
    """The epochs of a stream that wait in a spool."""

    epochs: list[Epoch]
    node: str
    unit: str
    live: bool = False

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.epochs)


def spooled_epochs(directory: Path) -> list[Epoch]:
    """All epochs in a spool, and those that were open at their last checkpoint; reads only, also while an agent writes.

    Damaged ones are left out: the agent is who sets them aside, and reports it.
    """
    if not directory.is_dir():
        raise UsageError("there is no spool", where=str(directory), action="give the agent's --spool directory")
    epochs: dict[tuple[str, int], Epoch] = {}
    for data in _spooled_bytes(directory):
        with suppress(WireError, TypeError):
            epoch = decode(data)
            epochs.setdefault((epoch.stream, epoch.sequence), epoch)
    return list(epochs.values())


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
    if question.get("tag"):
        raise UsageError("a spool is that of one node", where="--spool", action="leave the tag out")
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
    what = Question(range=asked, **{name: question[name] for name in ("instance", "group", "top") if name in question})
    waiting = Spooled(epochs, epochs[0].node if epochs else "", metric.unit)
    return [found.fields(stat) for found in answer_streams([waiting], what)]
