"""The ways that a node reaches its query unit: tests of agents and of sending run over each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosquitto_broker import Broker, running_broker


@pytest.fixture(params=["http", "mqtt"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker | None]:
    """The broker between nodes and their query unit, or none."""
    yield from _way(request.param, tmp_path)


@pytest.fixture(params=["http", pytest.param("mqtt", marks=pytest.mark.long)])
def seldom_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker | None]:
    """The same for whole files whose subject does not depend on the way: by a broker in the long run alone."""
    yield from _way(request.param, tmp_path)


def _way(name: str, directory: Path) -> Iterator[Broker | None]:
    if name == "http":
        yield None
    else:
        yield from running_broker(directory / "broker")
