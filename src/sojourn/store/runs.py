"""Runs in the store: where epochs of points begin and end, which pairs of streams are compared, and their answers.

The place of an epoch among its packets (`epochs.epoch.Cut`) is noted beside it when it is stored, in the same
transaction, so that runs are found without reading a single epoch. A *pair* is two streams of one plan; how far it has
been answered is part of it, and is written with the answers: a run is answered once, whatever ends in between.

Answers are kept as bytes (`segments.fleet.stored`), beside what they are found and added up by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from sojourn.epochs.epoch import Cut, KernelClock
from sojourn.epochs.wire import EncodedEpoch
from sojourn.segments.fleet.runs import PlacedEpoch
from sojourn.store.database import CUTS, PAIRS, RUNS, Database, insert_missing, to_signed, to_word
from sojourn.store.upkeep.retention import remove_runs


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two streams that are compared."""

    from_node: str
    from_stream: str
    to_node: str
    to_stream: str

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Node and stream of either."""
        return (self.from_node, self.from_stream), (self.to_node, self.to_stream)


@dataclass(frozen=True, kw_only=True)
class KnownPair:
    """A pair in the store, and the last epochs that an answer of it rests on (−1: none yet)."""

    number: int
    pair: Pair
    sent_until: int
    received_until: int


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """An answered run, by the sender's clock; ``reason`` says why it has no answer.

    ``follows`` says that it begins where the one before it ends. Delays are by clocks of which the receiver's is
    ``lead_ns`` further ahead of its machine's count than the sender's; None where they do not tell. ``ledger`` holds
    what ledgers tell of it (`segments.fleet.ledgers.runs`); until ``naming_until_ns``, if that is set, what the
    sender's is to be asked.
    """

    start_ns: int
    end_ns: int
    follows: bool
    sent: int
    received: int
    flows: int
    size_bytes: int
    lost: int | None
    raw_mean_ns: float | None
    least_raw_ns: int | None
    raw_p99_ns: float | None
    clock: bytes
    data: bytes
    reason: str | None = None
    lead_ns: int | None = None
    ledger: bytes | None = None
    naming_until_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnnamedRun:
    """An answered run, by its number, of which the ledger of the sender's stream is to be asked until a time."""

    number: int
    node: str
    stream: str
    until_ns: int
    ledger: bytes


@dataclass(frozen=True, kw_only=True)
class LeadTotals:
    """Raw delays of the ``told`` packets of a pair's runs on one lead."""

    lead_ns: int | None
    told: int
    raw_mean_ns: float | None
    least_raw_ns: int | None
    raw_p99_ns: float | None


@dataclass(frozen=True, kw_only=True)
class PairTotals:
    """What the runs of a pair in a range add up to; delays apart by their leads, where there are any.

    ``unknown`` runs do not tell their losses.
    """

    runs: int
    first_ns: int
    last_ns: int
    sent: int
    received: int
    lost: int
    unknown: int
    leads: tuple[LeadTotals, ...]


def note_cuts(connection: Connection, epochs: Mapping[int, EncodedEpoch], now_ns: int) -> None:
    """Enter the places of epochs, by their rows' numbers; those that are not cut at packets have none."""
    rows = [_cut_row(number, epoch, epoch.cut, now_ns) for number, epoch in epochs.items() if epoch.cut is not None]
    if rows:
        connection.execute(insert(CUTS), rows)


def _cut_row(number: int, epoch: EncodedEpoch, cut: Cut, now_ns: int) -> dict[str, object]:
    same = ("node", "stream", "sequence", "first_ns", "last_ns", "recorded")
    clock = cut.clock
    return {
        "epoch": number,
        **{name: getattr(epoch, name) for name in same},
        "size_bytes": len(epoch.data),
        "begins": None if cut.begins is None else to_signed(cut.begins),
        "ends": None if cut.ends is None else to_signed(cut.ends),
        "sequences": cut.sequences,
        "continues": cut.continues,
        "missed": cut.missed,
        "synchronised": None if clock is None else clock.synchronised,
        "clock_error_ns": None if clock is None else clock.error_ns,
        "clock_offset_ns": None if clock is None else clock.offset_ns,
        "received_ns": now_ns,
    }


def _placed(row: Any) -> PlacedEpoch:
    begins, ends = (None if name is None else to_word(name) for name in (row.begins, row.ends))
    clock = None
    if row.synchronised is not None:
        clock = KernelClock(row.synchronised, row.clock_error_ns, row.clock_offset_ns)
    cut = Cut(begins, ends, row.sequences, row.continues, row.missed, clock)
    return PlacedEpoch(row.sequence, cut, row.first_ns, row.last_ns, row.recorded, row.size_bytes)


_ADDED = ("runs", "sent", "received", "lost", "unknown")
# Statements of every run, built once: that takes several times as long as to run them.
_PLACED = (
    select(CUTS)
    .where(
        (CUTS.c.node == bindparam("node"))
        & (CUTS.c.stream == bindparam("stream"))
        & (CUTS.c.sequence > bindparam("after"))
    )
    .order_by(CUTS.c.sequence.desc())
    .limit(bindparam("most"))
)
_PAIRS_FROM = select(PAIRS).where(PAIRS.c.from_node == bindparam("node"))
_ANSWERED_UNTIL = (
    update(PAIRS)
    .where((PAIRS.c.id == bindparam("number")) & (PAIRS.c.sent_until < bindparam("sent")))
    .values(sent_until=bindparam("sent"), received_until=bindparam("received"))
)


@dataclass(frozen=True, kw_only=True)
class AnsweredRuns:
    """Answers of a pair, by its number, and the last epochs of either end that they rest on."""

    number: int
    runs: tuple[RunRow, ...]
    until: tuple[int, int]


class RunStore:
    """Places, pairs and answered runs of one store."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def newest(self) -> int:
        """The number of the latest epoch that has a place."""
        with self._store.transaction() as connection:
            return int(connection.execute(select(func.coalesce(func.max(CUTS.c.epoch), 0))).scalar_one())

    def changed_since(self, number: int) -> set[tuple[str, str]]:
        """Nodes and streams with epochs that came after one of this number."""
        query = select(CUTS.c.node, CUTS.c.stream).where(CUTS.c.epoch > number).distinct()
        with self._store.transaction() as connection:
            return {(node, stream) for node, stream in connection.execute(query)}

    def placed(self, node: str, stream: str, *, after: int, limit: int) -> list[PlacedEpoch]:
        """The places of a stream's epochs after a number, in order; of more than `limit` the last ones."""
        where = {"node": node, "stream": stream, "after": after, "most": limit}
        with self._store.transaction() as connection:
            return [_placed(row) for row in connection.execute(_PLACED, where)][::-1]

    def pairs(self, wanted: Sequence[Pair]) -> list[KnownPair]:
        """Pairs as the store knows them; new ones are entered."""
        with self._store.transaction() as connection:
            known = {one.pair: one for one in self._known(connection, wanted)}
        missing = [pair for pair in wanted if pair not in known]
        if missing and not self._store.is_read_only:
            rows = [{**vars(pair), "sent_until": -1, "received_until": -1} for pair in missing]
            with self._store.transaction(writes=True) as connection:
                insert_missing(connection, PAIRS, rows)
                known.update((one.pair, one) for one in self._known(connection, missing))
        return [known[pair] for pair in wanted if pair in known]

    def _known(self, connection: Connection, wanted: Sequence[Pair]) -> Iterable[KnownPair]:
        # By node, so that a query has not one condition for every pair.
        asked = set(wanted)
        for node in sorted({pair.from_node for pair in wanted}):
            for row in connection.execute(_PAIRS_FROM, {"node": node}):
                found = _known_pair(row)
                if found.pair in asked:
                    yield found

    def pairs_between(self, from_node: str, to_node: str) -> list[KnownPair]:
        """All pairs from one node to another, whatever their interfaces: clocks are the nodes'."""
        query = select(PAIRS).where((PAIRS.c.from_node == from_node) & (PAIRS.c.to_node == to_node))
        with self._store.transaction() as connection:
            return [_known_pair(row) for row in connection.execute(query)]

    def add(self, pair: int, runs: Sequence[RunRow], *, until: tuple[int, int], now_ns: int) -> None:
        """Store answers of a pair, and how far it is answered with them."""
        self.add_all([AnsweredRuns(number=pair, runs=tuple(runs), until=until)], now_ns=now_ns)

    def add_all(self, answers: Sequence[AnsweredRuns], *, now_ns: int) -> None:
        """Store answers of pairs, and how far each is answered with them, in one transaction."""
        rows: list[dict[str, object]] = []
        with self._store.transaction(writes=True) as connection:
            for one in sorted(answers, key=lambda one: one.number):
                cursor = {"number": one.number, "sent": one.until[0], "received": one.until[1]}
                # Another query unit may have been faster.
                if connection.execute(_ANSWERED_UNTIL, cursor).rowcount:
                    rows += ({"pair": one.number, "answered_ns": now_ns, **vars(run)} for run in one.runs)
            if rows:
                connection.execute(insert(RUNS), rows)

    def between(self, pairs: Sequence[int], from_ns: int, to_ns: int, *, most: int) -> list[tuple[int, RunRow]]:
        """The answered runs of pairs that lie in a range, oldest first; with the pair of each."""
        here = RUNS.c.pair.in_(pairs) & (RUNS.c.end_ns >= from_ns) & (RUNS.c.start_ns <= to_ns)
        query = select(RUNS).where(here).order_by(RUNS.c.start_ns, RUNS.c.id).limit(most + 1)
        with self._store.transaction() as connection:
            found = connection.execute(query).all()
        return [(row.pair, _run_row(row)) for row in found]

    def latest(self, pair: int, *, limit: int) -> list[RunRow]:
        """The runs of a pair that were answered last and have an answer, the newest first."""
        here = (RUNS.c.pair == pair) & RUNS.c.reason.is_(None)
        query = select(RUNS).where(here).order_by(RUNS.c.id.desc()).limit(limit)
        with self._store.transaction() as connection:
            return [_run_row(row) for row in connection.execute(query)]

    def last(self, pair: int) -> RunRow | None:
        """The run of a pair that was answered last, with an answer or without, whatever the clocks said."""
        query = select(RUNS).where(RUNS.c.pair == pair).order_by(RUNS.c.id.desc()).limit(1)
        with self._store.transaction() as connection:
            row = connection.execute(query).first()
        return None if row is None else _run_row(row)

    def unnamed(self, *, limit: int) -> list[UnnamedRun]:
        """The runs of which ledgers are to be asked, those that are forgotten next first."""
        same = RUNS.c.pair == PAIRS.c.id
        columns = RUNS.c.id, PAIRS.c.from_node, PAIRS.c.from_stream, RUNS.c.naming_until_ns, RUNS.c.ledger
        asked = RUNS.c.naming_until_ns.is_not(None)
        query = select(*columns).join(PAIRS, same).where(asked).order_by(RUNS.c.naming_until_ns, RUNS.c.id).limit(limit)
        with self._store.transaction() as connection:
            return [
                UnnamedRun(number=number, node=node, stream=stream, until_ns=until_ns, ledger=ledger)
                for number, node, stream, until_ns, ledger in connection.execute(query)
            ]

    def numbered(self, number: int) -> RunRow | None:
        """A run by its number."""
        with self._store.transaction() as connection:
            row = connection.execute(select(RUNS).where(RUNS.c.id == number)).first()
        return None if row is None else _run_row(row)

    def name(self, number: int, *, ledger: bytes | None, data: bytes | None = None) -> None:
        """Store what ledgers tell of a run, and its answer with that; nothing if they cannot tell."""
        values: dict[str, object] = {"ledger": ledger, "naming_until_ns": None}
        if data is not None:
            values["data"] = data
        with self._store.transaction(writes=True) as connection:
            # Another query unit may have been faster.
            waits = (RUNS.c.id == number) & RUNS.c.naming_until_ns.is_not(None)
            connection.execute(update(RUNS).where(waits).values(values))

    def totals(self, from_ns: int, to_ns: int) -> dict[int, PairTotals]:
        """All pairs' totals in a range, by their numbers."""
        c = RUNS.c
        told = case((c.raw_mean_ns.is_not(None), c.received), else_=0)
        query = (
            select(
                c.pair,
                c.lead_ns,
                func.count().label("runs"),
                func.min(c.start_ns).label("first_ns"),
                func.max(c.end_ns).label("last_ns"),
                func.sum(c.sent).label("sent"),
                func.sum(c.received).label("received"),
                func.coalesce(func.sum(c.lost), 0).label("lost"),
                func.sum(case((c.lost.is_(None), 1), else_=0)).label("unknown"),
                func.sum(told).label("told"),
                (func.sum(c.raw_mean_ns * told) / func.nullif(func.sum(told), 0)).label("raw_mean_ns"),
                func.min(c.least_raw_ns).label("least_raw_ns"),
                func.max(c.raw_p99_ns).label("raw_p99_ns"),
            )
            .where((c.end_ns >= from_ns) & (c.start_ns <= to_ns))
            .group_by(c.pair, c.lead_ns)
        )
        with self._store.transaction() as connection:
            rows = connection.execute(query).all()
        found: dict[int, list[Any]] = {}
        for row in rows:
            found.setdefault(row.pair, []).append(row)
        return {pair: _totals(parts) for pair, parts in found.items()}

    def clocks(self, pairs: Sequence[int], from_ns: int, to_ns: int, *, most: int) -> list[bytes]:
        """What runs of pairs in a range hold for the clocks, oldest first; of more than `most` every second, third ….

        So they are near to any time of the range, however many there are.
        """
        here = RUNS.c.pair.in_(pairs) & (RUNS.c.end_ns >= from_ns) & (RUNS.c.start_ns <= to_ns)
        known = here & RUNS.c.reason.is_(None)
        with self._store.transaction() as connection:
            count = int(connection.execute(select(func.count()).select_from(RUNS).where(known)).scalar_one())
            if count <= most:
                return list(connection.execute(select(RUNS.c.clock).where(known).order_by(RUNS.c.end_ns)).scalars())
            place = func.row_number().over(order_by=(RUNS.c.end_ns, RUNS.c.id))
            numbered = select(RUNS.c.id, place.label("place")).where(known).subquery()
            every = -(-count // most)
            thinned = select(numbered.c.id).where(numbered.c.place % every == 0)
            query = select(RUNS.c.clock).where(RUNS.c.id.in_(thinned)).order_by(RUNS.c.end_ns)
            return list(connection.execute(query).scalars())

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget some of the runs that ended, and were answered, before a time; see `retention.remove_runs`."""
        return remove_runs(self._store, time_ns, limit=limit)


def spent_pairs(connection: Connection) -> list[KnownPair]:
    """The pairs of which nothing is stored: no answer, and of neither stream the place of an epoch."""

    def has_places(end: str) -> Any:
        same = (CUTS.c.node == PAIRS.c[f"{end}_node"]) & (CUTS.c.stream == PAIRS.c[f"{end}_stream"])
        return exists().where(same)

    used = exists().where(RUNS.c.pair == PAIRS.c.id) | has_places("from") | has_places("to")
    return [_known_pair(row) for row in connection.execute(select(PAIRS).where(~used))]


def remove_pairs(connection: Connection, numbers: Sequence[int]) -> None:
    """Forget pairs."""
    connection.execute(delete(PAIRS).where(PAIRS.c.id.in_(numbers)))


def _run_row(row: Any) -> RunRow:
    return RunRow(**{name: getattr(row, name) for name in RunRow.__dataclass_fields__})


def _totals(parts: Sequence[Any]) -> PairTotals:
    counts = {name: sum(int(getattr(part, name)) for part in parts) for name in _ADDED}
    names = LeadTotals.__dataclass_fields__
    leads = [LeadTotals(**{name: _number(getattr(part, name)) for name in names}) for part in parts]
    first, last = min(part.first_ns for part in parts), max(part.last_ns for part in parts)
    delays = tuple(one for one in leads if one.raw_mean_ns is not None or one.least_raw_ns is not None)
    return PairTotals(first_ns=first, last_ns=last, leads=delays, **counts)


def _number(value: Any) -> Any:
    """Sums are decimals in some databases."""
    return value if value is None or isinstance(value, float) else int(value)


def _known_pair(row: Any) -> KnownPair:
    ends = {name: getattr(row, name) for name in ("from_node", "from_stream", "to_node", "to_stream")}
    return KnownPair(number=row.id, pair=Pair(**ends), sent_until=row.sent_until, received_until=row.received_until)
