"""`sojourn token`: who may talk to the query unit."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sojourn.cli.fleet.serve import DataOption, default_data
from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, columns, say, write_rows
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.store.tokens import TokenStore

app = typer.Typer(help="Make, list and revoke the tokens of a query unit.", no_args_is_help=True)


@contextmanager
def _tokens(data: str | None, *, make: bool = False) -> Iterator[TokenStore]:
    """The tokens of a query unit; where there is none, one may be made for what `serve` will find."""
    from sojourn.core.errors import log_to_stderr
    from sojourn.store.database import is_store
    from sojourn.store.epochs import open_store
    from sojourn.store.tokens import TokenStore

    log_to_stderr()
    place = data or str(default_data())
    if not is_store(place):
        if not make:
            raise UsageError("there is no query unit's data", where=place, action="give the --data of sojourn serve")
        say(f"there was no query unit's data in {place}; it was made")
    store = open_store(place)
    try:
        yield TokenStore(store)
    finally:
        store.close()


@app.command(epilog="Example:  sojourn token create --role node --node gateway-7 -w gateway-7.token")
def create(
    role: Annotated[
        Literal["admin", "viewer", "node"],
        typer.Option(help="admin: all; viewer: read and ask; node: write what is its own."),
    ],
    node: Annotated[str | None, typer.Option(metavar="NAME", help="The node that a node's token is for.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call it in the list.")] = None,
    data: DataOption = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", metavar="FILE", help="Write it to a file that only you can read (--token-file)."),
    ] = None,
) -> None:
    """Make a token and print it, or write it to a file; it cannot be shown again."""
    from sojourn.store.tokens import Role, write_token

    with _tokens(data, make=True) as tokens:
        text = tokens.create(Role(role), name=name or node or role, node=node)[1]
    if write is None:
        print(text)
    else:
        write_token(write, text)


@app.command(epilog="Example:  sojourn token revoke 1f2e3d4c")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as in the list.")],
    data: DataOption = None,
) -> None:
    """End a token; it is refused from now on."""
    with _tokens(data) as tokens:
        tokens.revoke(token_id)


@app.command(name="list", epilog="Example:  sojourn token list --format json")
def list_tokens(data: DataOption = None, output_format: FormatOption = None) -> None:
    """Show all tokens, without their secrets."""
    from sojourn.core.units import format_time

    shown = columns("id", "name", "role", "node", left=True)
    shown += columns(created_ns="created", revoked_ns="revoked", show=format_time, left=True)
    with _tokens(data) as tokens:
        found = tokens.all()
    block = {column.name: [getattr(token, column.name) for token in found] for column in shown}
    write_rows([block], output_format or Format.TABLE, name="tokens", table=shown)
