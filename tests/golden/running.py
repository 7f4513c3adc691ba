"""Cases run, one answer each; folders of answers read and written."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from .answers import canonical, text_of
from .cases import CASES, needs_fleet
from .fleet import running_fleet
from .worlds import Workspace, run

__all__ = ["JOINT_ANSWERS", "STORED_ANSWERS", "answers_of", "chosen", "read_answer", "write_answers"]

STORED_ANSWERS = Path(__file__).parent / "answers"
JOINT_ANSWERS = Path(__file__).parent / "joint_answers"
GROUPS = ("mplane", "plan")
# A query unit gives a question up after some seconds, which a busy machine may need to load what answers it.
ATTEMPTS = 5


def chosen(patterns: Iterable[str]) -> list[str]:
    """The cases that a pattern matches; all of them without patterns."""
    wanted = list(patterns) or ["*"]
    return [name for name in CASES if any(fnmatchcase(name, pattern) for pattern in wanted)]


def answers_of(names: Iterable[str], *, jobs: int = 1) -> Iterator[tuple[str, Any]]:
    """Canonical answers of cases, in the order of the names; an exit with an error is an answer, too."""
    names = list(names)
    commands = "\n".join(command for name in names for command in CASES[name])
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-golden-")))
        workspace = Workspace(root, commands)
        fleet: Mapping[str, str] = {}
        if any(map(needs_fleet, names)):
            fleet = stack.enter_context(running_fleet(workspace.folder("fleet")))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        yield from zip(names, pool.map(partial(_answer, workspace, fleet), names), strict=True)


def _answer(workspace: Workspace, fleet: Mapping[str, str], name: str) -> Any:
    *before, last = CASES[name]
    folder = workspace.folder(name)
    for command in before:
        made = run(command, folder, fleet)
        if made.returncode != 0:
            raise RuntimeError(f"{name}: {command}: {made.stderr.decode()}")
    done = run(_with_format(last), folder, fleet)
    for _ in range(ATTEMPTS - 1 if needs_fleet(name) else 0):
        if done.returncode == 0:
            break
        done = run(_with_format(last), folder, fleet)
    answer = canonical(json.loads(done.stdout), last.split()[0]) if done.stdout.strip() else None
    if done.returncode == 0:
        return answer
    print(f"{name}: exit {done.returncode}: {done.stderr.decode().strip()}", file=sys.stderr)
    return {"exit": done.returncode, "answer": answer}


def _with_format(command: str) -> str:
    """Options come before a filter, whose words may follow anywhere else."""
    word, _, rest = command.partition(" ")
    if word in GROUPS:
        second, _, rest = rest.partition(" ")
        word = f"{word} {second}"
    return f"{word} --format json {rest}"


def write_answers(folder: Path, answers: Iterable[tuple[str, Any]], form: Callable[[Any], Any] = lambda it: it) -> None:
    """One file for each answer."""
    for name, answer in answers:
        path = _path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(form(answer)))


def read_answer(folder: Path, name: str) -> Any:
    """The recorded answer of a case; none is a FileNotFoundError."""
    return json.loads(_path(folder, name).read_text())


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"
