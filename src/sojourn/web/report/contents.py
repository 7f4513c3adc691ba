"""What a report says, before it is a page: an answer in words and numbers, charts, tables, and what they rest on.

Whatever comes from captures is text here and stays text (`page`). Times are ns since the Unix epoch; the page shows
them in the zone of who reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.core.results import Columns, plain
from sojourn.web.charts.tokens import Option

MOST_ROWS = 10_000  # of a table; a page of more would be slow, and too large to mail


@dataclass(frozen=True)
class Figure:
    """A number that answers the question: what it is of, the number, and how sure or how much of what."""

    name: str
    value: str
    note: str = ""
    is_bad: bool = False


@dataclass(frozen=True)
class Picture:
    """A chart with its heading and what a reader has to know to read it; wide ones take a whole row."""

    title: str
    option: Option
    note: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table: title, values and unit (ns, share, B, time_ns, id or "" for numbers; None for texts)."""

    title: str
    values: Sequence[Any]
    unit: str | None = None

    @property
    def is_text(self) -> bool:
        return self.unit is None


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and filtered; `left_out` says how many more there are."""

    title: str
    columns: Sequence[Column]
    note: str = ""
    left_out: int = 0
    rows_name: str = "rows"

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All of a report. ``facts`` and ``trust`` say what was measured, how, and how far to trust it."""

    title: str
    question: str
    answer: str = ""
    warnings: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    trust: Sequence[str] = ()
    notes: Sequence[str] = ()
    span_ns: tuple[int, int] | None = None
    sources: Sequence[str] = ()  # what was read for it, which is never written over


@dataclass(frozen=True)
class Shown:
    """Which column of an answer a table shows, how it is titled, and in which unit."""

    name: str
    title: str
    unit: str | None = None


def table_of(
    title: str, columns: Columns, shown: Sequence[Shown], *, rows_name: str, whole: int | None = None, note: str = ""
) -> Table:
    """The columns that the answer has, `MOST_ROWS` rows of them at most; those without any value are left out."""
    kept = [
        Column(each.title, values, each.unit)
        for each in shown
        if each.name in columns
        for values in [list(plain(columns[each.name])[:MOST_ROWS])]
        if not values or any(value is not None and value != "" for value in values)
    ]
    count = len(kept[0].values) if kept else 0
    return Table(title, kept, note, max((whole or count) - count, 0), rows_name)


def flow_names(columns: Columns, *, prefix: str = "") -> list[str]:
    """Flows in words: ``10.0.0.1:80 → 10.0.0.2:4711 tcp``, as far as the key has these parts.

    >>> flow_names({"src_ip": ["a", None], "src_port": [80, None], "dest_ip": ["b", "c"], "protocol": ["tcp", None]})
    ['a:80 → b tcp', 'c']
    """
    parts = [list(plain(columns[f"{prefix}{name}"])) if f"{prefix}{name}" in columns else None for name in _PARTS]
    count = max((len(part) for part in parts if part is not None), default=0)
    rows = zip(*(part or [None] * count for part in parts), strict=True)
    return [_flow_name(*row) for row in rows]


_PARTS = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")


def _flow_name(source: Any, source_port: Any, target: Any, target_port: Any, protocol: Any) -> str:
    ends = [_end(host, port) for host, port in ((source, source_port), (target, target_port)) if host]
    return f"{' → '.join(ends)} {protocol or ''}".strip() or "?"


def _end(host: object, port: object) -> str:
    name = f"[{host}]" if port and ":" in str(host) else str(host)
    return f"{name}:{port}" if port else name
