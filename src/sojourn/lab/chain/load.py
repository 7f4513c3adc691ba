"""Real traffic between source and sink, both ways: iperf3 over TCP and UDP, MQTT with mosquitto, HTTP.

::

    with services(chain, folder):
        run_load(chain, Load(seconds=60))

Guarantee: the services listen when the context begins, and end with it; `run_load` returns when all clients have done
their part, and raises if one could not. Which messages are sent when, and which pages are fetched, depends on the seed;
what TCP makes of it does not. Needs the commands ``iperf3`` and ``mosquitto``.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import SojournError, UsageError
from sojourn.lab.chain.network import Chain
from sojourn.lab.namespaces import Host, HostProcess

STREAM_PORT, DATAGRAM_PORT, BROKER_PORT, WEB_PORT = 5201, 5202, 1883, 8000
FIRST_PUBLISHER = 30_000
START_SECONDS, MORE_SECONDS = 30.0, 60.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much of each kind; rates in bits per second, each way, of each of `streams` TCP connections."""

    seconds: float
    seed: int = 1
    streams: int = 2
    stream_rate: int = 2_000_000
    datagram_rate: int = 1_000_000
    datagram_bytes: int = 400
    publishers: int = 20
    messages_per_second: float = 5.0
    fetchers: int = 5
    pages_per_second: float = 4.0


@contextmanager
def services(chain: Chain, folder: Path) -> Iterator[None]:
    """What the clients of `run_load` talk to, at the sink."""
    missing = [command for command in ("iperf3", "mosquitto") if shutil.which(command) is None]
    if missing:
        raise UsageError(f"missing commands: {', '.join(missing)}", where="lab", action=f"install {' '.join(missing)}")
    broker = folder / "mosquitto.conf"
    broker.write_text(f"listener {BROKER_PORT} 0.0.0.0\nallow_anonymous true\nuser root\nset_tcp_nodelay true\n")
    commands = {
        STREAM_PORT: ("iperf3", "--server", "--port", str(STREAM_PORT)),
        DATAGRAM_PORT: ("iperf3", "--server", "--port", str(DATAGRAM_PORT)),
        BROKER_PORT: ("mosquitto", "-c", str(broker)),
        WEB_PORT: (sys.executable, "-m", "sojourn.lab.chain.web", "serve", str(WEB_PORT)),
    }
    with ExitStack() as stack:
        running = {port: stack.enter_context(chain.sink.start(*command)) for port, command in commands.items()}
        for port, process in running.items():
            _wait_for_listener(chain.sink, port, process)
        yield


def _wait_for_listener(host: Host, port: int, process: HostProcess) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with host.entered(), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as endpoint:
            # Connecting would do, but iperf3 takes any connection for a client.
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                endpoint.bind(("0.0.0.0", port))
            except OSError:
                return
        if process.process.poll() is not None or time.monotonic() > deadline:
            raise SojournError(f"does not listen at port {port}", where=f"{process.name} at {host.name}")
        time.sleep(_LOOK_SECONDS)


def run_load(chain: Chain, load: Load) -> None:
    """Run all clients at the source, to their end."""
    with ExitStack() as stack:
        started = [
            (command, stack.enter_context(chain.source.start(*command, stderr=subprocess.PIPE)))
            for command in _clients(chain.sink.address, load)
        ]
        deadline = time.monotonic() + load.seconds + MORE_SECONDS
        for command, running in started:
            try:
                _, complaint = running.process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SojournError("did not end in time", where=" ".join(command)) from None
            if running.process.returncode != 0:
                last = (complaint.strip().splitlines() or ["no message"])[-1]
                raise SojournError(f"failed with {running.process.returncode}: {last}", where=" ".join(command))


def _clients(address: str, load: Load) -> list[tuple[str, ...]]:
    seconds, seed = f"{load.seconds:g}", str(load.seed)
    iperf = ("iperf3", "--client", address, "--time", str(round(load.seconds)), "--bidir")
    publishers = [f"{FIRST_PUBLISHER + i}:{load.messages_per_second:g}" for i in range(load.publishers)]
    module = (sys.executable, "-m")
    clients: list[tuple[str, ...]] = []
    if load.streams:
        rate = str(load.stream_rate)
        clients.append((*iperf, "--port", str(STREAM_PORT), "--parallel", str(load.streams), "--bitrate", rate))
    if load.datagram_rate:
        rate, size = str(load.datagram_rate), str(load.datagram_bytes)
        clients.append((*iperf, "--port", str(DATAGRAM_PORT), "--udp", "--bitrate", rate, "--length", size))
    if publishers:
        mqtt = (*module, "sojourn.lab.mqtt_clients", address, str(BROKER_PORT))
        clients.append((*mqtt, seconds, seed, *publishers))
    if load.fetchers:
        web = (*module, "sojourn.lab.chain.web", "fetch", address, str(WEB_PORT))
        clients.append((*web, seconds, seed, str(load.fetchers), f"{load.pages_per_second:g}"))
    return clients
