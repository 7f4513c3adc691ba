"""Revision 0009: what ledgers tell of an answered run, and which sketch a segment was asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("answered_runs", sa.Column("ledger", sa.LargeBinary))
    op.add_column("answered_runs", sa.Column("naming_until_ns", sa.BigInteger))
    op.create_index("runs_to_name", "answered_runs", ["naming_until_ns"])
    op.add_column("fleet_segments", sa.Column("sketch", sa.String(10), nullable=False, server_default="auto"))
