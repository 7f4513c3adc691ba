"""Resident memory of a process that takes a known amount."""

from __future__ import annotations

import time
from typing import Any

import psutil

from sojourn.core.keys import key_id, parse_key
from sojourn.sources.processes import ResidentMemory

MIB = 1 << 20


def test_memory_that_is_touched_shows(worker: Any) -> None:
    def resident() -> int:
        batch = source.poll(time.time_ns()).batch
        (row,) = (batch.instance_id == key_id(parse_key(worker.key()))).nonzero()[0]
        return int(batch.value[row])

    with ResidentMemory() as source:
        before = resident()
        worker.do(f"block = bytearray(b'x') * {64 * MIB}")
        after = resident()
        assert abs(after - psutil.Process(worker.pid).memory_info().rss) <= MIB
        worker.do("del block")
        freed = resident()
    assert abs(after - before - 64 * MIB) <= 2 * MIB
    assert freed <= after - 62 * MIB


def test_every_process_has_one_sample_per_poll_and_kernel_threads_have_none(worker: Any) -> None:
    with ResidentMemory() as source:
        first, second = source.poll(100), source.poll(200)
    assert worker.key() in map(str, first.keys)
    assert worker.key() not in map(str, second.keys)
    assert len(set(first.batch.instance_id.tolist())) == len(first)
    assert (first.batch.value > 0).all()
    assert set(second.batch.time_ns.tolist()) == {200}
