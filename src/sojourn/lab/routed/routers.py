"""A router of the lab: FRRouting's zebra and ospfd in a network namespace, with a run directory of their own.

The daemons find that directory at ``/var/run/frr``, as on a machine with one router, so that ``vtysh`` works when run
on a router; from outside its sockets are in `Router.folder`. What the daemons would leave in ``/var/tmp`` goes to a
file system of their own that vanishes with them.

Hellos are sent every second. A failed link is noticed at once, by its carrier; a silent neighbour after
`DEAD_SECONDS`, long enough for hellos to get through a bottleneck that loses half of all packets.
Memory: about 11 MB a router.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.namespaces import Host, run_command
from sojourn.lab.routed.plan import LabPlan, Node

DAEMONS = ("zebra", "ospfd")
DEAD_SECONDS = 20
VTYSH_SECONDS = 20.0
_DAEMON_FOLDERS = ("/usr/lib/frr", "/usr/libexec/frr", "/usr/lib64/frr", "/usr/sbin")
_OWNER = "frr"
_AT_RUN = 'mkdir -p /var/run/frr && mount --bind "$0" /var/run/frr && exec "$@"'
_OWN_TEMPORARY = 'mount -t tmpfs -o size=4m sojourn /var/tmp && exec "$@"'


def check_frr() -> None:
    """Refuse where FRRouting is not installed."""
    found = [_daemon(name) for name in DAEMONS]
    if None in found or shutil.which("vtysh") is None:
        missing = [name for name, path in zip(DAEMONS, found, strict=True) if path is None] or ["vtysh"]
        raise UsageError(f"missing commands: {', '.join(missing)}", where="lab", action="install the package frr")


def _daemon(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(_DAEMON_FOLDERS))


@dataclass
class Router(Host):
    """A namespace with routing daemons; commands that run in it see their sockets at ``/var/run/frr``."""

    folder: Path = Path()

    def within(self, *command: str) -> list[str]:
        return super().within("sh", "-c", _AT_RUN, str(self.folder), *command)

    def vtysh(self, *commands: str, timeout: float = VTYSH_SECONDS) -> str:
        """What the router answers to commands."""
        options = [part for command in commands for part in ("-c", command)]
        return run_command("vtysh", "--vty_socket", str(self.folder), *options, timeout=timeout)

    def vtysh_json(self, command: str) -> Any:
        """The answer to a command that ends in ``json``."""
        text = self.vtysh(command)
        try:
            return json.loads(text)
        except ValueError:
            raise SojournError(f"{command!r} gave no JSON: {text.strip()[:80]!r}", where=self.name) from None

    def configure(self, plan: LabPlan) -> None:
        """Write the configuration of both daemons."""
        self.folder.mkdir()
        self.folder.chmod(0o755)
        try:
            shutil.chown(self.folder, _OWNER, _OWNER)
        except LookupError:
            raise UsageError("there is no user frr", where="lab", action="install the package frr") from None
        header = f"hostname {plan.node(self.name).label}\nlog file /var/run/frr/{{}}.log warnings\n"
        for daemon, lines in zip(DAEMONS, ([], _ospf(plan, plan.node(self.name))), strict=True):
            text = header.format(daemon) + "\n".join(lines) + "\n"
            path = self.folder / f"{daemon}.conf"
            path.write_text(text)
            path.chmod(0o644)  # the daemons' user reads it, whatever the caller's mask

    def start_daemon(self, daemon: str) -> None:
        """Start zebra or ospfd; back when it is ready."""
        program = _daemon(daemon)
        assert program is not None
        options = ("-d", "-f", str(self.folder / f"{daemon}.conf"), "-A", "127.0.0.1", "-P", "0")
        try:
            self.run("sh", "-c", _OWN_TEMPORARY, "sh", program, *options)
        except SojournError as error:
            raise SojournError(f"{daemon} does not start: {error.what}", where=f"router {self.name}") from None


def daemon_pids(folder: Path) -> dict[str, int]:
    """By daemon the processes that a router's pid files name, as far as they still are what they were."""
    pids = {}
    for daemon in DAEMONS:
        try:
            pid = int((folder / f"{daemon}.pid").read_text()[:20])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if str(folder / f"{daemon}.conf").encode() in words:
            pids[daemon] = pid
    return pids


def _ospf(plan: LabPlan, node: Node) -> Sequence[str]:
    """ospfd's configuration: point-to-point links with their costs, the loopback, and hosts' networks."""
    lines = ["interface lo", " ip ospf area 0"]
    passive = []
    for end, link in plan.ends_of(node.name):
        lines += [f"interface {end.interface}", " ip ospf area 0", f" ip ospf cost {end.cost}"]
        lines += [
            " ip ospf network point-to-point",
            " ip ospf hello-interval 1",
            f" ip ospf dead-interval {DEAD_SECONDS}",
            " ip ospf retransmit-interval 1",
        ]
        passive += [f" passive-interface {end.interface}"] if link.is_host else []
    timers = [" timers throttle spf 0 50 500", " timers throttle lsa all 50", " timers lsa min-arrival 20"]
    return [*lines, "router ospf", f" ospf router-id {node.address}", *timers, *passive]
