"""Somebody installs the wheel on an empty machine, without a checkout, and does what docs/install.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bare_environments import ROOT, Bare, built_wheel

pytestmark = pytest.mark.long
PYTHONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str:
    """A Python of that version: on the path, or where pyenv keeps them."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python"))]
    found += [path for path in [shutil.which(f"python{version}")] if path]
    for path in found:
        if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"Python {version} is not on this machine: NOT installed under it")


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """The wheel and its query unit by pip, from the index that pip is configured for."""
    folder = tmp_path_factory.mktemp(f"python{request.param}") / "environment"
    subprocess.run([interpreter(request.param), "-m", "venv", folder], check=True)
    (folder / "home").mkdir()
    wheel = built_wheel(tmp_path_factory.mktemp("wheel"))
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[server]"], check=True)
    return Bare(folder)


def documented() -> list[str]:
    """The lines behind a prompt, in their order."""
    page = (ROOT / "docs" / "install.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_documented_lines_measure_serve_record_and_answer(installed: Bare, shared_data: Path) -> None:
    home = installed.folder / "home"
    for capture in (shared_data / "two-point").glob("*.gz"):
        shutil.copy(capture, home)
    said: dict[str, str] = {}
    for line in documented():
        done = installed.run("sh", "-c", line, timeout=900)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        said[line] = done.stdout
    (measured,) = (text for line, text in said.items() if line.startswith("sojourn measure"))
    assert "10.81.0.2" in measured
    assert "exact" in measured
    (rtt,) = (text for line, text in said.items() if line.startswith("sojourn rtt"))
    assert "1883" in rtt
    (answered,) = (text for line, text in said.items() if "sojourn query" in line)
    assert re.search(r"\[\d+\]", answered), answered
    assert str(ROOT) not in "".join(said.values())


def test_it_imports_nothing_of_the_checkout(installed: Bare) -> None:
    done = installed.run(installed.python, "-c", "import sojourn; print(sojourn.__file__)")
    assert done.stdout.startswith(str(installed.folder))
