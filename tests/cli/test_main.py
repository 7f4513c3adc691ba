"""The command line: fast to start, kind when it fails, JSON for programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sojourn import __version__
from sojourn.cli.main import app
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = [sys.executable, "-m", "sojourn.cli.main"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SOJOURN, *arguments], capture_output=True, text=True, timeout=600, check=False, **options)


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from sojourn.cli.main import app; import sojourn.core.errors; "
        "print([m for m in ('numba', 'numpy', 'rich.table', 'cbor2', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_version() -> None:
    assert run("--version").stdout == f"sojourn {__version__}\n"


@pytest.mark.parametrize("command", [[], ["demo"]])
def test_every_help_shows_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0
    assert "sojourn demo" in result.stdout


def test_no_arguments_show_the_help() -> None:
    result = run()
    assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["demo", "--port", "70000"], ["demo", "--format", "xml"], ["demo", "--port", "x"]]
)
def test_bad_usage_exits_2_without_a_traceback(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_an_impossible_world_is_one_line() -> None:
    result = run("lab", "wireless", "--nodes", "2000", "--packets", "10000000")
    assert result.returncode == 2
    assert result.stderr == "sojourn: the network is too large to simulate; use fewer nodes or packets\n"


def test_a_closed_pipe_is_no_error() -> None:
    shell = f"{' '.join(SOJOURN)} lab wireless --nodes 100 --packets 100 | head -1"
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=600, check=True)
    assert result.stderr == ""


def test_a_closed_pipe_ends_every_command_as_it_ends_other_tools(shared_data: Path) -> None:
    capture = shared_data / "captures" / "pcpp-sll.pcap"
    for command in (f"rtt {capture} --samples", f"flows {capture} --format jsonl", "--help"):
        shell = f"{' '.join(SOJOURN)} {command} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode in (0, 141), done.stderr) == (True, ""), command


def commands_of(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(None):
        yield (*path, name)
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands_of(command, *path, name)


COMMANDS = list(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(command: tuple[str, ...]) -> None:
    help_text = CliRunner().invoke(app, [*command, "--help"]).stdout
    assert re.search(rf"sojourn {' '.join(command)}\b", " ".join(help_text.replace("│", " ").split())), help_text


def test_the_shell_completes_commands_and_options() -> None:
    asked = {"_SOJOURN_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    for words, position, expected in (("sojourn me", "1", "measure"), ("sojourn rtt --sam", "2", "--samples")):
        done = run(env={**os.environ, **asked, "COMP_WORDS": words, "COMP_CWORD": position})
        assert expected in done.stdout.split()


def until_busy(pid: int, seconds: float = 2.0) -> None:
    """Until a process has used so much of a core: it is past its imports then, however busy the machine."""
    stat = Path(f"/proc/{pid}/stat")
    eventually(lambda: sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) >= 100 * seconds)


def test_ctrl_c_ends_with_130_and_one_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SOJOURN, "lab", "wireless", "--nodes", "200", "--packets", "5000", "-w", "trace.csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    until_busy(process.pid)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert stderr.endswith("sojourn: interrupted\n")
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("redirected", "arguments", "code", "line"),
    [
        (">&-", "--version", 1, "sojourn: stdin or stdout is closed: Bad file descriptor"),
        (">&-", "flows CAPTURE", 1, "sojourn: stdin or stdout is closed: Bad file descriptor"),
        (">&-", "flows CAPTURE --format json", 1, "sojourn: stdin or stdout is closed: Bad file descriptor"),
        (">&-", "record CAPTURE -w -", 1, "sojourn: stdin or stdout is closed: Bad file descriptor"),
        ("<&-", "flows -", 1, "sojourn: stdin or stdout is closed: Bad file descriptor"),
        (">/dev/full", "plan lda --rate 1000", 1, "sojourn: No space left on device"),
        (">/dev/full", "record CAPTURE -w -", 1, "sojourn: No space left on device"),
        ("<&- >&- 2>&-", "flows nowhere", 1, ""),
    ],
)
def test_a_closed_or_full_standard_stream_is_one_line(
    shared_data: Path, redirected: str, arguments: str, code: int, line: str
) -> None:
    capture = str(shared_data / "captures" / "zeek-http-ns.pcap")
    command = [*SOJOURN, *arguments.replace("CAPTURE", capture).split()]
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *command]
    result = subprocess.run(shell, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stderr.strip().split("\n")[-1], result.stdout) == (code, line, "")
    assert "Traceback" not in result.stderr


def test_a_command_that_writes_to_a_file_needs_no_stdout(shared_data: Path, tmp_path: Path) -> None:
    """Nor does the file that is opened first take stdout's place, to be printed into."""
    capture = str(shared_data / "captures" / "zeek-http-ns.pcap")
    commands = [*SOJOURN, "flows", capture, "-w", str(tmp_path / "flows.csv")]
    result = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *commands], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert (tmp_path / "flows.csv").read_text().startswith("src_ip,")


def test_a_command_compiles_whatever_is_set_for_another_program_of_numbas(shared_data: Path) -> None:
    capture = str(shared_data / "captures" / "zeek-http-ns.pcap")
    found = run("flows", capture, env={**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert (found.returncode, found.stdout) == (0, run("flows", capture).stdout)


def test_ctrl_c_while_a_command_still_starts_ends_with_130_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["sojourn"].partition(":")
    program = f"import {module} as module; module.{function}()"
    for command in (["-m", "sojourn"], ["-c", program]):
        line = [sys.executable, *command, "flows"]
        found = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stderr) == (130, "sojourn: interrupted\n")


def test_the_package_runs_as_the_command() -> None:
    found = subprocess.run([sys.executable, "-m", "sojourn", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == run("--version").stdout
