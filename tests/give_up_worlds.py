"""Sink traces of networks that give packets up and route them in circles: FIFO queues, retries, lost acknowledgements.

A node sends the packet at the head of its queue until it is acknowledged or its retries are used up. A link may be
asymmetric for a while: frames get through, acknowledgements do not. The node then gives up a packet that the next node
has: the sink gets it, but S of the node's next packet lacks it. Nodes choose parents from a view of the network that is
out of date for a while after a change, so packets travel in circles.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from collection_worlds import MS
from sojourn.tomography.trace import CollectionTrace, PacketRow, make_trace

LONGEST_PATH = 40
NEIGHBOURS = 6
BACK_OFF_MS, FRAME_MS, ACKNOWLEDGE_MS, WAIT_MS = (0.6, 8.0), 1.8, 0.8, (3.0, 12.0)


@dataclass(frozen=True, kw_only=True)
class GivingUp:
    """The network: its size, how many retries, and how often links are asymmetric and views out of date."""

    nodes: int = 60
    packets: int = 15
    period_s: float = 5.0
    retries: int = 6
    asymmetric: float = 0.04  # share of links whose acknowledgements mostly get lost, for an epoch
    good_acknowledgement: float = 0.97
    epoch_s: float = 10.0
    stale_s: float = 1.0  # how long after an epoch's start some nodes still follow, or mistake, older costs
    is_counted_on: bool = False  # whether a node that gives up its own packet goes on with its sum


@dataclass
class _Node:
    queue: list[tuple[int, int]] = field(default_factory=list)
    collected_ms: float = 0.0
    attempts: int = 0
    has_it: bool = False


@dataclass(frozen=True)
class GivenUp:
    """A trace, the true arrival of each of its places, and which visits a node gave up though the next node had it."""

    trace: CollectionTrace
    truth_ns: np.ndarray
    is_given_up: np.ndarray

    @property
    def is_looping(self) -> np.ndarray:
        """Of every place: whether its packet visits some node twice."""
        return np.repeat(self.trace.is_looping, np.diff(self.trace.start))


class _Network:
    def __init__(self, world: GivingUp, seed: int) -> None:
        self.world, self.random = world, np.random.default_rng(seed)
        self.epochs = int(world.packets * world.period_s / world.epoch_s) + 2
        self.parents, self.data, self.acknowledged = self._links()
        self.late_ms = self.random.uniform(0, world.stale_s * 1e3, (self.epochs, world.nodes))
        self.mistaken = self._mistaken()

    def _links(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each epoch's parents by least expected transmissions, and the chances of frames and acknowledgements."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        nodes = self.world.nodes
        place = self.random.uniform(0, 1, (nodes, 2))
        place[0] = 0.5
        distance = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
        near = np.argsort(distance, axis=1)[:, 1 : NEIGHBOURS + 1]
        is_link = np.zeros((nodes, nodes), bool)
        is_link[np.arange(nodes)[:, None], near] = True
        is_link |= is_link.T
        parents, frames, acknowledgements = [], [], []
        for _epoch in range(self.epochs):
            data = self.random.beta(8, 1.5, (nodes, nodes))
            back = np.full((nodes, nodes), self.world.good_acknowledgement)
            back[self.random.uniform(size=back.shape) < self.world.asymmetric] = 0.08
            cost = csr_matrix(np.where(is_link, 1 / data, 0))
            _length, before = dijkstra(cost.T.tocsr(), indices=0, return_predecessors=True)
            parents.append(np.where(before < 0, near[:, 0], before))
            frames.append(data)
            acknowledgements.append(back)
        return np.array(parents), np.array(frames), np.array(acknowledgements)

    def _mistaken(self) -> np.ndarray:
        """A child or neighbour that a node takes for its parent while its view is out of date."""
        chosen = self.parents.copy()
        for epoch in range(1, self.epochs):
            for node in np.flatnonzero(self.random.uniform(size=self.world.nodes) < 0.2):
                children = np.flatnonzero(self.parents[epoch] == node)
                if node and len(children):
                    chosen[epoch, node] = self.random.choice(children)
        return chosen

    def parent(self, node: int, now_ms: float) -> tuple[int, int]:
        epoch = min(int(now_ms / 1e3 / self.world.epoch_s), self.epochs - 1)
        since = now_ms - epoch * self.world.epoch_s * 1e3
        is_late = since < self.late_ms[epoch, node]
        return epoch, int(self.mistaken[epoch, node] if is_late else self.parents[epoch, node])


class _Run:
    """The event loop: packets are numbered; `hops` has their nodes and stamps, `given_up` the hops given up."""

    def __init__(self, world: GivingUp, seed: int) -> None:
        self.world, self.network = world, _Network(world, seed)
        self.random = self.network.random
        self.nodes = [_Node() for _node in range(world.nodes)]
        self.hops: list[list[tuple[int, float]]] = []
        self.keys: list[tuple[int, int]] = []
        self.sums: dict[int, float] = {}
        self.given_up: set[tuple[int, int]] = set()
        self.events: list[tuple[float, int, int, int, int]] = []
        self.count = 0

    def push(self, time: float, node: int, packet: int, hop: int) -> None:
        """A packet enters a node's queue, or (packet -1) the node tries to send."""
        self.count += 1
        heapq.heappush(self.events, (time, self.count, node, packet, hop))

    def generate(self) -> None:
        world = self.world
        phase = self.random.uniform(0, 1, world.nodes)
        for node in range(1, world.nodes):
            for number in range(world.packets):
                time = (phase[node] + number + self.random.uniform(0, 0.1)) * world.period_s * 1e3
                self.keys.append((node, number))
                self.hops.append([(node, time)])
                self.push(time, node, len(self.hops) - 1, 0)

    def run(self) -> None:
        self.generate()
        while self.events:
            now, _count, node, packet, hop = heapq.heappop(self.events)
            if packet < 0:
                self.attempt(now, node)
                continue
            self.nodes[node].queue.append((packet, hop))
            if len(self.nodes[node].queue) == 1:
                self.push(now + self.random.uniform(*BACK_OFF_MS), node, -1, 0)

    def attempt(self, now: float, node: int) -> None:
        state = self.nodes[node]
        packet, hop = state.queue[0]
        epoch, parent = self.network.parent(node, now)
        delay = now - self.hops[packet][hop][1]
        reaches = self.random.random() < self.network.data[epoch, node, parent]
        if reaches and not state.has_it:
            state.has_it = True
            if hop == 0:
                self.sums[packet] = state.collected_ms + delay
            if hop + 1 < LONGEST_PATH:
                self.hops[packet].append((parent, now))
                if parent != 0:
                    self.push(now + FRAME_MS, parent, packet, hop + 1)
        is_done = reaches and self.random.random() < self.network.acknowledged[epoch, node, parent]
        state.attempts += 1
        gives_up = not is_done and state.attempts > self.world.retries
        free = now + FRAME_MS + ACKNOWLEDGE_MS
        if not (is_done or gives_up):
            self.push(free + self.random.uniform(*WAIT_MS), node, -1, 0)
            return
        if gives_up and state.has_it:
            self.given_up.add((packet, hop))
        if hop == 0 and not (gives_up and self.world.is_counted_on):
            state.collected_ms = 0.0
        elif is_done:
            state.collected_ms += delay
        state.queue.pop(0)
        state.attempts, state.has_it = 0, False
        if state.queue:
            self.push(free + self.random.uniform(*BACK_OFF_MS), node, -1, 0)


@cache
def given_up(world: GivingUp, seed: int) -> GivenUp:
    """The world's trace, with the truth."""
    run = _Run(world, seed)
    run.run()
    rows: list[PacketRow] = []
    by_key = {}
    for packet, (key, hops) in enumerate(zip(run.keys, run.hops, strict=True)):
        if hops[-1][0] != 0:
            continue
        times = np.rint(np.array([time for _node, time in hops]) * MS).astype(np.int64)
        rows.append((*key, [n for n, _t in hops], int(times[0]), int(times[-1]), round(run.sums[packet]) * MS))
        by_key[key] = times, np.array([(packet, hop) in run.given_up for hop in range(len(hops))])
    trace = make_trace(rows)
    found = [by_key[key] for key in zip(trace.origin.tolist(), trace.shown_sequence.tolist(), strict=True)]
    return GivenUp(trace, np.concatenate([t for t, _g in found]), np.concatenate([g for _t, g in found]))
