"""Query units to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data")


@pytest.fixture(scope="module")
def shared_unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"))
