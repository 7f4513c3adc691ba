"""`python -m tests.golden`: record answers, or compare with recorded ones."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tests.golden

from .answers import DIGITS, differences, reduced
from .cases import JOINT, STORED
from .running import JOINT_ANSWERS, STORED_ANSWERS, answers_of, chosen, read_answer, write_answers


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.command == "list":
        print("\n".join(chosen(arguments.patterns)))
        return 0
    if arguments.command == "store":
        write_answers(STORED_ANSWERS, _timed(list(STORED), arguments.jobs), reduced)
        write_answers(JOINT_ANSWERS, _timed(list(JOINT), arguments.jobs), reduced)
        return 0
    names = chosen(arguments.patterns)
    if not names:
        print("no case matches; see `python -m tests.golden list`", file=sys.stderr)
        return 2
    if arguments.command == "record":
        write_answers(arguments.folder, _timed(names, arguments.jobs))
        return 0
    return _compare(names, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=tests.golden.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("list", "record", "compare", "store"):
        one = commands.add_parser(command)
        if command in ("record", "compare"):
            one.add_argument("folder", type=Path)
        if command != "store":
            one.add_argument("patterns", nargs="*", help="cases, as a shell matches files")
        one.add_argument("-j", "--jobs", type=int, default=2, help="commands at the same time")
        if command == "compare":
            one.add_argument("--digits", type=int, default=DIGITS, help="significant digits of numbers with a point")
            one.add_argument("--limit", type=int, default=20, help="differences printed of a case; 0 is all")
            one.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help="JSON paths left out")
    return parser


def _timed(names: list[str], jobs: int) -> Iterator[tuple[str, Any]]:
    """Answers, with a line on stderr as each comes."""
    start = time.monotonic()
    for number, (name, answer) in enumerate(answers_of(names, jobs=jobs), 1):
        print(f"{number}/{len(names)} {time.monotonic() - start:6.1f} s  {name}", file=sys.stderr)
        yield name, answer


def _compare(names: list[str], arguments: argparse.Namespace) -> int:
    differing = missing = 0
    for name, after in _timed(names, arguments.jobs):
        try:
            before = read_answer(arguments.folder, name)
        except FileNotFoundError:
            print(f"{name}: no answer is recorded")
            missing += 1
            continue
        found = [
            difference
            for difference in differences(before, after, digits=arguments.digits)
            if not any(fnmatchcase(difference.path, pattern) for pattern in arguments.ignore)
        ]
        differing += bool(found)
        for difference in found[: arguments.limit or None]:
            print(f"{name}: {difference}")
        if 0 < arguments.limit < len(found):
            print(f"{name}: … {len(found) - arguments.limit} differences more (--limit 0 shows all)")
    print(f"{len(names)} cases: {len(names) - differing - missing} equal, {differing} differ, {missing} not recorded")
    return 1 if differing or missing else 0


if __name__ == "__main__":
    sys.exit(main())
