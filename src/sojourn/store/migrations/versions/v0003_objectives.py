"""Revision 0003: objectives, what they are judged at and how far, their violations, and who has to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NAME, PLACE = sa.String(200), sa.String(420)
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "objectives",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "objective_streams",
        sa.Column("objective", NAME, primary_key=True),
        sa.Column("node", NAME, primary_key=True),
        sa.Column("stream", NAME),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("configuration", sa.Text),
        sa.Column("planned", sa.Integer, nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
    )
    op.create_table(
        "objective_progress",
        sa.Column("objective", NAME, primary_key=True),
        sa.Column("place", PLACE, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("judged_ns", sa.BigInteger, nullable=False),
        sa.Column("until_ns", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
    )
    _add_violations()


def _add_violations() -> None:
    op.create_table(
        "violations",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("objective", NAME, nullable=False),
        sa.Column("place", PLACE, nullable=False),
        sa.Column("condition", sa.String(200), nullable=False),
        sa.Column("node", NAME, nullable=False),
        sa.Column("instance", sa.String(600), nullable=False),
        sa.Column("raised_ns", sa.BigInteger, nullable=False),
        sa.Column("cleared_ns", sa.BigInteger),
        sa.Column("cleared_by", sa.String(40)),
        sa.Column("seen_ns", sa.BigInteger, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("latest", sa.Text, nullable=False),
    )
    op.create_index("violations_by_objective", "violations", ["objective", "cleared_ns"])
    op.create_index("violations_by_time", "violations", ["raised_ns"])
    op.create_table(
        "violation_notifications",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("violation", NUMBER, nullable=False),
        sa.Column("event", sa.String(10), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_ns", sa.BigInteger),
        sa.Column("delivered_ns", sa.BigInteger),
        sa.Column("error", sa.Text),
    )
    op.create_index("notifications_due", "violation_notifications", ["next_ns"])
    op.create_index("notifications_of_violation", "violation_notifications", ["violation"])
