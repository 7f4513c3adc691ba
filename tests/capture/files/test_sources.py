"""Compressed files, pipes and stdin give the same packets as the plain file."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zstandard
from packet_builders import Packet, PcapLayout, ethernet, ipv4, udp

from sojourn.capture.files.reader import open_capture
from sojourn.capture.files.source import open_source
from sojourn.core.errors import CaptureError
from waiting import PATIENCE_SECONDS

COUNT = 3000
PACKETS = [Packet(ethernet(ipv4(udp(n.to_bytes(4, "big") * 20)))) for n in range(COUNT)]
PLAIN = PcapLayout().write(PACKETS)
RECORD = 16 + len(PACKETS[0].data)


def summary(path: Path | str) -> tuple[int, list[int], list[str]]:
    with open_capture(path) as capture:
        ids = [number for batch in capture for number in batch.packet_id.tolist()]
    return capture.packets, ids, capture.warnings


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    path = tmp_path_factory.mktemp("plain") / "file.pcap"
    path.write_bytes(PLAIN)
    count, ids, warnings = summary(path)
    assert (count, warnings) == (COUNT, [])
    assert len(set(ids)) == COUNT
    return ids


COMPRESSED = {
    "gzip": gzip.compress(PLAIN),
    "gzip members": gzip.compress(PLAIN[:50_001]) + gzip.compress(PLAIN[50_001:]),
    "gzip and padding": gzip.compress(PLAIN) + bytes(512),
    "zstd": zstandard.compress(PLAIN),
    "zstd frames": zstandard.compress(PLAIN[:50_001]) + zstandard.compress(PLAIN[50_001:]),
    "zstd skippable": b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(PLAIN),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_capture_reads_like_the_plain_one(name: str, tmp_path: Path, wanted: list[int]) -> None:
    path = tmp_path / "any-name"
    path.write_bytes(COMPRESSED[name])
    assert summary(path) == (COUNT, wanted, [])


@pytest.mark.parametrize("name", ["gzip", "gzip members", "zstd", "zstd frames"])
@pytest.mark.parametrize("share", [0.35, 0.8, 0.999])
def test_a_cut_compressed_capture_gives_what_can_be_decompressed(
    name: str, share: float, tmp_path: Path, wanted: list[int]
) -> None:
    path = tmp_path / "cut"
    path.write_bytes(COMPRESSED[name][: int(len(COMPRESSED[name]) * share)])
    count, ids, warnings = summary(path)
    assert ids == wanted[:count]
    assert "cut short" in warnings[0]
    if name == "gzip":
        with gzip.open(path) as file:
            assert count == (len(read_until_error(file)) - 24) // RECORD
    with pytest.raises(CaptureError, match="cut short"), open_capture(path, strict=True) as capture:
        list(capture)


def read_until_error(file: gzip.GzipFile) -> bytes:
    data = b""
    try:
        while piece := file.read(1):
            data += piece
    except EOFError:
        pass
    return data


def test_damage_inside_gzip_costs_only_what_follows(tmp_path: Path, wanted: list[int]) -> None:
    # Stored blocks show where damage lies: the second member's first block header is made invalid.
    first = gzip.compress(PLAIN[: 24 + 100 * RECORD], compresslevel=0)
    second = bytearray(gzip.compress(PLAIN[24 + 100 * RECORD :], compresslevel=0))
    second[10] = 0x07
    path = tmp_path / "damaged.gz"
    path.write_bytes(first + bytes(second))
    count, ids, warnings = summary(path)
    assert (count, ids) == (100, wanted[:100])
    assert "damaged" in warnings[0]


def test_a_damaged_byte_in_one_gzip_block_spares_the_bytes_before_it(tmp_path: Path) -> None:
    compressed = bytearray(gzip.compress(PLAIN))
    compressed[-6] ^= 0xFF  # the checksum: everything before it is there
    path = tmp_path / "damaged.gz"
    path.write_bytes(bytes(compressed))
    count, _, warnings = summary(path)
    assert count == COUNT
    assert "incorrect data check" in warnings[0]


def test_damage_inside_zstandard_is_told(tmp_path: Path, wanted: list[int]) -> None:
    compressed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN))
    compressed[-2] ^= 0xFF
    path = tmp_path / "damaged.zst"
    path.write_bytes(bytes(compressed))
    count, ids, warnings = summary(path)
    assert ids == wanted[:count]
    assert "damaged" in warnings[0]


def test_a_named_pipe_is_read(tmp_path: Path, wanted: list[int]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(PLAIN,))
    writer.start()
    assert summary(pipe) == (COUNT, wanted, [])
    writer.join()


def test_packets_leave_a_slow_pipe_before_it_ends(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    may_end, waited = threading.Event(), []

    def write() -> None:
        with open(pipe, "wb", buffering=0) as file:
            file.write(PLAIN[: 24 + RECORD])
            waited.append(may_end.wait(PATIENCE_SECONDS))
            file.write(PLAIN[24 + RECORD : 24 + 2 * RECORD])

    writer = threading.Thread(target=write)
    writer.start()
    with open_capture(pipe) as capture:
        batches = iter(capture)
        assert len(next(batches)) == 1
        may_end.set()
        assert sum(len(batch) for batch in batches) == 1
    writer.join()
    assert waited == [True]


@pytest.mark.parametrize("content", [PLAIN, COMPRESSED["gzip"]], ids=["plain", "gzip"])
def test_stdin_is_read(content: bytes) -> None:
    code = (
        "from sojourn.capture.files.reader import open_capture\n"
        "with open_capture('-') as c: print(sum(len(b) for b in c), c.name, c.warnings)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"{COUNT} stdin []"


def test_empty_stdin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(CaptureError, match="no bytes"):
        open_source("-")


def test_a_bomb_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(PcapLayout().write([]) + bytes(64 << 20)))
    assert path.stat().st_size < 1 << 17
    largest = 0
    with open_source(path) as source:
        offset = 0
        while not (window := source.window(offset)).last:
            largest = max(largest, len(window.data))
            offset += len(window.data)
    assert largest <= 1 << 22


def test_a_file_that_is_cut_while_it_is_read_ends_there_with_a_warning(tmp_path: Path) -> None:
    """In a process of its own: a mapped file would end it by a signal."""
    path = tmp_path / "file.pcap"
    records = PLAIN[24:]
    path.write_bytes(PLAIN[:24] + records * (12_000_000 // len(records) + 1))
    program = (
        "import os, sys\n"
        "from sojourn.capture.files.reader import open_capture\n"
        "with open_capture(sys.argv[1]) as capture:\n"
        "    for batch in capture:\n"
        "        os.truncate(sys.argv[1], 100_000)\n"
        "print(capture.packets)\n"
        "print(*capture.warnings)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    packets, warnings = found.stdout.splitlines()
    assert 100_000 // RECORD < int(packets) < 12_000_000 // RECORD
    assert "the file was cut while it was read" in warnings
