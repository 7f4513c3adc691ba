"""A query unit with the data of a small fleet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from query_unit import LIMITS, Unit, running_unit
from tests.exports.fleet_data import WINDOW, with_processes


@pytest.fixture(scope="session")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    """Two nodes with processes; nobody changes anything in it."""
    running = running_unit(tmp_path_factory.mktemp("data"), LIMITS)
    found = next(running)
    with_processes(found)
    # Its workers start, and load their kernels, with the first question: commands wait for less than tests do.
    with found.client("viewer") as client:
        assert client.get("/metrics/fleet", params=WINDOW).is_success
    yield found
    next(running, None)
