"""Collection networks to judge tomography's intervals in: worlds to fit on, worlds held out, and recorded traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.lab.wireless import WirelessNetwork, run_collection
from sojourn.tomography.bounds.constraints import Bounds, bound
from sojourn.tomography.delays.estimate import estimate
from sojourn.tomography.reading import read_trace, read_truth
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "data" / "collection"
RECORDED_NAMES = ("n100_center_20s", "n225_center_20s")
FIT_SEEDS = range(1000, 1080)
NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class World:
    """A trace, the truth of its places (-1 where unknown), and the answers to be judged."""

    trace: CollectionTrace
    truth_ns: Int64Array
    bounds: Bounds
    arrival_ns: Int64Array


def solved(rows: list[PacketRow], times: dict[tuple[int, int], Int64Array]) -> World:
    """Answers for a trace whose truth is given for each origin and sequence number."""
    trace = make_trace(rows)
    keys = zip(trace.origin.tolist(), trace.shown_sequence.tolist(), strict=True)
    bounds = bound(trace)
    return World(trace, np.concatenate([times[key] for key in keys]), bounds, estimate(trace, bounds).arrival_ns)


def simulated(network: WirelessNetwork, seed: int, without_sum: float = 0.0) -> World:
    """A simulated network; `without_sum` is the share of packets that carry no S."""
    run = run_collection(network, seed)
    has_none = np.random.default_rng(seed + 1).random(len(run)) < without_sum
    rows: list[PacketRow] = []
    times: dict[tuple[int, int], Int64Array] = {}
    for p in range(len(run)):
        places = slice(run.start[p], run.start[p + 1])
        arrival = run.arrival_ns[places]
        key = int(run.origin[p]), int(run.sequence[p])
        total = MISSING if has_none[p] else int(run.sum_ms[p]) * NS_PER_MS
        rows.append((*key, run.node[places].tolist(), int(arrival[0]), int(arrival[-1]), total))
        times[key] = arrival
    return solved(rows, times)


def recorded(name: str, parts: int = 1) -> Iterator[World]:
    """A trace of real CTP nodes, whole or as parts of equal time, each solved without the others."""
    trace = read_trace(RECORDED / f"{name}_packets.csv.gz")
    truth = read_truth(RECORDED / f"{name}_hops.csv.gz", trace)
    first, last = int(trace.t0_ns.min()), int(trace.t0_ns.max()) + 1
    edges = [first + (last - first) * k // parts for k in range(parts + 1)]
    for begin, end in pairwise(edges):
        rows: list[PacketRow] = []
        times: dict[tuple[int, int], Int64Array] = {}
        for p in np.flatnonzero((trace.t0_ns >= begin) & (trace.t0_ns < end)).tolist():
            places = slice(trace.start[p], trace.start[p + 1])
            key = int(trace.origin[p]), int(trace.sequence[p])
            stay = int(trace.t0_ns[p]), int(trace.sink_ns[p])
            rows.append((*key, trace.node[places].tolist(), *stay, int(trace.sum_ns[p])))
            times[key] = truth[places]
        yield solved(rows, times)


def fitting_worlds() -> Iterator[World]:
    """Networks of all kinds for the factors to be fitted on: sizes, periods, losses, noise, missing sums."""
    for seed in FIT_SEEDS:
        random = np.random.default_rng(seed)
        nodes = int(random.choice([60, 100, 150, 225, 300, 400]))
        network = WirelessNetwork(
            nodes=nodes,
            period_s=float(np.exp(random.uniform(np.log(2), np.log(60)))),
            packets_per_node=int(random.choice([6, 10, 16])),
            ack_loss=float(random.choice([0, 0, 0.03, 0.1, 0.2])),
            loss=float(random.choice([0, 0, 0.03, 0.1, 0.2, 0.3])),
            noise_db=float(random.choice([0.8, 0.8, 2, 4])),
            buffer=64,
        )
        without_sum = float(random.choice([0, 0, 0, 0.2, 1]))
        yield simulated(replace(network, route_s=float(random.choice([25, 60, 200]))), seed, without_sum)


USUAL = WirelessNetwork(buffer=64)
HELD_OUT: dict[str, tuple[WirelessNetwork, float]] = {
    "100 nodes": (replace(USUAL, nodes=100), 0.0),
    "225 nodes": (replace(USUAL, nodes=225), 0.0),
    "400 nodes": (USUAL, 0.0),
    "100 nodes, period 2 s": (replace(USUAL, nodes=100, period_s=2), 0.0),
    "225 nodes, period 2 s": (replace(USUAL, nodes=225, period_s=2), 0.0),
    "400 nodes, period 2 s": (replace(USUAL, period_s=2), 0.0),
    "400 nodes, period 5 s": (replace(USUAL, period_s=5), 0.0),
    "400 nodes, period 20 s": (replace(USUAL, period_s=20), 0.0),
    "400 nodes, period 60 s": (replace(USUAL, period_s=60), 0.0),
    "225 nodes, ACK loss 5 %": (replace(USUAL, nodes=225, ack_loss=0.05), 0.0),
    "225 nodes, ACK loss 20 %": (replace(USUAL, nodes=225, ack_loss=0.2), 0.0),
    "225 nodes, ACK loss 40 %": (replace(USUAL, nodes=225, ack_loss=0.4), 0.0),
    "225 nodes, 10 % of packets missing": (replace(USUAL, nodes=225, loss=0.1), 0.0),
    "225 nodes, 30 % missing": (replace(USUAL, nodes=225, loss=0.3), 0.0),
    "400 nodes, 20 % missing, ACK loss 10 %": (replace(USUAL, loss=0.2, ack_loss=0.1), 0.0),
    "225 nodes, noise 2 dB": (replace(USUAL, nodes=225, noise_db=2), 0.0),
    "225 nodes, noise 4 dB": (replace(USUAL, nodes=225, noise_db=4), 0.0),
    "225 nodes, noise 6 dB": (replace(USUAL, nodes=225, noise_db=6), 0.0),
    "225 nodes, half without S": (replace(USUAL, nodes=225), 0.5),
    "225 nodes, none with S": (replace(USUAL, nodes=225), 1.0),
    "400 nodes, none with S, 20 % missing": (replace(USUAL, loss=0.2), 1.0),
    "225 nodes, buffer 4, 3 retries": (replace(USUAL, nodes=225, buffer=4, retries=3, ack_loss=0.05), 0.0),
    "225 nodes, routes of 5 s": (replace(USUAL, nodes=225, route_s=5), 0.0),
    "225 nodes, 3 packets each": (replace(USUAL, nodes=225, packets_per_node=3), 0.0),
    "225 nodes, 40 packets each": (replace(USUAL, nodes=225, packets_per_node=40), 0.0),
    "400 nodes, period 2 s, noise 4 dB, none with S": (replace(USUAL, period_s=2, noise_db=4), 1.0),
}
HELD_OUT_SEEDS = {name: range(9000 + 10 * k, 9003 + 10 * k) for k, name in enumerate(HELD_OUT)}
