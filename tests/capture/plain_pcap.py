"""A plain reading of pcap files, independent of the product's readers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from sojourn.capture.decode.frames import Frames

MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}


def read_bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


def read_pcap(raw: bytes) -> Frames:
    """All whole packets of a pcap file."""
    order, unit = MAGIC[raw[:4]]
    (link,) = struct.unpack_from(order + "I", raw, 20)
    rows, at = [], 24
    while at + 16 <= len(raw):
        seconds, fraction, captured, length = struct.unpack_from(order + "4I", raw, at)
        if at + 16 + captured > len(raw):
            break
        rows.append((at + 16, captured, length, seconds * 10**9 + fraction * unit))
        at += 16 + captured
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Frames(
        np.frombuffer(raw, np.uint8),
        *(column.copy() for column in columns),
        link=np.full(len(rows), link, np.int64),
    )


def frame_bytes(frames: Frames) -> list[bytes]:
    starts, sizes = frames.offset.tolist(), frames.captured.tolist()
    return [frames.data[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]


def frames_of(packets: list[bytes], link: int = 1, length: int | None = None) -> Frames:
    """Frames that lie one behind the other."""
    sizes = np.array([len(packet) for packet in packets], np.int64)
    return Frames(
        data=np.frombuffer(b"".join(packets), np.uint8),
        offset=np.cumsum(sizes) - sizes,
        captured=sizes,
        length=sizes if length is None else np.full(len(packets), length, np.int64),
        time_ns=np.zeros(len(packets), np.int64),
        link=np.full(len(packets), link, np.int64),
    )
