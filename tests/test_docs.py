"""Documents: shell examples print what is shown, Python examples run, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import make_epoch, running_unit
from scripts.document_data import make_data

from console_examples import Reader, examples
from sojourn.store.epochs import StreamRecord

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shell_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A PATH on which `sojourn` is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "sojourn"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m sojourn.cli.main "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def named_files(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """The captures, traces and topologies that the documents name."""
    made = tmp_path_factory.mktemp("documents")
    make_data(made, shared_data)
    return made


@pytest.fixture
def folder(tmp_path: Path, named_files: Path) -> Path:
    """A folder of a page's own, with links to the files that documents name."""
    for file in named_files.iterdir():
        (tmp_path / file.name).symlink_to(file.resolve())
    return tmp_path


@pytest.fixture(scope="module")
def query_unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of whoever asks a query unit that has a node with a metric."""
    running = running_unit(tmp_path_factory.mktemp("unit"))
    unit = next(running)
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([make_epoch(sequence, time_ns=10**18 + sequence) for sequence in range(3)])
    yield {"SOJOURN_SERVER": unit.url, "SOJOURN_TOKEN": unit.tokens["viewer"]}
    next(running, None)


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p.read_text())], ids=lambda p: str(p.relative_to(ROOT)))
def test_shell_examples_print_what_the_page_shows(page: Path, shell_environment: dict[str, str], folder: Path) -> None:
    reader = Reader(folder, shell_environment)
    try:
        for example in examples(page.read_text()):
            reader.enter(example)
    finally:
        reader.leave()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_examples_run_from_top_to_bottom(page: Path, folder: Path, query_unit: dict[str, str]) -> None:
    code = "\n".join(blocks(page, "python"))
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **query_unit},
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []
