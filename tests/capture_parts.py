"""The real pair of captures in several parts, as programs that rotate their files would have written them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

__all__ = ["split_pair"]

_HEADER_BYTES, _RECORD = 24, struct.Struct("<IIII")


def split_pair(shared_data: Path, folder: Path, parts: int) -> tuple[Path, Path]:
    """Folders with the sender's and the receiver's captures, cut at the same times."""
    places = folder / "in", folder / "out"
    paths = [shared_data / "two-point" / f"{name}.pcap.gz" for name in ("ingress", "egress")]
    captures = [gzip.decompress(path.read_bytes()) for path in paths]
    first, last = _time(captures[0], _HEADER_BYTES), 0.0
    for at in _records(captures[0]):
        last = _time(captures[0], at)
    for place, data in zip(places, captures, strict=True):
        place.mkdir()
        pieces = [bytearray(data[:_HEADER_BYTES]) for _ in range(parts)]
        for at in _records(data):
            number = int((_time(data, at) - first) / (last - first) * parts)
            length = _RECORD.unpack_from(data, at)[2]
            pieces[max(0, min(number, parts - 1))] += data[at : at + _RECORD.size + length]
        for number, piece in enumerate(pieces):
            # Some are compressed, as those of the past are.
            name, kept = f"part-{number:02}.pcap", bytes(piece)
            (place / (f"{name}.gz" if number % 2 else name)).write_bytes(gzip.compress(kept) if number % 2 else kept)
    return places


def _records(data: bytes) -> list[int]:
    """Where each packet's header is."""
    found, at = [], _HEADER_BYTES
    while at < len(data):
        found.append(at)
        at += _RECORD.size + _RECORD.unpack_from(data, at)[2]
    return found


def _time(data: bytes, at: int) -> float:
    seconds, fraction, _, _ = _RECORD.unpack_from(data, at)
    is_nanoseconds = struct.unpack_from("<I", data)[0] == 0xA1B23C4D
    return seconds + fraction / (1e9 if is_nanoseconds else 1e6)
