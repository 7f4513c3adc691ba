"""`sojourn store`: what a query unit's database is, and its upgrade, backup and restoring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.fleet.serve import DataOption, configured_data
from sojourn.cli.output import say
from sojourn.core.errors import UsageError

app = typer.Typer(help="Look after a query unit's data: check, upgrade, back up, restore.", no_args_is_help=True)


def _existing(data: str | None) -> str:
    from sojourn.store.database import is_store

    place = configured_data(data)
    if not is_store(place):
        raise UsageError("there is no query unit's data", where=place, action="give the --data of sojourn serve")
    return place


def _directory(data: str | None, tool: str) -> Path:
    """The data's directory; a database at a URL has tools of its own."""
    place = configured_data(data)
    if "://" in place:
        raise UsageError("a PostgreSQL has its own tools for that", where="--data", action=f"use {tool}")
    return Path(place)


@app.command(epilog="Example:  sojourn store check --data /var/lib/sojourn")
def check(data: DataOption = None) -> None:
    """Say what the data is: schema, contents, and what was lost with a backup that was restored.

    Nothing is changed; exit code 1 if the data is damaged, or of a later Sojourn.
    """
    from sojourn.store.upkeep.check import examine

    for line in examine(_existing(data)):
        print(line)


@app.command(epilog="Example:  sojourn store upgrade --data postgresql+psycopg://sojourn@db/sojourn")
def upgrade(data: DataOption = None) -> None:
    """Bring the data to the schema of this Sojourn, as `sojourn serve` does when it starts."""
    from sojourn.store.epochs import open_store
    from sojourn.store.migrations.upgrading import HEAD
    from sojourn.store.upkeep.check import schema_of

    place = _existing(data)
    before = schema_of(place)
    open_store(place).close()
    say(f"schema {before} was upgraded to {HEAD}" if before != HEAD else f"schema {HEAD} is up to date")


@app.command(epilog="Example:  sojourn store backup /backup/sojourn-2026-03-14.sqlite --data /var/lib/sojourn")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the backup; must not be there yet.")],
    data: DataOption = None,
) -> None:
    """Copy the data to one file, as of one moment, while the query unit runs or not; the copy is checked.

    Of a PostgreSQL use pg_dump --format=custom.
    """
    from sojourn.core.units import format_bytes
    from sojourn.store.upkeep.backup import back_up

    size = back_up(_directory(data, "pg_dump --format=custom --file=FILE DATABASE"), file)
    say(f"{format_bytes(size)} were written to {file}")


@app.command(epilog="Example:  sojourn store restore /backup/sojourn-2026-03-14.sqlite --data /var/lib/sojourn")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup by sojourn store backup.")],
    data: DataOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give up the data that is there.")] = False,
) -> None:
    """Have a backup's contents as the data; the query unit must not run meanwhile.

    Nodes send what they still have; what else they were told is stored is reported when they announce their streams,
    and by sojourn store check. Of a PostgreSQL use pg_restore.
    """
    from sojourn.store.upkeep.backup import restore as copy_back

    directory = _directory(data, "pg_restore --dbname=DATABASE FILE")
    copy_back(file, directory, replace=replace)
    say(f"{file} was restored to {directory}")


@app.command(name="confirm-clock", epilog="Example:  sojourn store confirm-clock --data /var/lib/sojourn")
def confirm_clock(data: DataOption = None) -> None:
    """Say that this machine's clock is right, after a warning that nothing is removed because it has jumped ahead."""
    from sojourn.core.units import format_time
    from sojourn.store.epochs import open_store
    from sojourn.store.upkeep.clock import confirm

    store = open_store(_existing(data))
    try:
        say(f"it is {format_time(confirm(store))}")
    finally:
        store.close()
