"""Down-sampling: old epochs of one stream that lie in one step of time (an hour, say) become one.

Sketches are linear, so nothing is lost but times: an answer about a range that begins and ends at steps is the same, to
the last count, from merged epochs as from those that they hold. An epoch across the border of two steps stays as it is,
and so do epochs of other parameters or another salt: of a stream whose salt goes round 16 values 16 epochs a step stay.

Not merged are epochs that are cut at packets (points of segments: they are compared one by one, and their answers are
kept), a router's (their numbers are times), and those that cannot be decoded.

Guarantee: a merge is one transaction, and sums are equal before and after; an epoch that is sent again after it was
merged is recognised (`arrivals`). What came late is merged into what is there. Cost: each epoch is decoded once for
each step; how far a store is merged is in it, so that nothing is looked at twice. Memory: an epoch, and one a salt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update

from sojourn.core.errors import SojournError, UsageError, WireError
from sojourn.core.units import parse_duration
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.merging import merged_epoch, merging_key
from sojourn.epochs.wire import EncodedEpoch, encoded
from sojourn.store.arrivals import moved
from sojourn.store.database import EPOCHS, SET_ASIDE, UNLISTED, Database, fact, set_facts

# Epochs that one call looks at.
LOOKED_AT = 2000
ROUTERS = "router:"
LEAST_STEP_NS = 1_000_000_000


@dataclass(frozen=True, order=True)
class MergeStep:
    """Epochs older than ``after_ns`` are merged into steps of ``step_ns``."""

    after_ns: int
    step_ns: int

    @classmethod
    def parse(cls, text: str) -> MergeStep:
        """Such as ``7d:1h``.

        >>> MergeStep.parse("1d:5m")
        MergeStep(after_ns=86400000000000, step_ns=300000000000)
        """
        after, _, step = text.partition(":")
        if not step:
            raise UsageError(f"{text[:40]!r} is no age and step", where="--merge-epochs", action="write 7d:1h")
        found = cls(parse_duration(after), parse_duration(step))
        if not LEAST_STEP_NS <= found.step_ns <= found.after_ns:
            raise UsageError(
                f"{text[:40]!r} has a step of less than a second, or of more than the age",
                where="--merge-epochs",
                action="write 7d:1h",
            )
        return found


@dataclass
class _Group:
    """Epochs that are one from now on; the row with the highest number stays."""

    epoch: Epoch
    rows: list[int]
    kept: int
    merged: int
    received_ns: int


def merge_some(
    database: Database, step: MergeStep, now_ns: int, *, pause: Callable[[], object] = lambda: None
) -> tuple[int, int]:
    """Merge some of what came before ``now_ns - after_ns``: how many epochs were looked at, and how many went.

    `pause` is called between transactions; one that raises leaves the rest to a later call.
    """
    before_ns = now_ns - step.after_ns
    mark = f"merged_until:{step.step_ns}"
    columns = EPOCHS.c.id, EPOCHS.c.node, EPOCHS.c.stream, EPOCHS.c.first_ns, EPOCHS.c.last_ns, EPOCHS.c.received_ns
    with database.transaction() as connection:
        done = int(fact(connection, mark) or 0)
        if (connection.execute(select(func.max(EPOCHS.c.id))).scalar() or 0) < done:
            done = 0  # all epochs have gone, and numbers were given again
        rows = connection.execute(
            select(*columns).where(EPOCHS.c.id > done).order_by(EPOCHS.c.id).limit(LOOKED_AT)
        ).all()
    ready = [row for row in rows if row.received_ns < before_ns]
    places = {
        (row.node, row.stream, row.first_ns // step.step_ns)
        for row in ready
        if row.first_ns is not None and row.first_ns // step.step_ns == row.last_ns // step.step_ns
    }
    gone = 0
    for node, stream, number in sorted(places):
        if not stream.startswith(ROUTERS):
            begin = number * step.step_ns
            with database.transaction(writes=True) as connection:
                gone += _merge(connection, node, stream, begin, begin + step.step_ns)
            pause()
    # What came earlier than others with smaller numbers waits with them.
    until = min((row.id for row in rows if row.received_ns >= before_ns), default=None)
    looked = [row.id for row in ready if until is None or row.id < until]
    if looked:
        with database.transaction(writes=True) as connection:
            set_facts(connection, **{mark: looked[-1]})
    return len(looked), gone


def _merge(connection: Connection, node: str, stream: str, begin_ns: int, end_ns: int) -> int:
    """Merge what lies in a step of a stream; by how many rows that is less."""
    here = (EPOCHS.c.node == node) & (EPOCHS.c.stream == stream)
    inside = (EPOCHS.c.first_ns >= begin_ns) & (EPOCHS.c.last_ns >= begin_ns) & (EPOCHS.c.last_ns < end_ns)
    known = EPOCHS.c.id.not_in(select(SET_ASIDE.c.epoch)) & EPOCHS.c.id.not_in(select(UNLISTED.c.epoch))
    # Another query unit that merges the same waits, and finds them merged.
    rows = select(EPOCHS).where(here & inside & known).order_by(EPOCHS.c.sequence).with_for_update()
    gone = 0
    for group in list(_groups(connection, rows)):
        if len(group.rows) < 2:
            continue
        merged = EncodedEpoch.of(group.epoch)
        connection.execute(delete(EPOCHS).where(EPOCHS.c.id.in_([row for row in group.rows if row != group.kept])))
        same = {name: getattr(merged, name) for name in ("first_ns", "last_ns", "recorded", "data")}
        values = {"size_bytes": len(merged.data), "merged": group.merged, "received_ns": group.received_ns}
        kept = update(EPOCHS).where(EPOCHS.c.id == group.kept)
        connection.execute(kept.values(**same, **values, shifted_ns=None))
        gone += len(group.rows) - 1
    return gone


def _groups(connection: Connection, rows: object) -> Iterator[_Group]:
    """Rows in order of their numbers, added up as far as they can be; where counters are full the next begins anew."""
    open_ones: dict[str, _Group] = {}
    for row in connection.execute(rows, execution_options={"yield_per": 1}):  # type: ignore[call-overload]
        try:
            header = moved(encoded(row.data), row.shifted_ns)
            if header.cut is not None:
                continue
            key, epoch = merging_key(header), header.decode()
        except WireError:
            continue
        group = open_ones.get(key)
        if group is not None:
            try:
                group.epoch = merged_epoch(group.epoch, epoch)
            except SojournError:
                yield open_ones.pop(key)
                group = None
        if group is None:
            open_ones[key] = _Group(epoch, [row.id], row.id, row.merged, row.received_ns)
            continue
        group.rows.append(row.id)
        group.kept, group.merged = row.id, group.merged + row.merged
        group.received_ns = max(group.received_ns, row.received_ns)
    yield from open_ones.values()
