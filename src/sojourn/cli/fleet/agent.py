"""`sojourn agent`: the node unit on a machine with an operating system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.configured import EnvironmentCommand
from sojourn.cli.options import CaFileOption, LogFormatOption
from sojourn.cli.output import logged_in_json, say

COMMAND = EnvironmentCommand
HELP = "Measure on this machine and send epochs to the query unit; answers about the current epoch, too."
EXAMPLE = (
    "Examples:  sojourn agent --node gateway-7 --server http://127.0.0.1:8080 --token-file token --spool spool "
    "--stream disk=disk_io --stream cpu=cpu --epoch 60s\n\n"
    "sojourn agent --node gateway-7 --server mqtts://broker.example --token-file token --spool spool --stream cpu=cpu"
)


def agent(
    configuration: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="TOML file instead of agent.toml; flags override it."),
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
    pseudonyms: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send pseudonyms of names and addresses (sojourn pseudonym key)."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Started as root: become this user once sources are open.")
    ] = None,
    capture: Annotated[
        bool | None,
        typer.Option(help="With --user: keep the right to open interfaces, or not; by default if a stream needs it."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the configuration is good.")] = False,
    log_format: LogFormatOption = "text",
) -> None:
    """Run until Ctrl-C or SIGTERM, then close and send what is open."""
    from sojourn.node.agent.flags import AgentFlags, checked

    flags = AgentFlags(
        configuration=configuration,
        node=node,
        server=server,
        token_file=token_file,
        ca_file=ca_file,
        spool=spool,
        spool_limit=spool_limit,
        stream=stream,
        instances=instances,
        epoch=epoch,
        poll=poll,
        pseudonyms=pseudonyms,
        user=user,
        capture=capture,
    )
    settled = flags.settled()
    if check:
        print(checked(settled))
        return
    from sojourn.node.agent.running import run_agent

    run_agent(settled, report=logged_in_json("sojourn.agent") if log_format == "json" else say)
