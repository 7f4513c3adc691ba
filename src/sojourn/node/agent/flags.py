"""What an agent is told on the command line: flags that override its file, the same for every program that runs one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.core.errors import UsageError
from sojourn.core.host.settings import Settings, read_settings, read_tables
from sojourn.core.units import plural
from sojourn.node.agent.configuration import AgentConfiguration, configuration_of


@dataclass(frozen=True, kw_only=True)
class AgentFlags:
    """The flags as they were given; what was not is None."""

    configuration: Path | None = None
    node: str | None = None
    server: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    spool: Path | None = None
    spool_limit: str | None = None
    stream: Sequence[str] | None = None
    instances: Sequence[str] | None = None
    epoch: str | None = None
    poll: str | None = None
    pseudonyms: Path | None = None
    user: str | None = None
    capture: bool | None = None

    def settled(self) -> AgentConfiguration:
        """The files and the flags as a configuration, which was checked."""
        settings = self.settings()
        return configuration_of(settings.values, where=", ".join(map(str, settings.files)) or "agent")

    def settings(self) -> Settings:
        """What the files say (the one that is named, else those of the machine and the user), and over it the flags."""
        if self.configuration:
            tables = read_tables(self.configuration)
            found = Settings(tables, dict.fromkeys(tables, self.configuration))
        else:
            found = read_settings("agent")
        return Settings(self._over(dict(found.values)), found.origins)

    def _over(self, tables: dict[str, Any]) -> dict[str, Any]:
        flags: dict[str, object] = {
            "node": self.node,
            "server": self.server,
            "spool_limit": self.spool_limit,
            "poll": self.poll,
            "user": self.user,
            "capture": self.capture,
        }
        paths = {"token_file": self.token_file, "ca_file": self.ca_file, "spool": self.spool}
        paths["pseudonyms"] = self.pseudonyms
        flags |= {name: str(path) for name, path in paths.items() if path is not None}
        tables |= {name: value for name, value in flags.items() if value is not None}
        if self.token_file:
            tables.pop("token", None)
        if self.stream:
            tables["streams"] = {**tables.get("streams", {}), **self._streams(self.stream)}
        elif self.instances or self.epoch:
            flag = "--instances" if self.instances else "--epoch"
            raise UsageError("there is no --stream that it could be for", where=flag, action="write it in the file")
        return tables

    def _streams(self, texts: Sequence[str]) -> dict[str, dict[str, object]]:
        common: dict[str, object] = {"instances": list(self.instances)} if self.instances else {}
        if self.epoch:
            common["epoch"] = self.epoch
        streams = {}
        for text in texts:
            name, equals, metric = text.partition("=")
            if not (name and equals and metric):
                raise UsageError(
                    f"{text!r} is no stream", where="--stream", action="write NAME=METRIC, such as disk=disk_io"
                )
            streams[name] = {"metric": metric, **common}
        return streams


def checked(settled: AgentConfiguration) -> str:
    """Make every stream, without opening it; nothing is measured, written or sent. What there is to say of it."""
    from sojourn.node.agent.stream import AgentStream

    for stream in settled.streams:
        AgentStream(settled.node, stream, most_bytes=settled.memory.per_stream, pseudonyms=settled.pseudonyms)
    under = "" if settled.pseudonyms is None else f", instances by pseudonyms ({settled.pseudonyms.fingerprint})"
    return f"{settled.node}: {plural(len(settled.streams), 'stream')}, epochs go to {settled.server}{under}"
