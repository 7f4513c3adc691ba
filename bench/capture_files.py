"""Capture files to measure on: a generated two-point world as two pcap files with 64-byte snaps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sojourn.core.arrays import PacketBatch
    from sojourn.lab.two_point import TwoPointWorld

__all__ = ["RECORD", "write_in_child", "write_two_point"]

SNAP = 64
RECORD = 16 + SNAP
NANOSECOND_MAGIC = bytes.fromhex("4d3cb2a1020004000000000000000000")
CHUNK = 1 << 20


def write_two_point(folder: Path, packets: int, *, flows: int = 20_000, seed: int = 1) -> tuple[Path, Path]:
    """Both ends of a world in `folder`, written once: TCP and UDP over Ethernet, one record per packet."""
    from sojourn.lab.two_point import make_two_point_world

    paths = folder / f"in-{packets}.pcap", folder / f"out-{packets}.pcap"
    if not all(path.exists() for path in paths):
        world = make_two_point_world(seed=seed, flows=flows, packets=packets, duration_ns=packets * 2_000)
        for path, batch in zip(paths, (world.sender, world.receiver), strict=True):
            _write(path, world, batch)
    return paths


def write_in_child(folder: Path, packets: int) -> tuple[Path, Path]:
    """`write_two_point` in a process of its own: a child's peak memory starts from its parent's."""
    code = "import sys; from pathlib import Path; from bench.capture_files import write_two_point as w; "
    code += "w(Path(sys.argv[1]), int(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(folder), str(packets)], check=True)
    return folder / f"in-{packets}.pcap", folder / f"out-{packets}.pcap"


def _write(path: Path, world: TwoPointWorld, batch: PacketBatch) -> None:
    keys = _key_columns(world)
    order = np.argsort(keys["id"])
    ids = keys["id"][order]
    with path.open("wb") as file:
        file.write(NANOSECOND_MAGIC + SNAP.to_bytes(4, "little") + (1).to_bytes(4, "little"))
        for start in range(0, len(batch), CHUNK):
            part = batch.select(slice(start, start + CHUNK))
            rows = order[np.searchsorted(ids, part.flow_id)]
            _records(part, {name: column[rows] for name, column in keys.items()}).tofile(file)


def _key_columns(world: TwoPointWorld) -> dict[str, np.ndarray]:
    keys = list(world.keys.values())
    return {
        "id": np.array(list(world.keys), np.uint64),
        "src": np.array([int(key.src_ip) for key in keys]),
        "dest": np.array([int(key.dest_ip) for key in keys]),
        "src_port": np.array([key.src_port for key in keys]),
        "dest_port": np.array([key.dest_port for key in keys]),
        "protocol": np.array([key.protocol for key in keys]),
    }


def _records(batch: PacketBatch, keys: dict[str, np.ndarray]) -> np.ndarray:
    records = np.zeros((len(batch), RECORD), np.uint8)
    length = batch.size_bytes + 50

    def put(offset: int, values: np.ndarray, size: int, *, big: bool = True) -> None:
        for i in range(size):
            shift = 8 * (size - 1 - i if big else i)
            records[:, offset + i] = (values >> shift) & 255

    put(0, batch.time_ns // 10**9, 4, big=False)
    put(4, batch.time_ns % 10**9, 4, big=False)
    put(8, np.full(len(batch), SNAP), 4, big=False)
    put(12, length + 14, 4, big=False)
    put(28, np.full(len(batch), 0x0800), 2)
    records[:, 30], records[:, 38] = 0x45, 64
    put(32, length, 2)
    identity = batch.packet_id.astype(np.int64)
    put(34, identity & 0xFFFF, 2)
    records[:, 39] = keys["protocol"]
    put(42, keys["src"], 4)
    put(46, keys["dest"], 4)
    put(50, keys["src_port"], 2)
    put(52, keys["dest_port"], 2)
    tcp = keys["protocol"] == 6
    put(54, np.where(tcp, (identity >> 16) & 0xFFFFFFFF, (length - 20) << 16), 4)
    put(58, (identity >> 24) & 0xFFFFFFFF, 4)
    records[:, 62] = np.where(tcp, 0x50, identity & 255)
    records[:, 63] = np.where(tcp, 0x10, (identity >> 8) & 255)
    put(72, (identity >> 4) & 0xFFFFFFFFFFFF, 6)
    return records
