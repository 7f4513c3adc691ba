"""Readings of the whole fleet for other systems: computed by query workers, and kept for those who ask at once.

Guarantee: one computation at a time, however many ask; an answer is at most `KEPT_SECONDS` old. One that takes longer
than its asker waits goes on, and is there for the next to ask for `WAITING_SECONDS`: a scraper that gives up early has
it at its next try. A metric that cannot be read (too many epochs in the window, too long) is named among the readings,
and keeps no other from being read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import SojournError
from sojourn.estimation.buckets.queries import RangeQuery, Stat
from sojourn.estimation.buckets.questions import Question
from sojourn.exports.readings import (
    LEFT_OUT,
    MOST_METRICS,
    SECOND_NS,
    Point,
    ReadingLimits,
    Readings,
    Window,
    export_points,
    metric_points,
    segment_points,
)
from sojourn.segments.fleet.point import stream_direction
from sojourn.server.door.limits import BusyError, Limits, SparingLog
from sojourn.server.models import SegmentRanking
from sojourn.server.queries.answering import Work
from sojourn.server.queries.fleet import read_metric, stat_of
from sojourn.server.queries.workers import QueryWorkers
from sojourn.server.runs.engine import SegmentEngine
from sojourn.sources.registry import values_of
from sojourn.store.epochs import EpochStore, StreamRecord

KEPT_SECONDS, WAITING_SECONDS = 5.0, 90.0
MOST_KEPT = 4
_LOG = logging.getLogger("sojourn.readings")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What readings are wanted: of which window, how many, and of which nodes."""

    window: Window
    limits: ReadingLimits
    tag: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Streams whose measurements are one kind of thing."""

    metric: str
    unit: str
    stat: Stat

    @property
    def name(self) -> str:
        return f"{self.metric} in {self.unit}"


@dataclass
class _Kept:
    """Readings, when they were made, and whether anybody has got them."""

    readings: Readings
    made: float
    is_fetched: bool = False

    @property
    def is_good(self) -> bool:
        return time.monotonic() - self.made < (KEPT_SECONDS if self.is_fetched else WAITING_SECONDS)


class ReadingsDesk:
    """Answers who wants readings; belongs to one event loop."""

    def __init__(self, store: EpochStore, segments: SegmentEngine, workers: QueryWorkers, limits: Limits) -> None:
        self._store, self._segments, self._workers, self._limits = store, segments, workers, limits
        self._lock = asyncio.Lock()
        self._kept: OrderedDict[Asked, _Kept] = OrderedDict()
        self._running: dict[Asked, asyncio.Task[Readings]] = {}
        self._log = SparingLog(_LOG)

    async def readings(self, asked: Asked) -> Readings:
        """The readings of a window that ends now, or ended a few seconds ago."""
        kept = self._kept.get(asked)
        if kept is None or not kept.is_good:
            if (running := self._running.get(asked)) is None:
                running = self._start(asked)
            await asyncio.shield(running)
            kept = self._kept[asked]
        kept.is_fetched = True
        return kept.readings

    def _start(self, asked: Asked) -> asyncio.Task[Readings]:
        if len(self._running) >= MOST_KEPT:
            what = f"{MOST_KEPT} different windows or limits are asked for at once"
            raise BusyError(what, where="readings", action="ask for the same, or try again in a few seconds")
        running = self._running[asked] = asyncio.create_task(self._compute(asked))
        running.add_done_callback(partial(self._end, asked))
        return running

    def _end(self, asked: Asked, running: asyncio.Task[Readings]) -> None:
        del self._running[asked]
        if not running.cancelled():
            running.exception()  # nobody may be left to ask for it

    async def _compute(self, asked: Asked) -> Readings:
        async with self._lock:
            found = await self._read(asked)
        self._kept[asked] = _Kept(found, time.monotonic())
        self._kept.move_to_end(asked)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _read(self, asked: Asked) -> Readings:
        from_ns, to_ns = asked.window.span(time.time_ns())
        groups = await run_in_threadpool(self._groups, asked.tag)
        left_out, failed = dict.fromkeys(LEFT_OUT, 0), list[str]()
        left_out["metrics"] = max(0, len(groups) - MOST_METRICS)
        points: list[Point] = []
        for group, streams in list(groups.items())[:MOST_METRICS]:
            span = RangeQuery(from_ns=from_ns, to_ns=to_ns, stat=group.stat, cut="pro-rata")
            try:
                points += await self._metric(group, streams, span, asked.limits, left_out)
            except SojournError as error:
                failed.append(group.name)
                self._log.warn(f"no readings of {group.name}: {error}")
        if asked.limits.segments and asked.tag is None:
            try:
                points += await self._of_segments(from_ns, to_ns, asked.limits, left_out)
            except SojournError as error:
                failed.append("segments")
                self._log.warn(f"no readings of segments: {error}")
        points += export_points(asked.window.window_ns, left_out, failed)
        return Readings(from_ns=from_ns, to_ns=to_ns, points=tuple(points))

    def _groups(self, tag: str | None) -> dict[_Group, list[StreamRecord]]:
        """All streams of measurements that can be asked, by what they measure; those on most nodes first."""
        nodes = None if tag is None else {node.name for node in self._store.nodes(tag=tag)}
        groups: dict[_Group, list[StreamRecord]] = {}
        for stream in self._store.streams():
            if stream_direction(stream.name) is not None or (nodes is not None and stream.node not in nodes):
                continue
            stat = stat_of(stream, values_of(stream.metric))
            groups.setdefault(_Group(metric=stream.metric, unit=stream.unit, stat=stat), []).append(stream)
        return dict(sorted(groups.items(), key=lambda one: (-len(one[1]), one[0].name, one[0].stat)))

    async def _metric(
        self,
        group: _Group,
        streams: list[StreamRecord],
        span: RangeQuery,
        limits: ReadingLimits,
        left_out: dict[str, int],
    ) -> Iterator[Point]:
        most = self._limits.query_streams
        left_out["nodes"] += len({one.node for one in streams[most:]})
        work = Work(
            question=Question(range=span, group="node"),
            streams=tuple(streams[:most]),
            until_ns=span.to_ns,
            most_bytes=self._limits.query_decoded_bytes,
        )
        found = await self._workers.call(read_metric, self._store.engine.url, work, limits)
        left_out["nodes"] += found.nodes_left_out
        left_out["instances"] += found.instances_left_out
        if found.failed:
            self._log.warn(f"no readings of {group.name} of {', '.join(found.failed[:5])}: not such epochs")
        seconds = (span.to_ns - span.from_ns) / SECOND_NS
        return metric_points(group.metric, group.unit, group.stat, found.amounts, seconds)

    async def _of_segments(
        self, from_ns: int, to_ns: int, limits: ReadingLimits, left_out: dict[str, int]
    ) -> list[Point]:
        query = SegmentRanking(segments="*", from_ns=from_ns, to_ns=to_ns, by="packets")
        found, left_out["segments"] = await self._segments.delays(query, limits.segments)
        return [point for totals, delays in found for point in segment_points(totals, delays)]
