"""`sojourn-node`: the agent as a program of the standard library alone, for boards on which nothing else is installed.

The same flags and file as `sojourn agent`, the same agent. It records metrics; a stream of packets needs all of
Sojourn, and is refused with the command that installs it. What is imported is imported where Ctrl-C is heeded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

EXAMPLE = (
    "example:  sojourn-node --node gateway-7 --server http://127.0.0.1:8080 --token-file token --spool spool "
    "--stream cpu=cpu --epoch 60s"
)


def _parser() -> argparse.ArgumentParser:
    import argparse
    from pathlib import Path

    from sojourn import __version__

    parser = argparse.ArgumentParser(
        prog="sojourn-node",
        description="Measure on this machine and send epochs to the query unit; answers about the current epoch, too.",
        epilog=EXAMPLE,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"sojourn-node {__version__}")
    add("--config", "-c", dest="configuration", type=Path, metavar="FILE", help="TOML file; flags override it.")
    add("--node", metavar="NAME", help="The node's name.")
    add("--server", metavar="URL", help="The query unit's address, or an MQTT broker's: mqtts://HOST.")
    add("--token-file", type=Path, metavar="FILE", help="File with the node's token.")
    add("--ca-file", type=Path, metavar="FILE", help="Certificates (PEM) to trust instead of the system's.")
    add("--spool", type=Path, metavar="DIR", help="Where epochs wait until acknowledged.")
    add("--spool-limit", metavar="SIZE", help="Bound of the spool; beyond it old epochs are merged.")
    add("--stream", "-s", action="append", metavar="NAME=METRIC", help="Record a metric under a name; repeatable.")
    add("--instances", action="append", metavar="PATTERN", help="Only instances like 'mosquitto[*]'; repeatable.")
    add("--epoch", metavar="TIME", help="Length of the epochs of --stream.")
    add("--poll", metavar="TIME", help="How often sources are read.")
    add("--pseudonyms", type=Path, metavar="FILE", help="Key under which names and addresses are sent as pseudonyms.")
    add("--user", metavar="NAME", help="Started as root: become this user once sources are open.")
    add("--check", action="store_true", help="Only say whether the configuration is good.")
    return parser


def _say(line: str) -> None:
    from contextlib import suppress

    from sojourn.core.errors import harmless

    with suppress(OSError):
        print(harmless(f"sojourn-node: {line}"), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; ends with 0 after a stop, 2 for a wrong configuration, 1 where the query unit refuses."""
    try:
        sys.exit(_run(arguments))
    except KeyboardInterrupt:
        print("sojourn-node: interrupted", file=sys.stderr)
        sys.exit(130)


def _run(arguments: Sequence[str] | None) -> int:
    import gc
    import os

    from sojourn.core.errors import SojournError

    gc.set_threshold(50_000)  # modules stay: not worth a look every 700 objects
    parser = _parser()
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    if not any(given.values()):
        parser.print_help(sys.stderr)
        return 2
    try:
        _record(is_check=given.pop("check"), flags=given)
    except SojournError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except Exception as error:
        if os.environ.get("SOJOURN_TRACEBACK"):
            raise
        fault = f"{type(error).__name__}: {error}"
        _say(f"a fault of ours, please report it ({fault}); SOJOURN_TRACEBACK=1 shows where")
        return 70
    return 0


def _record(*, is_check: bool, flags: dict[str, Any]) -> None:
    from sojourn.node.agent.flags import AgentFlags, checked

    settled = AgentFlags(**flags).settled()
    if is_check:
        print(checked(settled))
        return
    from sojourn.node.agent.running import run_agent

    run_agent(settled, report=_say)


if __name__ == "__main__":
    main()
