"""A wireless collection network: what its sink sees, and the truth of every hop.

Nodes are placed uniformly in a square of constant density with the sink in the middle; every node sends a packet each
period to the sink along the path of least expected transmissions (ETX). Noise changes, so routes change as well; nodes
change routes at different times, so that packets may loop. The trace has what a sink can know: origin, sequence number,
path, generation and arrival time, and S, the sum of delays that Domo's nodes attach, in two bytes of milliseconds. A
seed gives the same world.

The event loop keeps three kinds of events in one binary heap: a node generates a packet, a node's backoff ends and it
tries to send the packet at the head of its queue, or a frame has ended and its packet enters the receiver's queue. A
node that hears another one backs off again (CSMA). A frame is received when the link's draw succeeds and nothing else
that the receiver hears is on air; its arrival is stamped at the start of the frame. An acknowledgement may be lost: the
sender then retransmits a frame that the receiver already has and drops, and goes on counting its delay (a node's sum of
delays over-counts).

Cost: nodes² of memory for each routing epoch, O(log nodes) for an event plus the transmissions on air at that time; 400
nodes with ten packets each take under a second once compiled.
Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks", Sections III and V.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.errors import ParameterError
from sojourn.core.kernels import inlined, kernel
from sojourn.core.results import Columns

_BLOCK_PACKETS = 1 << 14  # written at once
LONGEST_PATH = 64
GENERATE, ATTEMPT, ARRIVE = 0, 1, 2
# In the log alone: an attempt by which the next node got the packet, and a packet that left the queue.
RECEIVED, DONE = 3, 4


@inlined
def _push(times: FloatArray, codes: Int64Array, size: int, time: float, code: int) -> int:
    """Add an event to the heap of `size`; the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time:
            break
        times[i], codes[i] = times[parent], codes[parent]
        i = parent
    times[i], codes[i] = time, code
    return size + 1


@inlined
def _pop(times: FloatArray, codes: Int64Array, size: int) -> int:
    """Take the first event out (read it at place 0 before); the new size."""
    size -= 1
    time, code = times[size], codes[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i], codes[i] = times[child], codes[child]
        i = child
    times[i], codes[i] = time, code
    return size


@inlined
def _is_heard(
    node: int, now: float, senders: Int64Array, ends: FloatArray, on_air: int, audible: BoolArray, besides: int
) -> bool:
    """Whether `node` hears a transmission of someone else than `besides`, or sends one itself."""
    for k in range(on_air):
        if ends[k] > now and senders[k] != besides and (senders[k] == node or audible[senders[k], node]):
            return True
    return False


@inlined
def _still_on_air(now: float, senders: Int64Array, ends: FloatArray, on_air: int) -> int:
    """Forget the transmissions that have ended; how many are left."""
    alive = 0
    for k in range(on_air):
        if ends[k] > now:
            senders[alive], ends[alive] = senders[k], ends[k]
            alive += 1
    return alive


@inlined
def _schedule_generations(times: FloatArray, codes: Int64Array, generated_s: FloatArray) -> int:
    size = 0
    for packet in range(len(generated_s)):
        size = _push(times, codes, size, generated_s[packet], packet * 3 + GENERATE)
    return size


@inlined
def _hand_over(
    packet: int,
    hop: int,
    parent: int,
    stamp: float,
    visited: Int64Array,
    arrival: FloatArray,
    hops: Int64Array,
    losses: Int64Array,
) -> bool:
    """The next node has the packet, unless its path grows too long; whether it has."""
    if hop + 1 > LONGEST_PATH:
        losses[2] += 1
        return False
    hops[packet] = hop + 1
    visited[packet, hop + 1], arrival[packet, hop + 1] = parent, stamp
    return True


@inlined
def _note(log: FloatArray, noted: int, kind: int, node: int, packet: int, time: float) -> int:
    """Write an event down while there is room for it; how many there have been."""
    if noted < len(log):
        log[noted, 0], log[noted, 1], log[noted, 2], log[noted, 3] = kind, node, packet, time
    return noted + 1


@kernel
def simulate(
    origin: Int64Array,
    generated_s: FloatArray,
    parents: Int64Array,
    switch_s: FloatArray,
    route_s: float,
    reception: FloatArray,
    audible: BoolArray,
    sink: int,
    buffer: int,
    retries: int,
    ack_loss: float,
    timing: FloatArray,
    seed: int,
    log: FloatArray,
) -> tuple[Int64Array, FloatArray, Int64Array, FloatArray, Int64Array]:
    """Visited nodes and arrival times of every packet (sink's included), hops made, S as sent, and losses.

    `parents[e, n]` is node n's parent in routing epoch e, entered `switch_s[n]` after the epoch's start;
    `reception[e, a, b]` is the chance that a frame of a reaches b. `timing` has, in seconds: processing before the
    first back-off, least and most initial back-off, most congestion back-off, start of frame after the decision to
    send, frame time, wait for an acknowledgement, least and most wait before a repetition. Losses: full buffer,
    retries used up, path too long. What each node's radio does goes to `log` while it has rows: kind, node, packet and
    time stamp.
    """
    np.random.seed(seed)
    processing, least, most, congested, start, frame, acknowledge, wait_least, wait_most = timing
    packets, nodes, epochs = len(origin), parents.shape[1], parents.shape[0]
    visited = np.full((packets, LONGEST_PATH + 1), -1, np.int64)
    arrival = np.full((packets, LONGEST_PATH + 1), np.nan)
    hops = np.zeros(packets, np.int64)  # place of the last node that has the packet
    sums = np.zeros(packets)
    losses = np.zeros(3, np.int64)
    queue = np.empty((nodes, buffer), np.int64)
    queue_hop = np.empty((nodes, buffer), np.int64)
    head, length = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    attempts, collected = np.zeros(nodes, np.int64), np.zeros(nodes)
    received = np.zeros(nodes, np.bool_)  # whether the packet at the head has reached the next node
    heap_size = packets + 3 * nodes + 16
    times, codes = np.empty(heap_size), np.empty(heap_size, np.int64)
    senders, ends, on_air = np.empty(nodes, np.int64), np.empty(nodes), 0
    size = _schedule_generations(times, codes, generated_s)
    noted = 0
    while size > 0:
        now, code = times[0], codes[0]
        size = _pop(times, codes, size)
        kind, subject = code % 3, code // 3
        if kind != ATTEMPT:
            packet = subject
            node = origin[packet] if kind == GENERATE else visited[packet, hops[packet]]
            if kind == GENERATE:
                visited[packet, 0], arrival[packet, 0] = node, now
            noted = _note(log, noted, kind, node, packet, arrival[packet, hops[packet]])
            if length[node] == buffer:
                losses[0] += 1
                continue
            slot = (head[node] + length[node]) % buffer
            queue[node, slot], queue_hop[node, slot] = packet, hops[packet]
            length[node] += 1
            if length[node] == 1:
                attempts[node], received[node] = 0, False
                size = _push(times, codes, size, now + processing + np.random.uniform(least, most), node * 3 + ATTEMPT)
            continue
        node = subject
        on_air = _still_on_air(now, senders, ends, on_air)
        if _is_heard(node, now, senders, ends, on_air, audible, -1):
            size = _push(times, codes, size, now + np.random.uniform(least, congested), node * 3 + ATTEMPT)
            continue
        packet, hop = queue[node, head[node]], queue_hop[node, head[node]]
        epoch = min(max(int((now - switch_s[node]) / route_s), 0), epochs - 1)
        parent = parents[epoch, node]
        stamp = now + start
        delay = stamp - arrival[packet, hop]
        is_clear = not _is_heard(parent, now, senders, ends, on_air, audible, node)
        reaches = np.random.random() < reception[epoch, node, parent] and is_clear
        senders[on_air], ends[on_air] = node, stamp + frame
        on_air += 1
        attempts[node] += 1
        is_first = reaches and not received[node] and hops[packet] == hop
        noted = _note(log, noted, RECEIVED if is_first else ATTEMPT, node, packet, stamp)
        if is_first:
            received[node] = True
            sums[packet] = collected[node] + delay if hop == 0 else sums[packet]
            has_it = _hand_over(packet, hop, parent, stamp, visited, arrival, hops, losses)
            if has_it and parent != sink:
                size = _push(times, codes, size, stamp + frame, packet * 3 + ARRIVE)
        done = reaches and np.random.random() >= ack_loss
        gives_up = not done and attempts[node] > retries
        free_at = stamp + frame + acknowledge
        if not (done or gives_up):
            size = _push(times, codes, size, free_at + np.random.uniform(wait_least, wait_most), node * 3 + ATTEMPT)
            continue
        noted = _note(log, noted, DONE, node, packet, stamp)
        losses[1] += gives_up and not received[node]
        # A local packet takes the sum with it; its own delay was added when it was sent.
        collected[node] = 0.0 if hop == 0 else collected[node] + delay
        head[node] = (head[node] + 1) % buffer
        length[node] -= 1
        if length[node] > 0:
            attempts[node], received[node] = 0, False
            size = _push(times, codes, size, free_at + np.random.uniform(least, most), node * 3 + ATTEMPT)
    return visited, arrival, hops, sums, losses


MOST_NODES = 2_000
MOST_PACKETS = 5_000_000
MOST_LINK_CELLS = 200_000_000
SUM_LIMIT_MS = 65_535
# A margin of 0 dB is a link that delivers half its frames; it falls with the logarithm of the distance.
REACH = 2.1
PATH_LOSS_DB, SHADOWING_DB, NOISE_DB, SLOPE_DB = 35.0, 3.0, 0.8, 1.6
WORST_LINK = 0.05
# Seconds, after a 250 kbit/s radio: processing, back-off (least, most), congestion back-off, start of frame, frame,
# acknowledgement, wait before a retransmission (least, most).
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
    log: FloatArray  # what the nodes' radios did, if asked for: kind, node, packet, seconds
    number: Int64Array  # what the log calls each packet

    def __len__(self) -> int:
        return len(self.origin)

    def packets(self) -> Iterator[Columns]:
        """What the sink knows, as a trace has it, in blocks."""
        for begin in range(0, max(len(self), 1), _BLOCK_PACKETS):
            chosen = slice(begin, begin + _BLOCK_PACKETS)
            start, end = self.start[:-1][chosen], self.start[1:][chosen]
            yield {
                "origin": self.origin[chosen],
                "seq": self.sequence[chosen],
                "path": ["-".join(map(str, self.node[a:b].tolist())) for a, b in zip(start, end, strict=True)],
                "t0_s": self.arrival_ns[start] / 1e9,
                "t_sink_s": self.arrival_ns[end - 1] / 1e9,
                "sum_of_delays_s": self.sum_ms[chosen] / 1e3,
            }

    def hops(self) -> Iterator[Columns]:
        """The truth of every hop, in blocks."""
        for begin in range(0, max(len(self), 1), _BLOCK_PACKETS):
            last = min(begin + _BLOCK_PACKETS, len(self))
            lengths = np.diff(self.start[begin : last + 1])
            places = np.arange(self.start[begin], self.start[last])
            hop = places - np.repeat(self.start[begin:last], lengths)
            waits = np.ones(len(places), np.bool_)
            waits[np.cumsum(lengths) - 1] = False
            yield {
                "origin": np.repeat(self.origin[begin:last], lengths)[waits],
                "seq": np.repeat(self.sequence[begin:last], lengths)[waits],
                "hop_index": hop[waits],
                "node": self.node[places][waits],
                "t_arrival_s": self.arrival_ns[places][waits] / 1e9,
                "t_departure_s": self.arrival_ns[places[waits] + 1] / 1e9,
            }


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
