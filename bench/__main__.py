"""`make bench`: run the benchmarks, print their tables; ``--write`` puts them into docs/performance.md.

``coverage`` and ``tomography-intervals`` (of intervals, not timed, only by name) go to docs/maths.
``auto``, ``constants``, ``percentiles`` and ``round-trips`` have options of their own (as ``auto --help`` tells).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from bench.pages import write
from bench.timing import use_one_core

# As `sojourn` itself has it, whatever a benchmark's table is of: threads of a BLAS only wait for each other in matrices
# this small. Read when NumPy is loaded, so it is set before any benchmark is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
TABLES = (
    "agent",
    "batch",
    "captures",
    "decoding",
    "fleet-queries",
    "fleet-segments",
    "ingest",
    "ingest-workers",
    "ledger",
    "light-agent",
    "live",
    "memory",
    "queries",
    "recording",
    "tomography",
)
UNTIMED = ("coverage", "tomography-intervals")
OF_THEIR_OWN = {
    "auto": "bench.auto.run",
    "constants": "bench.constants.run",
    "percentiles": "bench.percentiles",
    "round-trips": "bench.round_trips",
}


def main() -> None:
    if sys.argv[1:] and (module_name := OF_THEIR_OWN.get(sys.argv[1])):
        importlib.import_module(module_name).main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{', '.join((*TABLES, *UNTIMED))}; by default all timed ones"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the documentation")
    options = parser.parse_args()
    if unknown := set(options.tables) - {*TABLES, *UNTIMED}:
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    cores = len(os.sched_getaffinity(0))
    use_one_core()
    for name in options.tables or TABLES:
        module = importlib.import_module(f"bench.{name.replace('-', '_')}")
        note = getattr(module, "NOTE", f"One core of {cores}, best of several runs.")
        lines, goals = module.documented() if hasattr(module, "documented") else (module.table(), [])
        lines += ["", note]
        print(f"\n{name}\n")
        print("\n".join(lines), flush=True)
        if options.write:
            write(getattr(module, "PAGE", PERFORMANCE), name.replace("-", "_"), [*lines, *[""] * bool(goals), *goals])


main()
