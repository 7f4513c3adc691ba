"""`sojourn doctor`: whether this machine is fit to measure, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sojourn.cli.configured import client_settings
from sojourn.cli.output import console, print_json
from sojourn.core.errors import SojournError, harmless
from sojourn.core.host.settings import files_of

if TYPE_CHECKING:
    from sojourn.doctor.finding import Check, Finding

HELP = "Check this machine: kernel, privileges, interfaces, clock, disks, configuration, tokens' modes, the query unit."
EXAMPLE = "Examples:  sojourn doctor\n\nsojourn doctor --format json | jq '.findings[] | select(.verdict != \"ok\")'"
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# Of an agent's configuration: files that nobody else may read.
_SECRETS = ("token_file", "key", "pseudonyms")


def doctor(
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write.")] = "table",
) -> None:
    """Print a line for each check; exit code 1 if one failed. Needs no root and changes nothing."""
    from sojourn.doctor.finding import findings
    from sojourn.doctor.machine import CHECKS

    found = findings([*CHECKS, *_configured()])
    failed = sum(one.verdict == "fail" for one in found)
    if output == "json":
        rows = [{"verdict": one.verdict, "check": one.check, "what": one.what, "action": one.action} for one in found]
        print_json({"failed": failed, "findings": rows})
    else:
        _print(found)
    if failed:
        raise typer.Exit(1)


def _print(found: list[Finding]) -> None:
    from rich.text import Text

    out = console()
    for one in found:
        words = f"  {one.check:<14}  {one.what}" + (f"\n{'':22}→ {one.action}" if one.action else "")
        lines = "\n".join(harmless(line) for line in words.split("\n"))
        out.print(Text.assemble((f"{one.verdict:<4}", _STYLES[one.verdict]), lines), soft_wrap=True)


def _configured() -> Iterable[tuple[str, Check]]:
    """Checks of what is configured on this machine."""
    for section, checks in (("agent", _of_agent), ("serve", _of_serve), ("client", _of_client)):
        if section == "client" or files_of(section):
            yield section, partial(_of_section, section, checks)


def _of_section(section: str, checks: Any) -> Iterable[Finding]:
    from sojourn.doctor.finding import Finding

    try:
        yield from checks()
    except SojournError as error:
        yield Finding("fail", section, str(error), f"mend it; sojourn config check {section} says when it is good")


def _of_agent() -> Iterable[Finding]:
    from sojourn.cli.config import CHECKS, agent_tables
    from sojourn.doctor.configured import directory, reachable, secret
    from sojourn.doctor.finding import Finding

    tables = agent_tables()
    for name in _SECRETS:
        if name in tables:
            yield from secret(f"agent's {name.replace('_', ' ')}", Path(str(tables[name])))
    if "token" in tables:
        for path in files_of("agent"):
            yield from secret("agent's token", path)
    if "spool" in tables:
        yield from directory("agent's spool", Path(str(tables["spool"])))
    yield Finding("ok", "agent", CHECKS["agent"]())
    if "server" in tables:
        ca_file = Path(str(tables["ca_file"])) if "ca_file" in tables else None
        yield from reachable("agent's server", str(tables["server"]), ca_file)


def _of_serve() -> Iterable[Finding]:
    from sojourn.cli.config import CHECKS
    from sojourn.cli.fleet.serve import configured_data
    from sojourn.core.host.settings import read_settings
    from sojourn.doctor.configured import directory, secret
    from sojourn.doctor.finding import Finding

    values = read_settings("serve").values
    data = configured_data(None)
    for name in ("tls_key", "mqtt_password_file", "mqtt_key"):
        if name in values:
            yield from secret(f"serve's {name}", Path(str(values[name])))
    if "://" not in data:
        yield from directory("serve's data", Path(data))
        if (token := Path(data, "admin-token")).exists():
            yield from secret("admin's token", token)
    yield Finding("ok", "serve", CHECKS["serve"]())


def _of_client() -> Iterable[Finding]:
    from sojourn.doctor.configured import reachable, secret

    found = client_settings()
    if "token_file" in found:
        yield from secret("token", Path(found["token_file"].value))
    if found["server"].origin != "default":
        ca_file = Path(found["ca_file"].value) if "ca_file" in found else None
        yield from reachable("query unit", found["server"].value, ca_file)
