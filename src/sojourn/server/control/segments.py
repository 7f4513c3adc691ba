"""The fleet's segments: what is created and removed becomes plans, and what nodes are assigned.

Guarantee: a change of segments and all assignments that follow from it are one transaction. Each point is assigned one
stream, or two while a new generation of its plan takes over: the former is withdrawn when all points of its group have
stored epochs of the new one that share a marker, or, where no packet passes, have recorded it for `MOST_TAKING_OVER`
epochs' time. So there is no gap, and one that cannot begin at a point does not end what can be recorded there. A point
that has recorded nothing under the former (it joins the group now, or cannot be recorded at all) is not waited for. A
group
keeps its generation while the memory and the epoch that its segments need stay the same: points that join it are added,
points that leave it are withdrawn, and nothing changes for the others.
Cost: a change reads the segments of the group concerned and all others of its nodes, and writes two rows for each of
its points.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Connection

from sojourn.core.errors import UsageError
from sojourn.node.agent.configuration import checked_stream
from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.replanning import first_plan, fits_ledger, planned_again
from sojourn.segments.fleet.segment import BEST, LEDGER, FleetSegment, Group, groups_of
from sojourn.segments.plan import SegmentPlan
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import EpochStore
from sojourn.store.segments import Generation, Recording, SegmentStore, at_nodes, superseded

MOST_TAKING_OVER = 5  # epochs


class Progress(Protocol):
    """Who knows how recordings that have just begun fare."""

    def are_joined(self, first: Recording, second: Recording) -> bool:
        """Whether two points' recordings, a sender's and a receiver's, can be compared by what is stored of them."""

    def began_ns(self, recording: Recording) -> int | None:
        """Since when a point is recorded under its generation; None where it is not."""


class NoSegmentError(UsageError):
    """There is no segment of that name."""


class SegmentExistsError(UsageError):
    """Another segment has the name."""


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """A group, and the generation that all its points record under, or begin to while a former one goes on."""

    group: Group
    generation: Generation
    is_taking_over: bool = False


class SegmentControl:
    """Segments of one store; safe from several threads."""

    def __init__(self, store: EpochStore, assignments: AssignmentStore, limits: Limits) -> None:
        self._store, self._assignments, self._limits = store, assignments, limits
        self.segments = SegmentStore(store)

    def create(self, segment: FleetSegment) -> set[str]:
        """Add a segment and have its points recorded; the nodes whose assignments changed."""
        created = replace(segment, created_ns=time.time_ns())
        # It may share a larger plan now, and be alone once the others are removed.
        first_plan(created.size_bytes, created.sketch)
        with self._store.transaction(writes=True) as connection:
            if self.segments.find(connection, created.name) is not None:
                what = f"there is a segment {created.name} already"
                raise SegmentExistsError(what, where="segment", action="remove it first, or choose another name")
            if (other := self._opposite(connection, created)) is not None:
                what = f"packets pass {created.sender} before {created.receiver} here, and after it in segment {other}"
                raise SegmentExistsError(what, where="segment", action=f"remove {other} first, if that one is wrong")
            if self.segments.count(connection) >= self._limits.segments:
                what = f"there are {self._limits.segments} segments already, which is the limit"
                raise UsageError(what, where="segment", action="remove some first")
            self.segments.add(connection, created)
            return self._settle(connection, created)

    def _opposite(self, connection: Connection, segment: FleetSegment) -> str | None:
        """The name of a segment of the same points the other way round: packets pass them in one order."""
        turned = {(receiver, sender) for sender, receiver in segment.pairs.values()}
        joined = self.segments.joined_to(connection, segment.points)
        return next((one.name for one in joined if not turned.isdisjoint(one.pairs.values())), None)

    def remove(self, name: str) -> set[str]:
        """Remove a segment, and withdraw what no other needs; the nodes whose assignments changed."""
        with self._store.transaction(writes=True) as connection:
            if (found := self.segments.find(connection, name)) is None:
                raise NoSegmentError(f"there is no segment {name[:200]}", action="sojourn segment list shows all")
            self.segments.remove(connection, name)
            return self._settle(connection, found)

    def groups(self) -> list[RecordedGroup]:
        """All groups with the generation of each."""
        with self._store.transaction() as connection:
            segments = self.segments.segments(connection)
        recordings = self.segments.recorded()
        recorded = {one.point: one.generation for one in recordings if one.is_current}
        former = {one.point for one in recordings if not one.is_current}
        generations = [(group, recorded.get(group.points[0])) for group in groups_of(segments)]
        return [
            RecordedGroup(group=group, generation=one, is_taking_over=not former.isdisjoint(group.points))
            for group, one in generations
            if one is not None
        ]

    def replan(self, recorded: RecordedGroup, plan: SegmentPlan, sizes: Mapping[str, int]) -> set[str]:
        """Let a group go on under another plan, with the memory found for some segments; nodes that have to know.

        A group that has changed meanwhile is left as it is: it will be looked at again.
        """
        with self._store.transaction(writes=True) as connection:
            for name, size in sizes.items():
                self.segments.resize(connection, name, size)
            joined = groups_of(self.segments.joined_to(connection, recorded.group.points))
            group = next((one for one in joined if one.points == recorded.group.points), None)
            current = self._current(connection, recorded.group.points)
            numbers = {one.generation.number for one in current.values()}
            if group is None or numbers != {recorded.generation.number}:
                return set()
            now = time.time_ns()
            following = self.segments.begin_generation(
                connection, plan, memory_bytes=group.memory_bytes, epoch_ns=group.epoch_ns, now_ns=now
            )
            return self._record(connection, group, following, current, now)

    def finish_taking_over(self, progress: Progress) -> set[str]:
        """Withdraw former generations that the new ones have replaced; the nodes whose assignments changed."""
        now = time.time_ns()
        with self._store.transaction() as connection:
            former = self.segments.recordings(connection, superseded())
        if not former:
            return set()
        current = {one.point: one for one in self.segments.recorded() if one.is_current}
        groups = {point: one.group for one in self.groups() for point in one.group.points}
        # What was superseded before it could take over is not needed beside the one that it was to follow.
        oldest = {one.point: one for one in sorted(former, key=lambda one: -one.generation.number)}
        done = [
            one
            for one in former
            if one is not oldest[one.point] or _is_over(oldest, one.point, current, groups, progress, now_ns=now)
        ]
        with self._store.transaction(writes=True) as connection:
            for one in done:
                self._withdraw(connection, one, now)
        return {one.point.node for one in done}

    def _settle(self, connection: Connection, changed: FleetSegment) -> set[str]:
        """Make recordings what segments call for, after one of them has come or gone."""
        now = time.time_ns()
        groups = groups_of(self.segments.joined_to(connection, changed.points))
        wanted = {point for group in groups for point in group.points}
        gone = set(changed.points) - wanted
        nodes: set[str] = set()
        for one in self.segments.recordings(connection, at_nodes(gone)):
            if one.point in gone:
                self._withdraw(connection, one, now)
                nodes.add(one.point.node)
        current = self._current(connection, wanted)
        for group in groups:
            generation = self._generation(connection, group, current, now)
            nodes |= self._record(connection, group, generation, current, now)
        return nodes

    def _current(self, connection: Connection, points: Collection[Point]) -> dict[Point, Recording]:
        found = self.segments.recordings(connection, at_nodes(points))
        return {one.point: one for one in found if one.is_current and one.point in points}

    def _generation(
        self, connection: Connection, group: Group, current: Mapping[Point, Recording], now_ns: int
    ) -> Generation:
        """The generation that most of a group's points record under and that suits it, or a new one."""
        known = [current[point].generation for point in group.points if point in current]
        needs = {"memory_bytes": group.memory_bytes, "epoch_ns": group.epoch_ns}
        suited = [one for one in known if (one.memory_bytes, one.epoch_ns) == tuple(needs.values())]
        suited = [one for one in suited if _is_of_kind(one.plan, group)]
        if suited:
            number = Counter(one.number for one in suited).most_common(1)[0][0]
            return next(one for one in suited if one.number == number)
        # What is known of the traffic goes into the next plan: that of the most flows has it all.
        model = max((one.plan for one in known), key=lambda plan: plan.flows, default=None)
        memory = group.memory_bytes
        plan = first_plan(memory, group.sketch) if model is None else planned_again(model, memory, group.sketch)
        return self.segments.begin_generation(connection, plan, now_ns=now_ns, **needs)

    def _record(
        self,
        connection: Connection,
        group: Group,
        generation: Generation,
        current: Mapping[Point, Recording],
        now_ns: int,
    ) -> set[str]:
        """Have all points of a group recorded under a generation; the nodes for which that is new."""
        changed: set[str] = set()
        for point in group.points:
            recording = current.get(point)
            if recording is not None:
                if recording.generation.number == generation.number:
                    continue
                self.segments.change(connection, recording, superseded_ns=now_ns)
            self.segments.begin(connection, point, generation, now_ns)
            self._assign(connection, point, generation)
            changed.add(point.node)
        return changed

    def _assign(self, connection: Connection, point: Point, generation: Generation) -> None:
        stream, table = point.stream(generation.number), point.table(generation.plan, generation.epoch_ns)
        checked_stream(stream, table, where=f"point {point}", most_bytes=self._limits.assignment_bytes)
        if self._assignments.count(connection, point.node) >= self._limits.assignments:
            what = f"{point.node} is assigned {self._limits.assignments} streams already, which is the limit"
            raise UsageError(what, where="segment", action="remove segments or streams of that node")
        if self.segments.points_at(connection, point.node) > self._limits.node_points:
            what = f"{point.node} has {self._limits.node_points} points already, which is the limit"
            raise UsageError(what, where="segment", action="remove segments of that node")
        self._assignments.assign_with(connection, point.node, stream, table)

    def _withdraw(self, connection: Connection, recording: Recording, now_ns: int) -> None:
        self.segments.change(connection, recording, until_ns=now_ns)
        self._assignments.assign_with(connection, recording.point.node, recording.stream, None)


def _is_of_kind(plan: SegmentPlan, group: Group) -> bool:
    """Whether a plan has a ledger, or none, as its group would have for the same traffic."""
    if group.sketch == BEST:
        return True  # what was measured has chosen it, or will
    if plan.name == LEDGER or group.sketch != LEDGER:
        return plan.name == group.sketch
    return bool(plan.packets) and not fits_ledger(plan.flows, plan.packets, plan.loss)


def _is_over(
    former: Mapping[Point, Recording],
    point: Point,
    current: Mapping[Point, Recording],
    groups: Mapping[Point, Group],
    progress: Progress,
    *,
    now_ns: int,
) -> bool:
    """Whether a point's former recording can end: the new one has joined all points that this one could be compared
    with.
    """
    following = current.get(point)
    if following is None:
        return True
    pairs = [pair for one in groups[point].segments for pair in one.pairs.values() if point in pair]
    if any(end not in current for pair in pairs for end in pair):
        return False
    apart = [pair for pair in pairs if not progress.are_joined(current[pair[0]], current[pair[1]])]
    if not apart:
        return True
    others = {end for pair in apart for end in pair if end in former and end != point}
    compared = {end for end in others if progress.began_ns(former[end]) is not None}
    missing = [pair for pair in apart if not compared.isdisjoint(pair)]
    if not missing:
        return progress.began_ns(following) is not None
    began = [progress.began_ns(current[end]) for pair in missing for end in pair]
    long_ago_ns = now_ns - MOST_TAKING_OVER * following.generation.epoch_ns
    return all(since_ns is not None and since_ns <= long_ago_ns for since_ns in began)
