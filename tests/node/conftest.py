"""The ways that a node reaches its query unit: tests of agents and of sending run over each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosquitto_broker import Broker, running_broker


@pytest.fixture(params=["http", "mqtt"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker | None]:
    """The broker between nodes and their query unit, or none."""
    if request.param == "http":
        yield None
    else:
        yield from running_broker(tmp_path / "broker")
