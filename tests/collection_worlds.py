"""Sink traces with the truth of every place: simulated networks, and small ones made by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import strategies as st

from sojourn.lab.wireless import WirelessNetwork, run_collection
from sojourn.tomography.trace import MISSING, CollectionTrace, PacketRow, make_trace

MS = 1_000_000


@cache
def simulated(
    nodes: int, seed: int, ack_loss: float = 0.0, loss: float = 0.0, period_s: float = 10.0, packets: int = 10
) -> tuple[CollectionTrace, np.ndarray]:
    """A trace and the true arrival time of each of its places."""
    network = WirelessNetwork(
        nodes=nodes, packets_per_node=packets, period_s=period_s, ack_loss=ack_loss, loss=loss, buffer=64
    )
    run = run_collection(network, seed)
    rows: list[PacketRow] = []
    times: dict[tuple[int, int], np.ndarray] = {}
    for p in range(len(run)):
        places = slice(run.start[p], run.start[p + 1])
        arrival = run.arrival_ns[places]
        key = int(run.origin[p]), int(run.sequence[p])
        rows.append((*key, run.node[places].tolist(), int(arrival[0]), int(arrival[-1]), int(run.sum_ms[p]) * MS))
        times[key] = arrival
    trace = make_trace(rows)
    keys = zip(trace.origin.tolist(), trace.shown_sequence.tolist(), strict=True)
    return trace, np.concatenate([times[key] for key in keys])


_ROWS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.integers(0, 6),
        st.lists(st.integers(1, 5), max_size=5),
        st.integers(0, 300),
        st.integers(1, 120),
        st.integers(-1, 90),
    ),
    min_size=1,
    max_size=40,
)


def _trace_of(rows: list[tuple[int, int, list[int], int, int, int]]) -> CollectionTrace:
    packets = [
        (origin, sequence, [origin, *way, 0], t0 * MS, (t0 + stay) * MS, total * MS if total >= 0 else MISSING)
        for origin, sequence, way, t0, stay, total in rows
    ]
    packets.append((9, 0, [9, 0], 0, MS, MISSING))
    return make_trace(packets)


CONTRADICTING_TRACES = _ROWS.map(_trace_of)
"""Hypothesis: traces of a few packets by chance, whose times, ways and sums may contradict each other."""
