"""What a service manager is told: that a program is ready, that it still works, that it ends (systemd's ``sd_notify``).

A line of text to the datagram socket that ``NOTIFY_SOCKET`` names; without one nothing happens, so that callers need
not ask. Where the unit has a watchdog (``WATCHDOG_USEC``), `Watchdog.alive` says at most twice in its time that work
goes on: who calls it from the loop that does the work is started again when that loop hangs. Guarantee: never raises,
never waits. Cost: a system call; a comparison where nothing is due.
"""

from __future__ import annotations

import os
import socket
import time


def notify(state: str) -> bool:
    """Tell the service manager, such as ``READY=1``; whether there was one to tell."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@" or not hasattr(socket, "AF_UNIX"):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as endpoint:
            endpoint.setblocking(False)
            # An address in the kernel's own name space is written with an @.
            endpoint.connect(address if address[0] == "/" else f"\0{address[1:]}")
            endpoint.send(state.encode())
    except OSError:
        return False
    return True


def ready(status: str) -> None:
    """The program does its work from now on."""
    notify(f"READY=1\nSTATUS={status}")


def stopping() -> None:
    """The program was asked to end, and does."""
    notify("STOPPING=1")


class Watchdog:
    """Says that work goes on, as often as the service manager wants to hear it."""

    def __init__(self) -> None:
        self.seconds = _interval()
        self._next = 0.0

    def alive(self) -> None:
        """Called when a round of the work is done."""
        if self.seconds and (now := time.monotonic()) >= self._next:
            self._next = now + self.seconds
            notify("WATCHDOG=1")


def _interval() -> float:
    """Half of the watchdog's time; 0 where there is none, or it watches another process."""
    text, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return int(text) / 2e6
