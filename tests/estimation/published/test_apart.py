"""What only re-runs papers stays out of the way of a measurement."""

from __future__ import annotations

import subprocess
import sys

MEASURE = """
import pkgutil, sys
import sojourn.estimation.joint, sojourn.segments
for package in (sojourn.segments, sojourn.estimation.joint):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
print([name for name in sys.modules if name.startswith(("sojourn.estimation.published", "sojourn.papers"))])
"""


def test_measuring_a_segment_imports_nothing_that_only_re_runs_papers() -> None:
    printed = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout.strip() == "[]"
