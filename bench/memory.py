"""Peak memory of `sojourn record` on a capture and on one four times as long."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench.capture_files import write_in_child
from bench.captures import PACKETS, SOJOURN, seconds

__all__ = ["table"]


def table() -> list[str]:
    """Peak resident memory against the length of the capture."""
    folder = Path(tempfile.mkdtemp(prefix="sojourn-bench-"))
    lines = ["| packets | file | `sojourn record` peak | seconds |", "|---:|---:|---:|---:|"]
    try:
        for packets in (PACKETS // 4, PACKETS):
            path, other = write_in_child(folder, packets)
            other.unlink()
            taken, peak = seconds([*SOJOURN, "record", str(path), "-w", str(folder / "x.epochs")], 1)
            size = path.stat().st_size / 2**20
            lines.append(f"| {packets:,} | {size:.0f} MiB | {peak / 1024:.0f} MiB | {taken:.2f} |")
            path.unlink()
    finally:
        shutil.rmtree(folder)
    return lines
