"""Progress goes to the terminal, results to stdout, whatever stdout is."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from sojourn.cli import output
from sojourn.cli.output import Format, TableColumn, TableView, choose_format, loss_style, write_rows
from sojourn.core.errors import SojournError, UsageError
from sojourn.core.results import row_order

HOSTILE = "[/b]:bug: \x1b]0;title\x07\x1b[2J\u202egpj\nnext"
HARMLESS = "[/b]:bug: \\x1b]0;title\\x07\\x1b[2J\\u202egpj\\nnext"


def test_a_progress_bar_does_not_take_what_is_written_to_stdout() -> None:
    code = (
        "import sys; from sojourn.cli.output import progress\n"
        "with progress('work') as advance:\n"
        "    advance('half', 0.5); print('result', flush=True)\n"
    )
    terminal, other_end = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=other_end, check=True)
        shown = os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.close(other_end)
    assert done.stdout == b"result\n"
    assert b"work" in shown
    assert b"result" not in shown


def test_names_neither_mark_up_a_table_nor_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (None, tmp_path / "table"):
        write_rows([{"name": [HOSTILE]}], Format.TABLE, path=path, table=[TableColumn("name", "name", justify="left")])
    shown = capsys.readouterr().out
    assert [line.rstrip() for line in shown.splitlines()] == ["name", HARMLESS]
    assert HARMLESS in (tmp_path / "table").read_text()


def test_an_error_is_one_line_that_does_not_control_the_terminal() -> None:
    assert str(SojournError("no capture", where=HOSTILE)) == f"{HARMLESS}: no capture"
    assert str(SojournError("n\u00e4m\u0435 – 5\u202fms × 2⁶³")) == "n\u00e4m\u0435 – 5\u202fms × 2⁶³"


NAMED = [
    TableColumn("name", "name", justify="left"),
    TableColumn("mean_ns", "mean", "{:,} ns".format),
    TableColumn("lost", "lost", "{:,}".format, style=loss_style),
    TableColumn("p99_ns", "p99", "{:,} ns".format, rank=1),
    TableColumn("note", "note", justify="left", rank=2),
]
ROWS = {
    "name": ["a flow between two hosts whose names are long " * 2, "b"],
    "mean_ns": [123_456_789_012, 7],
    "lost": [0, 3],
    "p99_ns": [987_654_321_098, 9],
    "note": ["seen once", "seen twice"],
}


def on_a_terminal(code: str, columns: int, **environment: str) -> list[str]:
    """What Python code shows on a terminal of so many columns."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (24, columns))
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    try:
        subprocess.run(
            [sys.executable, "-c", code], stdout=other_end, env={**clean, "TERM": "xterm", **environment}, check=True
        )
        return os.read(terminal, 65536).decode().splitlines()
    finally:
        os.close(terminal)
        os.close(other_end)


def table_on_a_terminal(columns: int, view: str = "TableView()", **environment: str) -> list[str]:
    folder = Path(__file__).parent
    code = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(folder.parent)!r}]\n"
        "from test_output import NAMED, ROWS, Format, TableView, write_rows\n"
        f"write_rows([ROWS], Format.TABLE, table=NAMED, view={view})"
    )
    return on_a_terminal(code, columns, **environment)


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140])
def test_a_table_fits_the_terminal_and_no_number_is_cut(columns: int) -> None:
    lines = plain(table_on_a_terminal(columns))
    assert max(map(len, lines)) <= columns
    assert "123,456,789,012 ns" in lines[1]
    assert "b" in lines[2]
    for text in re.findall(r"[\d,]+ ns", "\n".join(lines)):
        assert text in ("123,456,789,012 ns", "7 ns", "987,654,321,098 ns", "9 ns")


def test_columns_of_lower_rank_give_way_first() -> None:
    titles = [plain(table_on_a_terminal(columns))[0].split() for columns in (30, 62, 200)]
    assert titles == [["name", "mean", "lost"], ["name", "mean", "lost"], ["name", "mean", "lost", "p99", "note"]]


def test_wide_shows_all_columns_and_named_ones_are_shown_whatever_the_width() -> None:
    assert plain(table_on_a_terminal(40, "TableView(wide=True)"))[0].split()[-1] == "note"
    assert plain(table_on_a_terminal(20, "TableView(columns=('p99_ns', 'note'))"))[0].split() == ["p99", "note"]


def test_losses_are_red_on_a_terminal_unless_colours_are_not_wanted() -> None:
    assert "\x1b[31m" in table_on_a_terminal(80)[2]
    assert "\x1b[31m" not in table_on_a_terminal(80)[1]
    assert "\x1b[31m" not in "".join(table_on_a_terminal(80, NO_COLOR="1"))


def test_a_table_in_a_pipe_has_all_columns_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows([ROWS], Format.TABLE, table=NAMED)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert ROWS["name"][0].strip() in shown
    assert "seen twice" in shown


def test_rows_are_sorted_and_limited_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    view = TableView(sort="p99", columns=("mean_ns",), limit=1)
    for how in (Format.CSV, Format.JSONL, Format.TABLE):
        write_rows([{name: column[::-1] for name, column in ROWS.items()}], how, table=NAMED, view=view)
        assert "456" in capsys.readouterr().out


def test_a_column_that_does_not_exist_writes_nothing_and_empties_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "rows.json"
    kept.write_text("as before")
    view = TableView(columns=("nonsense",))
    for path in (None, kept):
        with pytest.raises(UsageError, match="there is no column nonsense"):
            write_rows([ROWS], Format.JSON, path=path, fields={"total": 3}, view=view)
    assert capsys.readouterr().out == ""
    assert kept.read_text() == "as before"


def test_the_share_lost_can_be_sorted_by() -> None:
    assert row_order({"lost": [5, 3, None], "packets": [100, 10, 1]}, "loss", None) == [1, 0, 2]


def test_a_progress_bar_tells_the_time_left_and_stops_when_it_cannot_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import ProgressColumn

    now = [100.0]
    monkeypatch.setattr("sojourn.cli.output.time.monotonic", lambda: now[0])
    bar = output._bar()
    bar.add_task("work", total=None, moved=100.0)
    task = bar.tasks[0]
    left = bar.columns[-1]
    assert isinstance(left, ProgressColumn)
    monkeypatch.setattr(type(task), "elapsed", 30.0)
    assert not left.render(task)
    task.total, task.completed = 1.0, 0.25
    assert str(left.render(task)) == "1:30 left"
    now[0] += 10.0
    assert not left.render(task)
    assert task.total is None


def test_a_directory_to_write_to_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this is a directory"):
        choose_format(Format.CSV, tmp_path)


def test_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        write_rows([{"packets": [1, 2]}], Format.JSON, path=Path("/dev/full"), name="flows")
    assert caught.value.filename == "/dev/full"


def test_a_line_that_cannot_be_written_ends_nothing() -> None:
    program = "from sojourn.cli.output import say; say('the disk is full'); print('going on')"
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, check=True
        )
    assert ran.stdout == "going on\n"
