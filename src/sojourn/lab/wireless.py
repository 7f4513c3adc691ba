"""A wireless collection network: what its sink sees, and the truth of every hop.

Nodes lie uniformly in a square of constant density with the sink in the middle; every node sends a packet each period
to the sink along the path of least expected transmissions (ETX). Noise changes, so routes change as well; nodes change
routes at different times, so that packets may loop. Queues, back-offs and losses are `wireless_events`.
The trace has what a sink can know: origin, sequence number, path, generation and arrival time, and S, the sum of delays
that Domo's nodes attach, in two bytes of milliseconds. A seed gives the same world.

Cost: nodes² of memory for each routing epoch; 400 nodes with ten packets each take under a second once compiled.
Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks", Sections III and V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.lab.wireless_events import LONGEST_PATH, simulate

__all__ = ["CollectionRun", "WirelessNetwork", "run_collection"]

MOST_NODES = 2_000
MOST_PACKETS = 5_000_000
MOST_LINK_CELLS = 200_000_000
SUM_LIMIT_MS = 65_535
# A margin of 0 dB is a link that delivers half its frames; it falls with the logarithm of the distance.
REACH = 2.1
PATH_LOSS_DB, SHADOWING_DB, NOISE_DB, SLOPE_DB = 35.0, 3.0, 0.8, 1.6
WORST_LINK = 0.05
# Seconds, after a 250 kbit/s radio: processing, back-off (least, most), congestion back-off, start of frame, frame,
# acknowledgement, wait before a repetition (least, most).
TIMING = (0.0006, 0.0003, 0.0076, 0.0024, 0.00035, 0.00177, 0.0008, 0.004, 0.012)


@dataclass(frozen=True, kw_only=True)
class WirelessNetwork:
    """The network and its traffic; without `ack_loss` and with enough buffers nothing is lost but by chance."""

    nodes: int = 400
    packets_per_node: int = 10
    period_s: float = 10.0
    buffer: int = 12
    retries: int = 30
    ack_loss: float = 0.0
    loss: float = 0.0  # share of the packets at the sink that are taken out of the trace
    route_s: float = 25.0  # how long a node keeps a route
    noise_db: float = NOISE_DB  # how far a node's noise scatters from one routing epoch to the next

    def __post_init__(self) -> None:
        if not 2 <= self.nodes <= MOST_NODES or self.packets_per_node < 1:
            raise ParameterError(
                f"{self.nodes} nodes with {self.packets_per_node} packets each",
                action=f"use 2 to {MOST_NODES} nodes, and 1 packet or more",
            )
        if self.nodes * self.packets_per_node > MOST_PACKETS or self.epochs * self.nodes**2 > MOST_LINK_CELLS:
            raise ParameterError("the network is too large to simulate", action="use fewer nodes or packets")
        if not (self.period_s > 0 and self.route_s > 0 and self.buffer >= 1 and self.retries >= 0):
            raise ParameterError("a network without period, route time or buffer", action="use values above 0")
        if not self.noise_db >= 0:
            raise ParameterError(f"noise that scatters by {self.noise_db} dB", action="use 0 or more")
        if not (0 <= self.ack_loss < 1 and 0 <= self.loss < 1):
            raise ParameterError(f"losses of {self.ack_loss} and {self.loss}", action="use shares from 0, below 1")

    @property
    def duration_s(self) -> float:
        return self.packets_per_node * self.period_s

    @property
    def epochs(self) -> int:
        """How many times routes are chosen."""
        return int(np.ceil(self.duration_s / self.route_s)) + 1


@dataclass(frozen=True)
class CollectionRun:
    """Delivered packets in the order of their arrival at the sink; hops as a ragged table of nodes and times.

    Packet i visits `node[start[i]:start[i + 1]]`, the sink last, at `arrival_ns` of the same places.
    """

    sink: int
    origin: Int64Array
    sequence: Int64Array
    sum_ms: Int64Array
    start: Int64Array
    node: Int64Array
    arrival_ns: Int64Array
    lost: dict[str, int]
    log: FloatArray  # what the nodes' radios did, if asked for: kind (see `wireless_events`), node, packet, seconds
    number: Int64Array  # what the log calls each packet

    def __len__(self) -> int:
        return len(self.origin)


def run_collection(network: WirelessNetwork, seed: int, *, log_rows: int = 0) -> CollectionRun:
    """Simulate the network; the same seed gives the same run, whatever of it is logged."""
    random = np.random.default_rng(seed)
    sink = 0
    reception, audible = _links(random, network)
    parents = _routes(random, reception, sink)
    origin, sequence, generated_s = _generations(random, network, sink)
    log = np.full((log_rows, 4), -1.0)
    visited, arrival_s, hops, sum_s, losses = simulate(
        origin,
        generated_s,
        parents,
        random.uniform(0, network.route_s, network.nodes),
        network.route_s,
        reception,
        audible,
        sink,
        network.buffer,
        network.retries,
        network.ack_loss,
        np.array(TIMING),
        int(random.integers(1 << 31)),
        log,
    )
    delivered = visited[np.arange(len(hops)), hops] == sink
    seen = delivered & (random.uniform(size=len(hops)) >= network.loss)
    names = ("buffer full", "retries used up", "path too long")
    lost = dict(zip(names, losses.tolist(), strict=True)) | {"taken out of the trace": int((delivered & ~seen).sum())}
    chosen = np.flatnonzero(seen)
    chosen = chosen[np.argsort(arrival_s[chosen, hops[chosen]], kind="stable")]
    counts = hops[chosen] + 1
    place = np.arange(LONGEST_PATH + 1) < counts[:, None]
    return CollectionRun(
        sink=sink,
        origin=origin[chosen],
        sequence=sequence[chosen],
        sum_ms=np.minimum(np.rint(sum_s[chosen] * 1e3), SUM_LIMIT_MS).astype(np.int64),
        start=np.concatenate([[0], np.cumsum(counts)]),
        node=visited[chosen][place],
        arrival_ns=np.rint(arrival_s[chosen][place] * 1e9).astype(np.int64),
        lost=lost,
        log=log[log[:, 0] >= 0],
        number=chosen,
    )


def _links(random: np.random.Generator, network: WirelessNetwork) -> tuple[FloatArray, BoolArray]:
    """The chance of reception of every link in every epoch, and who hears whom; the sink lies in the middle."""
    side = np.sqrt(network.nodes)
    place = random.uniform(0, side, (network.nodes, 2))
    place[0] = side / 2
    distance = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
    np.fill_diagonal(distance, 1e9)
    shadow = random.normal(0, SHADOWING_DB, distance.shape)
    margin = PATH_LOSS_DB * np.log10(REACH / np.maximum(distance, 0.1)) + (shadow + shadow.T) / np.sqrt(2)
    noise = random.normal(0, network.noise_db, (network.epochs, 1, network.nodes))
    reception = 1 / (1 + np.exp(-np.clip((margin[None] - noise) / SLOPE_DB, -50, 50)))
    return reception, margin > -SLOPE_DB


def _routes(random: np.random.Generator, reception: FloatArray, sink: int) -> Int64Array:
    """Each epoch's parent of every node: least expected transmissions over links that deliver often enough.

    A node that no such link connects is given its best link towards the sink's side, so that its packets mostly get
    lost rather than never being sent.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    parents = np.empty(reception.shape[:2], np.int64)
    for epoch, chance in enumerate(reception):
        both_ways = np.minimum(chance, chance.T)
        estimated = 1 / np.maximum(both_ways, 1e-9) * random.lognormal(0, 0.05, chance.shape)
        cost = csr_matrix(np.where(both_ways > WORST_LINK, estimated, 0))
        _distance, before = dijkstra(cost.T.tocsr(), indices=sink, return_predecessors=True)
        alone = before < 0
        parents[epoch] = np.where(alone, np.argmax(chance, axis=1), before)
    return parents


def _generations(
    random: np.random.Generator, network: WirelessNetwork, sink: int
) -> tuple[Int64Array, Int64Array, FloatArray]:
    """Origin, sequence number and time of every packet: one each period, at the node's phase with some jitter."""
    senders = np.setdiff1d(np.arange(network.nodes), [sink])
    phase = random.uniform(0, 1, (len(senders), 1))
    number = np.arange(network.packets_per_node)
    jitter = random.uniform(-0.05, 0.05, (len(senders), len(number)))
    times = (phase + number + jitter + 0.05) * network.period_s
    origin = np.repeat(senders, len(number))
    return origin, np.tile(number, len(senders)), times.ravel()
