"""`sojourn reproduce`: what would fail after minutes fails at once, and what is done stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from sojourn.cli import main
from sojourn.cli.reproduce import PaperName
from sojourn.papers import reproduction
from sojourn.papers.reproduction import Claim, Figure, Line, Outcome, Scale

TITLE = "A paper"
NOTES = "How to read it."
SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]


def quick(_scale: Scale) -> Outcome:
    claim = Claim("one", "%", "error", 2.5, 0.5, paper=1.0, reproduced=False)
    figure = Figure("one", "x", "y", {"a": [Line("ours", [1, 2], [2.0, 1.0])]})
    return Outcome([claim], [figure])


def stopped(_scale: Scale) -> Outcome:
    raise KeyboardInterrupt


EXPERIMENTS = (quick,)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command in this process, with this module for the paper; its exit code."""
    monkeypatch.setitem(reproduction.PAPERS, "lda", __name__)
    monkeypatch.setattr(sys, "argv", ["sojourn", "reproduce", "lda", *arguments])
    with pytest.raises(SystemExit) as exited:
        main.main()
    return int(exited.value.code or 0)


def run_apart(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SOJOURN, "reproduce", "lda", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | environment,
    )


def test_claims_are_printed_and_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--out", str(tmp_path / "a" / "b"), "--format", "json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["paper"] == "lda"
    assert printed["scale"] == "small"
    assert printed["claims"] == json.loads((tmp_path / "a" / "b" / "claims.json").read_text())
    assert NOTES in (tmp_path / "a" / "b" / "claims.md").read_text()


def test_a_page_has_the_claims_and_the_figures(tmp_path: Path, monkeypatch) -> None:
    assert run(monkeypatch, "--out", str(tmp_path), "--report", str(tmp_path / "claims.html")) == 0
    page = (tmp_path / "claims.html").read_text()
    assert TITLE in page
    assert '"ours"' in page
    assert NOTES in page


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--out", str(tmp_path / "a"), "--report", str(tmp_path / "no" / "a.html")) == 2
    assert "there is no directory" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_the_table_says_what_does_not_reproduce(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--out", str(tmp_path)) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "error" in line)
    assert row.split()[-1] == "no"


def test_files_of_an_earlier_run_are_replaced_and_others_left(tmp_path: Path, monkeypatch) -> None:
    for name in ("claims.md", "claims.json", "one.svg", "mine.txt"):
        (tmp_path / name).write_text("old")
    assert run(monkeypatch, "--out", str(tmp_path)) == 0
    assert (tmp_path / "mine.txt").read_text() == "old"
    assert all((tmp_path / name).read_text() != "old" for name in ("claims.md", "claims.json", "one.svg"))
    assert {path.name for path in tmp_path.iterdir()} == {"claims.md", "claims.json", "one.svg", "one.png", "mine.txt"}


def test_ctrl_c_keeps_what_is_done_and_says_where(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(f"{__name__}.EXPERIMENTS", (quick, stopped))
    assert run(monkeypatch, "--out", str(tmp_path)) == 130
    where = tmp_path / "claims.md"
    assert capsys.readouterr().err == f"sojourn: interrupted; the experiments that were done are in {where}\n"
    assert "1 of 2 experiments" in (tmp_path / "claims.md").read_text()


def test_ctrl_c_before_anything_is_done_leaves_an_earlier_run_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "claims.md").write_text("old")
    monkeypatch.setattr(f"{__name__}.EXPERIMENTS", (stopped,))
    assert run(monkeypatch, "--out", str(tmp_path)) == 130
    assert capsys.readouterr().err == "sojourn: interrupted; nothing was done yet\n"
    assert (tmp_path / "claims.md").read_text() == "old"


def test_a_file_for_a_directory_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_apart("--out", str(tmp_path / "file"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"sojourn: {tmp_path / 'file'}: it is a file; give a directory\n"


def test_a_directory_below_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_apart("--out", str(tmp_path / "file" / "below"))
    assert result.returncode == 2
    assert "nothing can be written there" in result.stderr


def test_an_unwritable_directory_is_refused_at_once() -> None:
    """Nobody, not even root, makes files in /proc."""
    result = run_apart("--out", "/proc/self")
    assert result.returncode == 2
    assert result.stderr.startswith("sojourn: /proc/self: nothing can be written there")
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_matplotlib_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('no matplotlib')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = run_apart("--out", str(tmp_path / "out"), PYTHONPATH=path)
    assert result.returncode == 2
    assert result.stderr == "sojourn: drawing figures needs the matplotlib package; install sojourn[papers]\n"
    assert not (tmp_path / "out").exists()


def test_unknown_papers_and_parquet_are_bad_usage(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--out", str(tmp_path), "--format", "parquet") == 2
    assert "use json or csv" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["sojourn", "reproduce", "netflow", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as exited:
        main.main()
    assert exited.value.code == 2


def test_the_command_knows_every_paper_and_scale() -> None:
    assert set(get_args(PaperName)) == set(reproduction.PAPERS)


def test_help_shows_an_example() -> None:
    assert "sojourn reproduce lda --out lda" in run_apart("--help").stdout
