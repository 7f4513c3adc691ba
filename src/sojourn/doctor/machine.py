"""Checks of the machine: Python and its libraries, kernel, privileges, interfaces, clock, compiled code.

None needs root, none changes or sends anything, each takes milliseconds (the clock's daemon is asked for at most two
seconds). What cannot be seen without root is said to be so.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from sojourn import __version__
from sojourn.core.compiling import cache_directory
from sojourn.core.errors import SojournError
from sojourn.core.host.privileges import capabilities_of
from sojourn.core.units import format_duration
from sojourn.doctor.finding import Finding, Verdict
from sojourn.node.agent.clock import kernel_clock

LIVE = "commands on files work; live ones need Linux"
# The clock's greatest error that leaves delays between two machines worth reading.
LARGEST_ERROR_NS = 10_000_000
_EVENT = "events/block/block_bio_queue/enable"
_CHRONY_SECONDS = 2.0
# linux/ethtool.h
_SWITCHES = {"gro": 0x2B, "gso": 0x23, "tso": 0x1E}
_PACKAGE = Path(__file__).resolve().parents[1]


def python() -> Iterator[Finding]:
    """The interpreter and the system."""
    here = f"Sojourn {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    verdict: Verdict = "ok" if sys.version_info >= (3, 11) else "fail"
    yield Finding(verdict, "version", here, "" if verdict == "ok" else "install Python 3.11 or later")
    if sys.platform != "linux":
        yield Finding("warn", "system", f"{platform.system()}: {LIVE}")


def libraries() -> Iterator[Finding]:
    """What the distribution asks for, and what it would use if it were there."""
    there: list[str] = []
    missing: list[str] = []
    absent: dict[str, set[str]] = {}
    for line in requires("sojourn") or ():
        requirement, _, extra = line.partition("; extra == ")
        name = re.split(r"[<>=!~\[; ]", requirement)[0]
        try:
            found = f"{name} {version(name)}"
        except PackageNotFoundError:
            if extra:
                absent.setdefault(extra.strip("'\" "), set()).add(name)
            else:
                missing.append(name)
        else:
            if not extra:
                there.append(found)
    if missing:
        yield Finding(
            "fail", "libraries", f"{', '.join(missing)} not installed", "pip install --force-reinstall sojourn"
        )
    else:
        yield Finding("ok", "libraries", ", ".join(there))
    if without := sorted(set(absent) - {"dev", "fuzz"}):
        yield Finding("ok", "extras", f"not installed: {', '.join(without)} (pip install 'sojourn[EXTRA]' adds one)")


def capturing() -> Iterator[Finding]:
    """Whether interfaces can be captured from, and whether too much is allowed."""
    if not hasattr(socket, "AF_PACKET"):
        yield Finding("warn", "capture", "there are no packet sockets here", LIVE)
        return
    held = capabilities_of(Path("/proc/self/status").read_text())
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0).close()
    except PermissionError:
        action = "run as root, or as a service with AmbientCapabilities=CAP_NET_RAW (docs/deploy.md)"
        yield Finding("warn", "capture", "no permission to open interfaces (CAP_NET_RAW)", action)
    except OSError as error:
        yield Finding("fail", "capture", f"packet sockets: {error.strerror}", "load the module af_packet")
    else:
        yield Finding("ok", "capture", "interfaces can be opened (CAP_NET_RAW)")
    if os.geteuid() == 0:
        others = len(held - {"net_raw"})
        what = f"this runs as root{', with all capabilities' if others > 3 else ''}"
        yield Finding("warn", "privileges", what, "let services run as a user of their own; agents take --user")
    else:
        yield Finding("ok", "privileges", f"user {os.geteuid()}, {', '.join(sorted(held)) or 'no capabilities'}")


def tracing() -> Iterator[Finding]:
    """Whether block IO can be traced, which counts disk operations rather than system calls."""
    from sojourn.sources.block_trace import tracefs_folder

    instead = "disk_io then counts system calls of this user's processes"
    try:
        event = tracefs_folder() / _EVENT
    except SojournError as error:
        yield Finding("warn", "tracefs", f"{error.what}; {instead}", error.action)
        return
    if os.access(event, os.W_OK):
        yield Finding("ok", "tracefs", f"block operations can be traced ({event.parents[3]})")
    elif os.geteuid() == 0:
        yield Finding(
            "warn", "tracefs", f"the kernel has no block_bio_queue; {instead}", "use one with CONFIG_BLK_DEV_IO_TRACE"
        )
    else:
        yield Finding("warn", "tracefs", f"needs root; {instead}", "start the agent as root with --user")


def interfaces() -> Iterator[Finding]:
    """Which interfaces there are, and whether cards put packets together in a way that cannot be undone."""
    if not hasattr(socket, "AF_PACKET"):
        return
    from sojourn.capture.live.ring import ethtool_value, receives_large

    shown = []
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as endpoint:
        for _, name in socket.if_nameindex():
            if receives_large(endpoint, name):
                yield Finding(
                    "warn",
                    "offloads",
                    f"{name} puts received packets together in a way that cannot be undone (LRO)",
                    f"ethtool -K {name} lro off",
                )
            on = [switch for switch, command in _SWITCHES.items() if ethtool_value(endpoint, name, command)]
            shown.append(f"{name} ({', '.join(on)})" if on else name)
    yield Finding("ok", "interfaces", f"{'; '.join(shown) or 'none'}: packets are split again as the kernel tells")


def clock() -> Iterator[Finding]:
    """Whether the clock is synchronised: delays between two machines are only as good as their clocks."""
    said = kernel_clock()
    if said is None:
        yield Finding("ok", "clock", "the system does not say whether it is synchronised")
        return
    by = _chrony()
    if not said.synchronised:
        action = "start chrony, ntpd or systemd-timesyncd; segments between machines are then reported with an offset"
        what = f"the kernel knows of no synchronisation{by}"
        yield Finding("warn", "clock", what, action if not by else "see why: chronyc tracking")
        return
    error_ns = said.error_ns
    what = f"synchronised, off by at most {format_duration(error_ns)}{by}"
    if error_ns > LARGEST_ERROR_NS:
        yield Finding("warn", "clock", what, "delays between machines are no better; use a nearer time server, or PTP")
    else:
        yield Finding("ok", "clock", what)


def _chrony() -> str:
    """What chrony says, if it runs here."""
    if (program := shutil.which("chronyc")) is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        done = subprocess.run(
            [program, "-n", "-c", "tracking"], capture_output=True, text=True, timeout=_CHRONY_SECONDS, check=True
        )
        fields = done.stdout.strip().split(",")
        return f" (chrony: {format_duration(abs(float(fields[4])) * 1e9)} from {fields[1] or 'no source'})"
    return ""


def compiled() -> Iterator[Finding]:
    """Where compiled code is kept, and whether there is any."""
    found = cache_directory()
    if found is None:
        what = "nothing can be kept: every command compiles anew, half a minute each time"
        yield Finding("warn", "compiled code", what, "set SOJOURN_CACHE_DIR to a directory that can be written")
        return
    kept = next(found.rglob("*.nbc"), None) or next(_PACKAGE.rglob("*.nbc"), None)
    if kept is None:
        yield Finding("warn", "compiled code", f"none yet in {found}; the first command compiles", "sojourn warm-up")
    else:
        yield Finding("ok", "compiled code", f"kept in {found}")


CHECKS = (
    ("version", python),
    ("libraries", libraries),
    ("capture", capturing),
    ("tracefs", tracing),
    ("interfaces", interfaces),
    ("clock", clock),
    ("compiled code", compiled),
)
