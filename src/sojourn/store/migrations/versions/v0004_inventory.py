"""Revision 0004: what nodes say of themselves, how they are treated, and their events, of which somebody is told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NAME = sa.String(200)
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "node_reports",
        sa.Column("node", NAME, primary_key=True),
        sa.Column("reported_ns", sa.BigInteger, nullable=False),
        sa.Column("ahead_ns", sa.BigInteger, nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("system", sa.String(200), nullable=False),
        sa.Column("started_ns", sa.BigInteger, nullable=False),
        sa.Column("spool_epochs", sa.BigInteger, nullable=False),
        sa.Column("spool_bytes", sa.BigInteger, nullable=False),
        sa.Column("spool_limit_bytes", sa.BigInteger, nullable=False),
        sa.Column("spool_trouble", sa.Text),
        sa.Column("synchronised", sa.Boolean),
        sa.Column("clock_error_ns", sa.BigInteger),
    )
    op.create_table(
        "node_settings",
        sa.Column("node", NAME, primary_key=True),
        sa.Column("silent_after_ns", sa.BigInteger),
    )
    op.create_table(
        "node_events",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("node", NAME, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.Column("raised_ns", sa.BigInteger, nullable=False),
        sa.Column("cleared_ns", sa.BigInteger),
    )
    op.create_index("node_events_by_node", "node_events", ["node", "cleared_ns"])
    op.create_index("node_events_by_time", "node_events", ["raised_ns"])
    _widen_notifications()


def _widen_notifications() -> None:
    """What somebody is told of may be a node's event, too; SQLite changes a column only by making the table anew."""
    op.create_table(
        "notifications",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("violation", NUMBER),
        sa.Column("node_event", NUMBER),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_ns", sa.BigInteger),
        sa.Column("delivered_ns", sa.BigInteger),
        sa.Column("error", sa.Text),
    )
    kept = "id, violation, url, body, created_ns, attempts, next_ns, delivered_ns, error"
    op.execute(f"INSERT INTO notifications ({kept}) SELECT {kept} FROM violation_notifications")
    op.drop_table("violation_notifications")
    op.create_index("notifications_due", "notifications", ["next_ns"])
    op.create_index("notifications_of_violation", "notifications", ["violation"])
    op.create_index("notifications_of_node_event", "notifications", ["node_event"])
