"""Imports follow the flow of data: a package imports only the packages below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sojourn"

LAYERS = [
    "core",
    "capture",
    "matching",
    "rtt",
    "sources",
    "sketches",
    "epochs",
    "estimation",
    "segments",
    "tomography",
    "mplane",
    "objectives",
    "node",
    "store",
    "exports",
    "client",
    "doctor",
    "server",
    "web",
    "lab",
    "papers",
    "cli",
]
TOP = {"cli", "web", "papers"}


def imported_packages(code: str) -> set[str]:
    """The Sojourn packages that a module imports, at its top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    parts = [name.split(".") for name in names]
    return {p[1] for p in parts if p[0] == "sojourn" and len(p) > 1 and p[1] in LAYERS}


def violations(package: str, code: str) -> set[str]:
    """What a module of `package` imports although it stands above."""
    rank = LAYERS.index(package)
    if package in TOP:
        return set()
    above = {p for p in imported_packages(code) if LAYERS.index(p) > rank}
    return above | (imported_packages(code) & TOP)


@pytest.mark.parametrize("module", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_imports_only_what_lies_below_it(module: Path) -> None:
    package = module.relative_to(SOURCE).parts[0]
    if package in ("__init__.py", "__main__.py"):  # the front doors may import all, lazily: tests/test_front_door.py
        return
    assert violations(package, module.read_text()) == set()


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("core", "from sojourn.sketches.lda import Lda"),
        ("sketches", "import sojourn.epochs.wire"),
        ("estimation", "def f():\n    from sojourn import cli"),
        ("epochs", "from sojourn.papers import iotm"),
    ],
)
def test_an_import_from_above_is_found(package: str, code: str) -> None:
    assert violations(package, code)


@pytest.mark.parametrize("module", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_is_longer_than_600_lines(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 600


def test_every_package_is_a_known_layer() -> None:
    packages = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert packages <= set(LAYERS)


@pytest.mark.parametrize("module", sorted((SOURCE / "cli").rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_function_of_a_command_is_longer_than_80_lines(module: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.FunctionDef)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > 80} == {}
