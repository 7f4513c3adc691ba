"""Parameters: plain values are taken without Typer's conversion, and everything else as Typer takes it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from sojourn.cli.parameters import QuickCommand


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


def everything(
    words: list[str] | None = None,
    name: Annotated[str, typer.Option()] = "none",
    note: Annotated[str | None, typer.Option()] = None,
    kind: Annotated[Literal["lds", "lda"] | None, typer.Option()] = None,
    limit: Annotated[int | None, typer.Option(min=1)] = 7,
    share: Annotated[float, typer.Option()] = 0.5,
    size: Annotated[Size, typer.Option()] = Size.SMALL,
    file: Annotated[Path | None, typer.Option()] = None,
    port: Annotated[list[int] | None, typer.Option()] = None,
    loud: Annotated[bool, typer.Option("--loud")] = False,
) -> None:
    """A command with a parameter of every kind that commands have."""
    print({name: list(value) if isinstance(value, tuple) else value for name, value in locals().items()})


def answer(command: type[Any] | None, arguments: list[str]) -> tuple[int, str]:
    app = typer.Typer()
    app.command(cls=command)(everything)
    found = CliRunner().invoke(app, arguments)
    return found.exit_code, found.output


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "a b --name x --note y --kind lda",
        "--limit 3 --share 1 --size large --file there --port 1 --port 2 --loud",
        "--kind ldx",
        "--limit 0",
        "--limit x",
        "--size huge",
        "--port x",
        "--nonsense",
    ],
)
def test_values_and_refusals_are_typers_own(arguments: str) -> None:
    assert answer(QuickCommand, arguments.split()) == answer(None, arguments.split())
