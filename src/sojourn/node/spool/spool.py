"""The spool: epochs on disk until the query unit has acknowledged them, and how far each stream has been kept.

Guarantee: an epoch that `put` or `keep` returned for survives a crash, unless there is `trouble`: then the disk refuses
it, and it waits in memory, can be sent, and is written as soon as the disk takes it. What is in memory is bounded as
the file is; what has to be dropped, and what is lost in the end, is listed exactly (`notices`, `unwritten`).

Beyond its bound the spool merges old epochs (`spool.merging`), which loses time resolution but no counts. An epoch that
may have reached the query unit (it was sent, and no answer came) is never merged: it has to arrive again as it was, to
be recognised as a copy. That an epoch is sent is written down before it is. One that can never arrive (damaged, too
large, refused) is set aside with its reason; the others go on.

Checkpoints: `keep` writes down what a stream closed and everything that it has open in one transaction, with the time
until which all of it is now on disk. After a crash that is where the loss begins, and the last transaction is the last
sign of life. A checkpoint that is taken up keeps its number and counts as in doubt: if the query unit has the number
already, the whole epoch was sent from memory before.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sojourn.core.errors import ParameterError, StoreError, WireError
from sojourn.core.units import plural
from sojourn.epochs.encoded import MAX_EPOCH_BYTES, AnyEpoch, EncodedEpoch, check_intact
from sojourn.node.spool.acknowledged import Acknowledged
from sojourn.node.spool.earlier import EarlierFile, put_aside, remove_taken_over, take_over
from sojourn.node.spool.file import (
    COLUMNS,
    DamagedError,
    Label,
    SpooledEpoch,
    SpoolFile,
    Start,
    State,
    StreamState,
    as_bytes,
    close_checkpoints,
    insert,
    label_of,
    note_size,
    noted_size,
    sign_of_life,
    spooled,
    take_up,
)
from sojourn.node.spool.merging import merge_until

LEAST_BYTES = 4096
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
# Merges in one transaction: enough that finding them costs little, and few enough not to keep a stream from recording.
MOST_MERGES = 512
# Newest epochs handed out at once; the query unit takes no more of one node.
MOST_ANSWERED_BYTES = 64 << 20

_Key = tuple[str, int]
_THIS = "stream = ? AND sequence = ?"


class Spool:
    """The epochs of one node that wait to be acknowledged; used from one thread at a time."""

    def __init__(self, directory: Path, *, limit_bytes: int, clock: Callable[[], int] = time.time_ns) -> None:
        if limit_bytes < LEAST_BYTES:
            raise ParameterError(
                f"{limit_bytes} bytes are too few", where="spool", action=f"give at least {LEAST_BYTES}"
            )
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.merged = 0
        self._merges_reported = 0
        self.trouble: StoreError | None = None
        self._clock = clock
        self._start = Start(clock())
        self._notices: list[str] = []
        # What the disk has refused so far: epochs, removals, and epochs set aside.
        self._memory: dict[_Key, SpooledEpoch] = {}
        self._gone: set[_Key] = set()
        self._aside: dict[_Key, str] = {}
        # Of those in memory, the ones that the disk has a checkpoint of.
        self._noted: set[_Key] = set()
        self._numbers: dict[str, int] = {}
        self._acknowledged = Acknowledged()
        # Checkpoints on disk, by how much was recorded when they were made.
        self._checkpoints: dict[_Key, int] = {}
        self._drafts: list[str] = []
        self._again: set[_Key] = set()
        self._unreadable: set[_Key] = set()
        self._postponed: set[_Key] = set()
        self._is_taken_up = False
        self._damaged_files: list[EarlierFile] = []
        self._pause, self._retry_at = FIRST_RETRY_SECONDS, 0.0
        self._counted_at_close: int | None = None
        self._file = SpoolFile(directory)
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        if self._file.warning:
            self._notices.append(f"warning: {self._file.warning}")
        if self._write(lambda _: None):
            aside = self._labels("state = 'aside' AND size_bytes <= ?", (MAX_EPOCH_BYTES,))
            self._again = {label.key for label in aside}
        else:
            self._notices.append("warning: what the last run lost is unknown until its spool can be written")

    def close(self) -> None:
        """Let the file and its lock go; what is in memory only is lost."""
        if self._counted_at_close is None:
            self._counted_at_close = len(self) - len(self.unwritten)
            self._file.close()

    def leave(self, report: Callable[[str], None]) -> None:
        """Report what is lost because the disk does not take it, and close."""
        for entry in self.unwritten:
            report(f"warning: {entry} could neither be sent nor written, and is lost")
        self.close()

    def notices(self) -> list[str]:
        """What there is to report since this was asked last."""
        found, self._notices = self._notices, []
        return found

    def report_notices(self, report: Callable[[str], None]) -> None:
        for line in self.notices():
            report(line)

    def __len__(self) -> int:
        if self._counted_at_close is not None:
            return self._counted_at_close
        return len(self._waiting_labels()) if self.trouble or self._memory else self._total("count")

    @property
    def size_bytes(self) -> int:
        """Of all that waits to be sent."""
        if self.trouble or self._memory:
            return sum(label.size_bytes for label in self._waiting_labels())
        return self._total("bytes")

    @property
    def unwritten(self) -> list[Label]:
        """The epochs in memory only, because the disk refuses them."""
        return [label for label in self._memory.values() if label.state is not State.ASIDE]

    def put(self, epoch: AnyEpoch) -> None:
        """Take an epoch; it is on disk when this returns, or there is `trouble`."""
        self._put([spooled(EncodedEpoch.of(epoch), State.WAITING)], lambda _: None)

    def keep(self, states: Iterable[StreamState]) -> None:
        """Take what streams have closed, and note what they have open, in one transaction."""
        states = list(states)
        closed = [spooled(EncodedEpoch.of(epoch), State.WAITING) for state in states for epoch in state.closed]
        known = self._checkpoints
        news = [e for state in states for e in state.open if known.get((e.stream, e.sequence)) != e.recorded]
        open_ones = [spooled(EncodedEpoch.of(epoch), State.OPEN) for epoch in news]
        mark = (
            "INSERT INTO streams VALUES (?, ?, ?, 1) "
            "ON CONFLICT (stream) DO UPDATE SET kept_until_ns = excluded.kept_until_ns, recording = 1"
        )

        def note(connection: sqlite3.Connection) -> None:
            for entry in open_ones:
                insert(connection, entry)
            for state in states:
                connection.execute(mark, (state.stream, self._numbers.get(state.stream, -1), state.until_ns))
                note_size(connection, state)

        for entry in (*closed, *open_ones):
            self._note_number(entry.stream, entry.sequence)
        if self._put(closed, note):
            self._checkpoints.update((entry.key, entry.recorded) for entry in open_ones)

    def begin_stream(self, stream: str, first_number: int) -> None:
        """A stream is recorded from now on, and its epochs are numbered from here."""
        self._note_number(stream, first_number - 1)
        is_reported = self._is_taken_up and not self._notices
        row = (stream, first_number - 1, self._clock())
        begin = (
            "INSERT INTO streams VALUES (?, ?, ?, 1) ON CONFLICT (stream) DO UPDATE SET "
            "number = MAX(number, excluded.number), kept_until_ns = excluded.kept_until_ns, recording = 1"
        )

        def change(connection: sqlite3.Connection) -> None:
            close_checkpoints(connection, stream)
            connection.execute(begin, row)
            if is_reported:
                connection.execute("DELETE FROM losses")

        self._write(change)

    def end_stream(self, stream: str, closed: Iterable[AnyEpoch]) -> None:
        """A stream is no longer recorded; its last epochs."""
        entries = [spooled(EncodedEpoch.of(epoch), State.WAITING) for epoch in closed]
        for entry in entries:
            self._note_number(entry.stream, entry.sequence)

        def change(connection: sqlite3.Connection) -> None:
            # A checkpoint that is still there was closed by nobody; what it holds was measured.
            close_checkpoints(connection, stream)
            connection.execute("UPDATE streams SET recording = 0 WHERE stream = ?", (stream,))

        self._put(entries, change)

    def end(self) -> None:
        """Everything is closed: nothing was lost, if this can be written."""
        self._retry_at = 0.0

        def change(connection: sqlite3.Connection) -> None:
            close_checkpoints(connection)
            connection.execute("UPDATE streams SET recording = 0")
            connection.execute("UPDATE run SET ended = 1")

        self._write(change)

    def next_number(self, stream: str) -> int:
        """A number above all that are known here to have been given to epochs of a stream.

        Where the spool cannot be read, microseconds since 1970 are: no stream has closed as many epochs.
        """
        numbers = [self._numbers.get(stream, -1)]
        try:
            with self._file.snapshot() as connection:
                for query in ("SELECT MAX(sequence) FROM entries", "SELECT number FROM streams"):
                    found = connection.execute(f"{query} WHERE stream = ?", (stream,)).fetchone()
                    numbers.append(-1 if found is None or found[0] is None else found[0])
        except StoreError:
            numbers.append(self._clock() // 1000)
        return max(numbers) + 1

    def size_of(self, stream: str) -> str:
        """What was noted of a stream's size last; nothing where the spool cannot be read."""
        with suppress(StoreError), self._file.snapshot() as connection:
            return noted_size(connection, stream)
        return ""

    def _note_number(self, stream: str, number: int) -> None:
        self._numbers[stream] = max(number, self._numbers.get(stream, -1))

    def _put(self, entries: list[SpooledEpoch], change: Callable[[sqlite3.Connection], object]) -> bool:
        for entry in entries:
            if self._checkpoints.pop(entry.key, None) is not None:
                self._noted.add(entry.key)
            self._memory[entry.key] = entry
        is_written = self._write(change)
        for entry in entries:
            if entry.size_bytes > MAX_EPOCH_BYTES:
                self.set_aside(entry, f"{entry.size_bytes} bytes exceed the {MAX_EPOCH_BYTES} that an epoch may have")
        if self._memory:
            self._bound_memory()
        elif entries and self._total("bytes") > self.limit_bytes:
            self._write(self._merge_rows)
        return is_written

    # What goes out.

    def oldest(self, most: int, *, most_bytes: int) -> list[SpooledEpoch]:
        """What to send next: first what is in doubt, then the oldest of each stream.

        While the disk refuses to note what is sent, only epochs that need no note are.
        """
        while True:
            labels = sorted(self._next_labels(most), key=self._turn)
            chosen: list[SpooledEpoch] = []
            size = 0
            for label in labels[:most]:
                if chosen and size + label.size_bytes > most_bytes:
                    break
                entry = self._entry(label)
                if entry is not None:
                    chosen.append(entry)
                    size += entry.size_bytes
            # Whoever could not be read is not offered again, so this comes to an end.
            if chosen or not labels:
                return chosen or self._another_chance()

    def _turn(self, label: Label) -> tuple[bool, bool, int, str]:
        return label.key in self._postponed, not label.in_doubt, label.sequence, label.stream

    def postpone(self, entry: Label) -> None:
        """Let an epoch wait until all others were sent."""
        self._postponed.add(entry.key)

    def _another_chance(self) -> list[SpooledEpoch]:
        """One of those that were set aside before this start: another query unit, or another limit, may take it."""
        while self._again:
            key = min(self._again)
            entries = [self._entry(label) for label in self._labels(f"{_THIS} AND state = 'aside'", key)]
            if entries and entries[0] is not None:
                return [entries[0]]
            self._again.discard(key)
        return []

    def _next_labels(self, most: int) -> list[Label]:
        found: list[Label] = [label for label in self._memory.values() if label.state is not State.ASIDE]
        states = (State.SENT,) if self.trouble else (State.SENT, State.WAITING)
        for state in states:
            if len(found) < most or state is State.SENT or self._postponed:
                more = most + len(self._gone) + len(self._aside) + len(self._postponed)
                found += self._labels("state = ? ORDER BY sequence, stream LIMIT ?", (state, more))
        return found

    def mark_sent(self, entries: Iterable[SpooledEpoch]) -> list[SpooledEpoch]:
        """Note, before they go out, that these may arrive; those of which that is now known for sure."""
        entries = list(entries)
        on_disk = [e.key for e in entries if e.key not in self._memory and e.state is State.WAITING]
        for entry in entries:
            if entry.key in self._memory:
                self._memory[entry.key] = replace(self._memory[entry.key], state=State.SENT)
        noted = True
        if on_disk or self._memory:
            mark = f"UPDATE entries SET state = 'sent' WHERE {_THIS}"
            noted = self._write(lambda connection: connection.executemany(mark, on_disk))
        return [replace(entry, state=State.SENT) for entry in entries if noted or entry.key not in on_disk]

    def remove(self, entries: Iterable[Label]) -> None:
        """Forget epochs that were acknowledged; one that the disk refuses to remove is a copy when it is sent again."""
        keys = [entry.key for entry in entries]
        for key in keys:
            if self._memory.pop(key, None) is None or key in self._noted:
                self._gone.add(key)
        self._again.difference_update(keys)
        self._postponed.difference_update(keys)
        self._write(self._acknowledged.write)

    def acknowledge(self, entries: Iterable[Label]) -> None:
        """Forget epochs that have arrived, and remember that they did."""
        entries = sorted(entries, key=lambda entry: entry.sequence)
        self._acknowledged.add(entry.key for entry in entries)
        self.remove(entries)

    def acknowledged(self, stream: str) -> tuple[int, int] | None:
        """The latest numbers of a stream, without a gap, that the query unit said it has stored: the first and last."""
        with suppress(StoreError), self._file.snapshot() as connection:
            first, last = self._acknowledged.of(connection, stream)
            return (first, last) if first <= last else None
        return None

    def set_aside(self, entry: Label, reason: str) -> None:
        """Keep an epoch that can never arrive out of the way of the others, with its reason."""
        self._notices.append(f"warning: {entry} is set aside: {reason}")
        self._again.discard(entry.key)
        if entry.key in self._memory:
            self._memory[entry.key] = replace(self._memory[entry.key], state=State.ASIDE, reason=reason)
        else:
            self._aside[entry.key] = reason
        self._write(self._bound_aside)

    def newest(self, streams: Collection[str], from_ns: int, to_ns: int) -> list[bytes]:
        """What some streams measured in a range of time and the query unit cannot have, the newest first."""
        there = f"stream IN ({', '.join('?' * len(streams))}) AND first_ns <= ? AND last_ns >= ?"
        labels = self._labels(f"{there} AND state IN ('waiting', 'sent')", (*streams, to_ns, from_ns))
        for one in self._memory.values():
            if one.stream in streams and one.state is not State.ASIDE and one.overlaps(from_ns, to_ns):
                labels.append(one)
        found: list[bytes] = []
        size = 0
        for label in sorted(labels, key=lambda one: one.sequence, reverse=True):
            if size + label.size_bytes > MOST_ANSWERED_BYTES:
                break
            entry = self._entry(label)
            if entry is not None:
                found.append(entry.data)
                size += label.size_bytes
        return found

    def give_up_oldest(self) -> int:
        """Drop the epochs of the smallest number, all streams'; how many."""
        labels = self._waiting_labels()
        oldest = min((label.sequence for label in labels), default=None)
        chosen = [label for label in labels if label.sequence == oldest]
        self.remove(chosen)
        return len(chosen)

    # Reading.

    def _labels(self, where: str, values: tuple[object, ...]) -> list[Label]:
        """Entries on disk, without those that memory knows better."""
        try:
            with self._file.snapshot() as connection:
                rows = connection.execute(f"SELECT {COLUMNS} FROM entries WHERE {where}", values).fetchall()
        except DamagedError as error:
            self._begin_anew(error)
            return []
        except StoreError:
            return []
        labels = [label_of(row) for row in rows]
        hidden = self._memory.keys() | self._gone | self._aside.keys() | self._unreadable
        return [label for label in labels if label.key not in hidden] if hidden else labels

    def _waiting_labels(self) -> list[Label]:
        return [*self.unwritten, *self._labels("state IN ('waiting', 'sent')", ())]

    def _total(self, what: str) -> int:
        try:
            with self._file.snapshot() as connection:
                query = f"SELECT SUM({what}) FROM totals WHERE state IN ('waiting', 'sent')"
                return int(connection.execute(query).fetchone()[0])
        except StoreError:
            return 0

    def _entry(self, label: Label) -> SpooledEpoch | None:
        """An entry with its bytes; None where there is none any more, or it had to be set aside."""
        if label.key in self._memory:
            return self._memory[label.key]
        try:
            with self._file.snapshot() as connection:
                row = connection.execute(f"SELECT data FROM entries WHERE {_THIS}", label.key).fetchone()
            if row is None:
                self._unreadable.add(label.key)
                return None
            data = as_bytes(row[0])
            check_intact(data)
        except DamagedError as error:
            if not self._begin_anew(error):
                self._unreadable.add(label.key)
            return None
        except StoreError as error:
            self._unreadable.add(label.key)
            self._notices.append(f"warning: {label} cannot be read, and waits for the next start: {error}")
            return None
        except WireError as error:
            self.set_aside(label, f"it is damaged ({error})")
            return None
        return SpooledEpoch(**{**vars(label), "data": data, "size_bytes": len(data)})

    # Writing.

    def _write(self, change: Callable[[sqlite3.Connection], object]) -> bool:
        """Make a change, and all that the disk has refused so far, in one transaction; False if it refuses now."""
        if self.trouble is not None and time.monotonic() < self._retry_at:
            return False
        self._drafts = []
        try:
            try:
                self._commit(change)
            except DamagedError as error:
                self._begin_anew(error)
                self._commit(change)
        except StoreError as error:
            self._refuse(error)
            return False
        self._notices += self._drafts
        for pending in (self._memory, self._gone, self._aside, self._noted):
            pending.clear()
        self.trouble = None
        self._pause = FIRST_RETRY_SECONDS
        if not self._is_taken_up:
            self._is_taken_up = True
            self._tidy_up()
        return True

    def _commit(self, change: Callable[[sqlite3.Connection], object]) -> None:
        with self._file.transaction() as connection:
            self._catch_up(connection)
            change(connection)
            sign_of_life(connection, self._clock())

    def _refuse(self, error: StoreError) -> None:
        self.trouble = error
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_RETRY_SECONDS)

    def write_down(self) -> None:
        """Write what is in memory only, if the disk takes it by now."""
        if self.trouble is not None or self._memory:
            self._write(lambda _: None)

    def _begin_anew(self, error: DamagedError) -> bool:
        try:
            aside, count = self._file.begin_anew()
        except StoreError as refused:
            self._refuse(refused)
            return False
        self._checkpoints.clear()
        self._notices.append(
            f"warning: {error}; the damaged spool is kept as {aside.name}, and {plural(count, 'epoch')} of it "
            f"{'was' if count == 1 else 'were'} taken over; what else was in it is unknown"
        )
        return True

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        if not self._is_taken_up:
            # How did the last run end? What was open is closed as it was noted, what is lost is reported.
            count, self._damaged_files = take_over(connection, self.directory)
            if count:
                self._drafts.append(f"took over {plural(count, 'epoch')} of an earlier version's spool")
            self._drafts += take_up(connection, self._start)
        for entry in self._memory.values():
            self._insert_new(connection, entry)
        connection.executemany(f"DELETE FROM entries WHERE {_THIS}", list(self._gone))
        setting = f"UPDATE entries SET state = 'aside', reason = ? WHERE {_THIS}"
        connection.executemany(setting, [(reason, *key) for key, reason in self._aside.items()])
        marks = [(number, stream, number) for stream, number in self._numbers.items()]
        connection.executemany("UPDATE streams SET number = ? WHERE stream = ? AND number < ?", marks)

    def _insert_new(self, connection: sqlite3.Connection, entry: SpooledEpoch) -> None:
        """An epoch takes the place of its own checkpoint, never of another one with its number."""
        row = connection.execute(f"SELECT state, data FROM entries WHERE {_THIS}", entry.key).fetchone()
        if row is None or row[0] == State.OPEN:
            insert(connection, entry)
        elif row[1] == entry.data:
            # A commit that seemed to have failed; whether the epoch went out since, memory need not know any more.
            insert(connection, replace(entry, state=State.SENT))
        else:
            self._drafts.append(f"warning: {entry} is dropped: another one has its number")

    def _tidy_up(self) -> None:
        """Put away the files of an earlier version, now that the database has their epochs."""
        for file in self._damaged_files:
            self._notices.append(f"warning: a spooled epoch was damaged and put aside: {put_aside(file)}")
        with suppress(StoreError), self._file.transaction() as connection:
            remove_taken_over(connection, self.directory)

    # Bounds.

    def _merge_rows(self, connection: sqlite3.Connection) -> None:
        """Merge old epochs on disk until there is some room again."""
        rows = connection.execute(f"SELECT {COLUMNS} FROM entries WHERE state IN ('waiting', 'sent')")
        labels = [label_of(row) for row in rows]
        largest = max((label.size_bytes for label in labels), default=0)
        # One that exceeds the bound alone is let through: merging all others would not make up for it.
        most = self.limit_bytes + (largest if largest > self.limit_bytes else 0)
        excess = sum(label.size_bytes for label in labels) - most
        if excess <= 0:
            return

        def read(label: Label) -> SpooledEpoch | None:
            row = connection.execute(f"SELECT data FROM entries WHERE {_THIS}", label.key).fetchone()
            data = as_bytes(row[0]) if row is not None else b""
            try:
                check_intact(data)
            except WireError:
                return None  # found again, and set aside, when it is its turn to be sent
            return SpooledEpoch(**{**vars(label), "data": data})

        def put(older: Label, merged: SpooledEpoch) -> None:
            connection.execute(f"DELETE FROM entries WHERE {_THIS}", older.key)
            insert(connection, merged)

        waiting = [label for label in labels if label.state is State.WAITING]
        room = self.limit_bytes // 16
        merges = merge_until(waiting, excess + room, most=MOST_MERGES, read=read, replace=put)
        self._drafts += self._merges_notice(merges)

    def _bound_memory(self) -> None:
        """Merge, then drop, until what is in memory only keeps the bound, too; one epoch always may stay."""
        excess = sum(entry.size_bytes for entry in self._memory.values()) - self.limit_bytes
        if excess <= 0:
            return

        def put(older: Label, merged: SpooledEpoch) -> None:
            del self._memory[older.key]
            self._memory[merged.key] = merged

        # After a kill a checkpoint is taken up under its own number: what it is part of must not go under another.
        waiting = [e for e in self._memory.values() if e.state is State.WAITING and e.key not in self._noted]
        read = self._memory.get
        merges = merge_until(
            waiting, excess + self.limit_bytes // 16, most=MOST_MERGES, read=lambda one: read(one.key), replace=put
        )
        self._notices += self._merges_notice(merges)
        order = [State.ASIDE, State.WAITING, State.SENT]
        size = sum(entry.size_bytes for entry in self._memory.values())
        for entry in sorted(self._memory.values(), key=lambda one: (order.index(one.state), one.sequence)):
            if size <= self.limit_bytes or len(self._memory) == 1:
                return
            del self._memory[entry.key]
            size -= entry.size_bytes
            self._notices.append(f"warning: {entry} is lost: the disk refuses it, and memory is full")

    def _bound_aside(self, connection: sqlite3.Connection) -> None:
        """Of what was set aside, the newest stays, and as much of the rest as the spool may have."""
        count, size = connection.execute("SELECT count, bytes FROM totals WHERE state = 'aside'").fetchone()
        if size <= self.limit_bytes or count <= 1:
            return
        rows = connection.execute(f"SELECT {COLUMNS} FROM entries WHERE state = 'aside' ORDER BY last_ns, sequence")
        for label in [label_of(row) for row in rows][:-1]:
            if size <= self.limit_bytes:
                return
            connection.execute(f"DELETE FROM entries WHERE {_THIS}", label.key)
            size -= label.size_bytes
            self._drafts.append(f"warning: {label} is lost: set aside before, and there is no room for more")

    def _merges_notice(self, merges: int) -> list[str]:
        """A full spool is worth a line when it begins, and whenever twice as much was merged."""
        self.merged += merges
        if self.merged < 2 * self._merges_reported or not merges:
            return []
        self._merges_reported = self.merged
        text = f"the spool is full; {plural(self.merged, 'epoch')} merged so far: counts are kept, times are coarser"
        return [f"warning: {text}"]
