"""A PostgreSQL for tests: in a directory of its own, reached by a socket in it, run by a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import create_engine

__all__ = ["PostgresqlServer", "programs_directory", "running_server"]

PLACES = ("/usr/lib/postgresql", "/usr/local/lib/postgresql", "/opt/postgresql")
OPTIONS = "-c listen_addresses='' -c fsync=off -c unix_socket_directories={}"


def programs_directory() -> Path | None:
    """Where initdb and pg_ctl are, if they are installed."""
    for place in PLACES:
        if found := sorted(Path(place).glob("*/bin/initdb")):
            return found[-1].parent
    there = shutil.which("pg_ctl")
    return Path(there).parent if there and shutil.which("initdb") else None


class PostgresqlServer:
    """A server; each caller gets a database, or a schema, of its own. It can be stopped and started again."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.programs = programs
        self._directory, self._user = directory, _somebody()
        if self._user is not None:
            os.chown(directory, pwd.getpwnam(self._user).pw_uid, -1)
        self._address = f"postgresql+psycopg://sojourn@/{{}}?host={directory}"
        self._numbers = count()
        self._run("initdb", "--auth=trust", "--username=sojourn", "--encoding=UTF8", "--no-sync")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._run("pg_ctl", "start", "-w", "-o", OPTIONS.format(self._directory))

    def stop(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """End it: in order, cutting connections off, or at once, so that it has to recover when it is started again."""
        self._run("pg_ctl", "stop", "-w", "-m", mode)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self._directory / "data"), *arguments]
        # The server keeps what it inherits open: its words go to a file, not to a pipe that would never end.
        with open(self._directory / "said", "ab") as said:
            how: dict[str, Any] = {"stdout": said, "stderr": said, "user": self._user, "cwd": self._directory}
            done = subprocess.run(command, check=False, **how)
        assert done.returncode == 0, (self._directory / "said").read_text()

    def new_schema(self) -> str:
        """The URL by which nothing is seen but a schema without anything in it: as good as a database, made at once."""
        name = self._make("SCHEMA")
        return self._address.format("postgres") + f"&options=-csearch_path%3D{name}"

    def new_database(self) -> str:
        """The URL of a database without anything in it, which takes 300 files and a second to make and to remove."""
        return self._address.format(self._make("DATABASE"))

    def _make(self, what: str) -> str:
        name = f"fresh_{next(self._numbers)}"
        engine = create_engine(self._address.format("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE {what} {name}")
        engine.dispose()
        return name


def _somebody() -> str | None:
    """Who runs the server, as it refuses to be run by root; None: whoever runs the tests."""
    if os.geteuid():
        return None
    return next(user.pw_name for name in ("postgres", "nobody") for user in pwd.getpwall() if user.pw_name == name)


def running_server(programs: Path) -> Iterator[PostgresqlServer]:
    """A server as long as it is used; its path is short, as those of sockets have to be."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        server = PostgresqlServer(directory, programs)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
