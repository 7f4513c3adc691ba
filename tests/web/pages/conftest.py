"""The dashboard of a query unit that has something to show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.web.pages.dashboard_world import Dashboard, running_dashboard


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running_dashboard(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["one process", "ingest processes"])
def empty_dashboard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Also with ingest processes, which hand on all that pages ask and say."""
    with running_dashboard(tmp_path_factory.mktemp("empty"), *request.param, fill=False) as running:
        yield running
