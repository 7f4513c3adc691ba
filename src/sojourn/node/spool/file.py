"""The spool's file: one SQLite database, written by one agent at a time, readable by anybody who may on the node.

Guarantee: a transaction that was committed survives a crash and a power failure (write-ahead log, synchronised at each
commit); one that was not leaves nothing behind. The file and its companions are 0600 whatever the umask. A second
process that wants to write is refused with the number of the first, for as long as that one lives (a lock on the
directory, which works on a read-only disk, too, and ends with its process).

A disk that refuses raises `StoreError`. A damaged database raises `DamagedError`; `begin_anew` moves it aside and takes
over into a new one what can still be read of it.

How the last run ended is in it, too. Each transaction leaves a sign of life (wall clock, and the clock that runs since
the machine was started, which no step of the wall clock changes); each stream has the time until which everything it
measured is on disk. A stream that is still marked as recorded when an agent starts was killed: it lost what came after
that time, until some moment between the last sign of life and this start. More nobody knows. A loss stays written down
until an agent that reported it begins to record; after one that was killed before, the next reports it again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from sojourn.core.errors import StoreError, UsageError, WireError
from sojourn.core.units import format_duration, format_instant, plural
from sojourn.epochs.encoded import AnyEpoch, EncodedEpoch, check_intact, encoded
from sojourn.epochs.epoch import Epoch, overlaps
from sojourn.epochs.merging import merging_key
from sojourn.node.spool.acknowledged import TABLE as ACKNOWLEDGED

FILE_NAME = "spool.sqlite3"
SCHEMA_VERSION = 1
BUSY_SECONDS = 5.0
# Pages of 4 KiB in the write-ahead log before they move into the file; the log keeps this size, so that there is room
# to remove what was acknowledged even where the disk has none.
LOG_PAGES = 256
MOST_FAILURES = 10_000
# After a kill numbers go on so much higher: while the disk refused, some may have been sent that it knows nothing of.
SKIPPED_NUMBERS = 1 << 20
# Errors that only opening the database again clears up: what a commit left in the log that could not be synchronised
# shows then, and a file that was opened on a read-only disk stays read-only when the disk no longer is.
UNSURE = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)

_SCHEMA = (
    ACKNOWLEDGED
    + """
CREATE TABLE IF NOT EXISTS entries (
    stream TEXT NOT NULL, sequence INTEGER NOT NULL, state TEXT NOT NULL, first_ns INTEGER, last_ns INTEGER,
    recorded INTEGER NOT NULL, size_bytes INTEGER NOT NULL, merging TEXT NOT NULL, weight INTEGER NOT NULL,
    resumed INTEGER NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (stream, sequence));
CREATE INDEX IF NOT EXISTS entries_by_state ON entries (state, sequence, stream);
CREATE TABLE IF NOT EXISTS streams (
    stream TEXT PRIMARY KEY, number INTEGER NOT NULL, kept_until_ns INTEGER NOT NULL, recording INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sizes (stream TEXT PRIMARY KEY, size TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY CHECK (id = 0), alive_ns INTEGER NOT NULL, alive_boot_ns INTEGER NOT NULL,
    boot TEXT NOT NULL, ended INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS losses (
    stream TEXT NOT NULL, from_ns INTEGER NOT NULL, alive_ns INTEGER NOT NULL, noticed TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS taken_over (name TEXT PRIMARY KEY, digest INTEGER NOT NULL);
"""
)
# Counted as rows come and go, so that nobody has to add them up.
_TOTALS = """
CREATE TEMP TABLE totals AS SELECT state, COUNT(*) AS count, SUM(size_bytes) AS bytes FROM main.entries GROUP BY state;
INSERT INTO totals SELECT column1, 0, 0 FROM (VALUES ('open'), ('waiting'), ('sent'), ('aside'))
    WHERE column1 NOT IN (SELECT state FROM totals);
CREATE TEMP TRIGGER added AFTER INSERT ON main.entries BEGIN
    UPDATE totals SET count = count + 1, bytes = bytes + NEW.size_bytes WHERE state = NEW.state; END;
CREATE TEMP TRIGGER removed AFTER DELETE ON main.entries BEGIN
    UPDATE totals SET count = count - 1, bytes = bytes - OLD.size_bytes WHERE state = OLD.state; END;
CREATE TEMP TRIGGER changed AFTER UPDATE ON main.entries BEGIN
    UPDATE totals SET count = count - 1, bytes = bytes - OLD.size_bytes WHERE state = OLD.state;
    UPDATE totals SET count = count + 1, bytes = bytes + NEW.size_bytes WHERE state = NEW.state; END;
"""


class State(StrEnum):
    """What an entry is waiting for."""

    OPEN = "open"  # still being recorded: a checkpoint of it
    WAITING = "waiting"  # closed, never sent
    SENT = "sent"  # in doubt: it may have arrived
    ASIDE = "aside"  # cannot be sent, and why is written beside it


class DamagedError(StoreError):
    """The database is malformed."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is known of an entry without its bytes; the fields are the table's columns."""

    stream: str
    sequence: int
    state: State
    first_ns: int | None
    last_ns: int | None
    recorded: int
    size_bytes: int
    merging: str
    weight: int = 1  # how many epochs were merged into it
    resumed: bool = False  # taken up from a checkpoint after the agent was killed
    reason: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.stream, self.sequence

    @property
    def in_doubt(self) -> bool:
        """Whether the query unit may already have it."""
        return self.state is State.SENT

    def overlaps(self, from_ns: int, to_ns: int) -> bool:
        """Whether any measurement may lie in ``from_ns … to_ns``."""
        return overlaps(self.first_ns, self.last_ns, from_ns, to_ns)

    def __str__(self) -> str:
        """Exactly what would be lost with it.

        >>> made = {"state": State.WAITING, "size_bytes": 99, "merging": ""}
        >>> print(Label(stream="disk", sequence=7, first_ns=0, last_ns=10**9, recorded=1200, **made))
        epoch 7 of disk (1,200 measurements from 1970-01-01T00:00:00.000000Z to 1970-01-01T00:00:01.000000Z)
        """
        times = ""
        if self.first_ns is not None and self.last_ns is not None:
            times = f" from {format_instant(self.first_ns)} to {format_instant(self.last_ns)}"
        return f"epoch {self.sequence} of {self.stream} ({plural(self.recorded, 'measurement')}{times})"


@dataclass(frozen=True, kw_only=True)
class SpooledEpoch(Label):
    """An entry with its bytes, in the wire format."""

    data: bytes

    @property
    def epoch(self) -> Epoch:
        return self.encoded.decode()

    @property
    def encoded(self) -> EncodedEpoch:
        return encoded(self.data)


COLUMNS = "stream, sequence, state, first_ns, last_ns, recorded, size_bytes, merging, weight, resumed, reason"
_NAMES = COLUMNS.split(", ")
_UPSERT = (
    f"INSERT INTO entries ({COLUMNS}, data) VALUES ({', '.join(f':{name}' for name in (*_NAMES, 'data'))}) "
    f"ON CONFLICT (stream, sequence) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in (*_NAMES[2:], 'data'))}"
)


@dataclass(frozen=True)
class StreamState:
    """What a stream has just closed, all that it has open, and the time until which that is everything."""

    stream: str
    closed: Sequence[AnyEpoch]
    open: Sequence[AnyEpoch]
    until_ns: int
    size: str = ""  # of what it records into, in its own words, if it has found that itself


def spooled(epoch: EncodedEpoch, state: State, *, weight: int = 1) -> SpooledEpoch:
    """An epoch as an entry; its bytes stay as they are."""
    return SpooledEpoch(
        stream=epoch.stream,
        sequence=epoch.sequence,
        state=state,
        first_ns=epoch.first_ns,
        last_ns=epoch.last_ns,
        recorded=epoch.recorded,
        size_bytes=len(epoch.data),
        merging=merging_key(epoch),
        weight=weight,
        data=epoch.data,
    )


def label_of(row: tuple[object, ...]) -> Label:
    """The label in a row of `COLUMNS`."""
    values = dict(zip(_NAMES, row, strict=True))
    values["state"], values["resumed"] = State(str(values["state"])), bool(values["resumed"])
    return Label(**values)  # type: ignore[arg-type]


def insert(connection: sqlite3.Connection, entry: SpooledEpoch) -> None:
    """Put an entry into its place, whatever was there."""
    connection.execute(_UPSERT, {**vars(entry), "state": str(entry.state), "resumed": int(entry.resumed)})


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A spool's database, to be read only, while its agent runs or not; on a read-only disk, too."""
    address = f"file:{quote(str(path.absolute()))}"
    how = "mode=ro" if os.access(path.parent, os.W_OK) or path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{address}?{how}", uri=True, timeout=BUSY_SECONDS)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise _as_store_error(error, path) from None


def _as_store_error(error: sqlite3.Error, path: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedError(str(error), where=str(path))
    action = "free some space, or check the directory's permissions"
    return StoreError(f"the database says: {error}", where=str(path), action=action)


class SpoolFile:
    """The database in a directory, and the right to write it; used from one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            action = "give a directory that can be written"
            raise StoreError(error.strerror or str(error), where=str(directory), action=action) from None
        self._connection: sqlite3.Connection | None = None
        self.warning = self._lock()

    def _lock(self) -> str:
        """Take the directory for this process alone; a warning where the disk knows no locks."""
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _lock_holder(os.fstat(self._directory))
            os.close(self._directory)
            raise StoreError(
                f"{holder} uses this spool",
                where=str(self.path.parent),
                action="stop it, or give this one a spool of its own",
            ) from None
        except OSError as error:
            return f"{self.path.parent} cannot be locked ({error.strerror}); make sure that no other agent uses it"
        return ""

    def close(self) -> None:
        """Let the database and the lock go."""
        self.disconnect()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def disconnect(self) -> None:
        """Close the database; the next transaction opens it again, and sees what is really there."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk at the end."""
        with self.snapshot() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0)
                self._roll_back(connection, disconnect=code in UNSURE or code & 0xFF == sqlite3.SQLITE_READONLY)
                raise
            except BaseException:
                self._roll_back(connection)
                raise

    def _roll_back(self, connection: sqlite3.Connection, *, disconnect: bool = False) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            disconnect = True
        if disconnect:
            self.disconnect()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """The database as it is, to read."""
        try:
            if self._connection is None:
                if self._directory < 0:
                    raise StoreError("the spool was closed", where=str(self.path))
                self._connection = self._connect()
            yield self._connection
        except OSError as error:
            raise StoreError(error.strerror or str(error), where=str(self.path)) from None
        except sqlite3.Error as error:
            found = _as_store_error(error, self.path)
            if isinstance(found, DamagedError):
                self.disconnect()
            raise found from None

    def _connect(self) -> sqlite3.Connection:
        _make_private(self.path, self._directory)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # A damaged name must not keep the others from being read.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            # FULL: each commit is on disk before an epoch counts as closed, or goes out.
            for pragma in (
                "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", f"wal_autocheckpoint={LOG_PAGES}",
                f"journal_size_limit={LOG_PAGES * 4096}",
            ):  # fmt: skip
                connection.execute(f"PRAGMA {pragma}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise UsageError(
                    f"it has schema {version}, this Sojourn works with {SCHEMA_VERSION}",
                    where=str(self.path),
                    action="use the Sojourn that made it, or another directory",
                )
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise DamagedError(" ".join(str(found).split())[:200], where=str(self.path))
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
            connection.executescript(_TOTALS)
        except BaseException:
            connection.close()
            raise
        return connection

    def begin_anew(self) -> tuple[Path, int]:
        """Move a damaged database aside, and begin a new one with what can be read of it; its name, and how much.

        What is taken over counts as in doubt: that it was sent may have been noted where the damage is.
        """
        self.disconnect()
        number = 1
        while (aside := self.path.with_name(f"{FILE_NAME}.damaged-{number}")).exists():
            number += 1
        try:
            for end in ("", "-wal"):
                source = self.path.with_name(f"{self.path.name}{end}")
                if source.exists():
                    os.replace(source, aside.with_name(f"{aside.name}{end}"))
            self.path.with_name(f"{self.path.name}-shm").unlink(missing_ok=True)
            os.fsync(self._directory)
        except OSError as error:
            raise StoreError(error.strerror or str(error), where=str(self.path)) from None
        count = 0
        with self.transaction() as connection:
            for entry in _readable(aside):
                insert(connection, entry)
                count += 1
            for table in ("streams", "run", "losses"):
                for row in _readable_rows(aside, table):
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return aside, count


def _readable_rows(path: Path, table: str) -> list[tuple[object, ...]]:
    with suppress(StoreError), reading(path) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()
    return []


def _readable(path: Path) -> Iterator[SpooledEpoch]:
    """The entries of a damaged database that can still be read and are intact."""
    with suppress(StoreError), reading(path) as connection:
        for key in _readable_keys(connection):
            with suppress(sqlite3.Error, WireError, ValueError, TypeError):
                query = f"SELECT {COLUMNS}, data FROM entries WHERE rowid = ?"
                *row, data = connection.execute(query, (key,)).fetchone()
                check_intact(data)
                label = label_of(tuple(row))
                state = State.SENT if label.state is State.WAITING else label.state
                yield SpooledEpoch(**{**vars(label), "state": state, "data": data})


def _readable_keys(connection: sqlite3.Connection) -> Iterator[int]:
    """The row numbers that can be found; where there is damage the search goes on behind it."""
    key, failures = 0, 0
    following = "SELECT rowid FROM entries NOT INDEXED WHERE rowid >= ? LIMIT 1"
    while failures < MOST_FAILURES:
        key += 1
        try:
            row = connection.execute(following, (key,)).fetchone()
        except sqlite3.Error:
            failures += 1
            continue
        if row is None:
            return
        key = row[0]
        yield key


def _make_private(path: Path, directory: int) -> None:
    """Make the file before the database does, with its mode: the companions of it get the same."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with suppress(OSError):
            for end in ("", "-wal", "-shm"):
                one = path.with_name(f"{path.name}{end}")
                if one.exists() and one.stat().st_mode & 0o077:
                    one.chmod(0o600)
        return
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(directory)
    finally:
        os.close(descriptor)


def _lock_holder(directory: os.stat_result) -> str:
    """The process that has a directory locked, by the kernel's own list."""
    inode = str(directory.st_ino)
    here = f"{os.major(directory.st_dev):02x}:{os.minor(directory.st_dev):02x}:{inode}"
    holders: dict[str, str] = {}
    with suppress(OSError):
        for words in map(str.split, Path("/proc/locks").read_text().splitlines()):
            if len(words) == 8 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                holders[words[5]] = words[4]
    # Layered file systems list another device than they show; the inode alone is then all there is.
    pid = holders.get(here) or next(iter(holders.values()), "")
    return f"another agent (process {pid})" if pid.isdigit() else "another agent"


def _boot_ns() -> int:
    """Time since the machine was started, sleep included."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class Start:
    """When a run began, by the wall clock and by that of the machine."""

    time_ns: int
    boot_ns: int = field(default_factory=_boot_ns)


def sign_of_life(connection: sqlite3.Connection, now_ns: int) -> None:
    """Note that the agent is alive."""
    alive = (
        "INSERT INTO run VALUES (0, ?, ?, ?, 0) ON CONFLICT (id) DO UPDATE SET "
        "alive_ns = excluded.alive_ns, alive_boot_ns = excluded.alive_boot_ns, boot = excluded.boot"
    )
    connection.execute(alive, (now_ns, _boot_ns(), _boot()))


def close_checkpoints(connection: sqlite3.Connection, stream: str | None = None) -> None:
    """Checkpoints that nobody will close become epochs to send, in doubt: the whole may have been sent already."""
    connection.execute(
        "UPDATE entries SET state = 'sent', resumed = 1 WHERE state = 'open' AND stream = COALESCE(?, stream)",
        (stream,),
    )


def note_size(connection: sqlite3.Connection, state: StreamState) -> None:
    """Note what a stream says of its size, for the next run."""
    if state.size:
        changed = "ON CONFLICT (stream) DO UPDATE SET size = excluded.size WHERE size <> excluded.size"
        connection.execute(f"INSERT INTO sizes VALUES (?, ?) {changed}", (state.stream, state.size))


def noted_size(connection: sqlite3.Connection, stream: str) -> str:
    """What was noted of a stream's size; nothing if that never was."""
    found = connection.execute("SELECT size FROM sizes WHERE stream = ?", (stream,)).fetchone()
    return "" if found is None else str(found[0])


def take_up(connection: sqlite3.Connection, start: Start) -> list[str]:
    """Close what was left open, and begin a run; what there is to report of the last one."""
    last = connection.execute("SELECT alive_ns, alive_boot_ns, boot, ended FROM run").fetchone()
    _note_losses(connection, last, start)
    close_checkpoints(connection)
    connection.execute("UPDATE streams SET recording = 0")
    connection.execute("UPDATE run SET ended = 0")
    losses = connection.execute("SELECT stream, from_ns, alive_ns, noticed FROM losses ORDER BY alive_ns, stream")
    reports = [
        f"warning: the agent was killed; stream {stream} lost what it measured from {format_instant(from_ns)} (its "
        f"last checkpoint) until the kill, which came after {format_instant(alive_ns)} (the last sign of life) and "
        f"before {noticed}"
        for stream, from_ns, alive_ns, noticed in losses
    ]
    (streams,) = connection.execute("SELECT COUNT(*) FROM streams").fetchone()
    if last is not None and streams and not reports:
        how = "ended in order" if last[3] else "was killed while it recorded nothing"
        reports.append(f"the last run {how} (last sign of life {format_instant(last[0])}); nothing was lost")
    return reports


def _note_losses(connection: sqlite3.Connection, last: tuple[int, int, str, int] | None, start: Start) -> None:
    streams = connection.execute("SELECT stream, kept_until_ns FROM streams WHERE recording").fetchall()
    noticed = f"this start at {format_instant(start.time_ns)}"
    if last is not None and last[2] == _boot():
        noticed += f", {format_duration(start.boot_ns - last[1])} later"
    for stream, kept_until_ns in streams:
        alive_ns = kept_until_ns if last is None else last[0]
        connection.execute("INSERT INTO losses VALUES (?, ?, ?, ?)", (stream, kept_until_ns, alive_ns, noticed))
    if streams:
        connection.execute("UPDATE streams SET number = number + ?", (SKIPPED_NUMBERS,))


def _boot() -> str:
    """What tells this run of the machine from others."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def as_bytes(value: object) -> bytes:
    """What a damaged row has in place of its bytes is never an epoch, but must not be of another type."""
    return value if isinstance(value, bytes) else str(value).encode()
