"""Options whose values may also come from the environment and from configuration files (`core.host.settings`).

Of several values that on the command line counts, then ``SOJOURN_SERVE_PORT`` and the like (an option's long name in
capitals, behind the command's; where an option may be repeated, words between blanks), then the files, then the
default. Errors name the file that a value is from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from sojourn.cli.parameters import QuickCommand
from sojourn.core.errors import UsageError
from sojourn.core.host.settings import Settings, read_settings

DEFAULT_SERVER = "http://127.0.0.1:8080"
CLIENT_VARIABLES = {"server": "SOJOURN_SERVER", "token_file": "SOJOURN_TOKEN_FILE", "ca_file": "SOJOURN_CA_FILE"}
TOKEN_VARIABLE = "SOJOURN_TOKEN"
# Neither is a setting: each asks for something else than to run.
_NO_SETTINGS = {"help", "check"}
NOT_SHOWN = "(set, not shown)"


def option_key(parameter: Any) -> str:
    """What files call an option: its long name, with underscores; empty if it is not a setting."""
    long = next((name for name in parameter.opts if name.startswith("--")), "").lstrip("-").replace("-", "_")
    return "" if long in _NO_SETTINGS else long


class EnvironmentCommand(QuickCommand):
    """A command whose options have a variable each."""

    def get_params(self, context: Any) -> list[Any]:
        parameters = super().get_params(context)
        for parameter in parameters:
            variable = f"SOJOURN_{self.name}_{option_key(parameter)}".upper()
            if option_key(parameter) and (parameter.envvar is None or isinstance(parameter.envvar, str)):
                others = [] if parameter.envvar is None else [parameter.envvar]
                parameter.envvar = [variable, *others] if variable not in others else others
                parameter.show_envvar = bool(others)
        return parameters


class ConfiguredCommand(EnvironmentCommand):
    """A command whose options may also stand in the files of its name."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        is_completing = extra.get("resilient_parsing")
        settings = Settings() if is_completing else read_settings(str(self.name))
        extra["default_map"] = self._defaults(settings)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.BadParameter as error:
            name = getattr(error.param, "name", None)
            source = error.ctx.get_parameter_source(name) if error.ctx and name else None
            if source is None or source.name != "DEFAULT_MAP":
                raise
            key = option_key(error.param)
            raise UsageError(error.message.rstrip("."), where=f"{settings.origins[key]}, {key}") from None

    def _defaults(self, settings: Settings) -> dict[str, Any]:
        """Values by the names of parameters."""
        names = {option_key(one): one for one in self.params if option_key(one)}
        check_keys(settings, names)
        defaults = {}
        for key, value in settings.values.items():
            parameter = names[key]
            takes_many = bool(getattr(parameter, "multiple", False))
            values = value if isinstance(value, list) and takes_many else [value]
            if any(not isinstance(one, str | int | float) for one in values):
                raise UsageError("expected a text or a number", where=f"{settings.origins[key]}, {key}")
            defaults[parameter.name] = [str(one) for one in values] if takes_many else value
        return defaults


def check_keys(settings: Settings, known: Mapping[str, object]) -> None:
    """Refuse what nobody knows, with the likeliest name."""
    for key in settings.values:
        if key not in known:
            close = get_close_matches(key, known, 1)
            action = f"did you mean {close[0]}?" if close else f"use {', '.join(sorted(known))}"
            raise UsageError(f"{key[:40]!r} is unknown", where=str(settings.origins[key]), action=action)


@dataclass(frozen=True)
class Effective:
    """A setting, the value that counts, and where that is from."""

    section: str
    setting: str
    value: Any
    origin: str

    @property
    def shown(self) -> str:
        """The value as it may be seen: secrets are left out."""
        return without_secrets(self.setting, self.value)


def without_secrets(name: str, value: Any) -> str:
    """A value's text; of addresses, what only its owner may know is left out.

    >>> without_secrets("data", "postgresql+psycopg://sojourn:hunter2@db/sojourn")
    'postgresql+psycopg://sojourn:…@db/sojourn'
    >>> without_secrets("webhook", "https://hooks.example/T0/B0/secret")
    'https://hooks.example/…'
    """
    if value is None:
        return ""
    if name == "token":
        return NOT_SHOWN
    if isinstance(value, list | tuple):
        return ", ".join(without_secrets(name, one) for one in value)
    text = str(value)
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return NOT_SHOWN
    if name == "webhook":
        return f"{parts.scheme}://{parts.hostname}/…"
    user, at, _host = parts.netloc.rpartition("@")
    if ":" in user:
        text = text.replace(f"{user}{at}", f"{user.partition(':')[0]}:…@", 1)
    before, mark, _query = text.partition("?")
    return f"{before}?…" if mark else text


def client_settings() -> dict[str, Effective]:
    """Where commands ask, by setting, as far as their own flags do not say it."""
    settings = read_settings("client")
    check_keys(settings, CLIENT_VARIABLES)
    found = {"server": Effective("client", "server", DEFAULT_SERVER, "default")}
    for name, value in settings.values.items():
        if not isinstance(value, str) or not value:
            raise UsageError("expected a text", where=f"{settings.origins[name]}, {name}")
        found[name] = Effective("client", name, value, str(settings.origins[name]))
    for name, variable in {**CLIENT_VARIABLES, "token": TOKEN_VARIABLE}.items():
        if given := os.environ.get(variable):
            found[name] = Effective("client", name, given, f"${variable}")
    return found


@dataclass(frozen=True)
class ClientAccess:
    """A query unit's address, and what it is asked with."""

    server: str
    token: str | None
    token_file: Path | None
    ca_file: Path | None


def client_access(server: str | None, token: str | None, token_file: Path | None, ca_file: Path | None) -> ClientAccess:
    """What flags and variables say; where they leave something open, the files.

    A file's token and certificates are for the file's server: whoever names another has to say what it is asked with.
    """
    settings = read_settings("client")
    found = client_settings()
    configured = settings.values.get("server", DEFAULT_SERVER)
    address = server or found["server"].value
    if address == configured:
        if token_file is None and not token and not os.environ.get(TOKEN_VARIABLE) and "token_file" in settings.values:
            token_file = Path(settings.values["token_file"])
        if ca_file is None and "ca_file" in settings.values:
            ca_file = Path(settings.values["ca_file"])
    return ClientAccess(address, token, token_file, ca_file)
