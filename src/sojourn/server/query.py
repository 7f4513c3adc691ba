"""The query engine: finds a question's streams and epochs, asks nodes for current ones, puts answers together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from difflib import get_close_matches

from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import UsageError
from sojourn.core.estimates import Answer, Reason, Unanswered
from sojourn.core.keys import key_id, parse_key
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.store import EpochStore, StreamRecord
from sojourn.estimation.queries import (
    RangeAnswer,
    RangeQuery,
    answer_instances,
    answer_largest,
    answer_total,
    combined,
    listed_instances,
)
from sojourn.server.live import LiveDesk, LiveReply

__all__ = ["Found", "QueryEngine", "Question"]

MOST_ALIKE, MOST_COMPARED = 5, 5_000


@dataclass(frozen=True, kw_only=True)
class Question:
    """Whose metric, and the range asked about."""

    metric: str
    node: str | None
    tag: str | None
    instance: str | None
    range: RangeQuery
    live: bool
    top: int = 0

    def __post_init__(self) -> None:
        if (self.node is None) == (self.tag is None):
            raise UsageError("a question is about one node or one tag", where="query", action="give node or tag")
        if self.range.from_ns > self.range.to_ns:
            raise UsageError("the range ends before it begins", where="query", action="give from ≤ to")
        if self.top and self.instance is not None:
            raise UsageError("the largest instances or one, not both", where="query", action="leave one out")


@dataclass(frozen=True)
class Found:
    """One answer, whose it is, whether current epochs are in it, and remarks."""

    instance: str | None
    range: RangeAnswer
    unit: str
    live: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _StreamEpochs:
    stream: StreamRecord
    epochs: list[Epoch]
    live: bool


class QueryEngine:
    """Answers questions from the store and the nodes."""

    def __init__(self, store: EpochStore, desk: LiveDesk, *, live_seconds: float) -> None:
        self._store, self._desk, self._live_seconds = store, desk, live_seconds

    async def answer(self, question: Question) -> list[Found]:
        """One answer, or one for each of the largest instances."""
        streams = await run_in_threadpool(self._streams, question)
        if not streams:
            whose = f"node {question.node}" if question.node else f"any node tagged {question.tag}"
            raise UsageError(f"{whose} has no stream of {question.metric}", where="query", action="see sojourn nodes")
        if len({stream.unit for stream in streams}) > 1:
            raise UsageError("the nodes measure it in different units", where="query", action="ask node by node")
        # Nodes first: what they have sent by then is stored, so that nothing can be missed in between.
        replies = await self._ask_nodes(streams, question.range) if question.live else {}
        until_ns = time.time_ns()
        held = await run_in_threadpool(lambda: [self._held(s, replies, question.range, until_ns) for s in streams])
        found = await run_in_threadpool(_answers, held, question)
        notes = _missing(streams, replies) if question.live else ()
        return [replace(answer, notes=(*notes, *answer.notes)) for answer in found]

    def _streams(self, question: Question) -> list[StreamRecord]:
        if question.node is not None:
            return self._store.streams(node=question.node, metric=question.metric)
        tagged = {node.name for node in self._store.nodes(tag=question.tag)}
        return [stream for stream in self._store.streams(metric=question.metric) if stream.node in tagged]

    async def _ask_nodes(self, streams: list[StreamRecord], asked: RangeQuery) -> dict[str, LiveReply]:
        """What the nodes hold that has not been stored; those that do not answer are left out."""
        by_node: dict[str, tuple[str, ...]] = {}
        for stream in streams:
            by_node[stream.node] = (*by_node.get(stream.node, ()), stream.name)
        reachable = {node: names for node, names in by_node.items() if self._desk.is_listening(node)}
        replies = await asyncio.gather(
            *(
                self._desk.ask(node, names, asked.from_ns, asked.to_ns, self._live_seconds)
                for node, names in reachable.items()
            )
        )
        return {node: reply for node, reply in zip(reachable, replies, strict=True) if reply is not None}

    def _held(
        self, stream: StreamRecord, replies: dict[str, LiveReply], asked: RangeQuery, until_ns: int
    ) -> _StreamEpochs:
        """A stream's epochs in the range, stored ones and current ones; what is in both counts once."""
        stored = self._store.epochs(stream.node, stream.name, asked.from_ns, asked.to_ns)
        if stream.node not in replies:
            return _StreamEpochs(stream, stored, live=False)
        known = {epoch.sequence for epoch in stored}
        current = [
            epoch
            for epoch in replies[stream.node].epochs
            if epoch.stream == stream.name
            and epoch.sequence not in known
            and epoch.overlaps(asked.from_ns, asked.to_ns)
        ]
        return _StreamEpochs(stream, [*stored, *current], live=bool(current) or asked.to_ns >= until_ns)


def _missing(streams: list[StreamRecord], replies: dict[str, LiveReply]) -> tuple[str, ...]:
    """Remarks on what nodes did not tell of their current epochs."""
    nodes = sorted({stream.node for stream in streams})
    silent = [node for node in nodes if node not in replies]
    partly = [node for node in nodes if node in replies and not replies[node].is_whole]
    notes = [f"{', '.join(silent)}: no word about the current epoch"] if silent else []
    if partly:
        notes.append(f"{', '.join(partly)}: not all that waits to be sent is part of it; see the times that it covers")
    return tuple(notes)


def _answers(held: list[_StreamEpochs], question: Question) -> list[Found]:
    if question.top:
        return _largest(held, question)
    unit = held[0].stream.unit
    if question.instance is None:
        parts = [answer_total(item.epochs, question.range, unit=unit) for item in held]
    else:
        instance = [key_id(parse_key(question.instance))]
        # As published an instance is taken for itself: all nodes' buckets are of one kind. Joint decoding knows a node.
        together = [[epoch for item in held for epoch in item.epochs]]
        groups = together if question.range.method == "literal" else [item.epochs for item in held]
        parts = [answer_instances(epochs, instance, question.range, unit=unit)[0] for epochs in groups]
    live = any(item.live for item in held)
    answer = _together(parts, question)
    notes = (*_needs_keys(held, question), *_alike(held, question, answer))
    return [Found(question.instance, answer, unit, live, notes)]


def _needs_keys(held: list[_StreamEpochs], question: Question) -> tuple[str, ...]:
    """A remark where joint decoding was asked for and could not be done."""
    if question.instance is None or question.range.method == "literal":
        return ()
    if all(listed_instances(item.epochs) is not None for item in held):
        return ()
    return ("joint decoding needs the epochs' lists of keys, some have none: answered literally",)


def _alike(held: list[_StreamEpochs], question: Question, found: RangeAnswer) -> tuple[str, ...]:
    """Names that an unknown one may stand for."""
    if question.instance is None or found.answer != Unanswered(Reason.UNKNOWN_INSTANCE):
        return ()
    names = {name for item in held for name in (listed_instances(item.epochs) or {}).values()}
    begun = [name for name in sorted(names) if name.startswith(f"{question.instance}[")]
    close = begun or get_close_matches(question.instance, sorted(names)[:MOST_COMPARED], MOST_ALIKE)
    return (f"seen in the range: {', '.join(close[:MOST_ALIKE])}",) if close else ()


def _together(parts: list[RangeAnswer], question: Question) -> RangeAnswer:
    """Answers of several nodes as one; nodes without epochs in the range add nothing."""
    known = [part for part in parts if part.epochs]
    if not known:
        return parts[0]
    answers: list[Answer] = [
        part.answer for part in known if part.answer != Unanswered(Reason.UNKNOWN_INSTANCE) or len(known) == 1
    ]
    answer = combined(answers, question.range.stat) if answers else known[0].answer
    spans = sorted({span for part in known for span in part.covered})
    return RangeAnswer(answer, sum(part.epochs for part in known), tuple(spans))


def _largest(held: list[_StreamEpochs], question: Question) -> list[Found]:
    """The instances with the largest values, of all streams together."""
    found = [
        Found(name, answer, item.stream.unit, item.live)
        for item in held
        for name, answer in answer_largest(item.epochs, question.top, question.range, unit=item.stream.unit)
    ]
    found.sort(key=lambda one: -one.range.answer.value)  # type: ignore[union-attr] # the largest have values
    return found[: question.top]
