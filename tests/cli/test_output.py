"""Progress goes to the terminal, results to stdout, whatever stdout is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.cli.output import Format, TableColumn, write_rows
from sojourn.core.errors import SojournError

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
