"""`sojourn config`: what configuration files and variables say, and whether that is good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sojourn.cli.configured import ClientAccess, Effective, client_access, client_settings, option_key
from sojourn.cli.options import command_group, gathered
from sojourn.cli.output import Format as RowFormat
from sojourn.cli.output import columns, print_json, say, write_rows
from sojourn.core.errors import UsageError
from sojourn.core.host.settings import SECTIONS, directories, files_of, read_settings
from sojourn.core.units import format_bytes

app = command_group(
    "Show what serve, agent and the commands that ask are configured to do, and check it.", "sojourn config show serve"
)
SectionArgument = Annotated[
    Literal["agent", "client", "serve"] | None, typer.Argument(help="One section; by default all that have a file.")
]
# What an agent takes where nobody says otherwise.
_AGENT_DEFAULTS = ("spool_limit", "poll", "stream_memory", "memory")
_TABLE = columns("section", "setting", "value", "from", left=True)


@app.command(epilog="Example:  sojourn config show serve")
def show(
    section: SectionArgument = None,
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write.")] = "table",
) -> None:
    """Print the values that count, and where each is from: a file, a variable or the default. Secrets are not shown."""
    found = [one for name in _asked(section) for one in _effective(name)]
    rows = [{"section": one.section, "setting": one.setting, "value": one.shown, "from": one.origin} for one in found]
    if output == "json":
        print_json({"directories": [str(path) for path in directories()], "settings": rows})
        return
    block = {name: [row[name] for row in rows] for name in ("section", "setting", "value", "from")}
    write_rows([block], RowFormat.TABLE, name="settings", fields={}, table=_TABLE)


@app.command(epilog="Example:  sojourn config check")
def check(section: SectionArgument = None) -> None:
    """Check files and variables as serve, agent and the commands that ask will; nothing is started, written or sent."""
    for name in _asked(section):
        files = ", ".join(map(str, files_of(name))) or "no file"
        print(f"{name}: {CHECKS[name]()} ({files})")


def _asked(section: str | None) -> list[str]:
    """The section that was named, or those that somebody has said something of."""
    if section is not None:
        return [section]
    found = [name for name in SECTIONS if files_of(name)]
    if not found:
        say(f"there are no configuration files; they would lie in {', '.join(map(str, reversed(directories())))}")
    return found or ["client"]


def _effective(section: str) -> list[Effective]:
    if section == "client":
        return list(client_settings().values())
    return _of_serve() if section == "serve" else _of_agent()


def _context(command: str) -> Any:
    """What the command would be called with, were it called without flags."""
    from sojourn.cli.main import load_command

    return load_command(command).make_context(command, [])


def _origin(context: Any, parameter: Any) -> str:
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        named = [variable for variable in parameter.envvar if os.environ.get(variable)]
        return f"${named[0]}"
    return "" if source is not None and source.name == "DEFAULT_MAP" else "default"


def _of_serve() -> list[Effective]:
    from sojourn.cli.fleet.serve import default_data

    context, settings = _context("serve"), read_settings("serve")
    found = []
    for parameter in context.command.params:
        key = option_key(parameter)
        value = context.params.get(parameter.name)
        if key == "data" and value is None:
            value = str(default_data())
        if key and value not in (None, []):
            origin = _origin(context, parameter) or str(settings.origins[key])
            found.append(Effective("serve", key, value, origin))
    return found


def _of_agent() -> list[Effective]:
    from sojourn.node.agent.configuration import DEFAULT_LIMITS, DEFAULT_POLL, DEFAULT_SPOOL_LIMIT

    context = _context("agent")
    given = {option_key(one): _origin(context, one) for one in context.command.params}
    settings = _agent_flags(context).settings()
    limits = (format_bytes(DEFAULT_LIMITS.per_stream), format_bytes(DEFAULT_LIMITS.together))
    defaults = dict(zip(_AGENT_DEFAULTS, (DEFAULT_SPOOL_LIMIT, DEFAULT_POLL, *limits), strict=True))
    found = []
    for name, value in {**defaults, **settings.values}.items():
        origin = given.get(name, "default")
        if origin in ("", "default"):
            origin = str(settings.origins.get(name, "default"))
        if name == "streams" and isinstance(value, dict):
            found += [Effective("agent", f"streams.{stream}", _told(table), origin) for stream, table in value.items()]
        else:
            found.append(Effective("agent", name, value, origin))
    return found


def _told(table: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in table.items()) if isinstance(table, dict) else str(table)


def _agent_flags(context: Any) -> Any:
    from sojourn.node.agent.flags import AgentFlags

    others = {"check", "log_format"}
    return AgentFlags(**{name: value for name, value in context.params.items() if name not in others})


def agent_tables() -> dict[str, Any]:
    """What an agent that is started without flags finds in its files and variables."""
    values: dict[str, Any] = _agent_flags(_context("agent")).settings().values
    return values


def _check_serve() -> str:
    from sojourn.cli.fleet.serve import ServeFlags

    options = gathered(ServeFlags, _context("serve").params).settled()
    return f"good, {options.scheme}://{options.host}:{options.port}"


def _check_agent() -> str:
    from sojourn.node.agent.flags import checked

    return f"good, {checked(_agent_flags(_context('agent')).settled())}"


def _check_client() -> str:
    from sojourn.client.query_unit import token_from
    from sojourn.node.transports.exchange import checked_address, trusting

    found = client_settings()
    paths: dict[str, Path] = {name: Path(one.value) for name, one in found.items() if name in ("token_file", "ca_file")}
    access: ClientAccess = client_access(os.environ.get("SOJOURN_SERVER"), None, **_own(paths, found))
    checked_address(access.server, where=found["server"].origin)
    if access.ca_file is not None:
        trusting(access.ca_file)
    try:
        token_from(access.token, access.token_file)
    except UsageError as error:
        if error.where:
            raise
        return f"good, asks {access.server}, but no token is configured"
    return f"good, asks {access.server}"


def _own(paths: Mapping[str, Path], found: dict[str, Effective]) -> dict[str, Any]:
    """Of the paths those that variables name, as flags would; files have their say afterwards."""
    return {
        name: paths[name] if name in paths and found[name].origin.startswith("$") else None
        for name in ("token_file", "ca_file")
    }


CHECKS = {"agent": _check_agent, "client": _check_client, "serve": _check_serve}
