"""Increments of counters: processes that come, go, change their numbers and cannot be read."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sojourn.core.keys import ProcessKey, key_id
from sojourn.sources.processes import ENDED, WENT_BACK, Process, ProcessFiles, ProcessTotals
from sojourn.sources.source import Metric

Machine = dict[int, tuple[int, int | None]]


class Scripted(ProcessTotals):
    """A machine whose processes (number: start time and counter) are written down scan by scan."""

    metric: ClassVar[Metric] = Metric("scripted", "operations", "process", "increments")

    def __init__(self, *scans: Machine) -> None:
        super().__init__()
        self._scans = list(scans)

    def total(self, files: ProcessFiles, process: Process) -> int:
        raise NotImplementedError

    def _scan(self) -> list[tuple[Process, int | None]]:
        scan = self._scans.pop(0)
        return [(Process(pid, b"p", start, 0, 0), total) for pid, (start, total) in scan.items()]


def increments(*scans: Machine) -> tuple[list[dict[int, int]], dict[str, int]]:
    """What each poll gave by process number, and what was ignored."""
    names = {key_id(ProcessKey("p", pid)): pid for pid in range(10)}
    found = []
    with Scripted(*scans) as source:
        for now_ns in range(1, len(scans)):
            batch = source.poll(now_ns).batch
            assert np.all(batch.time_ns == now_ns)
            found.append(dict(zip((names[i] for i in batch.instance_id.tolist()), batch.value.tolist(), strict=True)))
    return found, source.ignored


def test_what_was_counted_before_the_start_is_left_out() -> None:
    assert increments({1: (5, 100)}, {1: (5, 100)}, {1: (5, 107)}) == ([{}, {1: 7}], {})


def test_a_process_that_appears_counts_from_zero() -> None:
    assert increments({}, {2: (9, 30)}, {2: (9, 31)}) == ([{2: 30}, {2: 1}], {})


def test_a_number_that_another_process_took_is_recognised() -> None:
    assert increments({1: (5, 100)}, {1: (5, 110)}, {1: (80, 115)}) == ([{1: 10}, {1: 115}], {ENDED: 1})


def test_what_ended_is_counted_once_and_its_increments_stay() -> None:
    assert increments({1: (5, 0)}, {1: (5, 8)}, {}, {}) == ([{1: 8}, {}, {}], {ENDED: 1})


def test_a_process_that_becomes_readable_counts_from_then_on() -> None:
    found, _ = increments({1: (5, None)}, {1: (5, 500)}, {1: (5, 503)}, {1: (5, None)}, {1: (5, 600)}, {1: (5, 601)})
    assert found == [{}, {1: 3}, {}, {}, {1: 1}]


def test_a_counter_that_goes_back_is_counted_and_not_believed() -> None:
    assert increments({1: (5, 10)}, {1: (5, 4)}, {1: (5, 6)}) == ([{}, {1: 2}], {WENT_BACK: 1})
