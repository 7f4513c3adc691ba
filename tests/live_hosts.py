"""What tests on real interfaces share: knowing that something listens or captures, and timed transfers."""

from __future__ import annotations

import itertools
import socket
import sys
import time
from collections.abc import Sequence

from sojourn.lab.namespaces import Host
from sojourn.lab.tcpdump import Tcpdump
from waiting import eventually

__all__ = [
    "Tcpdump",
    "segments_received",
    "segments_sent",
    "send_datagrams",
    "transfer_seconds",
    "wait_for_captures",
    "wait_for_listener",
    "wait_for_silence",
    "wait_for_tcpdump",
]

_ESTABLISHED_OR_CLOSING = {f"{state:02X}" for state in (*range(1, 6), 8, 9, 11)}
_LISTENING = "0A"
_MARKS = itertools.count(0x5EED)
BURST, BREATH_SECONDS = 50, 0.002


def send_datagrams(
    host: Host, address: str, count: int, port: int = 7777, *, size: int = 100, src_port: int = 0
) -> None:
    """Numbered datagrams; with a breath now and then, as the kernel lets only 1000 packets wait between two hosts."""
    with host.entered():
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with endpoint:
        endpoint.bind(("", src_port))
        for number in range(count):
            endpoint.sendto(number.to_bytes(4, "big").ljust(size, b"."), (address, port))
            if number % BURST == BURST - 1:
                time.sleep(BREATH_SECONDS)


def wait_for_captures(host: Host, count: int) -> None:
    """Until so many packet sockets receive; the kernel lists them with the protocol that they are bound to."""

    def receiving() -> int:
        rows = [line.split() for line in host.run("cat", "/proc/net/packet").splitlines()[1:]]
        return sum(row[3] == "0003" and row[5] == "1" for row in rows)

    eventually(lambda: receiving() >= count, f"fewer than {count} captures started")


def _connections(host: Host) -> list[tuple[int, str]]:
    """The local port and the state of each TCP socket."""
    text = host.run("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
    rows = [line.split() for line in text.splitlines()]
    return [(int(row[1].rpartition(":")[2], 16), row[3]) for row in rows if row[0] != "sl"]


def wait_for_listener(host: Host, port: int) -> None:
    """Until a TCP server listens at a port."""
    eventually(lambda: (port, _LISTENING) in _connections(host), f"nobody listens at port {port}")


def wait_for_silence(*hosts: Host) -> None:
    """Until no TCP connection has anything to say any more."""
    eventually(
        lambda: not any(state in _ESTABLISHED_OR_CLOSING for host in hosts for _, state in _connections(host)),
        "connections stay open",
    )


def wait_for_tcpdump(sender: Host, address: str, dumps: Sequence[Tcpdump]) -> None:
    """Until each has written all that passed so far: a marked ping, sent now, is in its file."""
    mark = next(_MARKS).to_bytes(16, "big")
    sender.run("ping", "-c", "1", "-p", mark.hex(), address)
    for dump in dumps:
        eventually(lambda d=dump: mark in d.path.read_bytes(), f"{dump.path.name}: the last packets do not come")


def _tcp_counts(host: Host) -> dict[str, int]:
    names, values = (line.split()[1:] for line in host.run("grep", "^Tcp:", "/proc/net/snmp").splitlines())
    return dict(zip(names, map(int, values), strict=True))


def segments_sent(host: Host) -> int:
    """As the host's own TCP counts them: those of the wire."""
    counts = _tcp_counts(host)
    return counts["OutSegs"] + counts["RetransSegs"]


def segments_received(host: Host) -> int:
    return _tcp_counts(host)["InSegs"]


_SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000), source_address=("", int(sys.argv[2]))) as connection:
    start = time.monotonic()
    connection.sendall(bytes(int(sys.argv[3])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.monotonic() - start)
"""
_RECEIVE = """
import socket
with socket.create_server(("", 7000)) as server:
    connection, _ = server.accept()
    while connection.recv(65536): pass
"""


def transfer_seconds(sender: Host, receiver: Host, count: int, *, src_port: int = 0) -> float:
    """How long so many bytes take over TCP, until the last has been read."""
    with receiver.start(sys.executable, "-c", _RECEIVE):
        wait_for_listener(receiver, 7000)
        return float(sender.run(sys.executable, "-c", _SEND, receiver.address, str(src_port), str(count)))
