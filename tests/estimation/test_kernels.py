"""Kernels of the estimators take a state, not a crowd: ten parameters at most."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sojourn.estimation

ROOM = Path(sojourn.estimation.__file__).parent
COMPILED = re.compile(r"(borrowing_)?(kernel|inlined)")
MOST = 10


def kernels(path: Path) -> dict[str, int]:
    """The compiled functions of a module, and how many parameters each takes."""
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return {
        one.name: len(one.args.posonlyargs + one.args.args + one.args.kwonlyargs)
        for one in functions
        if any(COMPILED.fullmatch(ast.unparse(mark).split("(")[0]) for mark in one.decorator_list)
    }


@pytest.mark.parametrize("room", ["joint", "posterior", "packets", "percentiles", "buckets"])
def test_no_kernel_of_joint_decoding_takes_more_than_ten_parameters(room: str) -> None:
    found = {
        f"{path.stem}.{name}": number for path in (ROOM / room).glob("*.py") for name, number in kernels(path).items()
    }
    assert not {name: number for name, number in found.items() if number > MOST}


def test_kernels_are_found() -> None:
    assert kernels(ROOM / "joint" / "messages.py")["_visit_all"] == 5
    assert len([name for path in ROOM.rglob("*.py") for name in kernels(path)]) > 50
