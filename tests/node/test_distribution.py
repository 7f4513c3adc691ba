"""The node unit as a distribution of its own: built from the sources, installed alone, run against a query unit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from tally_node import Node, ask, is_listening
from waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
# A board that speaks MicroPython gets these.
BOARD = {"delay_unit.py", "mqtt_unit.py", "rtt_unit.py", "unit.py"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT / "packaging/node"]
    subprocess.run(command, check=True)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sojourn-node` in an environment in which nothing else is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    command = [*PIP, "--python", folder / "bin/python", "install", "--no-index", wheel]
    subprocess.run(command, check=True)
    return folder / "bin/sojourn-node"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def said(program: Path, *arguments: object) -> tuple[int, str]:
    command = [str(program), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert "Traceback" not in found.stderr
    return found.returncode, found.stdout + found.stderr


def test_the_wheel_is_for_every_machine_and_needs_nothing(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 300_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line]
    assert required == []
    assert {name.rpartition("/")[2] for name in names if name.startswith("sojourn/node/unit/")} >= BOARD
    assert not any(name.endswith((".pyc", ".so", ".nbi", ".nbc")) for name in names)


def test_its_modules_are_the_sources_and_import_nothing_that_is_missing(program: Path) -> None:
    """But for what a broker's client and packets need, which is imported when it is asked for."""
    code = """
import importlib, json, pkgutil, sys
import sojourn
names = [module.name for module in pkgutil.walk_packages(sojourn.__path__, "sojourn.")]
for name in names:
    importlib.import_module(name)
print(json.dumps([sojourn.__file__, names, sorted(set(sys.modules) & {"numpy", "numba", "cbor2", "typer"})]))
"""
    command = [program.with_name("python"), "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    file, names, foreign = json.loads(found.stdout)
    assert foreign == []
    installed = Path(file).parent
    for path in installed.rglob("*.py"):
        assert path.read_bytes() == (ROOT / "src/sojourn" / path.relative_to(installed)).read_bytes()
    assert "sojourn.node.unit.unit" in names


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data")


def test_it_records_sends_and_answers_as_the_agent_does(unit: Unit, program: Path, tmp_path: Path) -> None:
    """A metric of one's own, CPU time, and a kill in between; CBOR is read by plain Python here."""
    node = Node(tmp_path, unit.address, unit.tokens["alpha"], program=(str(program),))
    node.configuration.write_text(node.configuration.read_text() + '[streams.cpu]\nmetric = "cpu"\nepoch = "500ms"\n')
    try:
        node.start()
        eventually(lambda: is_listening(unit))
        for _ in range(6):
            node.count()
            time.sleep(0.15)
        eventually(lambda: ask(unit)[0]["value"] == sum(node.truth.values()))
        assert ask(unit)[0]["live"] is True
        eventually(lambda: ask(unit, live=False)[0]["value"] == sum(node.truth.values()))
        node.end()
        node.tally.write_text("")
        node.start()
        node.count()
        eventually(lambda: ask(unit, live=False)[0]["value"] == sum(node.truth.values()))
        errors = node.stop()
        assert "the agent was killed" in errors
        assert ", 0 waiting" in errors
        assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())
        assert ask(unit, metric="cpu", live=False)[0]["value"] > 0
    finally:
        node.end()


def test_what_it_cannot_do_it_says_in_one_line(program: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    common = ("--node", "n", "--server", "http://127.0.0.1:9", "--token-file", tmp_path / "token")
    common = (*common, "--spool", tmp_path / "spool")
    assert said(program, *common, "-s", "cpu=cpu", "--check") == (0, "n: 1 stream, epochs go to http://127.0.0.1:9\n")
    code, text = said(program, *common, "-s", "lan=packets", "--check")
    assert code == 2
    assert text.count("\n") == 1
    assert "pip install sojourn" in text
    (tmp_path / "agent.toml").write_text('[streams.lan]\nmetric = "packets"\nsketch = "auto"\ninterface = "lo"\n')
    code, text = said(program, *common, "-c", tmp_path / "agent.toml", "--check")
    assert (code, text.count("\n"), "pip install sojourn" in text) == (2, 1, True)
    assert said(program)[0] == 2
    code, text = said(program, "--node", "n")
    assert (code, text.count("\n"), text.startswith("sojourn-node: ")) == (2, 1, True)
    assert "example:" in said(program, "--help")[1]
