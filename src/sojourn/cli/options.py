"""Options that several commands share, declared once, and groups of them that a command takes as one object.

A group is a frozen dataclass whose fields are options, or groups in turn. `grouped` lets a command take such objects:
on the command line the fields are options like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, get_type_hints

import typer

from sojourn.cli.configured import ClientAccess, client_access
from sojourn.cli.output import Block, Format, TableColumn, TableView, choose_format, write_rows
from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from sojourn.capture.packets import Interface
    from sojourn.client.collections import SinkClient
    from sojourn.client.query_unit import Client
    from sojourn.client.translation import Translation
    from sojourn.core.results import Result
    from sojourn.node.transports.http import HttpTransport

TABLE_ROWS = 20

InnerOption: TypeAlias = Annotated[
    bool, typer.Option("--inner", help="Look into IP-in-IP, 6in4, GRE, VXLAN and GTP-U tunnels.")
]
StrictOption: TypeAlias = Annotated[bool, typer.Option("--strict", help="Fail on a damaged capture.")]
VerboseOption: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Show what was ignored, by reason.")]
FormatOption: TypeAlias = Annotated[
    Format | None, typer.Option("--format", help="How to write; by default after the file's ending.")
]
LogFormatOption: TypeAlias = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="How stderr says what happens: lines for people, or JSON, one object a line."),
]
WriteOption: TypeAlias = Annotated[Path | None, typer.Option("--write", "-w", metavar="FILE", help="Write to a file.")]
KeyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--key",
        help="What makes a flow: five-tuple, host-pair, dest, prefix/LEN (of the destination; "
        "prefix/LEN,LEN6 for IPv6 apart) or vlan+five-tuple.",
    ),
]
WordsArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CAPTURE [FILTER]...",
        help="pcap or pcapng file, plain, gzip or zstd; - is stdin; none with -i. Then a filter in tcpdump's syntax.",
    ),
]
ForOption: TypeAlias = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="Capture so long (10s, 5min); else until Ctrl-C.")
]
SecretOption: TypeAlias = Annotated[
    Path, typer.Option("--pseudonyms", metavar="FILE", help="The nodes' key of pseudonyms (sojourn pseudonym key).")
]
NamesOption: TypeAlias = Annotated[
    Path | None, typer.Option("--names", metavar="FILE", help="Names that pseudonyms may stand for, one on a line.")
]
PromiscuousOption: TypeAlias = Annotated[
    bool, typer.Option("--promiscuous", help="Capture frames for others too, until the end of the capture.")
]
BufferOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--buffer", "-B", metavar="SIZE", help="Ring shared with the kernel, per interface. Default: 32MiB."),
]

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def command_group(purpose: str, example: str) -> typer.Typer:
    """A command with sub-commands."""
    return typer.Typer(
        help=purpose,
        epilog=f"Example:  {example}",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def grouped(command: Callable[Parameters, Returned]) -> Callable[..., Returned]:
    """A command whose dataclass parameters are options, one for each field."""
    flat = {one.name: one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in _options_of(command)}

    @wraps(command)
    def call(**given: Any) -> Returned:
        return command(**_in_groups(command, given))  # type: ignore[call-arg]

    call.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: one.annotation for name, one in flat.items()}
    return call


def gathered(group: Callable[..., Returned], given: Mapping[str, Any]) -> Returned:
    """A group of options, from the values that a command with these and others was called with."""
    return group(**_in_groups(group, {one.name: given[one.name] for one in _options_of(group)}))


def _in_groups(takes: Callable[..., object], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options as what takes them wants them: those of a group as one object."""
    groups = _groups_of(takes)
    inside = {one.name for group in groups.values() for one in _options_of(group)}
    alone = {name: value for name, value in given.items() if name not in inside}
    return alone | {name: gathered(group, given) for name, group in groups.items()}


def _groups_of(takes: Callable[..., object]) -> dict[str, type]:
    hints = get_type_hints(takes, include_extras=True)
    return {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}


def _options_of(takes: Callable[..., object]) -> list[inspect.Parameter]:
    hints, groups = get_type_hints(takes, include_extras=True), _groups_of(takes)
    found = []
    for name, one in inspect.signature(takes).parameters.items():
        found += _options_of(groups[name]) if name in groups else [one.replace(annotation=hints[name])]
    return found


@dataclass(frozen=True)
class Live:
    """Where packets come from if not from a file: what only a live capture takes, as the user wrote it."""

    interface: Annotated[
        str, typer.Option("--interface", "-i", metavar="IFACE", help="Capture live on this interface.")
    ] = ""
    duration: ForOption = None
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, metavar="N", help="End the live capture after N packets.")
    ] = None
    promiscuous: PromiscuousOption = False
    buffer: BufferOption = None

    def source(self, words: Sequence[str] | None, command: str) -> tuple[str | Interface, str]:
        """The file or the interface that is asked for, and the filter: with `-i` all words, else all but the first."""
        rest = list(words or [])
        if self.interface:
            refuse_files(rest, command)
            return self.capture_on(self.interface), " ".join(rest)
        if self != Live():
            raise UsageError(
                "--for, --count, --promiscuous and --buffer are for a live capture",
                where=command,
                action="give -i INTERFACE, or leave them out",
            )
        if not rest:
            raise UsageError("one source is needed", where=command, action="give a CAPTURE, or -i INTERFACE")
        return rest[0], " ".join(rest[1:])

    def capture_on(self, interface: str, **how: Any) -> Interface:
        """A capture on an interface under these limits."""
        from sojourn.capture.packets import Interface

        if self.duration is not None and parse_duration(self.duration, where="--for") <= 0:
            what = f"{self.duration!r} is no time to capture for"
            raise ParameterError(what, where="--for", action="give more than 0")
        if self.buffer is not None:
            how["ring_bytes"] = parse_bytes(self.buffer, where="--buffer")
        return Interface(
            interface,
            seconds=None if self.duration is None else parse_duration(self.duration) / 1e9,
            packets=self.count,
            promiscuous=self.promiscuous,
            **how,
        )


def refuse_files(words: Iterable[str], command: str) -> None:
    """Beside `-i`, words are a filter; a file among them is a misunderstanding."""
    for word in words:
        if word == "-" or Path(word).is_file():
            raise UsageError(f"{word} is a file, beside -i", where=command, action="give files or interfaces, not both")


@dataclass(frozen=True)
class Output:
    """How and where rows are written."""

    output_format: FormatOption = None
    output: WriteOption = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="Only so many rows; 0 is all. Default: 20 in a table, else all."),
    ] = None
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="Largest first by this: mean, p99, loss, packets, …")
    ] = ""
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B,…", help="Only these columns, by the names of the JSON output.")
    ] = ""
    wide: Annotated[bool, typer.Option("--wide", help="All columns of a table, however wide the terminal is.")] = False

    @property
    def how(self) -> Format:
        return choose_format(self.output_format, self.output)

    @property
    def view(self) -> TableView:
        names = tuple(name.strip() for name in self.columns.split(",") if name.strip())
        return TableView(sort=self.sort, columns=names, wide=self.wide, limit=self.limit or None)

    def write(self, result: Result, table: Sequence[TableColumn]) -> int:
        """Write a result's rows, framed by its fields in JSON; how many of them were left out."""
        limit = TABLE_ROWS if self.limit is None and self.how is Format.TABLE else self.limit
        rows = result.select(self.sort, limit or None)
        frame, view = result.fields(), replace(self.view, sort="", limit=None)
        write_rows(
            rows.blocks(), self.how, path=self.output, name=result.rows_name, fields=frame, table=table, view=view
        )
        return len(result) - len(rows)

    def stream(self, blocks: Iterable[Block], name: str) -> None:
        """Write rows as they come."""
        write_rows(blocks, self.how, path=self.output, name=name, view=self.view)


TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="A token; others see it in the list of processes. $SOJOURN_TOKEN."),
]
TokenFileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--token-file", envvar="SOJOURN_TOKEN_FILE", metavar="FILE", help="File with the token.")
]
CaFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="SOJOURN_CA_FILE",
        metavar="FILE",
        help="Certificates (PEM) to trust instead of the system's, for https and mqtts.",
    ),
]


@dataclass(frozen=True)
class UnitAccess:
    """A query unit, and what it is asked with: a group of options."""

    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            envvar="SOJOURN_SERVER",
            metavar="URL",
            help="The query unit's address, else client.toml's (sojourn config), else http://127.0.0.1:8080.",
        ),
    ] = None
    token: TokenOption = None
    token_file: TokenFileOption = None
    ca_file: CaFileOption = None

    def client(self, *, timeout_seconds: float | None = None, pseudonyms: Translation | None = None) -> Client:
        from sojourn.client.query_unit import TIMEOUT_SECONDS, Client

        how: dict[str, Any] = {"timeout_seconds": timeout_seconds or TIMEOUT_SECONDS, "pseudonyms": pseudonyms}
        access = self.settled()
        return Client(access.server, _token(access), ca_file=access.ca_file, **how)

    def sink_client(self) -> SinkClient:
        from sojourn.client.collections import SinkClient

        access = self.settled()
        return SinkClient(access.server, _token(access), ca_file=access.ca_file)

    def transport(self, node: str, spool: Path | None) -> HttpTransport:
        from sojourn.node.agent.configuration import instance_of
        from sojourn.node.transports.http import HttpTransport

        instance = instance_of(spool) if spool else None
        access = self.settled()
        return HttpTransport(access.server, _token(access), node=node, instance=instance, ca_file=access.ca_file)

    def settled(self) -> ClientAccess:
        """What counts, where files have a say, too."""
        return client_access(self.server, self.token, self.token_file, self.ca_file)


def _token(access: ClientAccess) -> str:
    from sojourn.client.query_unit import token_from

    return token_from(access.token, access.token_file)
