"""The numeric constants of the estimators and of the layout: where they stand, what the page says, how to vary them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sojourn"
PAGE = ROOT / "docs" / "maths" / "constants.md"
PLANNING = ("layout", "regret")
KINDS = ("definition", "numerical", "derived", "model", "fitted")
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
COMPILED = re.compile(r"(borrowing_)?(kernel|inlined)")
SMALL = 8  # integers up to here change by one


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


@dataclass(frozen=True)
class Constant:
    """A constant, its value as text, and where that stands: line, first and last column, in bytes."""

    path: Path
    name: str
    text: str
    at: tuple[int, int, int]

    @property
    def module(self) -> str:
        return module_name(self.path)

    @property
    def label(self) -> str:
        return f"{self.module.removeprefix('sojourn.')}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    def variants(self) -> list[str]:
        """Less and more of it, as text: half and double, neighbours of a small integer, a grid without an end."""
        value = self.value
        if isinstance(value, tuple | np.ndarray):
            return [f"({self.text})[1:]", f"({self.text})[:-1]"] if len(value) > 2 else []
        if isinstance(value, int | np.integer):
            return [str(value - 1), str(value + 1)] if 0 < value <= SMALL else [str(value // 2), str(2 * value)]
        # Shares stay below 1, and factors little above 1 stay above.
        less = (1 + value) / 2 if 1 < value < 2 else value / 2
        more = (1 + value) / 2 if 0.5 < value < 1 else 2 * value - 1 if 1 < value < 2 else 2 * value
        return [repr(float(less)), repr(float(more))]


@cache
def inventory() -> list[Constant]:
    """Every numeric constant of the modules in which one needs a reason."""
    planning = [PACKAGE / "segments" / "planning" / f"{name}.py" for name in PLANNING]
    paths = [*sorted((PACKAGE / "estimation").rglob("*.py")), *planning]
    return [constant for path in paths for constant in _constants(path) if _is_numeric(constant.value)]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _constants(path: Path) -> Iterator[Constant]:
    source = path.read_text()
    for node in tree(path).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for name, one in pairs:
            if isinstance(name, ast.Name) and NAME.fullmatch(name.id):
                at = one.lineno, one.col_offset, one.end_col_offset or 0
                yield Constant(path, name.id, ast.get_source_segment(source, one) or "", at)


def _is_numeric(value: object) -> bool:
    if isinstance(value, tuple | np.ndarray):
        return len(value) > 0 and all(_is_numeric(one) for one in value)
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def documented() -> dict[str, tuple[str, str]]:
    """Text and kind of each constant that the page names, by its label."""
    found: dict[str, tuple[str, str]] = {}
    module = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("### `"):
            module = line.split("`")[1]
        elif row := re.match(r"\| `(\w+)` \| `([^`]+)` \| (\w+) \| \S", line):
            found[f"{module}.{row[1]}"] = row[2], row[3]
    return found


@cache
def _imports() -> list[tuple[Path, str, str]]:
    """Every name that a module of the package takes from another: by whom, from where, what."""
    return [
        (path, node.module or "", alias.name)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def holders(constant: Constant) -> list[Path]:
    """The modules that have the constant under its name: its own, and those that import it."""
    taken = constant.module, constant.name
    return [constant.path, *(path for path, *one in _imports() if tuple(one) == taken)]


def is_compiled(constant: Constant) -> bool:
    """Whether a kernel freezes it."""
    return any(constant.name in _kernel_names(path) for path in holders(constant))


@cache
def _kernel_names(path: Path) -> set[str]:
    """The names that kernels of a module mention."""
    return {
        name.id
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef)
        if any(isinstance(one, ast.Name) and COMPILED.fullmatch(one.id) for one in node.decorator_list)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }


def dependents(path: Path) -> set[Path]:
    """A module and all that import it, at once or through others."""
    found: set[Path] = set()
    more = {path}
    while more - found:
        found |= more
        modules = set(map(module_name, found))
        more = {other for other, *parts in _imports() if parts[0] in modules or ".".join(parts) in modules}
    return found
