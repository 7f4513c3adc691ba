"""A query over a million epochs of a thousand nodes, by a tag: from the epochs that a policy of merging left of them.

A thousand nodes with one stream each of the default bucket array, a round of 16 salts, ten processes, an epoch every
ten seconds for ten thousand seconds: a million epochs, which come a hundred of a node at a time. They are merged as
``--merge-epochs AGE:1h`` has it, and then asked for by their tag with a query worker's own function: wall clock, of the
store's SQLite file and a process that has done it once. Building the store takes minutes, and is not measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sojourn.core.keys import ProcessKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch
from sojourn.estimation.buckets.queries import RangeQuery
from sojourn.estimation.buckets.questions import Question
from sojourn.server.queries.answering import Work, answer_question
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.upkeep.downsampling import MergeStep, merge_some

__all__ = ["NOTE", "table"]

NODES, EPOCHS, SALTS, INSTANCES = 1000, 1000, 16, 10
EPOCH_NS, HOUR_NS = 10_000_000_000, 3_600_000_000_000
BEGIN_NS = 10**18 - 10**18 % HOUR_NS
BATCH, TAG, REPETITIONS = 100, "roof", 3
MOST_BYTES = 96 << 20  # as a query worker has it
NOTE = f"One core, best of {REPETITIONS}; {NODES:,} nodes, {INSTANCES} processes each; wall clock of one query."


def _batches() -> Iterator[list[EncodedEpoch]]:
    """A hundred epochs of each node in turn, as a fleet sends them that was without its query unit for a while."""
    keys = tuple(ProcessKey("worker", number) for number in range(INSTANCES))
    ids = [key_id(key) for key in keys]
    for first in range(0, EPOCHS, BATCH):
        sketches = []
        for number in range(first, min(first + BATCH, EPOCHS)):
            salt = number % SALTS
            sketch = BucketArray(BucketArrayParameters(buckets=64, per_instance=4, bits=40, count_bits=24, salt=salt))
            for place, instance in enumerate(ids):
                sketch.record(instance, 100 + place, BEGIN_NS + number * EPOCH_NS + place * 10**9)
            sketches.append((number, sketch))
        for node in range(NODES):
            name = f"node-{node:04}"
            yield [EncodedEpoch.of(Epoch(name, "disk", number, sketch, keys)) for number, sketch in sketches]


def build(folder: Path) -> EpochStore:
    """A store with all epochs, tagged nodes and announced streams."""
    store = open_store(folder)
    for node in range(NODES):
        name = f"node-{node:04}"
        store.announce(StreamRecord(name, "disk", "disk_io", "operations", "process", "increments"))
        store.set_tags(name, [TAG])
    for batch in _batches():
        store.add_encoded(batch, now_ns=batch[-1].last_ns)
    return store


def merge(store: EpochStore) -> tuple[int, float]:
    """How many epochs went into others of an hour, and how long that took."""
    step, now_ns = MergeStep(HOUR_NS, HOUR_NS), BEGIN_NS + 2 * EPOCHS * EPOCH_NS + 2 * HOUR_NS
    start, gone = time.perf_counter(), 0
    while True:
        looked, went = merge_some(store, step, now_ns)
        gone += went
        if not looked:
            return gone, time.perf_counter() - start


def _seconds(store: EpochStore, question: Question) -> float:
    best = float("inf")
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        tagged = {node.name for node in store.nodes(tag=TAG)}
        streams = tuple(one for one in store.streams(metric="disk_io") if one.node in tagged)
        work = Work(question=question, streams=streams, until_ns=0, most_bytes=MOST_BYTES)
        found = answer_question(store.engine.url, work)
        best = min(best, time.perf_counter() - start)
        # Every answer holds all epochs, whatever has become of them.
        total = sum(getattr(one.range.answer, "value", 0.0) for one in found)
        assert round(total) == NODES * EPOCHS * sum(100 + place for place in range(INSTANCES))
    return best


def measured(store: EpochStore) -> list[str]:
    """A row for each question."""
    span = RangeQuery(from_ns=BEGIN_NS, to_ns=BEGIN_NS + EPOCHS * EPOCH_NS)
    asked = {"all of the tag, added up": Question(range=span)}
    asked["each node of the tag"] = Question(range=span, group="node")
    lines = ["| question | stored epochs | seconds |", "|---|---:|---:|"]
    for what, question in asked.items():
        left = f"{store.totals()['epochs']:,} of {NODES * EPOCHS:,}"
        lines.append(f"| {what} | {left} | {_seconds(store, question):.1f} |")
    return lines


def table() -> list[str]:
    """Build, merge, ask."""
    with tempfile.TemporaryDirectory(prefix="sojourn-bench-") as name, closing(build(Path(name))) as store:
        gone, seconds = merge(store)
        each = seconds * 1e6 / (NODES * EPOCHS)
        return [*measured(store), "", f"Merging took {each:.0f} µs an epoch, and left {NODES * EPOCHS - gone:,}."]
