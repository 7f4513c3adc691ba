"""Folders that cases run in: `data` is the shared data, `world` what is generated, the same in every run.

- ``world/sender.pcap``, ``world/receiver.pcap``: one segment, written here byte by byte, so that no change of the
  project can change it: 240 UDP and TCP flows of very different sizes, delays that differ by flow, 3 % loss.
- ``world/trace.csv``, ``world/hops.csv``: a collection network of 60 nodes, by `sojourn lab wireless`.
- ``world/rules.toml``: weights of flows for `record`.
"""

from __future__ import annotations

import os
import random
import shlex
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SHARED_DATA", "Workspace", "run"]

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SOJOURN = Path(sys.executable).parent / "sojourn"
MOST_SECONDS = 600

WIRELESS = "lab wireless --nodes 60 --packets 15 --ack-loss 5% --loss 2% --seed 7 -w trace.csv --truth hops.csv"
RULES = """[[rule]]
port = 1883
weight = 4
"""

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
PACKETS, FLOWS, LOSS = 24_000, 240, 0.03


def run(command: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A `sojourn` command in a folder, as a shell would run it."""
    quiet = {"SOJOURN_QUIET": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [str(SOJOURN), *shlex.split(command)],
        cwd=folder,
        env={**os.environ, **quiet, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=MOST_SECONDS,
        check=False,
    )


class Workspace:
    """A folder for each case beneath a root, all with the same data and the same generated world."""

    def __init__(self, root: Path, commands: str) -> None:
        """Generate the parts of the world that the commands name."""
        self._root = root
        self._world = root / "world"
        self._world.mkdir()
        if "world/sender" in commands:
            _write_segment(self._world)
        if "world/rules" in commands:
            (self._world / "rules.toml").write_text(RULES)
        if "world/trace" in commands:
            made = run(WIRELESS, self._world, {})
            if made.returncode != 0:
                raise RuntimeError(f"{WIRELESS}: {made.stderr.decode()}")

    def folder(self, name: str) -> Path:
        """A new folder for a case."""
        folder = self._root / name.replace("/", "+")
        folder.mkdir()
        (folder / "data").symlink_to(SHARED_DATA)
        (folder / "world").symlink_to(self._world)
        return folder


def _write_segment(folder: Path) -> None:
    """Captures with nanoseconds at both ends; the receiver's in the order of arrival."""
    dice = random.Random(20_260)
    flows = [_flow(dice, number) for number in range(FLOWS)]
    shares = [dice.paretovariate(1.2) for _ in flows]
    means = [dice.lognormvariate(1.6, 0.6) * MS for _ in flows]
    chosen = [*range(FLOWS), *dice.choices(range(FLOWS), shares, k=PACKETS - FLOWS)]
    dice.shuffle(chosen)
    times = sorted(START_NS + dice.randrange(10**10) for _ in chosen)
    sent, received = [], []
    for time_ns, flow in zip(times, chosen, strict=True):
        packet = _packet(dice, *flows[flow])
        sent.append((time_ns, packet))
        delay = int(means[flow] * dice.gammavariate(6, 1 / 6))
        if dice.random() >= LOSS:
            received.append((time_ns + delay, packet))
    _write_capture(folder / "sender.pcap", sent)
    _write_capture(folder / "receiver.pcap", sorted(received))


def _flow(dice: random.Random, number: int) -> tuple[int, bytes, bytes]:
    """Protocol, addresses and ports."""
    addresses = bytes([10, 1, number // 50, 1 + number % 50, 10, 2, 0, 1 + number % 7])
    ports = struct.pack("!HH", dice.randrange(1024, 65536), (1883, 5683, 443)[number % 3])
    return (6 if number % 2 else 17), addresses, ports


def _packet(dice: random.Random, protocol: int, addresses: bytes, ports: bytes) -> bytes:
    payload = dice.randbytes(dice.choice((8, 40, 200)))
    if protocol == 17:
        segment = ports + struct.pack("!HH", 8 + len(payload), 0) + payload
    else:
        segment = ports + struct.pack("!IIBBHHH", dice.getrandbits(32), 0, 0x50, 0x10, 64, 0, 0) + payload
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), dice.getrandbits(16), 0, 64, protocol, 0)
    return b"\x02" * 12 + b"\x08\x00" + header + addresses + segment


def _write_capture(path: Path, packets: list[tuple[int, bytes]]) -> None:
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for time_ns, data in packets:
            seconds, rest = divmod(time_ns, 10**9)
            file.write(struct.pack("<IIII", seconds, rest, len(data), len(data)) + data)
