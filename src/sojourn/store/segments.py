"""The fleet's segments, the plans that points record under, and which point has recorded under which, and when.

A *generation* is a plan with a number that is never given again; a *recording* is a point's stream under one of them.
Of a point that is recorded one recording is current; while a new generation takes over, the former goes on for some
epochs (``superseded_ns``), until it is withdrawn (``until_ns``). What has ended stays, for those who ask about then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
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

from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.segment import FleetSegment
from sojourn.segments.plan import SegmentPlan
from sojourn.store.database import NAME, NUMBER
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import Pair, remove_pairs, spent_pairs

_METADATA = MetaData()

FLEET_SEGMENTS = Table(
    "fleet_segments",
    _METADATA,
    Column("name", NAME, primary_key=True),
    Column("from_node", NAME, nullable=False, index=True),
    Column("from_interface", String(20), nullable=False),
    Column("from_direction", String(4), nullable=False),
    Column("to_node", NAME, nullable=False, index=True),
    Column("to_interface", String(20), nullable=False),
    Column("to_direction", String(4), nullable=False),
    Column("filter", String(1000), nullable=False),
    Column("epoch_ns", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger),
    Column("error", Float),
    Column("confidence", Float),
    Column("both_directions", Boolean, nullable=False),
    Column("planned_bytes", BigInteger, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("sketch", String(10), nullable=False, server_default="auto"),
)

GENERATIONS = Table(
    "segment_generations",
    _METADATA,
    Column("number", NUMBER, primary_key=True, autoincrement=True),
    Column("plan", Text, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("epoch_ns", BigInteger, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

RECORDINGS = Table(
    "point_recordings",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("interface", String(20), primary_key=True),
    Column("direction", String(4), primary_key=True),
    Column("filter", String(1000), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("since_ns", BigInteger, nullable=False),
    Column("superseded_ns", BigInteger),
    Column("until_ns", BigInteger, index=True),
)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A plan, what it was asked for, and since when points record under it."""

    number: int
    plan: SegmentPlan
    memory_bytes: int
    epoch_ns: int
    since_ns: int


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A point's stream under a generation; one that has ended has an end."""

    point: Point
    generation: Generation
    since_ns: int
    superseded_ns: int | None = None
    until_ns: int | None = None

    @property
    def stream(self) -> str:
        return self.point.stream(self.generation.number)

    @property
    def is_current(self) -> bool:
        """Whether the point is recorded under it, and under no later one."""
        return self.superseded_ns is None and self.until_ns is None


class SegmentStore:
    """The tables of one store. What changes is written with the caller's connection, all or nothing."""

    def __init__(self, store: EpochStore) -> None:
        self._store = store

    def all(self) -> list[FleetSegment]:
        """All segments, by name."""
        with self._store.transaction() as connection:
            return self.segments(connection)

    def named(self, name: str) -> FleetSegment | None:
        """One segment."""
        with self._store.transaction() as connection:
            return self.find(connection, name)

    def find(self, connection: Connection, name: str) -> FleetSegment | None:
        """One segment, as part of a transaction."""
        row = connection.execute(select(FLEET_SEGMENTS).where(FLEET_SEGMENTS.c.name == name)).one_or_none()
        return None if row is None else _segment(row)

    def recordings_of(self, points: Sequence[Point]) -> list[Recording]:
        """All recordings of some points, ended ones as well, the newest generation first."""
        with self._store.transaction() as connection:
            found = [one for point in points for one in self.recordings(connection, _here(point))]
        return sorted(found, key=lambda one: -one.generation.number)

    def recent(self, since_ns: int) -> list[Recording]:
        """All recordings that had not ended by a time."""
        with self._store.transaction() as connection:
            return self.recordings(connection, RECORDINGS.c.until_ns.is_(None) | (RECORDINGS.c.until_ns >= since_ns))

    def recorded(self) -> list[Recording]:
        """All recordings that have not ended."""
        with self._store.transaction() as connection:
            return self.recordings(connection, RECORDINGS.c.until_ns.is_(None))

    def segments(self, connection: Connection) -> list[FleetSegment]:
        """All segments, by name."""
        return [_segment(row) for row in connection.execute(select(FLEET_SEGMENTS).order_by(FLEET_SEGMENTS.c.name))]

    def joined_to(self, connection: Connection, points: Sequence[Point]) -> list[FleetSegment]:
        """The segments that points belong to, and all that these are joined with by points, by name."""
        found: dict[str, FleetSegment] = {}
        known: set[Point] = set()
        fresh = set(points)
        while fresh:
            known |= fresh
            nodes = sorted({point.node for point in fresh})
            here = FLEET_SEGMENTS.c.from_node.in_(nodes) | FLEET_SEGMENTS.c.to_node.in_(nodes)
            same = FLEET_SEGMENTS.c.filter.in_(sorted({point.filter for point in fresh}))
            near = [_segment(row) for row in connection.execute(select(FLEET_SEGMENTS).where(here & same))]
            joined = [one for one in near if not known.isdisjoint(one.points)]
            found.update((one.name, one) for one in joined)
            # Of a segment of both directions all points: a group that is reached has to be found whole.
            fresh = {point for one in joined for point in one.points} - known
        return [found[name] for name in sorted(found)]

    def count(self, connection: Connection) -> int:
        """How many segments there are."""
        return int(connection.execute(select(func.count()).select_from(FLEET_SEGMENTS)).scalar_one())

    def points_at(self, connection: Connection, node: str) -> int:
        """How many points of a node are recorded."""
        here = (RECORDINGS.c.node == node) & RECORDINGS.c.until_ns.is_(None) & RECORDINGS.c.superseded_ns.is_(None)
        return int(connection.execute(select(func.count()).select_from(RECORDINGS).where(here)).scalar_one())

    def add(self, connection: Connection, segment: FleetSegment) -> None:
        connection.execute(insert(FLEET_SEGMENTS).values(_row(segment)))

    def resize(self, connection: Connection, name: str, planned_bytes: int) -> None:
        """Note the memory that planning has found for a segment."""
        here = FLEET_SEGMENTS.c.name == name
        connection.execute(update(FLEET_SEGMENTS).where(here).values(planned_bytes=planned_bytes))

    def remove(self, connection: Connection, name: str) -> None:
        connection.execute(delete(FLEET_SEGMENTS).where(FLEET_SEGMENTS.c.name == name))

    def recordings(self, connection: Connection, where: Any) -> list[Recording]:
        """The recordings that a condition on their table chooses."""
        rows = connection.execute(select(RECORDINGS).where(where)).all()
        plans = self.generations(connection, {row.generation for row in rows})
        return [
            Recording(
                point=Point(node=row.node, interface=row.interface, direction=row.direction, filter=row.filter),
                generation=plans[row.generation],
                since_ns=row.since_ns,
                superseded_ns=row.superseded_ns,
                until_ns=row.until_ns,
            )
            for row in rows
        ]

    def generations(self, connection: Connection, numbers: Iterable[int]) -> dict[int, Generation]:
        """Generations by their numbers."""
        query = select(GENERATIONS).where(GENERATIONS.c.number.in_(sorted(numbers)))
        return {
            row.number: Generation(
                number=row.number,
                plan=_plan(row.plan),
                memory_bytes=row.memory_bytes,
                epoch_ns=row.epoch_ns,
                since_ns=row.since_ns,
            )
            for row in connection.execute(query)
        }

    def begin_generation(
        self, connection: Connection, plan: SegmentPlan, *, memory_bytes: int, epoch_ns: int, now_ns: int
    ) -> Generation:
        """A new generation, with a number of its own."""
        made: dict[str, Any] = {"memory_bytes": memory_bytes, "epoch_ns": epoch_ns, "since_ns": now_ns}
        key = connection.execute(insert(GENERATIONS).values(plan=plan.to_text(), **made)).inserted_primary_key
        assert key is not None
        return Generation(number=int(key[0]), plan=plan, **made)

    def begin(self, connection: Connection, point: Point, generation: Generation, now_ns: int) -> None:
        """Note that a point records under a generation; one that had ended goes on."""
        here = _here(point) & (RECORDINGS.c.generation == generation.number)
        again = {"superseded_ns": None, "until_ns": None}
        if not connection.execute(update(RECORDINGS).where(here).values(again)).rowcount:
            row = {"generation": generation.number, "since_ns": now_ns, **vars(point)}
            connection.execute(insert(RECORDINGS).values(row))

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the recordings that ended before a time, and of the pairs of streams that nothing is
        left of; and generations without recordings. How many of the two.
        """
        old = (RECORDINGS.c.until_ns < time_ns) & RECORDINGS.c.until_ns.is_not(None)
        with self._store.transaction(writes=True) as connection:
            found = self.recordings(connection, old)[:limit]
            for one in found:
                here = _here(one.point) & (RECORDINGS.c.generation == one.generation.number)
                connection.execute(delete(RECORDINGS).where(here))
            used = select(RECORDINGS.c.generation)
            unused = (GENERATIONS.c.since_ns < time_ns) & GENERATIONS.c.number.not_in(used)
            connection.execute(delete(GENERATIONS).where(unused))
            spent = self._spent_pairs(connection)[:limit]
            remove_pairs(connection, spent)
        return len(found) + len(spent)

    def _spent_pairs(self, connection: Connection) -> list[int]:
        """The numbers of pairs of which nothing is stored, nor will be: an end of each is recorded no more."""
        spent = spent_pairs(connection)
        nodes = sorted({node for one in spent for node, _ in one.pair.ends})
        known = {(one.point.node, one.stream) for one in self.recordings(connection, RECORDINGS.c.node.in_(nodes))}
        return [one.number for one in spent if not known.issuperset(one.pair.ends)]

    def change(self, connection: Connection, recording: Recording, **when_ns: int) -> None:
        """Note when a recording was superseded or ended."""
        here = _here(recording.point) & (RECORDINGS.c.generation == recording.generation.number)
        connection.execute(update(RECORDINGS).where(here).values(when_ns))


def pair_of(sender: Point, receiver: Point, generation: int) -> Pair:
    """The two points' streams that are compared under a generation."""
    return Pair(
        from_node=sender.node,
        from_stream=sender.stream(generation),
        to_node=receiver.node,
        to_stream=receiver.stream(generation),
    )


def at_nodes(points: Iterable[Point]) -> Any:
    """The recordings at the nodes of points, theirs among them, that have not ended."""
    return RECORDINGS.c.node.in_(sorted({point.node for point in points})) & RECORDINGS.c.until_ns.is_(None)


def superseded() -> Any:
    """The recordings that go on while a later generation takes over."""
    return RECORDINGS.c.superseded_ns.is_not(None) & RECORDINGS.c.until_ns.is_(None)


def _here(point: Point) -> Any:
    found: Any = RECORDINGS.c.filter == point.filter
    for name in ("node", "interface", "direction"):
        found &= RECORDINGS.c[name] == getattr(point, name)
    return found


# The plans of all groups are read again and again.
_plan = lru_cache(maxsize=10_000)(SegmentPlan.from_text)

_SIZED = ("memory_bytes", "error", "confidence", "planned_bytes")
_PLAIN = ("name", "epoch_ns", "both_directions", "created_ns", "sketch", *_SIZED)


def _row(segment: FleetSegment) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(segment, name) for name in _PLAIN}
    for end, point in (("from", segment.sender), ("to", segment.receiver)):
        row |= {f"{end}_{name}": getattr(point, name) for name in ("node", "interface", "direction")}
    return row | {"filter": segment.filter}


def _segment(row: Any) -> FleetSegment:
    sender, receiver = (
        Point(filter=row.filter, **{name: getattr(row, f"{end}_{name}") for name in ("node", "interface", "direction")})
        for end in ("from", "to")
    )
    plain = {name: getattr(row, name) for name in _PLAIN}
    return FleetSegment(sender=sender, receiver=receiver, **plain)
