"""IoTm's two worlds with known truth: processes that access a disk, and flows of messages with acknowledgements.

The paper's traces are not at hand. Ten processes differ by an order of magnitude, as in its Fig. 2; fifty flows send
1 … 50 messages of 100 bytes per second, with round trips of 5 to 45 ms (§IV-B). The number of accesses, the jitter and
the laws of sizes are our choice, and can be varied. The same seed gives the same world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

MINUTE_NS = 60_000_000_000
START_NS = 1_700_000_040_000_000_000 // MINUTE_NS * MINUTE_NS
DEFAULT_ARRAY = BucketArrayParameters(buckets=20, per_instance=5)

SIZES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "zipf": lambda _random, k: np.asarray(10_000 / np.arange(1, k + 1), np.float64),
    "lognormal": lambda random, k: np.maximum(random.lognormal(np.log(2000), 1.0, k), 50),
    "linear": lambda _random, k: np.asarray(400.0 * np.arange(1, k + 1), np.float64),
}


@dataclass(frozen=True, eq=False)
class DiskWorld:
    """Epochs of a node's disk accesses, and each process's true sum in each (epochs × processes)."""

    ids: UInt64Array
    epochs: list[BucketArray]
    by_epoch: FloatArray

    @property
    def total(self) -> FloatArray:
        total: FloatArray = self.by_epoch.sum(axis=0)
        return total


def disk_world(
    seed: int,
    parameters: BucketArrayParameters = DEFAULT_ARRAY,
    *,
    sizes: str = "zipf",
    processes: int = 10,
    epochs: int = 1,
    burst: float = 0.0,
    largest: int = 1,
    salted: bool = True,
) -> DiskWorld:
    """Skewed processes whose rate may change by `burst` between epochs; accesses of 1 … `largest` operations.

    Without salts of their own, all epochs share the seed's.
    """
    random = np.random.default_rng([seed, 7])
    rate = SIZES[sizes](random, processes) / epochs
    ids = random.integers(0, 2**64, processes, dtype=np.uint64)
    arrays, truth = [], []
    for e in range(epochs):
        change = random.gamma(1 / burst**2, burst**2, processes) if burst else 1.0
        count = random.poisson(rate * change)
        process = random.permutation(np.repeat(np.arange(processes), count))
        value = random.integers(1, largest + 1, len(process))
        array = BucketArray(replace(parameters, salt=1000 * seed + (e if salted else 0)), seed=seed + e)
        if array.record_batch(MeasurementBatch.of(ids[process], value, np.arange(len(process)))) < len(process):
            raise ParameterError(f"buckets of {parameters.bits} bits are full", where="disk world", action="use more")
        arrays.append(array)
        truth.append(np.bincount(process, value, processes))
    return DiskWorld(ids, arrays, np.array(truth))


@dataclass(frozen=True, eq=False)
class MessageWorld:
    """Packets sent and acknowledged, in the order of time, and each flow's true mean round trip and packets."""

    ids: UInt64Array
    sent: MeasurementBatch
    acknowledged: MeasurementBatch
    mean_ns: FloatArray
    packets: Int64Array

    def of(self, chosen: Int64Array) -> MessageWorld:
        """The same world with only some of its flows."""
        ids = self.ids[chosen]
        sent = self.sent.select(np.isin(self.sent.instance_id, ids))
        acknowledged = self.acknowledged.select(np.isin(self.acknowledged.instance_id, ids))
        return MessageWorld(ids, sent, acknowledged, self.mean_ns[chosen], self.packets[chosen])

    @property
    def grand_mean_ns(self) -> float:
        """The mean of all packets' round trips, whosever they are."""
        return float((self.mean_ns * self.packets).sum() / max(int(self.packets.sum()), 1))


def message_world(
    seed: int,
    *,
    flows: int = 50,
    minutes: float = 10,
    jitter: float = 0.1,
    loss: float = 0.0,
    means: Literal["uniform", "lognormal"] = "uniform",
    spread: float = 0.5,
    rates: Literal["linear", "lognormal"] = "linear",
) -> MessageWorld:
    """The paper's: flow i sends i messages of 100 bytes per second; round trips of 5 to 45 ms.

    Log-normal means are around 15 ms, with `spread` the deviation of their logarithm.
    """
    random = np.random.default_rng([seed, 8])
    per_second = np.arange(1, flows + 1) if rates == "linear" else random.lognormal(np.log(15), 1, flows)
    mean_ms = random.uniform(5, 45, flows) if means == "uniform" else random.lognormal(np.log(15), spread, flows)
    packets = random.poisson(per_second * 60 * minutes)
    flow = np.repeat(np.arange(flows), packets)
    time_ns = START_NS + random.integers(0, int(MINUTE_NS * minutes), len(flow))
    order = np.lexsort((time_ns, flow))
    time_ns = time_ns[order]
    place = np.arange(len(flow)) - np.concatenate([[0], np.cumsum(packets)])[flow]
    number = ((random.integers(0, 2**32, flows)[flow] + 100 * place) % 2**32).astype(np.uint64)
    varied = random.gamma(1 / jitter**2, jitter**2, len(flow)) if jitter else 1.0
    trip_ns = (1e6 * mean_ms[flow] * varied).astype(np.int64)
    kept: BoolArray = random.uniform(size=len(flow)) >= loss
    ids = random.integers(0, 2**64, flows, dtype=np.uint64)

    def batch(rows: Int64Array, times: Int64Array) -> MeasurementBatch:
        rows = rows[np.argsort(times[rows], kind="stable")]
        return MeasurementBatch(ids[flow[rows]], np.zeros(len(rows), np.int64), times[rows], number[rows])

    everything = np.arange(len(flow))
    answered = np.bincount(flow[kept], minlength=flows)
    mean_ns = np.bincount(flow[kept], trip_ns[kept], flows) / np.maximum(answered, 1)
    return MessageWorld(
        ids, batch(everything, time_ns), batch(everything[kept], time_ns + trip_ns), mean_ns, answered.astype(np.int64)
    )
