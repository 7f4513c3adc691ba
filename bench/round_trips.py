"""What means of round trips in few shared buckets can come to at best: decoders beside oracles, on the same buckets.

Fifty flows send through ten queues into the paper's 20 buckets, 5 for each flow, every epoch under a salt of its own.
The oracles are best linear estimators that are told how many of each flow's round trips are in each bucket, how flows'
means differ, and how round trips vary:

- *scales*: by one factor of the mean for packets and one for the drift of an epoch's mean, as the decoder learns them;
- *of each flow*: each flow's own variances;
- *in time*: also how epochs that follow each other are correlated;
- *of queues*: also which flows wait in the same queue and drift together.

An epoch's mean of flow f is r_f + d_f, d a first-order process; the state (r, d, and what f's round trips add up to so
far) is filtered through all epochs' buckets (Kalman 1960). O(epochs · (3·flows)³): a second for 100 epochs of 50 flows.
Simulated queues are Lindley's recursion at loads of 0.72 to 0.92; ``--samples`` reads recorded round trips instead
(columns flow, queue, time_ns, trip_ns of an npz file).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, MeasurementBatch, UInt64Array
from sojourn.core.estimates import Estimate
from sojourn.estimation.buckets.queries import estimate_means_jointly
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

QUEUES, FLOWS, SECONDS = 10, 50, 40
BUCKETS, PER_FLOW = 20, 5
ORACLES = ("scales", "of each flow", "in time", "of queues")
WITHIN = 0.07
# Drifts of flows that wait in the same queue are alike but for when each of them sends.
ALIKE = 0.98
LEAST_DRIFT = 1e-3


@dataclass(frozen=True, eq=False)
class RoundTrips:
    """Round trips in the order of time, and the queue of each flow."""

    ids: UInt64Array
    queue: Int64Array
    flow: Int64Array
    second: FloatArray
    trip_ns: Int64Array

    @property
    def mean_ns(self) -> FloatArray:
        return np.bincount(self.flow, self.trip_ns) / np.bincount(self.flow)

    def slots(self, epochs: int) -> Int64Array:
        """The epoch of each."""
        span = float(self.second[-1] - self.second[0]) * (1 + 1e-9)
        return ((self.second - self.second[0]) / span * epochs).astype(np.int64)

    def recorded(self, epochs: int, salt: int = 0) -> list[BucketArray]:
        """What an agent would send."""
        slot = self.slots(epochs)
        return [self._array(slot == epoch, salt + epoch) for epoch in range(epochs)]

    def counted(self, epochs: int, salt: int = 0) -> FloatArray:
        """How many of each flow's are in each bucket of each epoch."""
        slot, found = self.slots(epochs), np.zeros((epochs, BUCKETS, len(self.ids)))
        for epoch in range(epochs):
            inside = slot == epoch
            for flow in np.unique(self.flow[inside]).tolist():
                array = self._array(inside & (self.flow == flow), salt + epoch)
                found[epoch, :, flow] = array.column("count")
        return found

    def _array(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]], salt: int) -> BucketArray:
        parameters = BucketArrayParameters(buckets=BUCKETS, per_instance=PER_FLOW, bits=48, count_bits=24, salt=salt)
        array, time_ns = BucketArray(parameters), (1e9 * self.second[rows]).astype(np.int64)
        array.record_batch(MeasurementBatch.of(self.ids[self.flow[rows]], self.trip_ns[rows], time_ns))
        return array


def queue_world(seed: int, seconds: int = SECONDS) -> RoundTrips:
    """Flow i sends i messages per second through queue i mod 10, each answered twice as by TCP and MQTT; loads of 0.72
    to 0.92, exponential service."""
    random = np.random.default_rng([seed, 41])
    flow, second, trip = [], [], []
    for queue, load in enumerate(np.linspace(0.72, 0.92, QUEUES)):
        members = [i for i in range(1, FLOWS + 1) if i % QUEUES == queue]
        counts = [random.poisson(i * seconds) for i in members]
        who = np.repeat(np.array(members) - 1, counts)
        at = random.uniform(0, seconds, len(who))
        order = np.argsort(at)
        who, at = who[order], at[order]
        service = random.exponential(load / sum(members), len(who))
        wait = np.zeros(len(who))
        for i in range(1, len(who)):
            wait[i] = max(0.0, wait[i - 1] + service[i - 1] - (at[i] - at[i - 1]))
        flow.append(np.repeat(who, 2))
        second.append(np.repeat(at, 2))
        trip.append(np.repeat(wait + service, 2) + 0.001)
    order = np.argsort(np.concatenate(second), kind="stable")
    ids = random.integers(1, 2**63, FLOWS, dtype=np.uint64)
    of_flow, at_second, took = (np.concatenate(part)[order] for part in (flow, second, trip))
    return RoundTrips(ids, (np.arange(FLOWS) + 1) % QUEUES, of_flow, at_second, (1e9 * took).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Variation:
    """What an oracle is told: how means differ; of each flow the variance of packets around an epoch's mean, and of
    that around the flow's own; the correlation of epochs that follow each other, and of flows."""

    centre: float
    between: float
    packets: FloatArray
    drift: FloatArray
    lasting: float
    together: FloatArray


def variation_of(trips: RoundTrips, epochs: int, oracle: str) -> Variation:
    """By all round trips themselves."""
    flows, slot = len(trips.ids), trips.slots(epochs)
    count, total, square = np.zeros((3, epochs, flows))
    values = trips.trip_ns.astype(np.float64)
    for target, weight in ((count, np.ones(len(slot))), (total, values), (square, values**2)):
        np.add.at(target, (slot, trips.flow), weight)
    mean, some = trips.mean_ns, count > 0
    of_epoch = total / np.maximum(count, 1.0)
    packets = (square - count * of_epoch**2).sum(axis=0) / np.maximum((count - some).sum(axis=0), 1.0)
    away = np.where(some, of_epoch - mean, 0.0)
    drift = ((count * away**2).sum(axis=0) - packets * some.sum(axis=0)) / count.sum(axis=0)
    drift = np.maximum(drift, LEAST_DRIFT * mean**2)
    if oracle == "scales":
        weight = count.sum(axis=0)
        packets, drift = (np.average(one / mean**2, weights=weight) * mean**2 for one in (packets, drift))
    lasting, together = 0.0, np.eye(flows)
    if oracle in ("in time", "of queues"):
        weight = np.sqrt(count[1:] * count[:-1])
        lagged = (weight * away[1:] * away[:-1]).sum(axis=0) / np.maximum(weight.sum(axis=0), 1.0)
        lasting = float(np.clip(lagged.sum() / drift.sum(), 0.0, 0.999))
    if oracle == "of queues":
        together = ALIKE * (trips.queue[:, None] == trips.queue) + (1 - ALIKE) * np.eye(flows)
    return Variation(float(mean.mean()), float(mean.var()), packets, drift, lasting, together)


def best_linear(sums: FloatArray, counted: FloatArray, known: Variation) -> tuple[FloatArray, FloatArray]:
    """Each flow's mean round trip, and its deviation, from sums (epochs × buckets) of known numbers of packets."""
    flows = counted.shape[2]
    own, away, added = (slice(part * flows, (part + 1) * flows) for part in range(3))
    deviation = np.sqrt(known.drift)
    drift = deviation[:, None] * known.together * deviation
    state, covariance = np.zeros(3 * flows), np.zeros((3 * flows, 3 * flows))
    state[own] = known.centre
    covariance[own, own], covariance[away, away] = known.between * np.eye(flows), drift
    lasts = np.ones(3 * flows)
    lasts[away] = known.lasting
    each = np.arange(flows)
    for epoch, numbers in enumerate(counted):
        if epoch:
            state, covariance = lasts * state, lasts[:, None] * covariance * lasts
            covariance[away, away] += (1 - known.lasting**2) * drift
        sent = numbers.sum(axis=0)
        step = np.eye(3 * flows)
        step[2 * flows + each, each] = step[2 * flows + each, flows + each] = sent
        state, covariance = step @ state, step @ covariance @ step.T
        covariance[2 * flows + each, 2 * flows + each] += sent * known.packets
        seen = np.hstack([numbers, numbers, np.zeros_like(numbers)])
        across = covariance @ seen.T
        across[added] += (numbers * known.packets).T  # the same packets are in a flow's sum and in a bucket's
        around = seen @ covariance @ seen.T + np.diag(numbers @ known.packets + 1.0)
        gain = np.linalg.solve(around, across.T).T
        state = state + gain @ (sums[epoch] - seen @ state)
        covariance = covariance - gain @ across.T
        covariance = (covariance + covariance.T) / 2
    total = counted.sum(axis=(0, 1))
    return state[added] / total, np.sqrt(np.maximum(np.diag(covariance)[added], 0.0)) / total


def table(trips: RoundTrips, epochs: Sequence[int], salts: Sequence[int]) -> Iterator[str]:
    """Median errors and flows within 7 %, in per cent, of the decoder and of each oracle, and the decoder's seconds of
    processor time; means over salts."""
    estimate_means_jointly(trips.recorded(epochs[0]), trips.ids, unit="ns")  # loads kernels
    yield "| epochs | joint | intervals cover | seconds | " + " | ".join(f"oracle, {name}" for name in ORACLES) + " |"
    yield "|--:|" + "--:|" * (len(ORACLES) + 3)
    truth = trips.mean_ns
    for number in epochs:
        figures, covered, seconds = [], [], []
        for salt in salts:
            arrays, counted = trips.recorded(number, 10_000 * salt), trips.counted(number, 10_000 * salt)
            sums = np.array([array.column("sum") for array in arrays], np.float64)
            begun = time.process_time()
            answers = estimate_means_jointly(arrays, trips.ids, unit="ns")
            seconds.append(time.process_time() - begun)
            known = [isinstance(answer, Estimate) for answer in answers]
            values = [answer.value if isinstance(answer, Estimate) else np.nan for answer in answers]
            pairs = zip(answers, truth, strict=True)
            covered += [a.contains(t) for a, t in pairs if isinstance(a, Estimate)]
            oracles = [best_linear(sums, counted, variation_of(trips, number, name))[0] for name in ORACLES]
            figures.append([_figures(np.where(known, values, 0.0), truth), *(_figures(one, truth) for one in oracles)])
        mean = np.mean(figures, axis=0)
        cells = [f"{off:.1f}; {share:.0f}" for off, share in mean]
        of_joint = f"{cells[0]} | {100 * np.mean(covered):.0f} | {np.mean(seconds):.2f}"
        yield f"| {number} | {of_joint} | {' | '.join(cells[1:])} |"


def _figures(value: FloatArray, truth: FloatArray) -> tuple[float, float]:
    """No answer is wholly wrong."""
    off = np.abs(value / truth - 1)
    return 100 * float(np.median(off)), 100 * float((off <= WITHIN).mean())


def _read(path: str) -> RoundTrips:
    columns = np.load(path)
    order = np.argsort(columns["time_ns"], kind="stable")
    _, place, flow = np.unique(columns["flow"], return_index=True, return_inverse=True)
    second = (columns["time_ns"][order] - columns["time_ns"].min()) / 1e9
    ids = np.unique(columns["flow"]).astype(np.uint64)
    return RoundTrips(ids, columns["queue"][place], flow[order], second, columns["trip_ns"][order].astype(np.int64))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench round-trips", description=__doc__)
    parser.add_argument("--samples", metavar="FILE", help="recorded round trips instead of simulated ones")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of simulated ones")
    parser.add_argument("--seed", type=int, default=60)
    parser.add_argument("--epochs", type=int, action="append", help="default 16, 64, 160; may be repeated")
    parser.add_argument("--salts", type=int, default=2)
    options = parser.parse_args(arguments)
    trips = _read(options.samples) if options.samples else queue_world(options.seed, options.seconds)
    for line in table(trips, options.epochs or (16, 64, 160), range(options.salts)):
        print(line, flush=True)
