"""Spools with small epochs of known contents, and a disk that refuses to be written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.node.spool.spool import Spool
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

__all__ = ["EVERYTHING", "SALTS", "SIZE", "epoch", "full_disk", "numbers", "opened", "total", "without_pauses"]

PARAMETERS = BucketArrayParameters(buckets=600, per_instance=2, bits=16)
SALTS = 4
EVERYTHING = {"most": 10**6, "most_bytes": 10**9}


def epoch(sequence: int, stream: str = "disk", value: int = 10, times: int = 1) -> Epoch:
    sketch = BucketArray(replace(PARAMETERS, salt=sequence % SALTS))
    for i in range(times):
        sketch.record(7, value, 1000 * sequence + i)
    return Epoch("n", stream, sequence, sketch, ())


SIZE = len(encode(epoch(1)))


def total(spool: Spool) -> int:
    return sum(int(entry.epoch.sketch.column("sum").sum()) for entry in spool.oldest(**EVERYTHING))


def numbers(spool: Spool) -> list[int]:
    return [entry.sequence for entry in spool.oldest(**EVERYTHING)]


@contextmanager
def opened(directory: Path, limit_bytes: int = 1 << 20) -> Iterator[Spool]:
    with closing(Spool(directory, limit_bytes=limit_bytes)) as spool:
        yield spool


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be made longer than a byte, as for a process with such a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def without_pauses(spool: Spool) -> None:
    """A disk that refused is tried again at once."""
    spool._retry_at = 0.0
