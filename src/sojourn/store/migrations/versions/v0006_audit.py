"""Revision 0006: until when tokens are valid and what viewers may see, and who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_ns", sa.BigInteger))
    op.add_column("tokens", sa.Column("tags", sa.Text))
    op.create_table(
        "audit_log",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at_ns", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("address", sa.String(200), nullable=False),
        sa.Column("what", sa.Text, nullable=False),
    )
    op.create_index("audit_by_time", "audit_log", ["at_ns"])
