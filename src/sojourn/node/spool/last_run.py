"""How the last run of an agent ended, by what its spool knows: in order, or killed, and what that lost.

Each transaction leaves a sign of life (wall clock, and the clock that runs since the machine was started, which no step
of the wall clock changes); each stream has the time until which everything it measured is on disk. A stream that is
still marked as recorded when an agent starts was killed: it lost what came after that time, until some moment between
the last sign of life and this start. More nobody knows.

A loss stays written down until an agent that reported it begins to record; after one that was killed before, the next
reports it again.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.core.units import format_duration, format_instant

__all__ = ["Start", "close_checkpoints", "sign_of_life", "take_up"]

# After a kill numbers go on so much higher: while the disk refused, some may have been sent that it knows nothing of.
SKIPPED_NUMBERS = 1 << 20


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
