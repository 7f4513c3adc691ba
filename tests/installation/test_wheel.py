"""The wheel, installed alone: what is in it, what it needs, and what it says of what it does not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from bare_environments import Bare, bare_environment, built_wheel, with_extra

AT_BROKER = ["agent", "--node", "n", "--server", "mqtt://127.0.0.1", "--token-file", "token", "--spool", "s", "--check"]
# What each extra has to bring, asked as a user would; `-c` is Python.
EXTRAS = {
    "server": ("sojourn", "token", "create", "--role", "viewer", "--data", "unit"),
    "mqtt": ("sojourn", *AT_BROKER),
    "tomography": ("python", "-c", "import clarabel, highspy, osqp, sojourn.tomography.delays.program"),
    "parquet": ("python", "-c", "import pyarrow.parquet, sojourn.exports.parquet"),
    "pandas": ("python", "-c", "import pandas; pandas.DataFrame({'a': [1]})"),
    "otlp": ("python", "-c", "import sojourn.exports.otlp; from opentelemetry.exporter.otlp.proto.http import version"),
    "postgresql": ("python", "-c", "import psycopg; psycopg.pq.version()"),
    "web": (
        "python",
        "-c",
        "from sojourn.web.report.library import echarts_script; assert len(echarts_script()) > 10**5",
    ),
    "papers": ("python", "-c", "import cvxpy, matplotlib, paho.mqtt.client, sojourn.papers.domo"),
    "cluster": ("python", "-c", "import distributed, sojourn.core.executors.executor"),
}
# Commands that need more than the base install, and the extra that they have to name.
HINTS = [
    ("server", ("serve", "--data", "unit")),
    ("server", ("token", "list", "--data", "unit")),
    ("server", ("store", "check", "--data", "unit")),
    ("server", ("config", "check", "serve")),
    ("mqtt", AT_BROKER),
    ("tomography", ("tomography", "trace.csv")),
    ("web", ("measure", "in.pcap", "out.pcap", "--report", "page.html")),
    ("parquet", ("flows", "in.pcap", "-w", "flows.parquet")),
    ("papers", ("reproduce", "lda", "--out", "out", "--scale", "small")),
    ("cluster", ("batch", "measure", "in.pcap", "out.pcap", "--cluster", "tcp://127.0.0.1:9")),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    found = bare_environment(tmp_path_factory.mktemp("bare") / "environment", wheel)
    (found.folder / "home" / "token").write_text("0123456789abcdef\n")
    write = "from pathlib import Path; from sojourn.lab.small_world import write_small_world; write_small_world(Path())"
    found.run(found.python, "-c", write).check_returncode()
    return found


def test_the_wheel_is_for_every_machine_and_holds_no_machine_code(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 4_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert [name for name in names if name.endswith((".pyc", ".so", ".nbi", ".nbc"))] == []
    assert "Classifier: Programming Language :: Python :: 3.13" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_every_command_has_a_manual_page_that_roff_takes_without_a_word(bare: Bare) -> None:
    listed = bare.run(bare.python, "-c", "from sojourn.cli.main import COMMANDS; print(*COMMANDS)").stdout.split()
    pages = bare.folder / "share" / "man" / "man1"
    assert {page.name for page in pages.iterdir()} == {"sojourn.1", *(f"sojourn-{name}.1" for name in listed)}
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for page in pages.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-wmac", "-Tutf8", page], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        assert len(done.stdout) > 400
    text = (pages / "sojourn-serve.1").read_text()
    assert ".SH EXAMPLES" in text
    assert "Traceback" not in text


def test_every_command_can_be_asked_for_help_with_the_base_dependencies_alone(bare: Bare) -> None:
    code = "from sojourn.cli.main import COMMANDS, load_command\nfor name in COMMANDS: print(load_command(name).name)"
    done = bare.run(bare.python, "-c", code)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 25
    assert bare.run("sojourn", "--version").stdout.startswith("sojourn ")


@pytest.mark.parametrize(("extra", "words"), HINTS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_command_without_its_extra_names_it_in_one_line(bare: Bare, extra: str, words: tuple[str, ...]) -> None:
    done = bare.run("sojourn", *words)
    assert done.returncode in (1, 2), done.stdout
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, done.stderr
    assert f"sojourn[{extra}]" in said[0]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_each_extra_alone_brings_what_its_commands_need(bare: Bare, tmp_path: Path, extra: str) -> None:
    found = with_extra(bare, tmp_path / "environment", extra)
    (found.folder / "home" / "token").write_text("0123456789abcdef\n")
    first, *rest = EXTRAS[extra]
    done = found.run(found.python if first == "python" else first, *rest)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_shell_completes_commands_and_options(bare: Bare, shell: str) -> None:
    if shutil.which(shell) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{shell} is missing and CI skips nothing")
        pytest.skip(f"{shell} is not installed")
    script = bare.folder / f"completion.{shell}"
    source = f"_SOJOURN_COMPLETE=source_{shell} sojourn > {script}"
    bare.run("sh", "-c", source).check_returncode()
    ask = {
        "bash": f"source {script}; COMP_WORDS=(sojourn measure --sk); COMP_CWORD=2; _sojourn_completion sojourn; "
        "echo ${COMPREPLY[*]}",
        "fish": f"source {script}; complete -C 'sojourn measure --sk'",
        # zsh hands its script the words alone; what it would be offered is asked as its script asks.
        "zsh": f"zsh -n {script} && _TYPER_COMPLETE_ARGS='sojourn measure --sk' _SOJOURN_COMPLETE=complete_zsh sojourn",
    }
    program = "sh" if shell == "zsh" else shell
    done = bare.run(program, "-c", ask[shell])
    assert "--sketch" in done.stdout, (done.stdout, done.stderr)
