"""The command: vary one constant after the other, and compare the answers with those by default.

Each is halved and doubled; small integers change by one, tuples go without an end. What the page of constants calls a
definition stays as it is. *Numerical* ones are varied together, module by module: if all of them change nothing, none
does; ``--only`` with the whole name of one varies that one. Kernels freeze what they are compiled with, so that their
constants are edited in a copy of the package in which only what depends on them is compiled anew, and judged by a
process of its own. What no world here uses (`UNSEEN`) is not varied: `bench coverage` and the papers' experiments do.

A file of results has JSON lines and belongs to one state of the code: what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.constants.inventory import (
    PACKAGE,
    PAGE,
    ROOT,
    Constant,
    dependents,
    documented,
    holders,
    inventory,
    is_compiled,
    module_name,
)
from bench.constants.worlds import ERROR, Shares, try_all
from bench.pages import write

NOTICED = 0.02
DEFAULT = "default"
NUMERICAL = "numerical"
WAYS = ("less", "more")
UNSEEN = tuple(f"estimation.{name}." for name in ("published", "lda", "lds", "order_statistics"))
ABOUT = {"estimation.buckets.": "buckets", "segments.planning.": "layout"}
_JUDGE = "import json, sys; from bench.constants.worlds import try_all; print(json.dumps(try_all(sys.argv[1])))"
Found = dict[str, Shares]


@dataclass(frozen=True)
class Variant:
    """Constants, with the texts of the values that they have instead."""

    name: str
    way: str
    texts: tuple[tuple[Constant, str], ...]

    def judged(self) -> Found:
        """The figures of the worlds that it concerns; none where it fails."""
        if not self.texts:
            return try_all("flows") | try_all("buckets")
        about = next((about for start, about in ABOUT.items() if self.name.startswith(start)), "flows")
        if any(is_compiled(constant) for constant, _ in self.texts):
            return _in_a_copy(self, about)
        with _patched(self):
            try:
                return try_all(about)
            except Exception as error:  # whatever a wrong constant comes to
                print(f"{self.name} {self.way}: {error!r}", file=sys.stderr)
                return {}


def variants(only: Sequence[str]) -> list[Variant]:
    """Those to run, of all constants or of those whose names contain one of the texts."""
    kinds = {label: kind for label, (_, kind) in documented().items()}
    varied = [
        one
        for one in inventory()
        if kinds.get(one.label) != "definition" and one.variants() and not one.label.startswith(UNSEEN)
    ]
    tolerances = [one for one in varied if kinds.get(one.label) == NUMERICAL]
    groups = {one.label: [one] for one in varied if one not in tolerances or one.label in only}
    for one in tolerances:
        where = ", numerical of kernels" if is_compiled(one) else ", numerical"
        groups.setdefault(one.label.rpartition(".")[0] + where, []).append(one)
    return [
        Variant(name, way, tuple((one, one.variants()[number]) for one in group))
        for name, group in sorted(groups.items(), key=lambda pair: is_compiled(pair[1][0]))
        if not only or any(text in name for text in only)
        for number, way in enumerate(WAYS)
    ]


@contextmanager
def _patched(variant: Variant) -> Iterator[None]:
    """The constants of this process changed, in all modules that have them."""
    before: list[tuple[Any, str, Any]] = []
    for constant, text in variant.texts:
        value, own = eval(text, vars(sys.modules[constant.module])), constant.value
        for name in map(module_name, holders(constant)):
            if name in sys.modules:
                before.append((sys.modules[name], constant.name, own))
                setattr(sys.modules[name], constant.name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _in_a_copy(variant: Variant, about: str) -> Found:
    """By a process that has the package with other constants; what does not depend on them is compiled already."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy)  # with times of files, by which kernels are found to be as they were
        for constant, text in variant.texts:
            path = copy / constant.path.relative_to(PACKAGE)
            line, first, last = constant.at
            lines = path.read_bytes().splitlines(keepends=True)
            lines[line - 1] = lines[line - 1][:first] + f"({text})".encode() + lines[line - 1][last:]
            path.write_bytes(b"".join(lines))
        for path in {path for constant, _ in variant.texts for path in dependents(constant.path)}:
            for stale in (copy / path.relative_to(PACKAGE).parent / "__pycache__").glob(f"{path.stem}.*.nb?"):
                stale.unlink()
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
        command = [sys.executable, "-c", _JUDGE, about]
        ended = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE)
        found: Found = json.loads(ended.stdout) if ended.returncode == 0 else {}
        return found


def change(found: Found, default: Found) -> tuple[float, float, str]:
    """The largest relative change of an error and of a share, and the worlds that have them; infinite if it fails."""
    if not found:
        return math.inf, math.inf, "fails"
    errors = {world: math.log(shares[ERROR] / default[world][ERROR]) for world, shares in found.items()}
    apart = {
        f"{name} in {world}": share - default[world][name]
        for world, shares in found.items()
        for name, share in shares.items()
        if name != ERROR
    }
    error, share = (max(one, key=lambda key: abs(one[key])) for one in (errors, apart))
    return math.expm1(errors[error]), apart[share], f"{error}; {share}"


def table(done: dict[tuple[str, str], Found]) -> Iterator[str]:
    """What the constants that matter do, and the names of those that do not."""
    default = done[DEFAULT, DEFAULT]
    names = list(dict.fromkeys(name for name, _ in done if name != DEFAULT))
    quiet = []
    yield "| constant | less: error, share | more: error, share | where |"
    yield "|---|--:|--:|---|"
    for name in names:
        changes = [change(done[name, way], default) for way in WAYS if (name, way) in done]
        if all(max(abs(error), abs(share)) < NOTICED for error, share, _ in changes):
            quiet.append(name)
            continue
        cells = [f"{100 * error:+.1f} %, {100 * share:+.1f}" for error, share, _ in changes]
        where = max(changes, key=lambda one: max(abs(one[0]), abs(one[1])))[2]
        yield f"| `{name}` | {' | '.join(cells)} | {where} |"
    yield ""
    yield f"Without effect (below {NOTICED:.0%} in all worlds): {', '.join(f'`{name}`' for name in quiet) or 'none'}."


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m bench constants", description=__doc__)
    add = found.add_argument
    add("--only", action="append", default=[], metavar="TEXT", help="constants whose names contain this")
    add("--results", type=Path, default=Path("constants.jsonl"), metavar="FILE", help="JSON lines to add to")
    add("--no-run", action="store_true", help="only print what is in the results")
    add("--list", action="store_true", help="print the constants that are varied and stop")
    add("--write", action="store_true", help="put the table into the page of constants")
    return found


def main(arguments: Sequence[str]) -> None:
    options = parser().parse_args(arguments)
    chosen = [Variant(DEFAULT, DEFAULT, ()), *variants(options.only)]
    if options.list:
        print("\n".join(f"{one.name} {one.way}: {', '.join(text for _, text in one.texts)}" for one in chosen[1:]))
        return
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done: dict[tuple[str, str], Found] = {(one["name"], one["way"]): one["found"] for one in map(json.loads, lines)}
    left = [] if options.no_run else [one for one in chosen if (one.name, one.way) not in done]
    for number, variant in enumerate(left, 1):
        start = time.monotonic()
        done[variant.name, variant.way] = found = variant.judged()
        with options.results.open("a") as file:
            file.write(json.dumps({"name": variant.name, "way": variant.way, "found": found}) + "\n")
        spent = time.monotonic() - start
        print(f"{number} of {len(left)}: {variant.name} {variant.way}, {spent:.1f} s", file=sys.stderr, flush=True)
    wanted = {DEFAULT, *(one.name for one in chosen)}
    shown = list(table({key: found for key, found in done.items() if key[0] in wanted}))
    print("\n".join(shown))
    if options.write:
        write(PAGE, "constants", shown)
