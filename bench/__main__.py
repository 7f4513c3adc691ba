"""`make bench`: run the benchmarks, print their tables; ``--write`` puts them into docs/performance.md.

``coverage`` and ``tomography-intervals`` (of intervals, not timed, only by name) go to docs/maths.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from bench.timing import use_one_core

PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
TABLES = ("agent", "captures", "memory", "recording", "tomography")


def write(page: Path, name: str, lines: list[str]) -> None:
    """Replace what stands between a table's two markers."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    page.write_text("\n".join([before + start, *lines, end]) + after)


def main(arguments: list[str]) -> None:
    names = [a.replace("-", "_") for a in arguments if not a.startswith("-")] or list(TABLES)
    cores = len(os.sched_getaffinity(0))
    use_one_core()
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        note = getattr(module, "NOTE", f"One core of {cores}, best of several runs.")
        lines = [*module.table(), "", note]
        print(f"\n{name}\n")
        print("\n".join(lines), flush=True)
        if "--write" in arguments:
            write(getattr(module, "PAGE", PERFORMANCE), name, lines)


main(sys.argv[1:])
