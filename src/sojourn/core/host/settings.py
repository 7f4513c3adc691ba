"""Configuration files: where they lie, and which of several values counts.

A section (`agent`, `client`, `serve`) is a TOML file of that name in each of these directories; a later one wins,
value by value, over those before it, and what stands in the environment or on the command line wins over all files:

1. ``/etc/sojourn``: the machine's;
2. ``sojourn`` in each directory of ``XDG_CONFIG_DIRS``, the last of them first (``/etc/xdg`` where it is not set);
3. ``sojourn`` in ``XDG_CONFIG_HOME`` (``~/.config`` where it is not set): the user's.

Tables in a file (an agent's streams) are joined name by name. Guarantee: a file that is there and cannot be read, or
is no TOML, is an error that names it; it is never left out. Cost: a look at three files, which mostly are not there.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.core.errors import UsageError

SECTIONS = ("agent", "client", "serve")
MAX_FILE_BYTES = 1 << 20
# Of these one is enough: a layer that has one takes the place of the others in the layers below it.
_ALTERNATIVES = ({"token", "token_file"},)


@dataclass(frozen=True)
class Settings:
    """The values of a section, and which file each is from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Path] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The files that something is from, each once."""
        return list(dict.fromkeys(self.origins.values()))


def directories() -> list[Path]:
    """Where files may lie, the weakest first."""
    shared = [part for part in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if part]
    found = [Path("/etc/sojourn"), *(Path(part, "sojourn") for part in reversed(shared))]
    if home := os.environ.get("XDG_CONFIG_HOME") or _usual_home():
        found.append(Path(home, "sojourn"))
    return list(dict.fromkeys(path for path in found if path.is_absolute()))


def _usual_home() -> str:
    """The user's own directory; empty where nobody knows of one."""
    home = os.path.expanduser("~")
    return "" if home == "~" else os.path.join(home, ".config")


def files_of(section: str) -> list[Path]:
    """The section's files that are there, the weakest first."""
    return [path for folder in directories() if (path := folder / f"{section}.toml").exists()]


def read_settings(section: str) -> Settings:
    """What all files of a section say together; options may be written with dashes or underscores."""
    settings = Settings()
    for path in files_of(section):
        for name, value in read_tables(path).items():
            _take(settings, name.replace("-", "_"), value, path)
    return settings


def _take(settings: Settings, name: str, value: Any, path: Path) -> None:
    for others in _ALTERNATIVES:
        if name in others:
            for other in others - {name}:
                if settings.origins.get(other) != path:
                    settings.values.pop(other, None)
                    settings.origins.pop(other, None)
    before = settings.values.get(name)
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        value = {**before, **value}
    settings.values[name] = value
    settings.origins[name] = path


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"it exceeds {MAX_FILE_BYTES} bytes", where=str(path))
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not TOML: {error}", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path), action="see its mode") from None
