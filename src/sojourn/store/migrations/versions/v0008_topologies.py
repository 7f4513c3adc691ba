"""Revision 0008: networks to plan measurement in, as their files are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "topologies",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("file_name", sa.String(200), nullable=False),
        sa.Column("directed", sa.Boolean),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("routers", sa.Integer, nullable=False),
        sa.Column("links", sa.Integer, nullable=False),
        sa.Column("stored_ns", sa.BigInteger, nullable=False),
        sa.Column("stored_by", sa.Text, nullable=False),
    )
