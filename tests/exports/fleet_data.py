"""A query unit with a fleet's data of the last minute: two nodes' processes, and a segment whose delays are known."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from query_unit import Unit, make_epoch
from tests.segments.fleet.fleet_world import SECOND, moved, record
from tests.segments.fleet.test_answers import in_order

from sojourn.client.query_unit import Client
from sojourn.core.arrays import Int64Array
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import encode
from sojourn.lab.two_point import LOST, make_two_point_world
from sojourn.segments.plan import plan_point
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import StreamRecord
from sojourn.store.runs import RunStore
from waiting import eventually

__all__ = ["WINDOW", "FleetData", "with_fleet_data", "with_processes"]

WINDOW = {"window": "10m", "lag": "0s"}
MEMORY = 32_000
PLAN = plan_point(MEMORY, flows=100, loss=0.01)


@dataclass(frozen=True)
class FleetData:
    """What was sent and lost on the segment, and the delays of what arrived."""

    sent: int
    lost: int
    delays_ns: Int64Array


def with_processes(unit: Unit, *, nodes: tuple[str, ...] = ("alpha", "beta")) -> None:
    """Disk IO of processes (of the second node ten times as much), and memory of the first."""
    now = time.time_ns()
    for place, node in enumerate(nodes):
        unit.store.announce(StreamRecord(node, "disk", "disk_io", "operations", "process"))
        values = tuple(value * 10**place for value in (5, 3, 1))
        epochs = [make_epoch(i, node=node, time_ns=now - i * SECOND, values=values) for i in range(4)]
        if node in unit.tokens:
            with unit.client(node) as sender:
                assert sender.post("/api/v1/epochs", content=b"".join(map(encode, epochs))).is_success
        else:
            unit.store.add(epochs)
    unit.store.announce(StreamRecord("alpha", "mem", "memory", "bytes", "process", "samples"))
    unit.store.add([_memory_epoch(i, now - i) for i in range(6)])


def _memory_epoch(sequence: int, time_ns: int) -> Epoch:
    """Two processes, each looked at ten times: once would not tell them apart."""
    sketch = BucketArray(BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24))
    keys = tuple(ProcessKey("p", i) for i in range(2))
    for key, value in zip(keys, (1000, 3000), strict=True):
        for _ in range(10):
            sketch.record(key_id(key), value, time_ns)
    return Epoch("alpha", "mem", sequence, sketch, keys)


def with_fleet_data(unit: Unit) -> FleetData:
    """The same and the segment ``ab``, answered."""
    with_processes(unit)
    world = in_order(make_two_point_world(seed=21, flows=30, packets=6_000, duration_ns=40 * SECOND, load=0.9))
    by_ns = time.time_ns() - 60 * SECOND - int(world.sender.time_ns.min())
    with Client(unit.url, unit.tokens["admin"]) as admin:
        admin.create_segment("ab", "alpha:eth0", "beta:eth1", memory_bytes=MEMORY, epoch_ns=5 * SECOND)
    ends = (("alpha", "point:eth0:out:g1", world.sender), ("beta", "point:eth1:in:g1", world.receiver))
    for node, stream, batch in ends:
        epochs = record(moved(batch, by_ns), PLAN, world, node=node)
        unit.store.add([replace(epoch, node=node, stream=stream) for epoch in epochs])
    runs = RunStore(unit.store)
    eventually(lambda: any(one.runs >= 3 for one in runs.totals(0, 2**63 - 1).values()))
    (totals,) = runs.totals(0, 2**63 - 1).values()
    time_ns = world.sender.time_ns + by_ns
    delay = world.delay_ns[(time_ns >= totals.first_ns) & (time_ns <= totals.last_ns)]
    return FleetData(len(delay), int((delay == LOST).sum()), np.sort(delay[delay != LOST]))
