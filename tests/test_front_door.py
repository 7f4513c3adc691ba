"""`import sojourn`: light, lazy, and all of its names are what they say."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import sojourn

HEAVY = ("numpy", "numba", "scipy", "rich", "typer", "httpx", "cbor2", "pandas", "pyarrow")


def in_a_fresh_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, sojourn; dir(sojourn); print([m for m in {HEAVY} if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]"


def test_importing_the_package_imports_none_of_its_rooms() -> None:
    code = "import sys, sojourn; print(sorted(m for m in sys.modules if m.startswith('sojourn')))"
    assert in_a_fresh_process(code) == "['sojourn']"


@pytest.mark.parametrize("name", sojourn.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(sojourn, name)
    assert name in dir(sojourn)
    if name != "__version__":
        assert callable(found)
        assert inspect.getdoc(found)


@pytest.mark.parametrize("name", ["rtt", "tomography"])
def test_a_room_of_the_same_name_does_not_hide_a_function(name: str) -> None:
    code = (
        f"import importlib, sojourn; importlib.import_module('sojourn.{name}'); importlib.reload(sojourn); "
        f"from sojourn import {name}; print({name}.__class__.__name__, sojourn.{name} is {name})"
    )
    assert in_a_fresh_process(code) == "function True"
    assert importlib.import_module(f"sojourn.{name}").__path__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = sojourn.mesure


def test_every_name_has_a_type_for_checkers() -> None:
    """What is imported lazily is imported under TYPE_CHECKING as well, from the same module."""
    lines = set(inspect.getsource(sojourn).splitlines())
    for name, home in sojourn._HOMES.items():
        assert f"    from sojourn.{home} import {name} as {name}" in lines
