"""Which tests stay together, and which come first, where several processes run them (pytest -n).

Tests of a module stay in one process, which sets up once what they share, and so do those that keep each other from
answering in time. Where tests share nothing and each takes long, each goes by itself to the process that is free.

The groups of pytest-xdist (`--dist loadgroup`) are not used: its 3.8 forgets them under pytest 9.2, without a word.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByModule", "first"]

# On two processors two browsers wait for each other, and so do two clusters.
TOGETHER = {
    "browser": tuple(f"tests/web/pages/test_{name}.py" for name in ("captures", "networks", "pages")),
    "cluster": ("tests/core/executors/test_cluster.py", "tests/segments/batch/test_batch.py"),
}
APART = ("tests/test_docs.py", "tests/cli/lab/test_demo.py")
# What takes longest, or waits longest, so that in the end no process waits for another.
LONGEST = (
    "tests/test_docs.py::test_shell_examples_print_what_the_page_shows[docs/tutorials/f",
    "tests/cli/lab/test_demo.py::test_without_routers",
    *TOGETHER["browser"],
    *APART,
    "tests/node/agent/",
    "tests/server/",
    "tests/cli/",
    "tests/tomography/",
)


def first(nodeid: str) -> int:
    """The place of a test in the order of a run: what takes longest comes first."""
    return next((place for place, start in enumerate(LONGEST) if nodeid.startswith(start)), len(LONGEST))


class ByModule(LoadScopeScheduling):
    """Hands groups of tests to processes, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module in APART:
            return nodeid
        return next((name for name, modules in TOGETHER.items() if module in modules), module)
