"""How answers are printed: tables for people, JSON, CSV and Parquet for programs; progress on stderr.

Rows of answers (flows, round-trip times) come in blocks of columns (name → values, all of one length), so
that a million of them never exist as Python objects at once. JSON is one object: the answer's own fields and
the rows under their name; the other formats hold the rows alone.

Names come from outside: what goes to a terminal is made harmless, and never read as Rich's markup (`cell`).
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeAlias

from sojourn.core.errors import UsageError, harmless

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "Advance",
    "Block",
    "Format",
    "TableColumn",
    "cell",
    "choose_format",
    "console",
    "print_json",
    "progress",
    "write_rows",
]


class Advance(Protocol):
    """Called as work is done: a step's name and the share done, 0 to 1."""

    def __call__(self, step: str, share: float) -> None: ...


def console(*, stderr: bool = False) -> Console:
    """A Rich console; on stdout it never wraps a table into the middle of a pipe."""
    from rich.console import Console

    plain = Console(stderr=stderr, highlight=False)
    if not plain.is_terminal:
        plain.width = 160
    return plain


def cell(text: str) -> Text:
    """A text of a table, or a line, as it is: brackets and colons are no markup, and nothing controls the terminal."""
    from rich.text import Text

    return Text(harmless(text))


def print_json(value: object) -> None:
    """One JSON object on stdout; infinite bounds become null, as JSON has no infinity."""
    print(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: object) -> object:
    """`value` with null for every number that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs; silent where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _step, _share: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    stderr = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    # Without the redirections Rich would take over what is written to stdout meanwhile, even if that is a file.
    with Progress(*columns, console=stderr, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(title, total=1.0)

        def advance(step: str, share: float) -> None:
            bar.update(task, description=harmless(f"{title}: {step}"), completed=share)

        yield advance


Block: TypeAlias = "Mapping[str, Sequence[object] | NDArray[Any]]"


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: its field, its title, and how a value reads."""

    name: str
    title: str
    show: Callable[[Any], str] = str
    justify: Literal["left", "right"] = "right"


def choose_format(asked: Format | None, path: Path | None) -> Format:
    """The format asked for, else that of the file's ending, else a table.

    >>> choose_format(None, Path("flows.csv")).value
    'csv'
    """
    if asked is not None:
        return asked
    ending = path.suffix[1:].lower() if path else ""
    return Format(ending) if ending in set(Format) else Format.TABLE


def write_rows(
    blocks: Iterable[Block],
    how: Format,
    *,
    path: Path | None = None,
    name: str = "flows",
    fields: Mapping[str, object] | None = None,
    table: Sequence[TableColumn] = (),
) -> None:
    """Write all blocks; `fields` and `name` frame the rows in JSON, `table` chooses the table's columns."""
    if how is Format.PARQUET:
        _write_parquet(blocks, path)
        return
    with _open_text(path) as file:
        blocks = _flushed(blocks, file)
        if how is Format.JSON:
            _write_json(blocks, file, name, fields or {})
        elif how is Format.JSONL:
            file.writelines(_to_json(row) + "\n" for row in _rows(blocks))
        elif how is Format.CSV:
            _write_csv(blocks, file)
        else:
            _write_table(blocks, file, table, to_screen=path is None)


@contextmanager
def _open_text(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file


def _flushed(blocks: Iterable[Block], file: TextIO) -> Iterator[Block]:
    """The blocks; what was written of one is out before the next is waited for, which may take long."""
    for block in blocks:
        yield block
        file.flush()


def _rows(blocks: Iterable[Block]) -> Iterator[dict[str, object]]:
    for block in blocks:
        columns = [_plain(column) for column in block.values()]
        for values in zip(*columns, strict=True):
            yield dict(zip(block, values, strict=True))


def _plain(column: Sequence[object] | NDArray[Any]) -> Sequence[object]:
    """Python's own numbers instead of numpy's."""
    return column.tolist() if hasattr(column, "tolist") else column


def _to_json(value: object) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _write_json(blocks: Iterable[Block], file: TextIO, name: str, fields: Mapping[str, object]) -> None:
    opening = "".join(f"{json.dumps(key)}: {_to_json(value)}, " for key, value in fields.items())
    file.write(f"{{{opening}{json.dumps(name)}: [")
    for number, row in enumerate(_rows(blocks)):
        file.write((", " if number else "") + _to_json(row))
    file.write("]}\n")


def _write_csv(blocks: Iterable[Block], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    is_first = True
    for block in blocks:
        if is_first:
            writer.writerow(block)
        is_first = False
        writer.writerows(zip(*(_plain(column) for column in block.values()), strict=True))


def _write_table(blocks: Iterable[Block], file: TextIO, columns: Sequence[TableColumn], *, to_screen: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True)
    for row in _rows(blocks):
        shown = ("" if row[c.name] is None else cell(c.show(row[c.name])) for c in columns)
        table.add_row(*shown)
    screen = console() if to_screen else Console(file=file, width=200, highlight=False)
    screen.print(table)


def _write_parquet(blocks: Iterable[Block], path: Path | None) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "writing Parquet needs the pyarrow package",
            action="install sojourn[parquet], or use another format",
        ) from None
    if path is None:
        raise UsageError("Parquet is not for a terminal", action="name a file with -w FILE")
    writer = None
    try:
        for block in blocks:
            rows = pyarrow.table({name: _arrow_column(pyarrow, column) for name, column in block.items()})
            writer = writer or parquet.ParquetWriter(path, rows.schema)
            writer.write_table(rows.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()


def _arrow_column(pyarrow: Any, column: Sequence[object] | NDArray[Any]) -> Any:
    """Numbers as they are; a column of texts stays one where a block has none."""
    array = pyarrow.array(column)
    return array.cast(pyarrow.string()) if pyarrow.types.is_null(array.type) else array
