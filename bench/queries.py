"""Queries over stored bucket arrays: what a question takes from the store to its answer, by epochs and instances.

Epochs as agents send them: one stream of the default bucket array with a round of 16 salts. CPU of the process that
answers, kernels compiled and libraries loaded; goals are a second for five minutes and for 10⁴ epochs, ten for 10⁵.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.estimation.buckets.queries import FOREVER_NS, RangeQuery, Stat
from sojourn.estimation.buckets.questions import Question
from sojourn.server.queries.answering import Work, answer_question
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, StreamRecord, open_store

__all__ = ["NOTE", "table"]

WORLDS = ((300, 20), (300, 100), (10_000, 20), (100_000, 20))  # epochs and instances; the first are five minutes
STREAM = StreamRecord("gateway-7", "disk", "disk_io", "operations", "process", "increments")
SALTS, EPOCH_NS, BATCH = 16, 1_000_000_000, 500
MOST_BYTES = 1 << 28
REPETITIONS = 3
NOTE = f"One core, best of {REPETITIONS} runs; seconds of CPU for `--top 10` of sums and of means, and for the total."


def _epochs(count: int, instances: int) -> Iterator[EncodedEpoch]:
    random = np.random.default_rng(1)
    keys = tuple(ProcessKey("worker", number) for number in range(instances))
    ids = np.array([key_id(key) for key in keys], np.uint64)
    for number in range(count):
        sketch = BucketArray(
            BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24, salt=number % SALTS)
        )
        who = random.permutation(np.repeat(ids, random.poisson(1 + np.arange(instances))))
        moments = 10**18 + number * EPOCH_NS + np.sort(random.integers(0, EPOCH_NS, len(who)))
        values = random.integers(1, 20, len(who))
        sketch.record_batch(MeasurementBatch(who, values, moments, np.zeros(len(who), np.uint64)))
        yield EncodedEpoch.of(Epoch(STREAM.node, STREAM.name, number, sketch, keys))


def _seconds(store: EpochStore, top: int, stat: Stat) -> float:
    asked = RangeQuery(from_ns=0, to_ns=FOREVER_NS, stat=stat)
    work = Work(question=Question(range=asked, top=top), streams=(STREAM,), until_ns=0, most_bytes=MOST_BYTES)
    best = float("inf")
    for _ in range(REPETITIONS + 1):  # the first warms up
        start = time.process_time()
        answer_question(store.engine.url, work)
        best = min(best, time.process_time() - start)
    return best


def table() -> list[str]:
    """A row for each size of store."""
    lines = ["| epochs | instances | top, sums | top, means | total |", "|---:|---:|---:|---:|---:|"]
    for count, instances in WORLDS:
        with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name, closing(open_store(Path(name))) as store:
            store.announce(STREAM)
            epochs = _epochs(count, instances)
            while some := list(islice(epochs, BATCH)):
                store.add_encoded(some)
            asked: tuple[tuple[int, Stat], ...] = ((10, "sum"), (10, "mean"), (0, "sum"))
            cells = " | ".join(f"{_seconds(store, top, stat):.2f} s" for top, stat in asked)
        lines.append(f"| {count:,} | {instances} | {cells} |")
    return lines
