"""The real pair of captures beside the checkout, made many times as long: later copies of the same packets.

A copy's times are shifted by whole seconds, a bit more than the pair lasts. With new addresses each copy has hosts, and
so flows, of its own (and the right IP checksum); without, the same flows go on, and only the IP identification tells a
packet from its copies. What is written equals the pair but for these bytes, so both points still see the same packets.

Cost: one copy in memory, and about as long as the disk takes.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

__all__ = ["MOST_COPIES", "PAIR", "LongPair", "lengthen_pair", "long_pairs"]

PAIR = Path(__file__).resolve().parents[2] / "shared" / "data" / "two-point"
NANOSECOND_MAGIC = bytes.fromhex("4d3cb2a1")
FILE_HEADER, RECORD_HEADER, ETHERNET_HEADER = 24, 16, 14
IDENTIFICATION, CHECKSUM, THIRD_OCTETS = 4, 10, (14, 18)
IPV4 = 0x0800
IDENTIFICATIONS_APART = 257  # a host numbers its next packets, which may repeat this one, by 1, 2, …
MOST_COPIES = 250  # each its own third octet of addresses


@dataclass(frozen=True)
class LongPair:
    """Two captures, how often they repeat the pair, and how many packets each has."""

    sender: Path
    receiver: Path
    copies: int
    packets: tuple[int, int]

    @property
    def both(self) -> list[str]:
        return [str(self.sender), str(self.receiver)]


class _Capture:
    """All records of a nanosecond pcap file of IPv4 over Ethernet, and where each begins."""

    def __init__(self, path: Path) -> None:
        data = gzip.decompress(path.read_bytes())
        if data[:4] != NANOSECOND_MAGIC:
            raise SystemExit(f"{path}: not a little-endian pcap file with nanoseconds")
        self.header, self.records = data[:FILE_HEADER], np.frombuffer(data, np.uint8)[FILE_HEADER:]
        starts, at = [], FILE_HEADER
        while at < len(data):
            starts.append(at - FILE_HEADER)
            at += RECORD_HEADER + struct.unpack_from("<I", data, at + 8)[0]
        self.starts = np.array(starts)
        self.network = self.starts + RECORD_HEADER + ETHERNET_HEADER
        self.seconds = self._number(self.starts, range(3, -1, -1))
        if np.any(self._number(self.network - 2, range(2)) != IPV4):
            raise SystemExit(f"{path}: not all packets are IPv4 over Ethernet")

    def _number(self, at: np.ndarray, places: range) -> np.ndarray:
        return sum(self.records[at + place].astype(np.int64) << 8 * i for i, place in enumerate(reversed(places)))

    def copy(self, number: int, every_seconds: int, *, new_addresses: bool) -> np.ndarray:
        """The records of one copy; the first, 0, is the capture itself."""
        records = self.records.copy()
        seconds = self.seconds + number * every_seconds
        for place in range(4):
            records[self.starts + place] = seconds >> 8 * place & 255
        ip = self.network
        checksum = self._number(ip, range(CHECKSUM, CHECKSUM + 2))
        if new_addresses:
            for octet in THIRD_OCTETS:
                records[ip + octet] += np.uint8(number)
            added = 256 * number * len(THIRD_OCTETS)
        else:
            identification = self._number(ip, range(IDENTIFICATION, IDENTIFICATION + 2))
            shifted = identification + IDENTIFICATIONS_APART * number & 0xFFFF
            records[ip + IDENTIFICATION], records[ip + IDENTIFICATION + 1] = shifted >> 8, shifted & 255
            added = shifted - identification
        total = (checksum ^ 0xFFFF) + added  # RFC 1624: the sum of all words, of which some have grown
        checksum = (total % 0xFFFF) ^ 0xFFFF
        records[ip + CHECKSUM], records[ip + CHECKSUM + 1] = checksum >> 8, checksum & 255
        return records


def lengthen_pair(folder: Path, copies: int, *, new_addresses: bool = True) -> LongPair:
    """Write both captures of the pair into `folder`, so many times as long."""
    if not 0 < copies <= MOST_COPIES:
        raise SystemExit(f"{copies} copies: at most {MOST_COPIES} have addresses of their own")
    captures = [_Capture(PAIR / f"{name}.pcap.gz") for name in ("ingress", "egress")]
    first = min(int(capture.seconds.min()) for capture in captures)
    every = max(int(capture.seconds.max()) for capture in captures) - first + 1
    paths = [folder / f"{name}-{copies}.pcap" for name in ("ingress", "egress")]
    for path, capture in zip(paths, captures, strict=True):
        with path.open("wb") as file:
            file.write(capture.header)
            for number in range(copies):
                capture.copy(number, every, new_addresses=new_addresses).tofile(file)
    counts = [copies * len(capture.starts) for capture in captures]
    return LongPair(paths[0], paths[1], copies, (counts[0], counts[1]))


@contextmanager
def long_pairs(*copies: int, new_addresses: bool = True) -> Iterator[list[LongPair]]:
    """Pairs of these lengths in a temporary folder, removed at the end."""
    if not PAIR.is_dir():
        raise SystemExit(f"the pair of captures is not at {PAIR}")
    with TemporaryDirectory(prefix="sojourn-bench-") as folder:
        yield [lengthen_pair(Path(folder), number, new_addresses=new_addresses) for number in copies]
