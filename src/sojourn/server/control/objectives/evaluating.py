"""What a worker process does for an objective: reads the answers that exist about a stretch of time, judges nothing.

The same functions answer here as answer users (`answer_question`, `answer_segment`, the station's states of segments, a
collection's hops), so that an objective never sees anything else than they do.

A task is about one place and some stretches of time at it; what was found is given back for each, with all conditions
and instances. Cost: that of the answers; a stretch of a stream with fifty instances takes some tenths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import URL, func, select

from sojourn.core.arrays import FloatArray
from sojourn.core.errors import InputError, SojournError
from sojourn.core.estimates import Estimate
from sojourn.estimation.buckets.queries import RangeQuery, Stat
from sojourn.estimation.buckets.questions import Found, Question
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.mplane.station.paths import segment_state
from sojourn.objectives.condition import Condition
from sojourn.objectives.judgement import Bounded, Evidence, LossCount
from sojourn.objectives.objective import Objective
from sojourn.objectives.sizing import Seen
from sojourn.server.queries.answering import Work, answer_question
from sojourn.server.runs.measured import answer_measured
from sojourn.server.runs.questions import SegmentWork, answer_segment
from sojourn.server.sinks.answers import unpacked
from sojourn.server.sinks.store import WORD
from sojourn.server.sinks.tables import ANSWERS, PACKETS
from sojourn.store.epochs import StreamRecord, read_store
from sojourn.store.measurements import MeasurementStore

MOST_PACKETS = 200_000  # of a collection, in one stretch
MOST_INSTANCES = 10_000
_BOUNDS = 3  # rows of an answer: delays, and the least and most that they can be


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A stretch of time that is judged as one, from one position of a place to the next; ``lasts_ns`` of it in all.

    Of a stream, ``numbers`` are those of its first and its last epoch.
    """

    before: int
    position: int
    from_ns: int
    until_ns: int
    lasts_ns: int
    epochs: int = 1
    measurements: int = 0
    numbers: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What there is to judge a condition by, for one instance; without any, the reason."""

    condition: int
    instance: str
    now: Evidence | None
    node: str = ""
    before: Evidence | None = None
    reason: str | None = None
    method: str = ""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """All that was found about one stretch; ``seen`` is of a stream, ``reason`` why there is nothing."""

    place: str
    stretch: Stretch
    findings: tuple[Finding, ...] = ()
    seen: Seen | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """A stream of a node, and stretches of its epochs."""

    objective: Objective
    stream: StreamRecord
    stretches: tuple[Stretch, ...]
    most_bytes: int

    @property
    def place(self) -> str:
        return f"{self.stream.node}/{self.stream.name}"

    def run(self, url: URL) -> Iterator[Evaluated]:
        for stretch in self.stretches:
            yield _of_stream(url, self, stretch)


@dataclass(frozen=True, kw_only=True)
class SegmentTask:
    """A segment's questions: one for each stretch, and for each time that a change is counted from."""

    objective: Objective
    place: str
    work: SegmentWork | None  # of a segment of the fleet; its range is the stretch's
    stretches: tuple[Stretch, ...]
    most_bytes: int

    def run(self, url: URL) -> Iterator[Evaluated]:
        for stretch in self.stretches:
            yield _of_segment(url, self, stretch)


@dataclass(frozen=True, kw_only=True)
class PathTask:
    """All segments on the way along some hops."""

    objective: Objective
    place: str
    hops: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    most_bytes: int

    def run(self, url: URL) -> Iterator[Evaluated]:
        for stretch in self.stretches:
            yield _of_path(url, self, stretch)


@dataclass(frozen=True, kw_only=True)
class CollectionTask:
    """A collection, by its number, of which all packets in the stretches are solved."""

    objective: Objective
    place: str
    number: int
    stretches: tuple[Stretch, ...]

    def run(self, url: URL) -> Iterator[Evaluated]:
        for stretch in self.stretches:
            yield _of_collection(url, self, stretch)


Task = StreamTask | SegmentTask | PathTask | CollectionTask


def run_task(url: URL, task: Task) -> list[Evaluated]:
    """What was found about each stretch of a task."""
    return list(task.run(url))


@dataclass
class _Answers:
    """A stream's answers about a stretch, asked for once for each statistic."""

    url: URL
    task: StreamTask
    stretch: Stretch
    known: dict[Stat, list[Found]] = field(default_factory=dict)

    def total(self) -> Found:
        return self._ask(Question(range=self._range("sum")))[0]

    def of(self, stat: Stat) -> list[Found]:
        """One answer for each instance, or group of them."""
        if stat not in self.known:
            objective = self.task.objective
            patterns: tuple[str | None, ...] = objective.patterns or (None if objective.group == "node" else "*",)
            found: dict[str, Found] = {}
            for pattern in patterns:
                asked = Question(range=self._range(stat), instance=pattern, group=objective.group)
                found.update({one.instance or "": one for one in self._ask(asked) if one.members != 0})
            self.known[stat] = list(found.values())[:MOST_INSTANCES]
        return self.known[stat]

    def _range(self, stat: Stat) -> RangeQuery:
        return RangeQuery(from_ns=self.stretch.from_ns, to_ns=self.stretch.until_ns, stat=stat, cut="inside")

    def _ask(self, question: Question) -> list[Found]:
        work = Work(
            question=question,
            streams=(self.task.stream,),
            until_ns=self.stretch.until_ns,
            most_bytes=self.task.most_bytes,
            numbers=self.stretch.numbers,
        )
        return answer_question(self.url, work)


def _of_stream(url: URL, task: StreamTask, stretch: Stretch) -> Evaluated:
    answers, findings = _Answers(url, task, stretch), list[Finding]()
    try:
        seconds = stretch.lasts_ns / 1e9
        for number, condition in enumerate(task.objective.require):
            for one in answers.of("sum" if condition.stat == "rate" else "mean"):
                answer, name = one.range.answer, one.instance or ""
                if not isinstance(answer, Estimate):
                    findings.append(_unknown(number, name, str(answer.reason), task.stream.node))
                    continue
                found = _each_second(answer, seconds, condition) if condition.stat == "rate" else answer
                findings.append(_finding(number, name, found, node=task.stream.node))
        return Evaluated(
            place=task.place, stretch=stretch, findings=tuple(findings), seen=_seen(url, task, stretch, answers)
        )
    except SojournError as error:
        return Evaluated(place=task.place, stretch=stretch, reason=str(error))


def _each_second(answer: Estimate, seconds: float, condition: Condition) -> Estimate:
    """A sum as a rate; of times as a share of time, where the limit is one."""
    per = seconds * (1e9 if condition.unit == "share" else 1.0)
    low, value, high = answer.low / per, answer.value / per, answer.high / per
    return replace(answer, value=value, low=low, high=high)


def _seen(url: URL, task: StreamTask, stretch: Stretch, answers: _Answers) -> Seen | None:
    """What the stretch's fullest epoch held."""
    store = read_store(url)
    place, span = (task.stream.node, task.stream.name), (stretch.from_ns, stretch.until_ns)
    counts = list(store.each_epoch(*place, *span, lambda epoch: epoch.key_count, numbers=stretch.numbers))
    total = answers.total().range.answer
    if not counts or not isinstance(total, Estimate):
        return None
    return Seen(instances=max(counts), measurements=stretch.measurements, total=abs(total.value))


def _finding(number: int, instance: str, now: Evidence, *, node: str = "", before: Evidence | None = None) -> Finding:
    answer = now.estimate if isinstance(now, Bounded) else now
    method = answer.method if isinstance(answer, Estimate) else "count"
    return Finding(condition=number, instance=instance, node=node, now=now, before=before, method=method)


def _unknown(number: int, instance: str, reason: str, node: str = "") -> Finding:
    return Finding(condition=number, instance=instance, node=node, now=None, reason=reason)


def _of_segment(url: URL, task: SegmentTask, stretch: Stretch) -> Evaluated:
    aggregates: dict[int, Mapping[str, Any] | str] = {}
    name = task.place

    def aggregate(ago_ns: int) -> Mapping[str, Any] | str:
        """What the segment was like so long ago, or why that is not known."""
        if ago_ns not in aggregates:
            span = stretch.from_ns - ago_ns, stretch.until_ns - ago_ns
            try:
                aggregates[ago_ns] = _answered(url, task, span)
            except SojournError as error:
                aggregates[ago_ns] = error.what
        return aggregates[ago_ns]

    findings = []
    for number, condition in enumerate(task.objective.require):
        now = aggregate(0)
        before = aggregate(condition.against_ns) if condition.against_ns is not None else None
        if isinstance(now, str) or isinstance(before, str):
            reason = now if isinstance(now, str) else f"before: {before}"
            findings.append(_unknown(number, name, reason))
            continue
        found = _evidence(now, condition.stat)
        earlier = None if before is None else _evidence(before, condition.stat)
        if isinstance(found, str) or isinstance(earlier, str):
            findings.append(_unknown(number, name, found if isinstance(found, str) else f"before: {earlier}"))
        else:
            findings.append(_finding(number, name, found, before=earlier))
    return Evaluated(place=task.place, stretch=stretch, findings=tuple(findings))


def _answered(url: URL, task: SegmentTask, span: tuple[int, int]) -> Mapping[str, Any]:
    if task.work is None:
        found = answer_measured(url, task.place, span, interval_ns=0, most_bytes=task.most_bytes)
    else:
        found = answer_segment(url, replace(task.work, from_ns=span[0], to_ns=span[1]))
    whole: Mapping[str, Any] = found["aggregate"]
    return whole


def _evidence(aggregate: Mapping[str, Any], stat: str) -> Evidence | str:
    """What a segment's totals say of a statistic; a text where they say nothing."""
    if stat == "loss":
        sent, lost = aggregate["sent"], aggregate["lost"]
        low, high = aggregate.get("lost_low", lost), aggregate.get("lost_high", lost)
        if not sent or low is None or high is None:
            return "its losses are not known"
        return LossCount((low + high) / 2 if lost is None else lost, low, high, sent)
    names = ("mean_ns", "low_ns", "high_ns") if stat == "mean" else (f"{stat}_ns", f"{stat}_low_ns", f"{stat}_high_ns")
    value, low, high = (aggregate.get(name) for name in names)
    if value is None:
        return str(aggregate.get("reason") or f"its {stat} is not known")
    return Estimate(
        value,
        -math.inf if low is None else min(low, value),
        math.inf if high is None else max(high, value),
        aggregate.get("samples") or 0,
        str(aggregate.get("method") or stat),
    )


def _of_path(url: URL, task: PathTask, stretch: Stretch) -> Evaluated:
    measured = MeasurementStore(read_store(url))
    spans: dict[int, list[SegmentMeasurement]] = {}

    def rows(ago_ns: int) -> list[SegmentMeasurement]:
        if ago_ns not in spans:
            begin, end = stretch.from_ns - ago_ns, stretch.until_ns - ago_ns
            spans[ago_ns] = measured.between(max(begin, 0), max(end - 1, 0), most_bytes=task.most_bytes)
        return spans[ago_ns]

    try:
        chain = way_along({one.segment for one in rows(0)}, task.hops)
    except InputError as error:
        return Evaluated(place=task.place, stretch=stretch, reason=str(error))
    findings = []
    for number, condition in enumerate(task.objective.require):
        for segment in chain:
            now = _state_evidence(segment, rows(0), condition.stat)
            ago_ns = condition.against_ns
            before = None if ago_ns is None else _state_evidence(segment, rows(ago_ns), condition.stat)
            if isinstance(now, str) or isinstance(before, str):
                reason = now if isinstance(now, str) else f"before: {before}"
                findings.append(_unknown(number, str(segment), reason))
            else:
                findings.append(_finding(number, str(segment), now, before=before))
    return Evaluated(place=task.place, stretch=stretch, findings=tuple(findings))


def _state_evidence(segment: Segment, rows: Iterable[SegmentMeasurement], stat: str) -> Evidence | str:
    """What the intervals of a segment, of all classes together, say of it."""
    state = segment_state(segment, [one for one in rows if one.segment == segment])
    if stat == "loss":
        return LossCount(state.lost, state.lost, state.lost, state.packets) if state.packets else "no packets"
    return state.mean if state.mean is not None else state.reason or "not measured"


def way_along(segments: Iterable[Segment], hops: Sequence[str]) -> list[Segment]:
    """The measured segments on the one way from the first of some hops to the last that passes all others in order.

    Links and virtual links are followed; what is measured inside the routers on the way belongs to it.
    """
    links = sorted({one for one in segments if one.kind != "router"}, key=str)
    ways = list(_ways(links, hops))
    text = " > ".join(hops)
    if not ways:
        raise InputError("no way is measured along it", where=f"path {text}", action="name hops that probes measure")
    if len(ways) > 1:
        action = f"name more hops: {' > '.join(_hops(ways[0]))} is one way"
        raise InputError("several ways are measured along it", where=f"path {text}", action=action)
    passed = _hops(ways[0])
    triples = set(zip(passed, passed[1:], passed[2:], strict=False))
    inside = [one for one in sorted(set(segments), key=str) if one.kind == "router" and one.hops in triples]
    return [*ways[0], *inside]


def _hops(way: Sequence[Segment]) -> list[str]:
    return [way[0].hops[0], *(hop for segment in way for hop in segment.hops[1:])]


_MOST_WAYS, _MOST_LINKS = 2, 64


def _ways(links: Sequence[Segment], hops: Sequence[str]) -> Iterator[list[Segment]]:
    """At most two ways of links from the first hop to the last, without a hop twice, past all others in order."""
    leaving: dict[str, list[Segment]] = {}
    for link in links:
        leaving.setdefault(link.hops[0], []).append(link)
    found, waiting = 0, [(hops[0], list[Segment]())]
    while waiting and found < _MOST_WAYS:
        at, way = waiting.pop()
        if way and at == hops[-1]:
            remaining = iter(_hops(way))
            if all(hop in remaining for hop in hops):
                found += 1
                yield way
            continue
        passed = {hops[0], *(hop for one in way for hop in one.hops)}
        if len(way) < _MOST_LINKS:
            further = [link for link in leaving.get(at, ()) if passed.isdisjoint(link.hops[1:])]
            waiting += [(link.hops[-1], [*way, link]) for link in further]


def _of_collection(url: URL, task: CollectionTask, stretch: Stretch) -> Evaluated:
    """The mean delay at each node: between the means of the bounds for certain, of the intervals likely.

    Errors of packets that waited together are taken to be the same, so that an interval of the mean is never narrower
    than those of the packets are on average.
    """
    here = (PACKETS.c.collection == task.number) & PACKETS.c.t0_ns.between(stretch.from_ns, stretch.until_ns - 1)
    query = select(PACKETS.c.path, ANSWERS.c.data).join(ANSWERS, ANSWERS.c.packet == PACKETS.c.id)
    query = query.where(here & (func.length(ANSWERS.c.data) > 0)).limit(MOST_PACKETS)
    with read_store(url).transaction() as connection:
        records = connection.execute(query).all()
    visits: dict[int, list[Any]] = {}
    for record in records:
        rows = unpacked(record.data, record.path)
        whole = rows if len(rows) > _BOUNDS else np.vstack([rows, rows[1:_BOUNDS]])  # old answers have bounds alone
        for node, column in zip(np.frombuffer(record.path, WORD).tolist(), whole.T, strict=False):
            visits.setdefault(node, []).append(column)
    findings = [
        _finding(number, str(node), _mean_wait(np.array(waits, np.float64)))
        for number in range(len(task.objective.require))
        for node, waits in sorted(visits.items())
    ]
    reason = None if findings else "no packet of it is solved in that time"
    return Evaluated(place=task.place, stretch=stretch, findings=tuple(findings), reason=reason)


def _mean_wait(waits: FloatArray) -> Bounded:
    """Of packets × (delay, least, most, likely least, likely most)."""
    value, least, most, low, high = (float(mean) for mean in waits.mean(axis=0))
    estimate = Estimate(value, min(low, value), max(high, value), len(waits), "tomography")
    return Bounded(estimate, least, most)
