"""How answers are printed: tables for people, JSON, CSV and Parquet for programs; progress on stderr.

Rows of answers (flows, round-trip times) come in blocks of columns (name → values, all of one length), so
that a million of them never exist as Python objects at once. JSON is one object: the answer's own fields and
the rows under their name; the other formats hold the rows alone.

A table on a terminal fits its width: columns of lower rank give way, then long names are shortened in their middle;
a number is never cut. Elsewhere a table has all its columns.

Names come from outside: what goes to a terminal is made harmless, and never read as Rich's markup (`cell`).
"""

from __future__ import annotations

import csv
import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from sojourn.core.errors import UsageError, harmless
from sojourn.core.results import Advance, Columns, arrow_table, plain, row_order, rows, take_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.text import Text

# Formats by the ending of a file.
_ENDINGS = {"": "table", ".txt": "table", ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_GAP = 2  # blanks between two columns of a table
_SHORTEST_TEXT = 12  # a name is not shortened further
# There is no telling how long it will take before so much is done, and after so long without progress: so many seconds,
# and this share of the time so far.
_LEAST_DONE, _STALLED_SECONDS, _STALLED_SHARE = 0.01, 2.0, 0.2


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
    print(_to_json(value))


def _finite(value: object) -> object:
    """`value` with null for every number that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def say(line: str) -> None:
    """A line on stderr, at once; what runs for long goes on where nothing can be written, as on a full disk."""
    with suppress(OSError):
        print(harmless(f"sojourn: {line}"), file=sys.stderr, flush=True)


def logged_in_json(name: str) -> Callable[[str], None]:
    """What `say` is where the log is JSON: lines become records of a logger."""
    from sojourn.core.errors import log_to_stderr

    log_to_stderr(as_json=True)
    return lambda line: logging.getLogger(name).info("%s", harmless(line))


def warn(warnings: Iterable[str]) -> None:
    """Warnings on stderr, a line each."""
    for text in warnings:
        line = cell(f"sojourn: warning: {text}")
        line.stylize("yellow", 9, 17)
        console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def progress(title: str, *, shown: bool = True) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs; silent where stderr is not a terminal.

    The time left is extrapolated from the share that is done. A bar that has not moved for long, or whose end is not
    known, only shows that work goes on.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda _step, _share: None
        return
    with _bar() as bar:
        task = bar.add_task(title, total=None, moved=time.monotonic())

        def advance(step: str, share: float) -> None:
            if share > bar.tasks[task].completed:
                bar.update(task, total=1.0, completed=min(share, 1.0), moved=time.monotonic())
            bar.update(task, description=harmless(f"{title}: {step}"))

        yield advance


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """What the share done so far lets expect; nothing, and a bar without an end, while that is not known."""

        def render(self, task: Task) -> Text:
            elapsed = task.elapsed or 0.0
            idle = time.monotonic() - task.fields["moved"]
            if task.completed < _LEAST_DONE or idle > max(_STALLED_SECONDS, _STALLED_SHARE * elapsed):
                task.total = None
                return Text("")
            minutes, seconds = divmod(round(elapsed * (1 - task.completed) / task.completed), 60)
            return Text(f"{minutes}:{seconds:02d} left", style="progress.remaining")

    # Without the redirections Rich would take over what is written to stdout meanwhile, even if that is a file.
    return Progress(
        # A long path gives way, so that the times stay on the line.
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TimeLeft(table_column=Column(no_wrap=True, min_width=9)),
        console=console(stderr=True),
        expand=True,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


Block: TypeAlias = Columns


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: its field, its title, how a value reads and is coloured.

    Where not all columns fit, those of the highest ``rank`` are left out first, and of one rank the last; rank 0 stays.
    """

    name: str
    title: str
    show: Callable[[Any], str] = str
    justify: Literal["left", "right"] = "right"
    rank: int = 0
    style: Callable[[Any], str] | None = None


def columns(
    *same: str, show: Callable[[Any], str] = str, left: bool = False, rank: int = 0, **titles: str
) -> list[TableColumn]:
    """Columns that are shown in one way: those whose title is their name, then those by name=title."""
    named = {name: name for name in same} | titles
    return [TableColumn(name, title, show, "left" if left else "right", rank) for name, title in named.items()]


def loss_style(lost: float) -> str:
    """Red for what was lost."""
    return "red" if lost > 0 else ""


@dataclass(frozen=True)
class TableView:
    """What of the rows is wanted: these columns (none named: all), sorted by one of them, so many."""

    sort: str = ""
    columns: tuple[str, ...] = ()
    wide: bool = False
    limit: int | None = None

    def chosen(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The rows and columns that are wanted: as they come, unless they are to be sorted."""
        left = self.limit
        for block in [_joined(blocks)] if self.sort else blocks:
            if unknown := [name for name in self.columns if name not in block]:
                raise UsageError(
                    f"there is no column {unknown[0]}", where="--columns", action=f"choose of {', '.join(block)}"
                )
            order = row_order(block, self.sort, left)
            taken = block if order is None else take_rows(block, order)
            yield {name: taken[name] for name in self.columns or taken}
            if left is not None:
                left -= len(next(iter(taken.values()), ()))
                if not left:
                    return


def _joined(blocks: Iterable[Block]) -> Block:
    joined: dict[str, list[object]] = {}
    for block in blocks:
        for name, column in block.items():
            joined.setdefault(name, []).extend(plain(column))
    return joined


def is_known_ending(path: Path) -> bool:
    """Whether a file's ending tells its format."""
    return path.suffix.lower() in _ENDINGS


def choose_format(asked: Format | None, path: Path | None) -> Format:
    """The format asked for, else that of the file's ending, else a table.

    >>> choose_format(None, Path("flows.csv")).value
    'csv'
    """
    if path is not None and path.is_dir():  # said before the work is done
        raise UsageError("this is a directory", where=str(path), action="name a file to write to")
    if asked is not None:
        return asked
    if path is None:
        return Format.TABLE
    ending = path.suffix.lower()
    if not is_known_ending(path):
        known = ", ".join(filter(None, _ENDINGS))
        raise UsageError(
            f"no format is known by the ending {ending}", where=str(path), action=f"use {known}, or give --format"
        )
    return Format(_ENDINGS[ending])


def write_rows(
    blocks: Iterable[Block],
    how: Format,
    *,
    path: Path | None = None,
    name: str = "flows",
    fields: Mapping[str, object] | None = None,
    table: Sequence[TableColumn] = (),
    view: TableView | None = None,
) -> None:
    """Write all blocks; `fields` and `name` frame the rows in JSON, `table` describes the table's columns."""
    view = view or TableView()
    chosen = view.chosen(blocks)
    # A column that does not exist is known with the first rows: nothing is written, and no file emptied, before.
    blocks = chain([first], chosen) if (first := next(chosen, None)) is not None else ()
    if how is Format.PARQUET:
        _write_parquet(blocks, path)
        return
    with opened(path) as file:
        blocks = _flushed(blocks, file)
        if how is Format.JSON:
            _write_json(blocks, file, name, fields or {})
        elif how is Format.JSONL:
            file.writelines(_to_json(row) + "\n" for row in chain.from_iterable(map(rows, blocks)))
        elif how is Format.CSV:
            _write_csv(blocks, file)
        else:
            _write_table(blocks, None if path is None else file, table, view)


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """The file at `path` to write text to, or stdout."""
    if path is None:
        yield sys.stdout
    else:
        try:
            with open(path, "w", encoding="utf-8", newline="") as file:
                yield file
        except OSError as error:
            # A disk that is full says so when it is written to, without a name.
            if error.errno in _NO_ROOM and error.filename is None:
                error.filename = str(path)
            raise


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _flushed(blocks: Iterable[Block], file: TextIO) -> Iterator[Block]:
    """The blocks; what was written of one is out before the next is waited for, which may take long."""
    for block in blocks:
        yield block
        file.flush()


def _to_json(value: object) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _write_json(blocks: Iterable[Block], file: TextIO, name: str, fields: Mapping[str, object]) -> None:
    opening = "".join(f"{json.dumps(key)}: {_to_json(value)}, " for key, value in fields.items())
    file.write(f"{{{opening}{json.dumps(name)}: [")
    for number, row in enumerate(chain.from_iterable(map(rows, blocks))):
        file.write((", " if number else "") + _to_json(row))
    file.write("]}\n")


def _write_csv(blocks: Iterable[Block], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    is_first = True
    for block in blocks:
        if is_first:
            writer.writerow(block)
        is_first = False
        writer.writerows(zip(*(plain(column) for column in block.values()), strict=True))


def _write_table(blocks: Iterable[Block], file: TextIO | None, table: Sequence[TableColumn], view: TableView) -> None:
    known = {column.name: column for column in table}
    shown = chain.from_iterable(map(rows, blocks))
    first = next(shown, None)
    names = view.columns or [column.name for column in table]
    texts = {name for name, value in (first or {}).items() if isinstance(value, str)}
    columns = [
        known.get(name) or TableColumn(name, name, justify="left" if name in texts else "right") for name in names
    ]
    everything = shown if first is None else chain([first], shown)
    screen = _screen(file)
    is_fitted = screen is not None and screen.is_terminal and not (view.wide or view.columns)
    for line in laid_out(columns, everything, screen.width if screen is not None and is_fitted else None):
        _print_line(line, screen, file)


def laid_out(
    columns: Sequence[TableColumn], table_rows: Iterable[Mapping[str, Any]], most: int | None = None
) -> Iterator[list[tuple[str, str]]]:
    """The lines of a table, each as texts with their styles, the titles first; fitted into `most` columns of a screen.

    >>> for line in laid_out(columns("flow", "packets"), [{"flow": "a > b", "packets": 12}]):
    ...     print("".join(text for text, style in line).rstrip())
     flow  packets
    a > b       12
    """
    lines = [[(column.title, "bold") for column in columns]]
    lines += [[_cell(column, row[column.name]) for column in columns] for row in table_rows]
    widths = [max(_width(line[k][0]) for line in lines) for k in range(len(columns))]
    if most is not None:
        _fit(columns, widths, most)
    for line in lines:
        parts: list[tuple[str, str]] = []
        for column, (text, style), width in zip(columns, line, widths, strict=True):
            if width:
                parts += [*_placed(text, style, width, column.justify), (" " * _GAP, "")]
        yield parts


def _screen(file: TextIO | None) -> Console | None:
    """The console to write to with colours; None where the text alone is wanted, which needs nothing of Rich."""
    is_forced = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    if not (is_forced or (file or sys.stdout).isatty()):
        return None
    from rich.console import Console

    return console() if file is None else Console(file=file, highlight=False)


def _print_line(parts: Sequence[tuple[str, str]], screen: Console | None, file: TextIO | None) -> None:
    if screen is None:
        print("".join(text for text, _style in parts).rstrip(), file=file)
        return
    from rich.text import Text

    text = Text.assemble(*parts)
    text.rstrip()
    screen.print(text, soft_wrap=True)


def _cell(column: TableColumn, value: object) -> tuple[str, str]:
    """A cell's text and its style."""
    if value is None:
        return "", ""
    return harmless(column.show(value)), column.style(value) if column.style is not None else ""


def _width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fit(columns: Sequence[TableColumn], widths: list[int], most: int) -> None:
    """Make widths fit by leaving columns out (a width of 0), then by shortening names."""

    def excess() -> int:
        return sum(width + _GAP for width in widths if width) - _GAP - most

    by_rank = sorted(range(len(columns)), key=lambda k: (columns[k].rank, k))
    while excess() > 0 and columns[by_rank[-1]].rank > 0:
        widths[by_rank.pop()] = 0
    for k in sorted((k for k in by_rank if columns[k].justify == "left"), key=lambda k: -widths[k]):
        widths[k] = min(widths[k], max(_SHORTEST_TEXT, widths[k] - max(excess(), 0)))


def _placed(text: str, style: str, width: int, justify: Literal["left", "right"]) -> list[tuple[str, str]]:
    """A cell of a column; a name that is longer loses its middle."""
    if _width(text) > width:
        head = (width - 1) // 2
        text = f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
    blank = " " * (width - _width(text)), ""
    return [(text, style), blank] if justify == "left" else [blank, (text, style)]


def _write_parquet(blocks: Iterable[Block], path: Path | None) -> None:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "writing Parquet needs the pyarrow package", action="install sojourn[parquet], or use another format"
        ) from None
    if path is None and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", action="name a file with -w FILE, or redirect the output")
    target = sys.stdout.buffer if path is None else path
    writer = None
    try:
        for block in blocks:
            table = arrow_table(block)
            writer = writer or parquet.ParquetWriter(target, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()
