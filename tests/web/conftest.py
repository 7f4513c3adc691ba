"""A browser: Chromium as the system has it, one for all tests of a module."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        _miss("there is no chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def axe_script() -> str:
    """axe-core, as `make test` installs it."""
    script = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        _miss("axe-core is not installed (sh scripts/install-axe .venv/axe)")
    return script.read_text()


@pytest.fixture(scope="module")
def artifacts(request: pytest.FixtureRequest) -> Path:
    """Where screenshots are kept to be looked at: a folder for each room."""
    folder = Path(os.environ.get("SOJOURN_ARTIFACTS", ROOT / ".artifacts")) / request.path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _miss(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI skips nothing")
    pytest.skip(what)
