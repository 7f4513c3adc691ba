"""How answers are printed: tables for people, JSON for programs; progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Advance", "console", "print_json", "progress"]


class Advance(Protocol):
    """Called as work is done: a step's name and the share done, 0 to 1."""

    def __call__(self, step: str, share: float) -> None: ...


def console(*, stderr: bool = False) -> Console:
    """A Rich console; on stdout it never wraps a table into the middle of a pipe."""
    from rich.console import Console

    plain = Console(stderr=stderr, highlight=False)
    if not plain.is_terminal:
        plain.width = 160
    return plain


def print_json(value: object) -> None:
    """One JSON object on stdout; infinite bounds become null, as JSON has no infinity."""
    print(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs; silent where stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    stderr = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)

        def advance(step: str, share: float) -> None:
            bar.update(task, description=f"{title}: {step}", completed=share)

        yield advance
