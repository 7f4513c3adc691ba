"""Processes that write at skewed rates are counted exactly, and nothing of them stays behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import ProcessKey, key_id
from sojourn.lab.disk_load import Tally, writers
from sojourn.sources.source import SourceBatch


def test_a_tally_adds_up_by_name() -> None:
    keys = (ProcessKey("a", 1), ProcessKey("b", 2))
    first, second = (key_id(key) for key in keys)
    tally = Tally()
    tally.add(SourceBatch(MeasurementBatch.of([first, second, first], [1, 10, 2], [0, 0, 0]), keys))
    tally.add(SourceBatch(MeasurementBatch.of([second], [2**53 + 1], [0]), ()))
    tally.add(SourceBatch(MeasurementBatch.of([], [], []), ()))
    assert tally.sums() == {"a[1]": 3, "b[2]": 2**53 + 11}
    assert tally.counts() == {"a[1]": 2, "b[2]": 2}


def test_writers_keep_their_rates_and_leave_nothing_behind() -> None:
    """By system calls, which anybody may count: writes, and a few reads and prints of the processes themselves."""
    with writers([60.0, 20.0], 2.0, prefix="lab-test") as load:
        assert len(_files("lab-test-")) == 2
        counted = load.write("system_calls")
    assert sorted(name.partition("[")[0] for name in counted) == ["lab-test-0", "lab-test-1"]
    fast, slow = (counted[name] for name in sorted(counted))
    # 120 and 40; a disk that cannot follow makes fewer.
    assert slow < fast < 120 + 5 * np.sqrt(120) + 5
    assert 0 < slow < 40 + 5 * np.sqrt(40) + 5
    assert not _files("lab-test-")
    assert not _running("lab-test-")


def _files(prefix: str) -> list[Path]:
    return list(Path("/var/tmp").glob(f"sojourn-disk-*/{prefix}*"))


def _running(prefix: str) -> list[str]:
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(path.read_text())
        except OSError:
            continue
    return [name for name in names if name.startswith(prefix)]
