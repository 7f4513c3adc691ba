"""The event loop of the simulated collection network: queues, CSMA, retransmissions, acknowledgements.

Three kinds of events lie in one binary heap: a node generates a packet, a node's back-off ends and it tries to send the
packet at the head of its queue, or a frame has ended and its packet enters the receiver's queue. A node that hears
another one backs off again. A frame is received when the link's draw succeeds and nothing else that the receiver hears
is on air; its arrival is stamped at the start of the frame. An acknowledgement may be lost: the sender then repeats a
frame that the receiver already has and drops, and goes on counting its delay (a node's sum of delays over-counts).
Cost: O(log nodes) for an event plus the transmissions on air at that time.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array
from sojourn.core.kernels import inlined, kernel

__all__ = ["ARRIVE", "ATTEMPT", "DONE", "GENERATE", "LONGEST_PATH", "RECEIVED", "simulate"]

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
    `reception[e, a, b]` is the chance that a frame of a reaches b. `timing` holds, in seconds: processing before the
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
