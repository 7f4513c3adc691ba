"""Finds a segment's streams, asks its nodes for what they have not sent, and has a worker answer questions about it.

Streams are compared where both points recorded under one plan, now or at any time: those that have ended keep their
answers, and late epochs of theirs are still compared for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import InputError, UsageError
from sojourn.core.keys import TrafficKey, key_id, parse_key
from sojourn.estimation.buckets.queries import FOREVER_NS
from sojourn.exports.readings import SegmentDelays
from sojourn.segments.fleet.ledgers.packets import MOST_AGE_NS, MOST_PACKETS, PacketsQuestion
from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.segment import REVERSE, FleetSegment
from sojourn.server.control.segments import NoSegmentError
from sojourn.server.door.limits import Limits
from sojourn.server.models import LostQuery, PacketsQuery, SegmentQuery, SegmentRanking
from sojourn.server.queries.live import LiveDesk, epochs_of
from sojourn.server.queries.workers import QueryWorkers
from sojourn.server.runs.delays import segment_delays
from sojourn.server.runs.lost import answer_lost
from sojourn.server.runs.measured import answer_measured
from sojourn.server.runs.questions import SegmentWork, answer_segment
from sojourn.server.runs.ranking import RankingWork, rank_segments
from sojourn.server.runs.zoom import ZoomWork, answer_packets
from sojourn.sources.source import InstancePatterns
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import Pair
from sojourn.store.segments import Recording, SegmentStore, pair_of

# How long after its end a recording's late epochs are waited for.
LATE_NS = 3_600_000_000_000
# How much more to either side the receiver's ledger is asked for a flow's packets: as long as they may be on their way,
# and as its agent may be late to answer; and how many more, at least.
BESIDE_NS, LEAST_PACKETS = 3_000_000_000, 10_000
ENOUGH_COVERED = 0.8  # of what is asked for: packets that still wait in the kernel are not there either


def wanted_pairs(segments: SegmentStore) -> list[Pair]:
    """All pairs of streams that are, or were a while ago, recorded under one plan."""
    named = _named_pairs(segments, time.time_ns() - LATE_NS)
    return list(dict.fromkeys(pair for pairs in named.values() for pair in pairs))


def _named_pairs(segments: SegmentStore, since_ns: int) -> dict[str, tuple[Pair, ...]]:
    """The pairs of streams of all segments, by name, of what was recorded since a time."""
    of_point = _by_point(segments.recent(since_ns))
    return {
        name: tuple(paired(of_point.get(sender, ()), of_point.get(receiver, ())))
        for segment in segments.all()
        for name, (sender, receiver) in segment.pairs.items()
    }


def _by_point(recordings: Iterable[Recording]) -> dict[Point, list[Recording]]:
    of_point: dict[Point, list[Recording]] = {}
    for one in recordings:
        of_point.setdefault(one.point, []).append(one)
    return of_point


def paired(sent: Sequence[Recording], received: Sequence[Recording]) -> list[Pair]:
    """The streams of two points under the plans that they have in common, the oldest first."""
    there = {one.generation.number: one.point for one in received}
    here = {one.generation.number: one.point for one in sent}
    return [pair_of(here[number], there[number], number) for number in sorted(here.keys() & there.keys())]


class SegmentEngine:
    """Answers questions about segments from the store and the nodes."""

    def __init__(
        self, store: EpochStore, segments: SegmentStore, desk: LiveDesk, workers: QueryWorkers, limits: Limits
    ) -> None:
        self._store, self._segments, self._desk, self._workers, self._limits = store, segments, desk, workers, limits

    async def answer(self, name: str, query: SegmentQuery) -> dict[str, Any]:
        """The answer in the form of a `SegmentResult`, with what nodes did not tell among its notes."""
        check_flows(query.flows)
        if ">" in name:
            return await self._measured(name, query)
        work = await run_in_threadpool(self._work, name, query)
        notes: list[str] = []
        if query.live and work.pairs:
            work, notes = await self._with_current(work)
        found = await self._workers.call(answer_segment, self._store.engine.url, work)
        return {"segment": name, **found, "live": query.live and not notes, "notes": [*notes, *found["notes"]]}

    async def lost(self, name: str, query: LostQuery) -> dict[str, Any]:
        """The packets that a segment has lost, as `LostResult` gives them."""
        if ">" in name:
            raise UsageError(
                "what MPlane measures has no ledgers", where=f"segment {name}", action="ask without --lost"
            )
        about = SegmentQuery(from_ns=query.from_ns, to_ns=query.to_ns, flows=query.flows, live=False)
        check_flows(about.flows)
        work = await run_in_threadpool(self._work, name, about)
        return await self._workers.call(answer_lost, self._store.engine.url, work, query.most)

    async def packets(self, name: str, query: PacketsQuery) -> dict[str, Any]:
        """The packets of one flow that the ledgers of both ends hold now, as `PacketsResult` gives them."""
        if ">" in name:
            what = "what MPlane measures has no ledgers"
            raise UsageError(what, where=f"segment {name}", action="ask without --packets")
        check_flows([query.flow])
        oldest_ns, newest_ns = query.ages(time.time_ns())
        question = PacketsQuestion(
            flow_id=key_id(parse_key(query.flow)), oldest_ns=oldest_ns, newest_ns=newest_ns, most=query.most
        )
        pairs = await run_in_threadpool(self._pairs_with_ledgers, name)
        length_ns, longest = oldest_ns - newest_ns, None
        # What has just been planned anew may not be recorded yet, or not for long: then the plan before it is.
        for pair in pairs[:-3:-1]:
            replies = await self._ask_ends(pair, question)
            work = ZoomWork(
                name=name, pair=pair, flow=query.flow, length_ns=length_ns, replies=(replies[0], replies[1])
            )
            found = await self._workers.call(answer_packets, self._store.engine.url, work)
            longest = max(filter(None, (longest, found)), key=_covers_ns, default=None)
            if longest is not None and _covers_ns(longest) >= ENOUGH_COVERED * length_ns:
                break
        if longest is not None:
            return longest
        action = "create it with --sketch ledger; agents keep none where flows are very short, or loss is above 10 %"
        raise InputError("its points keep no ledger now", where=f"segment {name}", action=action)

    async def _ask_ends(self, pair: Pair, question: PacketsQuestion) -> list[bytes | None]:
        """What the sender's ledger replies, and the receiver's, which is asked about a little more to either side."""
        ends = (
            question,
            replace(
                question,
                oldest_ns=min(question.oldest_ns + BESIDE_NS, MOST_AGE_NS),
                newest_ns=max(0, question.newest_ns - BESIDE_NS),
                most=min(2 * question.most + LEAST_PACKETS, MOST_PACKETS),
            ),
        )
        for node, _ in pair.ends:
            if not self._desk.is_listening(node):
                what = f"node {node} cannot be asked now: its agent is not connected"
                raise InputError(what, where="query", action="sojourn node list tells how nodes fare")
        seconds = self._limits.live_seconds
        asked = (
            self._desk.ask_ledger(*end, of_end.to_text(), seconds) for end, of_end in zip(pair.ends, ends, strict=True)
        )
        return await asyncio.gather(*asked)

    async def _measured(self, name: str, query: SegmentQuery) -> dict[str, Any]:
        """The same of a segment that MPlane measures, by its hops."""
        if query.flows or query.top or query.by:
            what = "it is measured as a whole, not by flows"
            raise UsageError(what, where=f"segment {name}", action="ask without flows, top and by")
        span = max(0, query.from_ns), FOREVER_NS if query.to_ns is None else query.to_ns
        within = {"interval_ns": query.interval_ns, "most_bytes": self._limits.query_decoded_bytes}
        found = await self._workers.call(partial(answer_measured, self._store.engine.url, name, span, **within))
        return {"segment": name, **found, "live": False}

    async def rank(self, query: SegmentRanking) -> list[dict[str, Any]]:
        """The totals of all segments whose names fit a pattern, the largest first."""
        return await self._workers.call(rank_segments, self._store.engine.url, await self._ranking(query))

    async def delays(self, query: SegmentRanking, most: int) -> tuple[list[tuple[dict[str, Any], SegmentDelays]], int]:
        """The same of so many, each with its delays in buckets; and how many are left out."""
        return await self._workers.call(segment_delays, self._store.engine.url, await self._ranking(query), most)

    async def _ranking(self, query: SegmentRanking) -> RankingWork:
        named = await run_in_threadpool(_named_pairs, self._segments, query.from_ns)
        patterns = InstancePatterns([query.segments])
        return RankingWork(
            segments={name: pairs for name, pairs in named.items() if pairs and patterns.match(name)},
            from_ns=query.from_ns,
            to_ns=FOREVER_NS if query.to_ns is None else query.to_ns,
            top=query.top,
            by=query.by,
        )

    def _points(self, name: str) -> tuple[FleetSegment, Point, Point]:
        """A segment by its name, or that of its way back, with the two points."""
        segment = self._segments.named(name.removesuffix(REVERSE))
        if segment is None or name not in segment.pairs:
            raise NoSegmentError(f"there is no segment {name[:200]}", action="sojourn segment list shows all")
        return segment, *segment.pairs[name]

    def _pairs_with_ledgers(self, name: str) -> list[Pair]:
        """The streams of both points that are recorded now and keep ledgers, the oldest plan first."""
        _, *points = self._points(name)
        now = [
            one for one in self._segments.recordings_of(points) if one.until_ns is None and one.generation.plan.ledger
        ]
        of_point = _by_point(now)
        return paired(*(of_point.get(point, []) for point in points))

    def _work(self, name: str, query: SegmentQuery) -> SegmentWork:
        segment, sender, receiver = self._points(name)
        of_point = _by_point(self._segments.recordings_of([sender, receiver, sender.reverse, receiver.reverse]))
        ends = of_point.get(sender, []), of_point.get(receiver, [])
        back = [of_point.get(point, []) for point in (sender.reverse, receiver.reverse)]
        return SegmentWork(
            name=name,
            ends=(str(sender), str(receiver)),
            pairs=tuple(paired(*ends)),
            memory_bytes=_memory(segment, ends[0]),
            from_ns=query.from_ns,
            to_ns=FOREVER_NS if query.to_ns is None else query.to_ns,
            interval_ns=query.interval_ns,
            flows=tuple(query.flows),
            top=query.top,
            by=query.by or "",
            totals_only=query.totals_only,
            delay_map=query.delay_map,
            way_back=tuple((found[0].point.node, found[0].stream) for found in back if found) if all(back) else (),
            most_bytes=self._limits.query_decoded_bytes,
        )

    async def _with_current(self, work: SegmentWork) -> tuple[SegmentWork, list[str]]:
        """The question with the epochs that the two nodes had not sent, and who did not answer."""
        streams = [end for pair in work.pairs for end in pair.ends]
        replies = await self._desk.ask_all(streams, work.from_ns, work.to_ns, self._limits.live_seconds)
        silent = sorted({node for node, _ in streams} - replies.keys())
        notes = [f"{', '.join(silent)} did not answer: what is recorded there now is not part of it"] if silent else []
        return replace(work, current=epochs_of(replies)), notes


def _covers_ns(packets: Mapping[str, Any]) -> int:
    return int(packets["covered"]["to_ns"] - packets["covered"]["from_ns"])


def check_flows(flows: Iterable[str]) -> None:
    """Refuse texts that are no flows."""
    for text in flows:
        if not isinstance(parse_key(text), TrafficKey):
            raise UsageError(f"{text[:60]!r} is no flow", where="flows", action="write SRC:PORT > DEST:PORT tcp")


def _memory(segment: FleetSegment, recordings: Sequence[Recording]) -> int:
    return recordings[0].generation.memory_bytes if recordings else segment.size_bytes
