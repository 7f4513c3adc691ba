"""The query engine: finds a question's streams, asks nodes for current epochs, and has a worker answer it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import UsageError
from sojourn.estimation.buckets.queries import FOREVER_NS, RangeQuery, Stat
from sojourn.estimation.buckets.questions import Found, Question
from sojourn.server.door.limits import Limits
from sojourn.server.models import Query
from sojourn.server.queries.answering import Work, answer_question
from sojourn.server.queries.live import LiveDesk, LiveReply, epochs_of
from sojourn.server.queries.workers import QueryWorkers
from sojourn.sources.registry import values_of
from sojourn.store.epochs import EpochStore, StreamRecord

LOOK_SECONDS = 0.5
CLIENT_GONE = 499  # nobody reads it; counters do

Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, which is cancelled if the caller goes."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
            if await request.is_disconnected():
                raise HTTPException(CLIENT_GONE, "the caller has gone")
            if request.app.state.ending:
                raise HTTPException(503, "the query unit ends; ask again", {"Retry-After": "5"})
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class QueryEngine:
    """Answers questions from the store and the nodes."""

    def __init__(
        self,
        store: EpochStore,
        desk: LiveDesk,
        workers: QueryWorkers,
        limits: Limits,
        *,
        among: Collection[str] | None = None,
    ) -> None:
        """All nodes may be asked about, or those `among` which are the asker's."""
        self._store, self._desk, self._workers, self._limits = store, desk, workers, limits
        self._among = among

    async def answer(self, query: Query) -> tuple[Stat, list[Found]]:
        """The statistic asked for or fit for the metric; one answer, or one for each instance or group."""
        until = FOREVER_NS if query.to_ns is None else query.to_ns
        span = {"from_ns": query.from_ns, "to_ns": until}
        what = RangeQuery(**span, stat=query.stat or "sum", method=query.method, cut=query.cut)
        asked = Question(range=what, instance=query.instance, group=query.group, top=query.top)
        streams = await run_in_threadpool(self._streams, query)
        if len({stream.unit for stream in streams}) > 1:
            raise UsageError("the nodes measure it in different units", where="query", action="ask node by node")
        stat = query.stat if query.stat is not None else await run_in_threadpool(_usual_stat, streams)
        question = replace(asked, range=replace(asked.range, stat=stat))
        # Nodes first: what they have sent by then is stored, so that nothing can be missed in between.
        asked_of = [(stream.node, stream.name) for stream in streams] if query.live else []
        replies = await self._desk.ask_all(asked_of, query.from_ns, until, self._limits.live_seconds)
        work = Work(
            question=question,
            streams=tuple(streams),
            current=epochs_of(replies),
            silent=frozenset(stream.node for stream in streams if stream.node not in replies),
            until_ns=time.time_ns(),
            most_bytes=self._limits.query_decoded_bytes,
        )
        found = await self._workers.call(answer_question, self._store.engine.url, work)
        notes = _missing(streams, replies) if query.live else ()
        return stat, [replace(answer, notes=(*notes, *answer.notes)) for answer in found]

    def _streams(self, query: Query) -> list[StreamRecord]:
        """The streams of the nodes asked, each of which has one, or of those tagged that do."""
        nodes = [query.node] if isinstance(query.node, str) else query.node or []
        if bool(nodes) == (query.tag is not None):
            raise UsageError("a question is about nodes or one tag", where="query", action="give node or tag")
        wanted = set(nodes) or {node.name for node in self._store.nodes(tag=query.tag)}
        if self._among is not None:
            wanted &= set(self._among)
        of_metric = self._store.streams(node=nodes[0] if len(nodes) == 1 else None, metric=query.metric)
        streams = [stream for stream in of_metric if stream.node in wanted]
        lacking = [node for node in nodes if all(stream.node != node for stream in streams)]
        if lacking or not streams:
            whose = f"node {', '.join(lacking)}" if lacking else f"any node tagged {query.tag}"
            raise UsageError(f"{whose} has no stream of {query.metric}", where="query", action="see sojourn nodes")
        if len(streams) > (most := self._limits.query_streams):
            raise UsageError(f"{len(streams)} streams, the limit is {most}", where="query", action="ask fewer nodes")
        return streams


def _usual_stat(streams: list[StreamRecord]) -> Stat:
    """The statistic that a metric's values make sense of."""
    kinds = {stream.values or values_of(stream.metric) for stream in streams}
    return "mean" if kinds == {"samples"} else "sum"


def _missing(streams: list[StreamRecord], replies: dict[str, LiveReply]) -> tuple[str, ...]:
    """Remarks on what nodes did not tell of their current epochs."""
    nodes = sorted({stream.node for stream in streams})
    silent = [node for node in nodes if node not in replies]
    partly = [node for node in nodes if node in replies and not replies[node].is_whole]
    notes = [f"{', '.join(silent)} did not answer: what is recorded there now is not part of it"] if silent else []
    if partly:
        notes.append(f"{', '.join(partly)}: not all that waits to be sent is part of it; see the times that it covers")
    return tuple(notes)
