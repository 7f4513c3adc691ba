"""Which block IOs to count where devices stand on devices (LVM, encryption, RAID, multipath): those at the top.

An IO to a mapped device is handed on to the devices below it, where it would be counted again, often for a worker of
the kernel. Sysfs tells which disks and partitions are held by another device; IOs there are left out.
Cost: one look at sysfs per device and call.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.core.arrays import BoolArray, Int64Array

__all__ = ["on_top"]

_MINOR_BITS = 20
_EVERYTHING = (0, 1 << 62)


def on_top(device: Int64Array, sector: Int64Array, root: str | Path = "/sys/dev/block") -> BoolArray:
    """For each IO (the kernel's device number, the sector from the start of the disk), if no device holds its place."""
    top: NDArray[np.bool_] = np.ones(len(device), np.bool_)
    for number in np.unique(device).tolist():
        folder = Path(root, f"{number >> _MINOR_BITS}:{number & ((1 << _MINOR_BITS) - 1)}")
        for start, end in _held(folder):
            top &= (device != number) | (sector < start) | (sector >= end)
    return top


def _held(folder: Path) -> list[tuple[int, int]]:
    """The sectors of a disk that another device stands on; a disk that is hidden is a path of another."""
    if not folder.is_dir() or _has_holders(folder):
        return [_EVERYTHING]
    held = []
    for partition in folder.glob("*/partition"):
        if _has_holders(partition.parent):
            start, size = (int((partition.parent / name).read_text()) for name in ("start", "size"))
            held.append((start, start + size))
    return held


def _has_holders(folder: Path) -> bool:
    try:
        return bool(os.listdir(folder / "holders"))
    except OSError:
        return False
