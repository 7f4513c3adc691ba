"""A process that writes to a disk at a given rate, past the page cache, so that every write is an operation of its own.

``python -m sojourn.lab.disk_writer FILE NAME RATE SECONDS SEED``: names itself, prepares its file, prints ``ready``,
waits for a line, writes blocks of 4 KiB at random places and exponentially distributed times, prints how many, and
stays until its input ends, so that whoever looks for its name still finds it. Where a file system knows no direct
writes, they are synchronous.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from pathlib import Path

BLOCK = 4096
BLOCKS = 256


def open_for_writing(path: str) -> int:
    """A file whose blocks all exist, open for writes that reach the disk at once."""
    Path(path).write_bytes(bytes(BLOCK * BLOCKS))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_WRONLY | os.O_DSYNC)


def write_blocks(descriptor: int, *, rate: float, seconds: float, seed: int) -> int:
    """Write for a while, `rate` times a second on average; how many writes that were."""
    random_time = random.Random(seed)
    page = mmap.mmap(-1, BLOCK)  # direct writes need memory on a page's edge
    start = time.monotonic()
    writes = 0
    at = random_time.expovariate(rate)
    while at < seconds:
        time.sleep(max(0.0, start + at - time.monotonic()))
        os.pwritev(descriptor, [page], BLOCK * random_time.randrange(BLOCKS))
        writes += 1
        at += random_time.expovariate(rate)
        if time.monotonic() - start > seconds + 1:  # a slow disk makes fewer writes, not a longer run
            break
    return writes


def main(path: str, name: str, rate: str, seconds: str, seed: str) -> None:
    Path("/proc/self/comm").write_text(name)
    descriptor = open_for_writing(path)
    print("ready", flush=True)
    sys.stdin.readline()
    print(write_blocks(descriptor, rate=float(rate), seconds=float(seconds), seed=int(seed)), flush=True)
    sys.stdin.read()
    os.close(descriptor)


if __name__ == "__main__":
    main(*sys.argv[1:])
