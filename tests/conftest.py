"""What all tests share: where the real data lies, and how many examples Hypothesis tries."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from postgresql_server import PostgresqlServer, programs_directory, running_server
from processes import ByModule, first

# Workers share the cores: threads of linear algebra on small matrices would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Whichever test comes first compiles; what commands say about that must not depend on it.
os.environ.setdefault("SOJOURN_QUIET", "1")

# A shell starts what runs in the background deaf to Ctrl-C, and all that it starts in turn.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "sojourn", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("sojourn")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    items.sort(key=lambda item: first(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModule:
    return ByModule(config, log)


SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures, traces and topologies beside the checkout."""
    if not SHARED_DATA.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{SHARED_DATA} is missing and CI skips nothing")
        pytest.skip(f"the shared data is not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL that nobody else uses."""
    programs = programs_directory()
    if programs is None or importlib.util.find_spec("psycopg") is None:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL or psycopg is missing and CI skips nothing")
        pytest.skip("PostgreSQL or its driver is not installed")
    yield from running_server(programs)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be, on either database: a directory that is not there yet, or a database with nothing in it."""
    if request.param == "sqlite":
        return str(tmp_path / "data")
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.new_schema()
