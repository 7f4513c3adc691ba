"""The schema of a database: which revision it has, and bringing it to the one that this Sojourn works with.

Guarantee: an upgrade is one transaction, all revisions or none, and one process does it while others that open the same
database wait (SQLite: the writer's lock; PostgreSQL: an advisory lock), and find it done. A database of a later Sojourn
is left as it is, with a `StoreError` that says what to upgrade. A database of Sojourn 0.1.0, which had no revisions, is
recognised by its tables.

Cost: one row is read where nothing is to be done; Alembic is loaded (some 0.2 s) only where something is. Revisions are
numbered, so that a later one is known as such; ``versions`` holds them, one a module, for both databases.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, text

from sojourn.core.errors import StoreError

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

# The revision that this Sojourn works with: the last in `versions`.
HEAD = "0009"
# What `schema_version` of an earlier Sojourn may say, which has no revisions; a later one makes that refuse to go on.
FIRST_VERSION = 1
# Of all that have one database in common, one upgrades it at a time ("sojourn" in ASCII).
LOCK = 0x736F6A6F75726E

VERSIONS = Path(__file__).parent / "versions"
_ONE_AT_A_TIME = threading.Lock()  # Alembic has one set of operations in a process


def revision_of(connection: Connection) -> str | None:
    """The revision of a database; None if it is empty, or of a Sojourn without revisions."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def upgrade(connection: Connection, *, where: str) -> str | None:
    """Bring a database to `HEAD`, in the caller's transaction; the revision that it had, if that was another."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    found = revision_of(connection)
    if found == HEAD:
        return None
    require_known(connection, found, where=where)
    _run(connection)
    return found or "0000"


def require_known(connection: Connection, revision: str | None, *, where: str) -> None:
    """Refuse a database of a later Sojourn."""
    if revision is None and inspect(connection).has_table("schema_version"):
        version = connection.execute(text("SELECT version FROM schema_version")).scalar()
        if version not in (None, FIRST_VERSION):
            revision = f"{version:04}"
    if revision is not None and revision > HEAD:
        raise StoreError(
            f"it has schema {revision}, this Sojourn works with schemas up to {HEAD}",
            where=where,
            action="upgrade this Sojourn to the one that made it, or give another directory",
        )


def scripts() -> ScriptDirectory:
    """All revisions."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(VERSIONS.parent, version_locations=[VERSIONS])


def _run(connection: Connection) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext, MigrationStep

    known = scripts()

    def steps(found: Any, _context: MigrationContext) -> Iterator[Any]:
        after = found[-1] if found else "base"
        for script in reversed(list(known.iterate_revisions(HEAD, after))):
            yield MigrationStep.upgrade_from_script(known.revision_map, script)

    context = MigrationContext.configure(connection, opts={"fn": steps, "transactional_ddl": True})
    with _ONE_AT_A_TIME, Operations.context(context):
        context.run_migrations()
