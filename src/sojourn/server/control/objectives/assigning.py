"""What nodes record for objectives: which nodes are meant, which stream of each answers, and how large its array is.

Guarantee: a change of an objective and all assignments that follow from it are one transaction. A stream that somebody
assigned, or that a node's own configuration has, is used where it suits, and never changed; else the node is assigned a
stream that is named for the objective (``objective:NAME``), which goes with it, or with the node's tag. Nodes that come
by a tag later are assigned theirs when they are looked at next.

A violation that is open at a node when it leaves, or at a stream when another one answers, is cleared: nobody would.
So is that of a segment or a collection that is gone.

Suited is a stream of the metric that is recorded now, in epochs no longer than the objective's stretches; of one that
was assigned, with the same interface and with all instances that are asked for.
Cost: a look reads the objective's nodes, their streams and their states, and writes what has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median_low
from typing import Any

from sqlalchemy import Connection

from sojourn.core.errors import SojournError, UsageError
from sojourn.core.units import parse_duration
from sojourn.node.agent.configuration import DEFAULT_EPOCH, checked_stream
from sojourn.objectives.condition import duration_text
from sojourn.objectives.objective import Objective
from sojourn.objectives.sizing import FIRST
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.objectives.judging import log_changes
from sojourn.server.control.states import StreamStateStore
from sojourn.server.door.limits import Limits
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sources.registry import is_own, source_type
from sojourn.sources.source import InstancePatterns
from sojourn.store.epochs import EpochStore, StreamRecord
from sojourn.store.objectives import Change, ObjectiveStore, ObjectiveStream

PREFIX = "objective:"
# Epochs that tell how long those of a stream are, where nobody has said it.
SPACED, LEAST_APART, UNSURE = 6, 2, 1.5
STEP_NS = 1_000_000_000  # epochs are so long, or a multiple of that: first measurements are only about as far apart
_SIZE = ("buckets", "per_instance", "bits", "count_bits")
_OF_TRAFFIC = ("rtt", "flow_packets", "flow_bytes")
_RATES = {"ns": ("ns", "share"), "bytes": ("bytes",)}


class NoObjectiveError(UsageError):
    """There is no objective of that name."""


class ObjectiveExistsError(UsageError):
    """Another objective has the name."""


class ObjectiveControl:
    """The objectives of one store; safe from several threads."""

    def __init__(
        self, store: EpochStore, assignments: AssignmentStore, states: StreamStateStore, limits: Limits
    ) -> None:
        self._store, self._assignments, self._states, self._limits = store, assignments, states, limits
        self.objectives = ObjectiveStore(store)

    def create(self, objective: Objective) -> set[str]:
        """Add an objective and have its nodes record what it needs; the nodes whose assignments changed."""
        check_units(objective)
        now = time.time_ns()
        with self._store.transaction(writes=True) as connection:
            if self.objectives.find(connection, objective.name) is not None:
                what = f"there is an objective {objective.name} already"
                raise ObjectiveExistsError(what, where="objective", action="remove it first, or choose another name")
            if self.objectives.count(connection) >= self._limits.objectives:
                what = f"there are {self._limits.objectives} objectives already, which is the limit"
                raise UsageError(what, where="objective", action="remove some first")
            self.objectives.add(connection, objective, now)
        return self.settle(objective)

    def remove(self, name: str) -> tuple[set[str], list[Change]]:
        """Remove an objective and withdraw its streams; the nodes whose assignments changed, and what was cleared."""
        own = [row for row in self.objectives.streams(name) if row.own]
        with self._store.transaction(writes=True) as connection:
            if (found := self.objectives.find(connection, name)) is None:
                raise NoObjectiveError(f"there is no objective {name[:200]}", action="sojourn objective list shows all")
            for row in own:
                self._assignments.assign_with(connection, row.node, PREFIX + name, None)
            changes = self.objectives.remove(connection, found.objective, time.time_ns())
        return {row.node for row in own}, changes

    def nodes_of(self, objective: Objective) -> list[str]:
        """The nodes that an objective is about, by name."""
        if objective.tag is not None:
            return [node.name for node in self._store.nodes(tag=objective.tag)]
        patterns = InstancePatterns(objective.nodes)
        return [node.name for node in self._store.nodes() if patterns.match(node.name)]

    def settle(self, objective: Objective) -> set[str]:
        """Give every node of an objective a stream that answers it; the nodes whose assignments changed."""
        if objective.subject != "metric":
            return set()
        known = {row.node: row for row in self.objectives.streams(objective.name)}
        nodes = self.nodes_of(objective)
        streams = self._store.streams(metric=objective.metric)
        wanted: dict[str, ObjectiveStream | None] = dict.fromkeys(known.keys() - set(nodes))
        for node in nodes:
            wanted[node] = self._chosen(objective, node, known.get(node), [one for one in streams if one.node == node])
        changed = {node: row for node, row in wanted.items() if row is None or not _same(row, known.get(node))}
        if not changed:
            return set()
        with self._store.transaction(writes=True) as connection:
            if self.objectives.find(connection, objective.name) is None:
                return set()
            told = {
                node for node, row in changed.items() if self._write(connection, objective, node, row, known.get(node))
            }
            # After that, so that nothing is raised meanwhile by what was found there before.
            left = [
                one for node, row in changed.items() for one in self._left(connection, objective, row, known.get(node))
            ]
        log_changes(objective, left)
        return told

    def leave(self, objective: Objective, places: Iterable[str]) -> None:
        """Judge an objective at some places no more."""
        for place in places:
            with self._store.transaction(writes=True) as connection:
                left = self.objectives.leave(connection, objective, place, time.time_ns())
            log_changes(objective, left)

    def _chosen(
        self, objective: Objective, node: str, known: ObjectiveStream | None, streams: Iterable[StreamRecord]
    ) -> ObjectiveStream:
        """What answers an objective at a node; its own stream stays once it has one."""
        if known is not None and known.own:
            return known
        assigned, states = self._assignments.of(node)[1], self._states.of(node)
        for stream in streams:
            state = states.get(stream.name)
            is_recorded = not states or (state is not None and state.state == "running")
            if stream.name.startswith(PREFIX) or not is_recorded:
                continue
            is_chosen = known is not None and known.stream == stream.name
            if self._suits(objective, stream, assigned.get(stream.name), is_chosen=is_chosen):
                return ObjectiveStream(objective=objective.name, node=node, stream=stream.name)
        name, table = PREFIX + objective.name, table_for(objective, FIRST)
        row = ObjectiveStream(objective=objective.name, node=node, stream=None)
        try:
            where = f"objective {objective.name}"
            checked_stream(name, table, where=where, most_bytes=self._limits.assignment_bytes)
        except SojournError as error:
            return replace(row, reason=str(error))
        if len(assigned) >= self._limits.assignments:
            return replace(row, reason=f"{node} is assigned {len(assigned)} streams already, which is the limit")
        return replace(row, stream=name, own=True, configuration=table)

    def _suits(
        self, objective: Objective, stream: StreamRecord, table: Mapping[str, Any] | None, *, is_chosen: bool
    ) -> bool:
        length_ns = self.epoch_ns(stream.node, stream.name, table)
        # Where little is measured, first measurements are further apart now and then: that is no longer epoch.
        slack = UNSURE if table is None and is_chosen else 1.01
        if length_ns is not None and length_ns > slack * objective.every_ns:
            return False
        if table is None:
            return True  # what a node's own configuration selects is not known here
        if objective.interface and table.get("interface") != objective.interface:
            return False
        given = table.get("instances")
        return not given or list(given) == list(objective.patterns)

    def epoch_ns(self, node: str, stream: str, table: Mapping[str, Any] | None) -> int | None:
        """How long a stream's epochs are: as assigned, or as the latest ones are apart; None where nobody knows."""
        if table is not None:
            return parse_duration(str(table.get("epoch", DEFAULT_EPOCH)))
        frames = self._store.frames(node, stream, limit=SPACED)
        # In the order of their numbers, whatever the node's clock was set to meanwhile.
        firsts = [int(frame["first_ns"]) for frame in reversed(frames) if frame["first_ns"] is not None]
        apart = [later - earlier for earlier, later in pairwise(firsts) if later > earlier]
        if len(apart) < LEAST_APART:
            return None
        usual_ns = median_low(apart)
        step_ns = STEP_NS if usual_ns > 5 * STEP_NS else STEP_NS // 10
        return max(round(usual_ns / step_ns), 1) * step_ns

    def stretch_of(self, objective: Objective, row: ObjectiveStream) -> tuple[int, int] | None:
        """How many epochs of a stream make a stretch of an objective, and how long each is.

        None where that is not known yet and a rate is asked for, which would be too high or too low by any factor.
        """
        if row.own or row.stream is None:
            return 1, objective.every_ns
        table = self._assignments.of(row.node)[1].get(row.stream)
        length_ns = self.epoch_ns(row.node, row.stream, table)
        if length_ns is None:
            return None if any(one.stat == "rate" for one in objective.require) else (1, objective.every_ns)
        return max(1, round(objective.every_ns / length_ns)), length_ns

    def resize(self, objective: Objective, row: ObjectiveStream, size: BucketArrayParameters, planned: int) -> bool:
        """Have a node record its own stream of an objective in another array; whether that changes anything."""
        table = table_for(objective, size)
        with self._store.transaction(writes=True) as connection:
            if self.objectives.find(connection, objective.name) is None:
                return False
            found = replace(row, configuration=table, planned=planned)
            return self._write(connection, objective, row.node, found, row)

    def _left(
        self, connection: Connection, objective: Objective, row: ObjectiveStream | None, known: ObjectiveStream | None
    ) -> list[Change]:
        """What is cleared as a stream is not judged any more: its node has gone, or another one answers."""
        if known is None or known.stream is None or (row is not None and row.stream == known.stream):
            return []
        return self.objectives.leave(connection, objective, f"{known.node}/{known.stream}", time.time_ns())

    def _write(
        self,
        connection: Connection,
        objective: Objective,
        node: str,
        row: ObjectiveStream | None,
        known: ObjectiveStream | None,
    ) -> bool:
        """Note what answers at a node, and assign or withdraw its own stream; whether the node has to know."""
        had = known is not None and known.own
        if row is None:
            self.objectives.drop_stream(connection, objective.name, node)
        else:
            if row.own and row.configuration is not None:
                self._assignments.assign_with(connection, node, PREFIX + objective.name, row.configuration)
            self.objectives.set_stream(connection, replace(row, since_ns=time.time_ns()))
        if row is not None and row.own:
            return known is None or dict(row.configuration or {}) != dict(known.configuration or {})
        if had:
            self._assignments.assign_with(connection, node, PREFIX + objective.name, None)
        return had


def _same(row: ObjectiveStream, known: ObjectiveStream | None) -> bool:
    """Whether nothing has to be written."""
    return known is not None and replace(row, since_ns=0) == replace(known, since_ns=0)


def table_for(objective: Objective, size: BucketArrayParameters) -> dict[str, Any]:
    """The configuration of a stream that an objective assigns."""
    options = {"interface": objective.interface, "direction": objective.direction, "filter": objective.filter}
    if objective.port is not None and objective.metric in _OF_TRAFFIC and not objective.filter:
        options["filter"] = f"port {objective.port}"
    return {
        "metric": objective.metric,
        "epoch": duration_text(objective.every_ns),
        **({"instances": list(objective.patterns)} if objective.patterns else {}),
        **{name: value for name, value in options.items() if value},
        **{name: getattr(size, name) for name in _SIZE},
    }


def check_units(objective: Objective) -> None:
    """Refuse conditions in other units than the metric's, as far as it is known here."""
    if objective.metric is None:
        for one in objective.require:
            if one.stat != "loss" and one.unit != "ns":
                what = f"{one} is no limit to a delay"
                raise UsageError(what, where=f"objective {objective.name}", action=f"write '{one.stat} < 40ms'")
        return
    if not is_own(objective.metric):
        return
    metric = source_type(objective.metric).metric
    where = f"objective {objective.name}"
    for one in objective.require:
        if one.stat == "rate" and metric.values == "samples":
            what = f"{metric.name} is sampled, and has no rate"
            raise UsageError(what, where=where, action="write a condition on its mean")
        known = _RATES.get(metric.unit, ("number",))
        units = known if one.stat == "rate" else known[:1]
        if one.unit not in units:
            shown = {"ns": "a time such as 100ms", "bytes": "a size such as 10MB", "number": "a number"}[known[0]]
            raise UsageError(
                f"{metric.name} is measured in {metric.unit}, not as in '{one}'", where=where, action=f"give {shown}"
            )
