"""Documents: shell examples run, Python examples run, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), line[2:])
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


@pytest.fixture(scope="session")
def shell_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A PATH on which `sojourn` is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "sojourn"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m sojourn.cli.main "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("page", "command"), commands())
def test_shell_examples_run(page: str, command: str, shell_environment: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=shell_environment,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{page}: {command}\n{result.stderr}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_examples_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []
