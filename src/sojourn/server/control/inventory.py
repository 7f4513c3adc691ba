"""The inventory: what nodes are there, what their agents say of themselves, and the events of nodes that fell silent.

A node was heard of when it sent something or asked for something (`EpochStore`, `OwnerStore`), or told how it fares
(`take_report`). Its times are the query unit's; how far its own clock was off on arrival is noted beside them.

Guarantee: of one silence one event is raised and cleared, whatever number of query units look at one database: the
event, its end, and what somebody has to be told of either, are one transaction that has the node's row to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)

from sojourn.server.control.models import AgentReport, Node, NodeSettings
from sojourn.server.control.owners import AGENTS, LEFT
from sojourn.store.arrivals import see_nodes
from sojourn.store.database import EPOCHS, NAME, NODES, NUMBER, SEQUENCES, SIGHTINGS, STREAMS, insert_missing
from sojourn.store.epochs import EpochStore
from sojourn.store.notifications import notify
from sojourn.store.raised import forget_cleared, latest_raised

_METADATA = MetaData()

REPORTS = Table(
    "node_reports",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("reported_ns", BigInteger, nullable=False),
    Column("ahead_ns", BigInteger, nullable=False),  # of its clock, to ours, when the report came
    Column("version", String(40), nullable=False),
    Column("system", String(200), nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("spool_epochs", BigInteger, nullable=False),
    Column("spool_bytes", BigInteger, nullable=False),
    Column("spool_limit_bytes", BigInteger, nullable=False),
    Column("spool_trouble", Text),
    Column("synchronised", Boolean),
    Column("clock_error_ns", BigInteger),
)

SETTINGS = Table(
    "node_settings",
    _METADATA,
    Column("node", NAME, primary_key=True),
    Column("silent_after_ns", BigInteger),  # 0: never; of a quota, none; null: as all
    Column("quota_bytes", BigInteger),
    Column("quota_streams", BigInteger),
    Column("quota_keys", BigInteger),
)

EVENTS = Table(
    "node_events",
    _METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("node", NAME, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
    Column("raised_ns", BigInteger, nullable=False),
    Column("cleared_ns", BigInteger),
    Index("node_events_by_node", "node", "cleared_ns"),
    Index("node_events_by_time", "raised_ns"),
)

SILENT = "silent"
# A node that tells nothing of itself is silent once so many of its usual pauses have passed, if that is longer.
USUAL_PAUSES = 3
# Epochs of a stream that its usual pause is taken from.
LATEST = 8
ENDED_TEXT = "its agent ended in order, and has not come back"
SILENT_TEXT = "nothing was heard of it"


@dataclass(frozen=True, kw_only=True)
class Presence:
    """When a node was heard of last, and how long it may be silent."""

    node: str
    heard_ns: int
    has_ended: bool = False  # its agent said that it ends
    silent_after_ns: int | None = None  # its own setting: 0 for never, none for that of all


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """Something that befell a node; open while ``cleared_ns`` is none."""

    id: int
    node: str
    kind: str
    reason: str
    since_ns: int
    raised_ns: int
    cleared_ns: int | None = None


class InventoryStore:
    """What is known of the nodes of one store."""

    def __init__(self, store: EpochStore) -> None:
        self.store = store

    def take_report(self, node: str, report: AgentReport, *, now_ns: int) -> None:
        """Note what an agent says of itself; its node is alive."""
        row = {**report.model_dump(exclude={"time_ns"}), "reported_ns": now_ns, "ahead_ns": report.time_ns - now_ns}
        with self.store.transaction(writes=True) as connection:
            see_nodes(connection, {node: None}, now_ns)
            if not connection.execute(update(REPORTS).where(REPORTS.c.node == node).values(row)).rowcount:
                insert_missing(connection, REPORTS, [{"node": node, **row}])

    def reports(self) -> dict[str, dict[str, Any]]:
        """What each node's agent reported last."""
        with self.store.transaction() as connection:
            rows = connection.execute(select(REPORTS)).mappings().all()
        return {row["node"]: {name: value for name, value in row.items() if name != "node"} for row in rows}

    def presences(self) -> dict[str, Presence]:
        """When each node was heard of last, whatever it did."""
        with self.store.transaction() as connection:
            found = {
                row.name: Presence(node=row.name, heard_ns=row.last_seen_ns)
                for row in connection.execute(select(NODES.c.name, NODES.c.last_seen_ns))
            }
            seen = select(AGENTS.c.node, func.max(AGENTS.c.seen_ns).label("seen")).group_by(AGENTS.c.node)
            for row in connection.execute(seen):
                if row.node in found:
                    heard = max(row.seen, found[row.node].heard_ns)
                    found[row.node] = replace(found[row.node], heard_ns=heard, has_ended=row.seen == LEFT)
            for row in connection.execute(select(SETTINGS)):
                if row.node in found:
                    found[row.node] = replace(found[row.node], silent_after_ns=row.silent_after_ns)
        return found

    def usual_pause_ns(self, node: str) -> int:
        """How long a node lets pass between epochs of its liveliest stream; 0 if it tells of itself anyway.

        Nodes without an agent (a board's program, a sink) are heard of when they send, which may be once an hour.
        """
        pauses: list[int] = []
        with self.store.transaction() as connection:
            tells = connection.execute(select(AGENTS.c.node).where(AGENTS.c.node == node).limit(1)).first()
            if tells is not None:
                return 0
            for stream in connection.execute(select(STREAMS.c.name).where(STREAMS.c.node == node)).scalars():
                here = (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream)
                latest = select(EPOCHS.c.received_ns).where(here).order_by(EPOCHS.c.sequence.desc()).limit(LATEST)
                times = sorted(connection.execute(latest).scalars())
                if len(times) > 1:
                    pauses.append((times[-1] - times[0]) // (len(times) - 1))
        return min(pauses, default=0)

    def set_settings(self, node: str, changes: Mapping[str, int | None]) -> NodeSettings:
        """Change how a node is treated, and leave the rest as it is; all that it then is."""
        with self.store.transaction(writes=True) as connection:
            insert_missing(connection, SETTINGS, [{"node": node}])
            if changes:
                connection.execute(update(SETTINGS).where(SETTINGS.c.node == node).values(**changes))
        return self.settings(node)

    def settings(self, node: str) -> NodeSettings:
        """How a node is treated by settings of its own."""
        with self.store.transaction() as connection:
            row = connection.execute(select(SETTINGS).where(SETTINGS.c.node == node)).mappings().first()
        return NodeSettings(**{name: row[name] for name in NodeSettings.model_fields} if row is not None else {})

    def sent_on(self, node: str, day: int) -> int:
        """How many bytes a node sent on a day since 1970, as far as that is its latest."""
        query = select(NODES.c.sent_bytes).where((NODES.c.name == node) & (NODES.c.sent_day == day))
        with self.store.transaction() as connection:
            return int(connection.execute(query).scalar() or 0)

    def streams(self, node: str) -> set[str]:
        """The streams that a node announced, or sent something of."""
        with self.store.transaction() as connection:
            announced = connection.execute(select(STREAMS.c.name).where(STREAMS.c.node == node)).scalars()
            sent = connection.execute(select(SEQUENCES.c.stream).where(SEQUENCES.c.node == node).distinct()).scalars()
            return {*announced, *sent}

    def count_keys(self, node: str) -> int:
        """How many instances a node ever reported, of each of its streams."""
        query = select(func.count()).select_from(SIGHTINGS).where(SIGHTINGS.c.node == node)
        with self.store.transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def raise_silent(self, presence: Presence, *, webhook: str | None, now_ns: int) -> NodeEvent | None:
        """Note that a node is silent; None if that is known, or it was heard of meanwhile."""
        reason = ENDED_TEXT if presence.has_ended else SILENT_TEXT
        values: dict[str, Any] = {
            "node": presence.node,
            "kind": SILENT,
            "reason": reason,
            "since_ns": presence.heard_ns,
        }
        with self.store.transaction(writes=True) as connection:
            row = connection.execute(_held(presence.node)).one_or_none()
            if row is None or row.last_seen_ns > presence.heard_ns or self._open(connection, presence.node) is not None:
                return None
            made = insert(EVENTS).values(**values, raised_ns=now_ns).returning(EVENTS.c.id)
            event = NodeEvent(id=connection.execute(made).scalar_one(), **values, raised_ns=now_ns)
            _tell(connection, "raised", event, webhook, now_ns)
        return event

    def clear_silent(self, node: str, *, webhook: str | None, now_ns: int) -> NodeEvent | None:
        """Note that a node is not silent any more; None if another query unit has noted it."""
        with self.store.transaction(writes=True) as connection:
            connection.execute(_held(node))
            found = self._open(connection, node)
            if found is None:
                return None
            event = replace(found, cleared_ns=now_ns)
            connection.execute(update(EVENTS).where(EVENTS.c.id == event.id).values(cleared_ns=now_ns))
            _tell(connection, "cleared", event, webhook, now_ns)
        return event

    def _open(self, connection: Connection, node: str) -> NodeEvent | None:
        here = (EVENTS.c.node == node) & EVENTS.c.cleared_ns.is_(None)
        row = connection.execute(select(EVENTS).where(here)).first()
        return None if row is None else NodeEvent(**row._mapping)

    def events(
        self,
        *,
        node: str | None = None,
        only_open: bool = False,
        since_ns: int | None = None,
        limit: int = 1000,
        among: Collection[str] | None = None,
    ) -> list[NodeEvent]:
        """Events, the latest first: of all nodes, some or one, open ones, or those not cleared before a time."""
        query = latest_raised(
            EVENTS,
            None if node is None else EVENTS.c.node == node,
            open_ones=True if only_open else None,
            since_ns=since_ns,
            among=among,
            limit=limit,
        )
        with self.store.transaction() as connection:
            return [NodeEvent(**row._mapping) for row in connection.execute(query)]

    def open_events(self) -> dict[str, NodeEvent]:
        """The silence of each node that is silent."""
        query = select(EVENTS).where(EVENTS.c.cleared_ns.is_(None))
        with self.store.transaction() as connection:
            return {row.node: NodeEvent(**row._mapping) for row in connection.execute(query)}

    def remove_some_before(self, time_ns: int, *, limit: int) -> int:
        """Forget at most some of the events that were cleared before a time, with what was told of them."""
        with self.store.transaction(writes=True) as connection:
            return forget_cleared(connection, EVENTS, "node_event", time_ns, limit=limit)


def _held(node: str) -> Any:
    """A node's row, for one writer at a time."""
    return select(NODES.c.last_seen_ns).where(NODES.c.name == node).with_for_update()


def _tell(connection: Connection, what: str, event: NodeEvent, webhook: str | None, now_ns: int) -> None:
    if webhook is not None:
        notify(connection, webhook, {"event": what, "node_event": asdict(event)}, now_ns, node_event=event.id)


def grouped(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """The groups of nodes, one for each tag, by name: how many are there, silent, and what waits in their spools."""
    groups: dict[str, dict[str, Any]] = {}
    for node in nodes:
        for tag in node.tags:
            group = groups.setdefault(tag, {"tag": tag, "nodes": 0, "silent": 0, "failed": 0, "spool_epochs": 0})
            group["nodes"] += 1
            group["silent"] += node.state == SILENT
            group["failed"] += bool(node.failed)
            group["spool_epochs"] += node.report.spool_epochs if node.report is not None else 0
    return [groups[tag] for tag in sorted(groups)]
