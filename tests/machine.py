"""What tests need of the machine: root, programs, interfaces. CI has all of it and skips nothing."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["live_marks", "needs_root"]


def needs_root(untested: str, *programs: str) -> pytest.MarkDecorator:
    """Skip where the user is not root or a program is missing, and say what is therefore not tested."""
    is_missing = os.geteuid() != 0 or not all(map(shutil.which, programs))
    return pytest.mark.skipif(is_missing and not os.environ.get("CI"), reason=untested)


def live_marks(untested: str, *programs: str) -> list[pytest.MarkDecorator]:
    """On real interfaces, in network namespaces: about time, so that `make test` runs them apart from all others."""
    return [pytest.mark.live, needs_root(untested, *programs)]
