"""IoTm's two worlds with known truth: processes that access a disk, and flows of messages with acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.batches import MeasurementBatch
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

MINUTE_NS = 60_000_000_000
START_NS = 1_700_000_040_000_000_000 // MINUTE_NS * MINUTE_NS


def zipf(_, k):
    return 10_000 / np.arange(1, k + 1)


def lognormal(random, k):
    return np.maximum(random.lognormal(np.log(2000), 1.0, k), 50)


def linear(_, k):
    return 400.0 * np.arange(1, k + 1)


SIZES = {f.__name__: f for f in (zipf, lognormal, linear)}


@dataclass(frozen=True)
class DiskWorld:
    """Epochs of a node's disk accesses, and each process's true sum in each."""

    ids: np.ndarray
    epochs: list[BucketArray]
    by_epoch: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.by_epoch.sum(axis=0)


def disk_world(
    seed: int,
    *,
    sizes: str = "zipf",
    processes: int = 10,
    epochs: int = 1,
    burst: float = 0.0,
    largest: int = 1,
    **parameters,
) -> DiskWorld:
    """Skewed processes whose rate may change by `burst` between epochs; accesses of 1 … `largest` operations."""
    random = np.random.default_rng([seed, 7])
    rate = SIZES[sizes](random, processes) / epochs
    ids = random.integers(0, 2**64, processes, dtype=np.uint64)
    arrays, truth = [], []
    for e in range(epochs):
        change = random.gamma(1 / burst**2, burst**2, processes) if burst else 1.0
        count = random.poisson(rate * change)
        process = random.permutation(np.repeat(np.arange(processes), count))
        value = random.integers(1, largest + 1, len(process))
        options = {"buckets": 20, "per_instance": 5, **parameters}
        array = BucketArray(BucketArrayParameters(salt=1000 * seed + e, **options), seed=seed + e)
        assert array.record_batch(MeasurementBatch.of(ids[process], value, np.arange(len(process)))) == len(process)
        arrays.append(array)
        truth.append(np.bincount(process, value, processes))
    return DiskWorld(ids, arrays, np.array(truth))


@dataclass(frozen=True)
class MessageWorld:
    """Packets sent and acknowledged, in the order of time, and each flow's true mean round trip."""

    ids: np.ndarray
    sent: MeasurementBatch
    acknowledged: MeasurementBatch
    mean_ns: np.ndarray


def message_world(
    seed: int,
    *,
    flows: int = 50,
    minutes: float = 10,
    jitter: float = 0.1,
    loss: float = 0.0,
    means: str = "uniform",
    rates: str = "linear",
) -> MessageWorld:
    """The paper's: flow i sends i messages of 100 bytes per second; round trips of 5 to 45 ms."""
    random = np.random.default_rng([seed, 8])
    per_second = np.arange(1, flows + 1) if rates == "linear" else random.lognormal(np.log(15), 1, flows)
    mean_ms = random.uniform(5, 45, flows) if means == "uniform" else random.lognormal(np.log(15), 0.5, flows)
    packets = random.poisson(per_second * 60 * minutes)
    flow = np.repeat(np.arange(flows), packets)
    time_ns = START_NS + random.integers(0, int(MINUTE_NS * minutes), len(flow))
    order = np.lexsort((time_ns, flow))
    time_ns = time_ns[order]
    place = np.arange(len(flow)) - np.concatenate([[0], np.cumsum(packets)])[flow]
    number = ((random.integers(0, 2**32, flows)[flow] + 100 * place) % 2**32).astype(np.uint64)
    varied = random.gamma(1 / jitter**2, jitter**2, len(flow)) if jitter else 1.0
    trip_ns = (1e6 * mean_ms[flow] * varied).astype(np.int64)
    kept = random.uniform(size=len(flow)) >= loss
    ids = random.integers(0, 2**64, flows, dtype=np.uint64)

    def batch(rows, times):
        rows = rows[np.argsort(times[rows], kind="stable")]
        return MeasurementBatch(ids[flow[rows]], np.zeros(len(rows), np.int64), times[rows], number[rows])

    everything = np.arange(len(flow))
    mean_ns = np.bincount(flow[kept], trip_ns[kept], flows) / np.maximum(np.bincount(flow[kept], minlength=flows), 1)
    return MessageWorld(ids, batch(everything, time_ns), batch(everything[kept], time_ns + trip_ns), mean_ns)
