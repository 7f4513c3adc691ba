"""How fast each sketch records, beside a count-min sketch in C++ and one pass of numpy over the same columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from datasketches import count_min_sketch

from bench.timing import best_seconds
from sojourn.core.arrays import MeasurementBatch, PacketBatch
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sds import SdsParameters
from sojourn.sketches.sketch import new_sketch

PACKETS = 4_000_000
PEER_PACKETS = 400_000
FLOWS = 20_000
COLUMNS = 4096

SKETCHES: dict[str, Parameters] = {
    "LDA, 1024 cells": LdaParameters(rows=1024),
    "LDA, 3 banks of 1024": LdaParameters(rows=1024, shares=(1.0, 0.25, 0.0625)),
    "COLATE, 10 000 counters": CounterVectorParameters(counters=10_000, per_flow=20, max_delay_ns=10_000_000),
    "COLATE, with counts": CounterVectorParameters(counters=10_000, per_flow=20, count_bits=24),
    "LDS, 4 rows": LdsParameters(rows=4, columns=COLUMNS),
    "LDS, 4 rows that sample, k = 8": LdsParameters(rows=4, columns=COLUMNS, spread=8, shares=(1.0, 0.5, 0.25, 0.125)),
    "Sample, 10 000 slots, 1024 groups": SampleParameters(slots=10_000, groups=1024),
    "SDS, 4 rows": SdsParameters(rows=4, columns=COLUMNS),
    "IoTm, 20 buckets, random": BucketArrayParameters(buckets=20, per_instance=5, bits=40, spreading="random"),
    "IoTm, 20 buckets, hashed steps": BucketArrayParameters(
        buckets=20, per_instance=5, bits=40, spreading="hashed-steps"
    ),
    "IoTm, 20 buckets, round robin": BucketArrayParameters(
        buckets=20, per_instance=5, bits=40, spreading="round-robin"
    ),
}


def traffic() -> tuple[PacketBatch, MeasurementBatch]:
    """Heavy-tailed flows in random order: 64-bit ids in memory."""
    random = np.random.default_rng(1)
    ids = random.integers(0, 2**64, FLOWS, dtype=np.uint64)
    weights = random.pareto(1.1, FLOWS) + 0.01
    flow = ids[random.choice(FLOWS, PACKETS, p=weights / weights.sum())]
    packets = PacketBatch(
        flow,
        random.integers(0, 2**64, PACKETS, dtype=np.uint64),
        1_700_000_000_000_000_000 + np.arange(PACKETS) * 250,
        np.full(PACKETS, 500, np.int64),
    )
    ones = np.ones(PACKETS, np.int64)
    return packets, MeasurementBatch(flow, ones, packets.time_ns, packets.packet_id)


def record(parameters: Parameters, packets: PacketBatch, measurements: MeasurementBatch) -> Callable[[], None]:
    """One whole recording, of an empty sketch."""
    takes_packets = parameters.kind in ("lda", "lds", "counter_vector", "sample")
    batch = packets if takes_packets else measurements

    def run() -> None:
        taken = new_sketch(parameters).record_batch(batch)
        assert taken == PACKETS, f"{parameters.kind} was full after {taken}"

    return run


def count_min(flow_id: np.ndarray) -> Callable[[], None]:
    """The peer: the same stream, four hashes, the same width, through its Python binding."""
    keys = flow_id[:PEER_PACKETS].view(np.int64).tolist()

    def run() -> None:
        sketch = count_min_sketch(4, COLUMNS)
        update = sketch.update
        for key in keys:
            update(key)

    return run


def read_once(packets: PacketBatch) -> Callable[[], None]:
    """One pass of numpy over the columns that LDS reads."""

    def run() -> None:
        packets.flow_id.sum()
        packets.packet_id.sum()
        packets.time_ns.sum()

    return run


def table() -> list[str]:
    """The figures as a Markdown table, fastest first."""
    packets, measurements = traffic()
    peer = PEER_PACKETS / best_seconds(count_min(packets.flow_id), 3)
    reading = PACKETS / best_seconds(read_once(packets))
    speeds = {name: PACKETS / best_seconds(record(p, packets, measurements)) for name, p in SKETCHES.items()}
    lines = [
        "| | million packets/s | × count-min (C++ by its Python binding) | share of one numpy read |",
        "|---|---:|---:|---:|",
    ]
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {speed / 1e6:.0f} | {speed / peer:.0f} | {speed / reading:.0%} |")
    lines.append(f"| count-min, 4 hashes, width {COLUMNS} | {peer / 1e6:.1f} | 1 | {peer / reading:.1%} |")
    lines.append(f"| numpy, one sum over the three columns | {reading / 1e6:.0f} | {reading / peer:.0f} | 100% |")
    return lines
