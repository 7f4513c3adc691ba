"""Objectives in the store: what is wanted, how far each is judged, the violations found, and who has to be told.

Guarantee: what an evaluation found, how far it has come with it, and what has to be told are one transaction, which is
given up if another query unit was faster: an epoch is judged once, and a violation is raised and cleared once, whatever
ends in between.

A *place* is what an objective is judged at, one stretch of time after the other: a stream of a node, a segment, a path,
a collection. Its *position* is how far that has come: the number of an epoch, or a time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from sojourn.objectives.objective import Objective, objective_of, table_of
from sojourn.store.database import EPOCHS, NAME, NUMBER, insert_missing
from sojourn.store.epochs import EpochStore
from sojourn.store.notifications import notify
from sojourn.store.raised import forget_cleared, latest_raised

METADATA = MetaData()
PLACE = String(420)  # a node and a stream of it
INSTANCE = String(600)

OBJECTIVES = Table(
    "objectives",
    METADATA,
    Column("name", NAME, primary_key=True),
    Column("definition", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
)

# The stream that answers an objective at each of its nodes: its own, which it was assigned, or another.
STREAMS = Table(
    "objective_streams",
    METADATA,
    Column("objective", NAME, primary_key=True),
    Column("node", NAME, primary_key=True),
    Column("stream", NAME),
    Column("own", Boolean, nullable=False),
    Column("configuration", Text),
    Column("planned", Integer, nullable=False),  # instances that its array is made for
    Column("since_ns", BigInteger, nullable=False),
    Column("reason", Text),  # why there is none
)

PROGRESS = Table(
    "objective_progress",
    METADATA,
    Column("objective", NAME, primary_key=True),
    Column("place", PLACE, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("judged_ns", BigInteger, nullable=False),
    Column("until_ns", BigInteger, nullable=False),
    Column("state", String(20), nullable=False),
    Column("summary", Text, nullable=False),
)

VIOLATIONS = Table(
    "violations",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("objective", NAME, nullable=False),
    Column("place", PLACE, nullable=False),
    Column("condition", String(200), nullable=False),
    Column("node", NAME, nullable=False),
    Column("instance", INSTANCE, nullable=False),
    Column("raised_ns", BigInteger, nullable=False),
    Column("cleared_ns", BigInteger),
    Column("cleared_by", String(40)),
    Column("seen_ns", BigInteger, nullable=False),  # until when the instance was measured, by the node's clock
    Column("evidence", Text, nullable=False),
    Column("latest", Text, nullable=False),
    Index("violations_by_objective", "objective", "cleared_ns"),
    Index("violations_by_time", "raised_ns"),
)

NEVER = -1
# Stretches without a measurement of an instance after which its violation is over; what was not judged is none.
GONE_AFTER = 3
GONE, REMOVED, MET, LEFT = "no longer measured", "objective removed", "met", "no longer judged"


@dataclass(frozen=True, kw_only=True)
class StoredObjective:
    """An objective, and since when it is one."""

    objective: Objective
    created_ns: int


@dataclass(frozen=True, kw_only=True)
class ObjectiveStream:
    """The stream that answers an objective at a node; with ``own`` the objective assigned it."""

    objective: str
    node: str
    stream: str | None
    own: bool = False
    configuration: Mapping[str, Any] | None = None
    planned: int = 0
    since_ns: int = 0
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an objective is judged at a place, and what the last judgement was."""

    place: str
    position: int = NEVER
    judged_ns: int = 0
    until_ns: int = 0
    state: str = "undecided"
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The state of one condition for one instance, with what it rests on as plain fields."""

    condition: str
    node: str
    instance: str
    state: str
    evidence: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.condition, self.node, self.instance


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An evaluation of an objective at a place: the stretch ``from_ns … until_ns``, and how far that brings it.

    Unless it ``is_whole``, instances that have no verdict may have been measured all the same.
    """

    place: str
    before: int
    position: int
    from_ns: int
    until_ns: int
    state: str
    summary: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]
    is_whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A violation, open until it is cleared; ``evidence`` is that of its raising, ``latest`` the last."""

    id: int
    objective: str
    condition: str
    node: str
    instance: str
    raised_ns: int
    cleared_ns: int | None
    cleared_by: str | None
    evidence: Mapping[str, Any]
    latest: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        return {**vars(self), "node": self.node or None}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A violation that was raised or cleared just now."""

    event: str
    violation: Violation


class ObjectiveStore:
    """The objectives of one store; safe from several threads."""

    def __init__(self, store: EpochStore) -> None:
        self.store = store

    def all(self) -> list[StoredObjective]:
        """All objectives, by name."""
        with self.store.transaction() as connection:
            rows = connection.execute(select(OBJECTIVES).order_by(OBJECTIVES.c.name)).all()
        return [_objective(row) for row in rows]

    def named(self, name: str) -> StoredObjective | None:
        with self.store.transaction() as connection:
            return self.find(connection, name)

    def find(self, connection: Connection, name: str) -> StoredObjective | None:
        row = connection.execute(select(OBJECTIVES).where(OBJECTIVES.c.name == name)).first()
        return None if row is None else _objective(row)

    def count(self, connection: Connection) -> int:
        return int(connection.execute(select(func.count()).select_from(OBJECTIVES)).scalar_one())

    def add(self, connection: Connection, objective: Objective, now_ns: int) -> None:
        text = json.dumps(table_of(objective), ensure_ascii=False)
        connection.execute(insert(OBJECTIVES).values(name=objective.name, definition=text, created_ns=now_ns))

    def remove(self, connection: Connection, objective: Objective, now_ns: int) -> list[Change]:
        """Forget an objective and how far it was judged; its open violations are cleared, and stay."""
        name = objective.name
        opened = connection.execute(select(VIOLATIONS).where(_open(name))).all()
        changes = [self._clear(connection, row, objective, REMOVED, None, now_ns) for row in opened]
        for table in (STREAMS, PROGRESS):
            connection.execute(delete(table).where(table.c.objective == name))
        connection.execute(delete(OBJECTIVES).where(OBJECTIVES.c.name == name))
        return changes

    def streams(self, objective: str | None = None) -> list[ObjectiveStream]:
        """The streams that answer an objective, or all, by node."""
        query = select(STREAMS).order_by(STREAMS.c.objective, STREAMS.c.node)
        if objective is not None:
            query = query.where(STREAMS.c.objective == objective)
        with self.store.transaction() as connection:
            return [_stream(row) for row in connection.execute(query)]

    def set_stream(self, connection: Connection, stream: ObjectiveStream) -> None:
        """Note which stream answers an objective at a node."""
        here = (STREAMS.c.objective == stream.objective) & (STREAMS.c.node == stream.node)
        text = None if stream.configuration is None else json.dumps(stream.configuration, sort_keys=True)
        connection.execute(delete(STREAMS).where(here))
        connection.execute(insert(STREAMS).values(**{**vars(stream), "configuration": text}))

    def drop_stream(self, connection: Connection, objective: str, node: str) -> None:
        connection.execute(delete(STREAMS).where((STREAMS.c.objective == objective) & (STREAMS.c.node == node)))

    def leave(self, connection: Connection, objective: Objective, place: str, now_ns: int) -> list[Change]:
        """Judge an objective at a place no more: its open violations there are cleared, and it would begin anew."""
        here = _open(objective.name) & (VIOLATIONS.c.place == place)
        opened = connection.execute(select(VIOLATIONS).where(here)).all()
        own = (PROGRESS.c.objective == objective.name) & (PROGRESS.c.place == place)
        connection.execute(delete(PROGRESS).where(own))
        return [self._clear(connection, row, objective, LEFT, None, now_ns) for row in opened]

    def progress(self, objective: str) -> dict[str, Progress]:
        """How far an objective is judged, by place."""
        with self.store.transaction() as connection:
            rows = connection.execute(select(PROGRESS).where(PROGRESS.c.objective == objective)).all()
        names = ("place", "position", "judged_ns", "until_ns", "state")
        return {
            row.place: Progress(**{name: getattr(row, name) for name in names}, summary=json.loads(row.summary))
            for row in rows
        }

    def newest(self) -> int:
        """The number of the latest epoch."""
        with self.store.transaction() as connection:
            return int(connection.execute(select(func.coalesce(func.max(EPOCHS.c.id), 0))).scalar_one())

    def changed_since(self, number: int) -> set[tuple[str, str]]:
        """Nodes and streams with epochs that came after one of this number."""
        query = select(EPOCHS.c.node, EPOCHS.c.stream).where(EPOCHS.c.id > number).distinct()
        with self.store.transaction() as connection:
            return {(node, stream) for node, stream in connection.execute(query)}

    def frames_after(self, node: str, stream: str, sequence: int, *, limit: int) -> list[dict[str, int]]:
        """Number, frame, measurements and size of a stream's epochs after one, in order; those without any left out."""
        columns = (EPOCHS.c.sequence, EPOCHS.c.first_ns, EPOCHS.c.last_ns, EPOCHS.c.recorded, EPOCHS.c.size_bytes)
        here = (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream) & (EPOCHS.c.sequence > sequence)
        query = select(*columns).where(here & EPOCHS.c.first_ns.is_not(None))
        with self.store.transaction() as connection:
            rows = connection.execute(query.order_by(EPOCHS.c.sequence.desc()).limit(limit)).all()
        return [dict(row._mapping) for row in reversed(rows)]

    def apply(self, objective: Objective, judged: Judged, *, now_ns: int) -> list[Change] | None:
        """Write down an evaluation: what it raised and cleared.

        None if another has judged the place meanwhile, or it is judged no more.
        """
        with self.store.transaction(writes=True) as connection:
            if self.find(connection, objective.name) is None or not _is_judged_at(connection, objective, judged.place):
                return None
            unseen_ns = _unseen(connection, objective, judged)
            if not _advance(connection, objective, judged, now_ns):
                return None
            here = _open(objective.name) & (VIOLATIONS.c.place == judged.place)
            opened = {
                (row.condition, row.node, row.instance): row
                for row in connection.execute(select(VIOLATIONS).where(here))
            }
            changes: list[Change] = []
            for verdict in judged.verdicts:
                row = opened.pop(verdict.key, None)
                if row is None and verdict.state == "violated":
                    changes.append(self._raise(connection, objective, judged, verdict, now_ns))
                elif row is not None and verdict.state == "met":
                    changes.append(self._clear(connection, row, objective, MET, verdict.evidence, now_ns))
                elif row is not None:
                    values = {"latest": json.dumps(verdict.evidence), "seen_ns": judged.until_ns}
                    connection.execute(update(VIOLATIONS).where(VIOLATIONS.c.id == row.id).values(values))
            gone_ns = judged.until_ns - GONE_AFTER * objective.every_ns - unseen_ns
            changes += [
                self._clear(connection, row, objective, GONE, None, now_ns)
                for row in opened.values()
                # What adds nothing up has a rate of nothing; of a mean nothing is known until it stays away.
                if judged.is_whole and (row.seen_ns <= gone_ns or row.condition.startswith("rate "))
            ]
            if unseen_ns:
                later = _open(objective.name) & (VIOLATIONS.c.id.in_([row.id for row in opened.values()]))
                connection.execute(update(VIOLATIONS).where(later).values(seen_ns=VIOLATIONS.c.seen_ns + unseen_ns))
        return changes

    def _raise(
        self, connection: Connection, objective: Objective, judged: Judged, verdict: Verdict, now_ns: int
    ) -> Change:
        evidence = json.dumps(verdict.evidence)
        values = {
            "objective": objective.name,
            "place": judged.place,
            "condition": verdict.condition,
            "node": verdict.node,
            "instance": verdict.instance,
            "raised_ns": now_ns,
            "seen_ns": judged.until_ns,
            "evidence": evidence,
            "latest": evidence,
        }
        number = connection.execute(insert(VIOLATIONS).values(values).returning(VIOLATIONS.c.id)).scalar_one()
        row = connection.execute(select(VIOLATIONS).where(VIOLATIONS.c.id == number)).one()
        return self._note(connection, objective, Change(event="raised", violation=_violation(row)), now_ns)

    def _clear(
        self,
        connection: Connection,
        row: Any,
        objective: Objective,
        by: str,
        evidence: Mapping[str, Any] | None,
        now_ns: int,
    ) -> Change:
        latest = row.latest if evidence is None else json.dumps(evidence)
        values = {"cleared_ns": now_ns, "cleared_by": by, "latest": latest}
        connection.execute(update(VIOLATIONS).where(VIOLATIONS.c.id == row.id).values(values))
        found = replace(_violation(row), cleared_ns=now_ns, cleared_by=by, latest=json.loads(latest))
        return self._note(connection, objective, Change(event="cleared", violation=found), now_ns)

    def _note(self, connection: Connection, objective: Objective, change: Change, now_ns: int) -> Change:
        """Have somebody told, if the objective says whom."""
        if objective.webhook is not None:
            said = {"event": change.event, "violation": change.violation.fields()}
            notify(connection, objective.webhook, said, now_ns, violation=change.violation.id)
        return change

    def violations(
        self,
        *,
        objective: str | None = None,
        is_open: bool | None = None,
        since_ns: int | None = None,
        limit: int = 1000,
        among: Collection[str] | None = None,
    ) -> list[Violation]:
        """Violations, the latest first: of an objective or some nodes, open, cleared, or open since a time or later."""
        of = None if objective is None else VIOLATIONS.c.objective == objective
        query = latest_raised(VIOLATIONS, of, open_ones=is_open, since_ns=since_ns, among=among, limit=limit)
        with self.store.transaction() as connection:
            return [_violation(row) for row in connection.execute(query)]

    def open_counts(self) -> dict[str, int]:
        """How many violations are open, by objective."""
        query = select(VIOLATIONS.c.objective, func.count()).where(VIOLATIONS.c.cleared_ns.is_(None))
        with self.store.transaction() as connection:
            return {name: int(count) for name, count in connection.execute(query.group_by(VIOLATIONS.c.objective))}

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the violations that were cleared before a time, with what was told of them."""
        with self.store.transaction(writes=True) as connection:
            return forget_cleared(connection, VIOLATIONS, "violation", time_ns, limit=limit)


def _open(name: str) -> ColumnElement[bool]:
    return (VIOLATIONS.c.objective == name) & VIOLATIONS.c.cleared_ns.is_(None)


def _is_judged_at(connection: Connection, objective: Objective, place: str) -> bool:
    """Whether the stream of a place still answers the objective; of other subjects, that comes out later."""
    if objective.subject != "metric":
        return True
    node, _, stream = place.partition("/")
    here = (STREAMS.c.objective == objective.name) & (STREAMS.c.node == node) & (STREAMS.c.stream == stream)
    return connection.execute(select(STREAMS.c.node).where(here).with_for_update()).first() is not None


def _unseen(connection: Connection, objective: Objective, judged: Judged) -> int:
    """How long a place was not judged before a stretch, by its clock: a node was away, or its clock was set."""
    here = (PROGRESS.c.objective == objective.name) & (PROGRESS.c.place == judged.place)
    until_ns: int = connection.execute(select(PROGRESS.c.until_ns).where(here)).scalar() or 0
    apart_ns = judged.from_ns - until_ns
    return apart_ns if until_ns and abs(apart_ns) > objective.every_ns else 0


def _advance(connection: Connection, objective: Objective, judged: Judged, now_ns: int) -> bool:
    """Bring a place on; False if it is not where the evaluation took it up."""
    here = (PROGRESS.c.objective == objective.name) & (PROGRESS.c.place == judged.place)
    first = {"position": NEVER, "judged_ns": 0, "until_ns": 0, "state": "undecided", "summary": "{}"}
    insert_missing(connection, PROGRESS, [{"objective": objective.name, "place": judged.place, **first}])
    values = {
        "position": judged.position,
        "judged_ns": now_ns,
        "until_ns": judged.until_ns,
        "state": judged.state,
        "summary": json.dumps(judged.summary),
    }
    return bool(
        connection.execute(
            update(PROGRESS).where(here & (PROGRESS.c.position == judged.before)).values(values)
        ).rowcount
    )


def _objective(row: Any) -> StoredObjective:
    return StoredObjective(objective=objective_of(row.name, json.loads(row.definition)), created_ns=row.created_ns)


def _stream(row: Any) -> ObjectiveStream:
    values = {name: getattr(row, name) for name in ObjectiveStream.__dataclass_fields__}
    configuration = None if row.configuration is None else json.loads(row.configuration)
    return ObjectiveStream(**{**values, "configuration": configuration})


def _violation(row: Any) -> Violation:
    values = {name: getattr(row, name) for name in Violation.__dataclass_fields__}
    return Violation(**{**values, "evidence": json.loads(row.evidence), "latest": json.loads(row.latest)})


def worst_state(states: Iterable[str]) -> str:
    """Violated if any is, else undecided if any is, or there is none, else met."""
    found = set(states)
    return next((state for state in ("violated", "undecided") if state in found), "met" if found else "undecided")
