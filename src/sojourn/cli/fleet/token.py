"""`sojourn token`: who may talk to the query unit."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sojourn.cli.fleet.serve import DataOption, configured_data
from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, columns, say, write_rows
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.store.tokens import TokenStore

app = typer.Typer(help="Make, list, rotate and revoke the tokens of a query unit.", no_args_is_help=True)
WriteTokenOption = Annotated[
    Path | None,
    typer.Option("--write", "-w", metavar="FILE", help="Write it to a file that only you can read (--token-file)."),
]
ExpiresOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long it is valid, such as 90d; by default until it is revoked.")
]


@contextmanager
def _tokens(data: str | None, *, make: bool = False) -> Iterator[TokenStore]:
    """The tokens of a query unit; where there is none, one may be made for what `serve` will find."""
    from sojourn.core.errors import log_to_stderr
    from sojourn.store.database import is_store
    from sojourn.store.epochs import open_store
    from sojourn.store.tokens import TokenStore

    log_to_stderr()
    place = configured_data(data)
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
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="A viewer's: only the nodes with this tag; repeatable.")
    ] = None,
    expires: ExpiresOption = None,
    data: DataOption = None,
    write: WriteTokenOption = None,
) -> None:
    """Make a token and print it, or write it to a file; it cannot be shown again."""
    from sojourn.store.tokens import Role

    until = _until(expires)
    with _tokens(data, make=True) as tokens:
        text = tokens.create(Role(role), name=name or node or role, node=node, expires_ns=until, tags=tag or None)[1]
    _hand_over(text, write)


@app.command(epilog="Example:  sojourn token rotate 1f2e3d4c --grace 1d -w gateway-7.token")
def rotate(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as in the list.")],
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old token stays valid beside the new one; 0s: not at all.")
    ] = "1d",
    expires: ExpiresOption = None,
    data: DataOption = None,
    write: WriteTokenOption = None,
) -> None:
    """Make a token that may do the same as another, which ends after a while; agents read their token file again."""
    from sojourn.core.units import parse_duration

    grace_ns, until = parse_duration(grace), _until(expires)
    with _tokens(data) as tokens:
        text = tokens.rotate(token_id, grace_ns=grace_ns, expires_ns=until)[1]
    _hand_over(text, write)


def _until(expires: str | None) -> int | None:
    """When a token ends that is valid for some time from now on."""
    from sojourn.core.units import parse_duration

    if expires is None:
        return None
    lasts_ns = parse_duration(expires)
    if lasts_ns <= 0:
        raise UsageError(f"{expires!r} is no time to be valid for", where="--expires", action="write 90d or 12h")
    return time.time_ns() + lasts_ns


def _hand_over(text: str, file: Path | None) -> None:
    from sojourn.store.tokens import write_token

    if file is None:
        print(text)
    else:
        write_token(file, text)


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
    shown += columns(created_ns="created", expires_ns="expires", revoked_ns="revoked", show=format_time, left=True)
    with _tokens(data) as tokens:
        found = tokens.all()
    block = {column.name: [getattr(token, column.name) for token in found] for column in shown}
    if any(token.tags for token in found):
        block["tags"] = [list(token.tags or ()) for token in found]
        shown += columns("tags", show=", ".join, left=True)
    write_rows([block], output_format or Format.TABLE, name="tokens", table=shown)
