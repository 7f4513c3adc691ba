"""`sojourn demo`: the whole system on this machine, with something real to look at, until Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from sojourn.cli.output import print_json, say

if TYPE_CHECKING:
    from sojourn.lab.demo.jobs import DemoAnswer
    from sojourn.lab.demo.running import Demo

HELP = "See the whole system at work on this machine: agents, a query unit, a network that becomes slow, the dashboard."
EXAMPLE = "Examples:  sojourn demo\n\nsojourn demo --no-serve --format json | jq .answer"
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where all its files go; by default sojourn-demo in the user's data directory."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the query unit and its dashboard; 0 takes a free one.")
    ] = 0,
    lab: Annotated[
        bool, typer.Option("--lab/--no-lab", help="A network of real routers, as root; else a recording is replayed.")
    ] = True,
    serve: Annotated[
        bool | None,
        typer.Option("--serve/--no-serve", help="Go on serving until Ctrl-C; by default on a terminal only."),
    ] = None,
    output: Annotated[
        Literal["table", "json"], typer.Option("--format", help="Lines for people, JSON lines for programs.")
    ] = "table",
) -> None:
    from sojourn.lab.demo.running import Demo

    began = time.monotonic()
    try:
        with _ended_by_signals(), Demo(data or _default_data(), port=port, has_lab=lab, tell=say) as running:
            for answer in running.answers():
                _show(answer, time.monotonic() - began, running.url, output)
            if goes_on(serve):
                _serve(running, output)
    finally:
        # What is imported by now takes a third of a second to look through once more, seconds on a busy machine.
        gc.freeze()


def goes_on(asked: bool | None) -> bool:
    """Whether to serve afterwards: as it is asked for, else where somebody is at a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty() if asked is None else asked


def _default_data() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sojourn-demo"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Whatever asks this process to end has it leave its contexts; a second time must not interrupt that."""

    def stop(number: int, _frame: object) -> NoReturn:
        for ignored in _ENDING:
            signal.signal(ignored, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(answer: DemoAnswer, seconds: float, url: str, output: str) -> None:
    """A line: when it was known, what was asked, the answer, where to look or what to ask."""
    if output == "json":
        found = asdict(answer)
        print_json({**found, "page": url + answer.page if answer.page else None, "seconds": round(seconds, 1)})
    else:
        print(f"{seconds:4.0f} s  {answer.asked}: {answer.answer}  → {answer.page or answer.command}")
    sys.stdout.flush()


def _serve(running: Demo, output: str) -> None:
    """Say where the dashboard is, and go on until Ctrl-C, which ends this well."""
    from importlib.util import find_spec

    has_pages = find_spec("nicegui") is not None
    if output == "json":
        print_json({"job": "dashboard", "url": running.url, "token": running.token, "has_pages": has_pages})
    else:
        print(f"\n{running.url}\ntoken: {running.token}")
    sys.stdout.flush()
    if not has_pages:
        say("there are no pages at this address: pip install 'sojourn[web]'; the commands answer all the same")
    say("serving; Ctrl-C ends everything")
    try:
        running.wait()
    except KeyboardInterrupt:
        say("ending")
