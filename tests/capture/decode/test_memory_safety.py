"""No kernel reads past the bytes it was given: a page that must not be touched lies right behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ctypes, mmap, sys
import numpy as np
from sojourn.capture.decode.decoder import DecodeOptions, Decoder
from sojourn.capture.decode.frames import Frames
from sojourn.capture.decode.ids import FlowKeying, Identity
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.capture.files.reader import CaptureReader, open_frames
from sojourn.capture.files.source import Source, Window, open_source

PAGES = 64
SIZE = PAGES * mmap.PAGESIZE
area = mmap.mmap(-1, SIZE + mmap.PAGESIZE)
whole = np.frombuffer(area, np.uint8)
guard = whole.ctypes.data + SIZE
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0


def against_the_guard(data):
    place = whole[SIZE - len(data) : SIZE]
    place[:] = np.frombuffer(data, np.uint8)
    return place


class Guarded(Source):
    def __init__(self, data):
        super().__init__("guarded")
        self.data = against_the_guard(data)

    def window(self, offset, minimum=1):
        return Window(self.data[offset:], offset, last=True)

    share_read = 0.0

    def close(self):
        pass


rng = np.random.default_rng(11)
keyings = [FlowKeying.parse(text) for text in ("five-tuple", "host-pair", "prefix/9", "vlan+five-tuple")]
decoders = [Decoder(DecodeOptions(keying=keying, inner=True, identity_bytes=size, identity=identity, wire=WireSizes()))
            for keying in keyings for size in (20, 68, 300) for identity in Identity]
runs = 0
for path in sys.argv[1:]:
    with open_source(path) as source:
        frames = next(iter(open_frames(source)))
    for row in rng.choice(len(frames), min(len(frames), 60), replace=False):
        start, size = int(frames.offset[row]), int(frames.captured[row])
        packet = bytearray(frames.data[start : start + size].tobytes()[: SIZE // 2])
        for _ in range(12):
            data = bytearray(packet[: rng.integers(0, len(packet) + 1)])
            for at in rng.integers(0, max(len(data), 1), rng.integers(0, 6)):
                if len(data):
                    data[min(at, 60, len(data) - 1)] = rng.integers(0, 256)
            place = against_the_guard(bytes(data))
            one = np.array([0]), np.array([len(data)]), np.array([len(data) + 9]), np.array([5])
            decoder = decoders[runs % len(decoders)]
            decoder.decode_transport(Frames(place, *one, frames.link[row : row + 1]))
            runs += 1
    content = open(path, "rb").read(SIZE // 2)
    for _ in range(60):
        data = bytearray(content[: rng.integers(4, len(content) + 1)])
        for at in rng.integers(4, len(data), rng.integers(0, 4)) if len(data) > 4 else ():
            data[at] = rng.integers(0, 256)
        with CaptureReader(Guarded(bytes(data)), DecodeOptions(inner=True)) as capture:
            list(capture.with_transport())
        runs += 1
# A connection that is opened with segments of 1460 bytes, and super-packets of it, damaged and cut.
head, address = "0200000000020200000000010800", "0000400040060000c0000201c0000202"
opening = bytes.fromhex(head + "4500002c" + address + "9c40075b00000000000000006002000000000000020405b4")
together = bytes.fromhex(head + "4500ffff" + address + "9c40075b000000010000000180180000000000000101080a" + 100 * "01")
for _ in range(2000):
    decoder = decoders[runs % len(decoders)]
    packet = bytearray(together[: rng.integers(14, len(together) + 1)])
    for at in rng.integers(14, max(len(packet), 15), rng.integers(0, 3)):
        if at < len(packet):
            packet[at] = rng.integers(0, 256)
    for data in (opening, bytes(packet)):
        one = np.array([0]), np.array([len(data)]), np.array([len(data)]), np.array([5]), np.array([1])
        decoder.decode(Frames(against_the_guard(data), *one))
    runs += 1
print(runs, sum(decoder.wire.split_packets for decoder in decoders))
"""


def test_damaged_captures_are_never_read_past_their_end(shared_data: Path) -> None:
    files = [path for path in sorted(shared_data.glob("captures/*.pcap*")) if path.suffix != ".gz"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    runs, split = map(int, done.stdout.split())
    assert runs > 7000
    assert split > 500
