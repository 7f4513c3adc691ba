"""The architecture page names functions that exist, and the house is built as it says."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "sojourn"
ROOMS = sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists())
NAMES = sorted(set(re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`", PAGE)))
MOST_MODULES = 14


def resolve(name: str) -> object:
    """The module, or what a module has, by its name without the package's."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(["sojourn", *parts[:at]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[at:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_page_exists(name: str) -> None:
    assert resolve(name) is not None


def test_the_page_names_every_journey() -> None:
    assert len(NAMES) > 30
    for journey in ("A packet", "An epoch", "A sink's packet", "A route"):
        assert f"### {journey}" in PAGE


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        resolve("segments.measure.measure_nothing")


def test_every_room_is_in_the_table() -> None:
    table = PAGE[PAGE.index("| room |") : PAGE.index("## Journeys")]
    assert [room for room in ROOMS if f"`{room}`" not in table] == []


@pytest.mark.parametrize(
    "room", sorted({p.parent for p in SOURCE.rglob("*.py")}), ids=lambda p: str(p.relative_to(SOURCE.parent))
)
def test_a_room_has_at_most_14_modules(room: Path) -> None:
    assert len([p for p in room.glob("*.py") if p.name != "__init__.py"]) <= MOST_MODULES
