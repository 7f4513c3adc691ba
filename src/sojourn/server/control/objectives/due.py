"""Which stretches of time an objective can be judged by now, at each of its places: the work of an evaluation.

A stream's stretch is as many of its epochs as its length asks for, in the order of their numbers, and fewer where the
node's clock was set in between; it is judged as soon as they are stored. A segment's is its answered runs of that
length; a path's and a collection's, times that are multiples of the length and over: measured, or solved, up to their
end. A place that is new begins with its latest stretch. One that has fallen behind by more than `MOST_BEHIND`
stretches, as a node that was away does, goes on with the latest ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select

from sojourn.mplane.station.paths import LATEST_NS
from sojourn.objectives.objective import Objective
from sojourn.server.control.objectives.assigning import ObjectiveControl
from sojourn.server.control.objectives.evaluating import (
    CollectionTask,
    PathTask,
    SegmentTask,
    StreamTask,
    Stretch,
    Task,
)
from sojourn.server.door.limits import Limits
from sojourn.server.runs.engine import paired
from sojourn.server.runs.questions import SegmentWork
from sojourn.server.sinks.tables import COLLECTIONS
from sojourn.sources.source import InstancePatterns
from sojourn.store.database import EPOCHS, RUNS
from sojourn.store.epochs import EpochStore, StreamRecord
from sojourn.store.measurements import MEASUREMENTS
from sojourn.store.objectives import NEVER, ObjectiveStream, Progress
from sojourn.store.runs import RunStore
from sojourn.store.segments import SegmentStore

MOST_BEHIND = 100
MOST_RUNS = 1000
PATH = "path"


class DueWork:
    """Finds the tasks of objectives in one store."""

    def __init__(self, store: EpochStore, control: ObjectiveControl, segments: SegmentStore, limits: Limits) -> None:
        self._store, self._control, self._segments, self._limits = store, control, segments, limits

    def tasks(
        self, objective: Objective, changed: Collection[tuple[str, str]] | None = None, *, again: bool = False
    ) -> Iterator[Task]:
        """What can be judged now; of streams, those that have changed, if they are given.

        With `again` it is the latest stretch of every place, whether it was judged or not.
        """
        progress = {} if again else self._control.objectives.progress(objective.name)
        match objective.subject:
            case "metric":
                yield from self._streams(objective, progress, changed)
            case "segment":
                yield from self._of_segments(objective, progress)
            case "path":
                yield from self._path(objective, progress)
            case "collection":
                yield from self._collections(objective, progress)

    def left(self, objective: Objective) -> set[str]:
        """Where an objective was judged and is not any more, as the segment or the collection is gone."""
        subject = objective.subject
        if subject == "segment" and ">" not in str(objective.segment):
            there = {name for segment in self._segments.all() for name in segment.pairs}
        elif subject == "collection":
            there = {place for _, place, _ in self._collections_of(objective)}
        else:
            return set()
        return self._control.objectives.progress(objective.name).keys() - there

    def _streams(
        self, objective: Objective, progress: dict[str, Progress], changed: Collection[tuple[str, str]] | None
    ) -> Iterator[StreamTask]:
        records = {(one.node, one.name): one for one in self._store.streams(metric=objective.metric)}
        for row in self._control.objectives.streams(objective.name):
            record = records.get((row.node, row.stream or ""))
            if record is None or (changed is not None and (record.node, record.name) not in changed):
                continue
            last = progress.get(f"{record.node}/{record.name}")
            if stretches := self._of_epochs(objective, row, record, NEVER if last is None else last.position):
                yield StreamTask(
                    objective=objective,
                    stream=record,
                    stretches=tuple(stretches),
                    most_bytes=self._limits.query_decoded_bytes,
                )

    def _of_epochs(
        self, objective: Objective, row: ObjectiveStream, record: StreamRecord, position: int
    ) -> list[Stretch]:
        if (stretch := self._control.stretch_of(objective, row)) is None:
            return []
        count, length_ns = stretch
        most = count if position == NEVER else count * MOST_BEHIND
        frames = self._control.objectives.frames_after(record.node, record.name, position, limit=most)
        stretches: list[Stretch] = []
        group: list[dict[str, int]] = []
        for frame in frames:
            # Where a clock was set, on or back, another stretch begins.
            if group and not group[-1]["first_ns"] <= frame["first_ns"] < group[0]["first_ns"] + objective.every_ns:
                stretches.append(_of_frames(group, position, length_ns))
                position, group = group[-1]["sequence"], []
            group.append(frame)
            if len(group) == count:
                stretches.append(_of_frames(group, position, length_ns))
                position, group = frame["sequence"], []
        return stretches

    def _of_segments(self, objective: Objective, progress: dict[str, Progress]) -> Iterator[SegmentTask]:
        pattern = str(objective.segment)
        if ">" in pattern:
            yield from self._measured(objective, pattern, progress.get(pattern))
            return
        patterns = InstancePatterns([pattern])
        for segment in self._segments.all():
            for name, (sender, receiver) in segment.pairs.items():
                if not patterns.match(name):
                    continue
                recordings = self._segments.recordings_of([sender, receiver])
                ends = [[one for one in recordings if one.point == point] for point in (sender, receiver)]
                pairs = tuple(paired(*ends))
                last = progress.get(name)
                runs = self._runs([one.number for one in RunStore(self._store).pairs(pairs)], last)
                if stretches := _of_runs(runs, objective, segment.epoch_ns, NEVER if last is None else last.position):
                    work = SegmentWork(
                        name=name,
                        ends=(str(sender), str(receiver)),
                        pairs=pairs,
                        memory_bytes=segment.size_bytes,
                        from_ns=0,
                        to_ns=0,
                        most_bytes=self._limits.query_decoded_bytes,
                    )
                    yield self._segment_task(objective, name, work, stretches)

    def _segment_task(
        self, objective: Objective, name: str, work: SegmentWork | None, stretches: Sequence[Stretch]
    ) -> SegmentTask:
        most = self._limits.query_decoded_bytes
        return SegmentTask(objective=objective, place=name, work=work, stretches=tuple(stretches), most_bytes=most)

    def _runs(self, pairs: Sequence[int], last: Progress | None) -> list[tuple[int, int]]:
        """The beginnings and ends of answered runs that are not judged yet, in order; of many the latest."""
        after = NEVER if last is None else last.position
        here = RUNS.c.pair.in_(pairs) & (RUNS.c.end_ns > after) & RUNS.c.reason.is_(None)
        query = select(RUNS.c.start_ns, RUNS.c.end_ns).where(here)
        query = query.order_by(RUNS.c.end_ns.desc()).limit(MOST_RUNS)
        with self._store.transaction() as connection:
            return [(start, end) for start, end in connection.execute(query)][::-1]

    def _measured(self, objective: Objective, name: str, last: Progress | None) -> Iterator[SegmentTask]:
        if stretches := self._of_times(objective, last, self._measured_until()):
            yield self._segment_task(objective, name, None, stretches)

    def _path(self, objective: Objective, progress: dict[str, Progress]) -> Iterator[PathTask]:
        hops = tuple(hop.strip() for hop in str(objective.path).split(">"))
        if stretches := self._of_times(objective, progress.get(PATH), self._measured_until()):
            most = self._limits.query_decoded_bytes
            yield PathTask(objective=objective, place=PATH, hops=hops, stretches=tuple(stretches), most_bytes=most)

    def _measured_until(self) -> int:
        """Up to when what probers and routers measure has come: routers report some seconds later.

        What a node dates ahead of the present says nothing of what others have measured.
        """
        now = time.time_ns()
        routers = EPOCHS.c.stream.like("router:%")
        with self._store.transaction() as connection:
            ends = select(func.max(MEASUREMENTS.c.end_ns)).where(MEASUREMENTS.c.end_ns <= now)
            probed = connection.execute(ends).scalar() or 0
            newest = connection.execute(select(func.max(EPOCHS.c.last_ns)).where(routers)).scalar()
        return probed if newest is None else min(max(probed, newest), now - LATEST_NS)

    def _of_times(self, objective: Objective, last: Progress | None, until_ns: int) -> list[Stretch]:
        """Multiples of a length that are over by a time, from where a place was judged last; of a new one, the last.

        So it is of one that was judged up to a time that is still to come, when a clock was ahead.
        """
        length = objective.every_ns
        end = until_ns // length * length
        if end <= 0:
            return []
        is_ahead = last is not None and last.position > max(end, time.time_ns() + length)
        begin = end - length if last is None or is_ahead else max(last.position, end - MOST_BEHIND * length)
        before = NEVER if last is None else last.position
        stretches = []
        for start in range(begin, end, length):
            if start + length <= end:
                span: dict[str, Any] = {"from_ns": start, "until_ns": start + length, "lasts_ns": length}
                stretches.append(Stretch(before=before, position=start + length, **span))
                before = start + length
        return stretches

    def _collections(self, objective: Objective, progress: dict[str, Progress]) -> Iterator[CollectionTask]:
        for number, place, begin_ns in self._collections_of(objective):
            if stretches := self._of_times(objective, progress.get(place), begin_ns):
                yield CollectionTask(objective=objective, place=place, number=number, stretches=tuple(stretches))

    def _collections_of(self, objective: Objective) -> list[tuple[int, str, int]]:
        """The number and the place of each collection that an objective is about, and up to when it is solved."""
        node, _slash, name = str(objective.collection).rpartition("/")
        query = select(COLLECTIONS.c.id, COLLECTIONS.c.node, COLLECTIONS.c.begin_ns).where(COLLECTIONS.c.name == name)
        if node:
            query = query.where(COLLECTIONS.c.node == node)
        with self._store.transaction() as connection:
            found = connection.execute(query.order_by(COLLECTIONS.c.node)).all()
        return [(number, f"{owner}/{name}", begin_ns or 0) for number, owner, begin_ns in found]


def _of_frames(group: Sequence[dict[str, int]], before: int, length_ns: int) -> Stretch:
    apart = 1 + round((group[-1]["first_ns"] - group[0]["first_ns"]) / length_ns)
    return Stretch(
        before=before,
        position=group[-1]["sequence"],
        from_ns=min(frame["first_ns"] for frame in group),
        until_ns=max(frame["last_ns"] for frame in group),
        lasts_ns=max(apart, len(group)) * length_ns,
        epochs=len(group),
        measurements=max(frame["recorded"] for frame in group),
        numbers=(group[0]["sequence"], group[-1]["sequence"]),
    )


def _of_runs(runs: Iterable[tuple[int, int]], objective: Objective, epoch_ns: int, position: int) -> list[Stretch]:
    """Answered runs, put together until they last as long as they should."""
    stretches: list[Stretch] = []
    first_ns, count = None, 0
    enough_ns = objective.every_ns - epoch_ns // 2
    before = position
    for start, end in runs:
        if start < position:  # of a former plan, and judged
            continue
        first_ns, count = start if first_ns is None else first_ns, count + 1
        if end - first_ns >= enough_ns or objective.every_ns <= epoch_ns:
            # Runs that only touch the stretch are no part of it.
            span: dict[str, Any] = {"from_ns": first_ns + 1, "until_ns": end - 1}
            span |= {"lasts_ns": end - first_ns, "epochs": count}
            stretches.append(Stretch(before=before, position=end, **span))
            before = position = end
            first_ns, count = None, 0
    if stretches and stretches[0].before == NEVER:
        return [replace(stretches[-1], before=NEVER)]
    return stretches[-MOST_BEHIND:] if len(stretches) <= MOST_BEHIND else _latest(stretches)


def _latest(stretches: Sequence[Stretch]) -> list[Stretch]:
    return [replace(stretches[-MOST_BEHIND], before=stretches[0].before), *stretches[1 - MOST_BEHIND :]]
