"""Flows of a segment between two nodes: a query unit is asked again and again about the latest time."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.cli.top.frame import NUMBERS, Frame, Sort
from sojourn.core.arrays import FloatArray
from sojourn.core.keys import FLOW_FIELDS
from sojourn.core.units import format_age, format_clock
from sojourn.node.transports.transport import RefusedError, TransportError

if TYPE_CHECKING:
    from sojourn.client.query_unit import Client
    from sojourn.segments.result import SegmentResult

# How a query unit refuses a question about a segment that exists, as the range has no answer.
NO_ANSWER_YET = 400


@dataclass(eq=False)
class SegmentFlows:
    """The flows of a segment in the latest ``window_ns``.

    Once it has answered, a query unit that is out of reach is asked on: what it said last stays, with a note.
    """

    client: Client
    name: str
    interval_ns: int
    window_ns: int
    title: str = field(init=False)
    delays: str = "delay"
    sorts: tuple[Sort, ...] = (Sort.DELAY, Sort.P99, Sort.LOSS, Sort.RATE)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _ids: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.title = f"{self.name}, last {format_age(self.window_ns)}"

    def stop(self) -> None:
        self._stopped.set()

    def frames(self) -> Generator[Frame, None, None]:
        latest: Frame | None = None  # what a unit that no longer answers said last
        while not self._stopped.is_set():
            asked = time.monotonic()
            now_ns = time.time_ns()
            try:
                result = self.client.query_segment(self.name, from_ns=now_ns - self.window_ns, to_ns=None)
                latest = self._frame(result, now_ns)
                yield latest
            except RefusedError as error:
                if error.status != NO_ANSWER_YET:
                    raise
                latest = self._empty(now_ns, error)
                yield latest
            except TransportError as error:
                if latest is None:
                    raise
                yield _stale(latest, str(error))
            self._stopped.wait(max(0.0, self.interval_ns / 1e9 - (time.monotonic() - asked)))

    def _frame(self, result: SegmentResult, now_ns: int) -> Frame:
        rows = result.columns()
        named = [dict(zip(FLOW_FIELDS, values, strict=True)) for values in _names(rows)]
        ids = [self._ids.setdefault(tuple(one.values()), len(self._ids)) for one in named]
        names = dict(zip(ids, named, strict=True))
        span_ns = sum(span["to_ns"] - span["from_ns"] for span in result.covered) or self.window_ns
        columns = {name: _numbers(rows[name]) for name in NUMBERS if name in rows}
        if "packets" in columns:
            columns["packets_per_second"] = columns["packets"] * 1e9 / span_ns
            columns["loss"] = columns.get("lost", np.full(len(ids), np.nan)) / np.maximum(columns["packets"], 1)
        whole = result.aggregate
        sent, lost = whole.get("sent") or 0, whole.get("lost")
        total = {
            "packets_per_second": sent * 1e9 / span_ns,
            "mean_ns": whole.get("mean_ns"),
            "p99_ns": whole.get("p99_ns"),
            "loss": lost / sent if sent and lost is not None else None,
        }
        notes = [*result.warnings, *([str(whole["reason"])] if whole.get("reason") else [])]
        return Frame(now_ns, span_ns, np.array(ids, np.uint64), columns, names.__getitem__, total, notes)

    def _empty(self, now_ns: int, why: RefusedError) -> Frame:
        """A segment of which there is nothing in the window: the query unit says what to do."""
        note = why.what.removeprefix(f"refuses ({NO_ANSWER_YET}): ")
        return Frame(now_ns, self.window_ns, np.zeros(0, np.uint64), {}, lambda _: {}, {}, [note])


def _names(rows: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What names each flow; nothing where there are no flows."""
    if FLOW_FIELDS[0] in rows or FLOW_FIELDS[2] in rows:
        count = len(next(iter(rows.values())))
        yield from zip(*(rows.get(name) or [None] * count for name in FLOW_FIELDS), strict=True)


def _numbers(values: Any) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _stale(latest: Frame, why: str) -> Frame:
    """What was said last, and that it is no longer new."""
    note = f"as of {format_clock(latest.end_ns)}: {why}; trying again"
    return Frame(
        latest.end_ns, latest.span_ns, latest.ids, latest.columns, latest.names, latest.total, [*latest.notes, note]
    )
