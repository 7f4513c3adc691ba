"""Revision 0005: what nodes sent on their latest day, and how much each may send and keep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("sent_day", sa.BigInteger))
    op.add_column("nodes", sa.Column("sent_bytes", sa.BigInteger))
    for quota in ("quota_bytes", "quota_streams", "quota_keys"):
        op.add_column("node_settings", sa.Column(quota, sa.BigInteger))
