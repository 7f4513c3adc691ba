"""The dashboard of a query unit that has something to show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.web.pages.dashboard_world import Dashboard, running_dashboard


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running_dashboard(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.fixture(scope="module")
def empty_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running_dashboard(tmp_path_factory.mktemp("empty"), fill=False) as running:
        yield running
