"""tcpdump on a host's interface, writing to a file: what everything here is compared with.

Guarantee: it captures once the object exists; after `finish` the file has every packet that passed before, but for
those that the kernel dropped, which `finish` counts. Times are in nanoseconds, and the same that every other capture of
the interface sees meanwhile: the kernel stamps a packet once for all of them as long as a socket asks for stamps, and
else anew for each, microseconds apart. (TCP that comes in over a virtual cable is always stamped anew: such packets
carry the time at which they may be sent, in the same place.)
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from sojourn.capture.live.interface import Direction
from sojourn.core.errors import SojournError
from sojourn.lab.namespaces import Host

WHOLE_PACKETS = 65_535
# In KiB: what the kernel holds for a tcpdump that cannot keep up.
BUFFER = "65536"
FINISH_SECONDS = 120.0
_SO_TIMESTAMPNS = 35


class Tcpdump:
    """One that runs; leaving its context ends it."""

    def __init__(
        self,
        host: Host,
        interface: str,
        path: Path,
        *,
        direction: Direction = "both",
        snap_bytes: int = WHOLE_PACKETS,
    ) -> None:
        self.path = path
        self._missed: int | None = None
        self._stamps = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamps.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # tcpdump gives up its rights before it writes, unless it is told not to.
        options = ("--time-stamp-precision=nano", "-B", BUFFER, "-s", str(snap_bytes), "-U", "-Z", "root")
        sides = ("-Q", "inout" if direction == "both" else direction)
        self._running = host.start(
            "tcpdump", "-i", interface, "-w", str(path), *options, *sides, stderr=subprocess.PIPE
        )
        said = self._running.process.stderr.readline() if self._running.process.stderr is not None else ""
        if "listening on" not in said:
            self._running.stop()
            self._stamps.close()
            raise SojournError(f"does not capture: {said.strip()}", where=f"tcpdump on {host.name}, {interface}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> int:
        """End it; how many packets it says that it missed."""
        self._stamps.close()
        if self._missed is None:
            self._running.process.send_signal(signal.SIGINT)
            _, said = self._running.process.communicate(timeout=FINISH_SECONDS)
            missed = re.search(r"(\d+) packets? dropped by kernel", said)
            if missed is None:
                raise SojournError(f"ended without its counts: {said.strip()[-200:]}", where=f"tcpdump to {self.path}")
            self._missed = int(missed[1])
        return self._missed
