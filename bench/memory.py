"""Peak memory of `sojourn measure` and `record` on captures of the same flows that are 1, 4 and 16 times as long."""

from __future__ import annotations

from bench.capture_files import long_pairs
from bench.timing import SOJOURN, best_run

__all__ = ["table"]

LENGTHS = (12, 48, 192)
NOTE = (
    "One core; the real pair 12, 48 and 192 times as long, the same flows throughout; peaks of the second of two runs."
)


def table() -> list[str]:
    """Peak resident memory against the length of the captures."""
    lines = [
        "| length | packets | files | `measure` (exact) peak | `record` peak | `measure`, s |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    with long_pairs(*LENGTHS, new_addresses=False) as pairs:
        for pair in pairs:
            exact = best_run([*SOJOURN, "measure", *pair.both], 2)
            record = best_run([*SOJOURN, "record", str(pair.sender), "-w", f"{pair.sender}.epochs"], 2)
            size = sum(path.stat().st_size for path in (pair.sender, pair.receiver)) / 2**20
            lines.append(
                f"| {pair.copies // LENGTHS[0]}× | {sum(pair.packets):,} | {size:.0f} MiB "
                f"| {exact.peak_kib / 1024:.0f} MiB | {record.peak_kib / 1024:.0f} MiB | {exact.seconds:.2f} |"
            )
    return lines
