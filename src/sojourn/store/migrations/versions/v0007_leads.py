"""Revision 0007: which scale of time an answered run's delays are on, and runs of a pair by when they were answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

TOTALS = ("end_ns", "pair", "start_ns", "sent", "received", "lost", "raw_mean_ns", "least_raw_ns", "raw_p99_ns")


def upgrade() -> None:
    op.add_column("answered_runs", sa.Column("lead_ns", sa.BigInteger))
    op.drop_index("run_totals", table_name="answered_runs")
    op.create_index("run_totals", "answered_runs", [*TOTALS, "lead_ns"])
    op.create_index("runs_by_number", "answered_runs", ["pair", "id"])
