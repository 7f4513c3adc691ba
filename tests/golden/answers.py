"""Answers in one form, and the differences of two of them.

Guarantee: the same answer has the same text, whatever the machine's speed, the run's folder or the order of rows that
have no order. Lists in `UNORDERED` are sorted by what names their rows; fields in `OF_THE_RUN` are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RENAMED", "Difference", "canonical", "differences", "reduced", "text_of"]

# Fields that have another name now than when answers were recorded, by the first word of the command ("" is any):
# recorded name -> name today. A command's names must stay different from each other.
RENAMED: dict[str, dict[str, str]] = {
    "rtt": {f"{name}_rtt": f"{name}_ns" for name in ("mean", "p50", "p95", "p99", "max", "std")},
}

# Fields that answers have now and had not when they were recorded, by the first word of the command.
ADDED: dict[str, frozenset[str]] = {
    "measure": frozenset({"matched_within_ns"}),
    "query": frozenset({"members", "node"}),
}

# Durations, processes and times of the run itself.
OF_THE_RUN = frozenset(
    {
        "last_seen_ns",
        "loading_seconds",
        "ms_per_bound",
        "ms_per_delay",
        "ms_per_interval",
        "seconds",
        "since_ns",
        "version",
        "workers",
    }
)

# Rows whose order is a matter of taste, or of ties.
UNORDERED = frozenset({"flows", "hops", "ignored", "monitors", "msets", "nodes"})

# What tells rows of a list apart, as far as they have it.
ROW_NAMES = (
    *("src_ip", "src_port", "dest_ip", "dest_port", "protocol", "vlan", "kind"),
    *("origin", "seq", "hop", "start_ns", "node", "name", "instance"),
)

DIGITS = 12
NEAR_ZERO = 1e-12
LONG_LIST = 24
FIRST_ROWS = 4


def canonical(answer: Any, command: str = "") -> Any:
    """An answer in the form that is recorded: recorded names, no times of the run, rows in the order of their names."""
    names = {new: old for scope in ("", command) for old, new in RENAMED.get(scope, {}).items()}
    left_out = OF_THE_RUN | ADDED.get(command, frozenset())
    return _canonical(answer, names, left_out, "")


def _canonical(value: Any, names: Mapping[str, str], left_out: frozenset[str], field: str) -> Any:
    if isinstance(value, dict):
        renamed = {names.get(key, key): item for key, item in value.items()}
        return {key: _canonical(renamed[key], names, left_out, key) for key in sorted(renamed) if key not in left_out}
    if isinstance(value, list):
        rows = [_canonical(item, names, left_out, "") for item in value]
        return sorted(rows, key=_sort_key) if field in UNORDERED else rows
    return value


def _sort_key(row: Any) -> tuple[str, str]:
    return _row_name(row), json.dumps(row, sort_keys=True)


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    return " ".join(f"{row[name]:>6}" if isinstance(row[name], int) else str(row[name]) for name in _names_in(row))


def _names_in(row: dict[str, Any]) -> list[str]:
    return [name for name in ROW_NAMES if isinstance(row.get(name), str | int)]


def text_of(answer: Any) -> str:
    """A canonical answer as the text of a file: a line for each row, so that other tools can compare it as well."""
    return _text(answer, "") + "\n"


def _text(value: Any, indent: str) -> str:
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if (
        len(indent) + len(flat) <= 110
        or not isinstance(value, dict | list)
        or (isinstance(value, dict) and indent > " ")
    ):
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_text(value[key], deeper)}" for key in sorted(value)]
        return f"{{\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}}}"
    return f"[\n{deeper}" + f",\n{deeper}".join(_text(item, deeper + " ") for item in value) + f"\n{indent}]"


def reduced(answer: Any) -> Any:
    """A canonical answer with long lists replaced: number of rows, totals, the first rows, SHA-256 of all of them."""
    if isinstance(answer, dict):
        return {key: reduced(value) for key, value in answer.items()}
    if not isinstance(answer, list):
        return answer
    if len(answer) <= LONG_LIST:
        return [reduced(item) for item in answer]
    digest = hashlib.sha256(json.dumps(_rounded(answer), sort_keys=True).encode())
    return {
        "rows": len(answer),
        "totals": _totals(answer),
        "first": [reduced(row) for row in answer[:FIRST_ROWS]],
        "sha256": digest.hexdigest(),
    }


def _rounded(value: Any) -> Any:
    """Numbers as they are compared: to `DIGITS`, and whole ones without a point."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() else short
    return value


def _totals(rows: list[Any]) -> dict[str, int]:
    """Sums of the fields that are integers in all rows that have them: they show which field a difference is in."""
    fields = sorted({key for row in rows if isinstance(row, dict) for key in row})
    totals = {}
    for field in fields:
        values = [row[field] for row in rows if row.get(field) is not None]
        if values and all(type(value) is int for value in values):
            totals[field] = sum(values)
    return totals


@dataclass(frozen=True)
class Difference:
    """One place where two answers differ."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.before)} -> {_short(self.after)}"


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


def _short(value: Any) -> str:
    text = repr(value) if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"


def differences(before: Any, after: Any, *, digits: int = DIGITS, path: str = "") -> Iterator[Difference]:
    """Where two canonical answers differ, one by one; rows are matched by their names where those are unique."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            here = f"{path}.{key}" if path else key
            yield from _of_items(before.get(key, ABSENT), after.get(key, ABSENT), digits, here)
    elif isinstance(before, list) and isinstance(after, list):
        left, right = _by_name(before), _by_name(after)
        if left is None or right is None:
            left, right = dict(enumerate(before)), dict(enumerate(after))
        for name in dict.fromkeys([*left, *right]):
            yield from _of_items(left.get(name, ABSENT), right.get(name, ABSENT), digits, f"{path}[{name}]")
    elif not _equal(before, after, digits):
        yield Difference(path, before, after)


def _of_items(before: Any, after: Any, digits: int, path: str) -> Iterator[Difference]:
    if before is ABSENT or after is ABSENT:
        yield Difference(path, before, after)
    else:
        yield from differences(before, after, digits=digits, path=path)


def _by_name(rows: list[Any]) -> dict[str | int, Any] | None:
    named: dict[str | int, Any] = {" ".join(_row_name(row).split()): row for row in rows}
    return named if len(named) == len(rows) and "" not in named else None


def _equal(before: Any, after: Any, digits: int) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))
    if not numbers or (isinstance(before, int) and isinstance(after, int)):
        return type(before) is type(after) and before == after
    return before == after or math.isclose(before, after, rel_tol=10.0**-digits, abs_tol=NEAR_ZERO)
