"""`sojourn agent`: the node unit on a machine with an operating system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.cli.options import CaFileOption
from sojourn.cli.output import say
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from sojourn.node.agent.configuration import AgentConfiguration

HELP = "Measure on this machine and send epochs to the query unit; answers about the current epoch, too."
EXAMPLE = (
    "Examples:  sojourn agent --node gateway-7 --server http://127.0.0.1:8080 --token-file token --spool spool "
    "--stream disk=disk_io --stream cpu=cpu --epoch 60s\n\n"
    "sojourn agent --node gateway-7 --server mqtts://broker.example --token-file token --spool spool --stream cpu=cpu"
)


def agent(
    configuration: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file; flags override it.")
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="The node's name.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="The query unit's address, or an MQTT broker's: mqtts://HOST.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the node's token (sojourn token create --role node).")
    ] = None,
    ca_file: CaFileOption = None,
    spool: Annotated[Path | None, typer.Option(metavar="DIR", help="Where epochs wait until acknowledged.")] = None,
    spool_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound of the spool; beyond it old epochs are merged.")
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", "-s", metavar="NAME=METRIC", help="Record a metric under a name; repeatable."),
    ] = None,
    instances: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only instances like 'mosquitto[*]', for the streams of --stream."),
    ] = None,
    epoch: Annotated[str | None, typer.Option(metavar="TIME", help="Length of the epochs of --stream.")] = None,
    poll: Annotated[str | None, typer.Option(metavar="TIME", help="How often sources are read.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the configuration is good.")] = False,
) -> None:
    """Run until Ctrl-C or SIGTERM, then close and send what is open."""
    from sojourn.node.agent.configuration import configuration_of, read_configuration

    tables: dict[str, Any] = read_configuration(configuration) if configuration else {}
    where = str(configuration) if configuration else "agent"
    flags: dict[str, object] = {"node": node, "server": server, "spool_limit": spool_limit, "poll": poll}
    paths = {"token_file": token_file, "ca_file": ca_file, "spool": spool}
    flags |= {name: str(path) for name, path in paths.items() if path is not None}
    tables |= {name: value for name, value in flags.items() if value is not None}
    if token_file:
        tables.pop("token", None)
    if stream:
        tables["streams"] = {**tables.get("streams", {}), **_streams(stream, instances, epoch)}
    elif instances or epoch:
        flag = "--instances" if instances else "--epoch"
        raise UsageError("there is no --stream that it could be for", where=flag, action="write it in the file")
    settled = configuration_of(tables, where=where)
    if check:
        _check(settled)
        return
    from sojourn.node.agent.running import run_agent

    run_agent(settled, report=say)


def _check(settled: AgentConfiguration) -> None:
    """Make every stream, without opening it; nothing is measured, written or sent."""
    from sojourn.node.agent.stream import AgentStream

    for stream in settled.streams:
        AgentStream(settled.node, stream, most_bytes=settled.memory.per_stream)
    print(f"{settled.node}: {len(settled.streams)} streams, epochs go to {settled.server}")


def _streams(texts: list[str], instances: list[str] | None, epoch: str | None) -> dict[str, dict[str, object]]:
    common: dict[str, object] = {"instances": instances} if instances else {}
    if epoch:
        common["epoch"] = epoch
    streams = {}
    for text in texts:
        name, equals, metric = text.partition("=")
        if not (name and equals and metric):
            raise UsageError(
                f"{text!r} is no stream", where="--stream", action="write NAME=METRIC, such as disk=disk_io"
            )
        streams[name] = {"metric": metric, **common}
    return streams
