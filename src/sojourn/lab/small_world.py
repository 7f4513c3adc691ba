"""A small world on disk: two captures, a sink's trace and a topology, enough for every command to have work to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.lab.frames import answers, frames, write_pcap

FLOWS, PACKETS_EACH, LOSS = 60, 40, 0.02
ANSWERED = 4  # every so many packets that arrive
START_NS, GAP_NS, DELAY_NS, REPLY_NS = 1_700_000_000_000_000_000, 50_000, 3_000_000, 10_000
FURTHER_NS = 90_000_000


def write_small_world(folder: Path) -> None:
    """Write in.pcap, out.pcap, trace.csv, ring.csv and ring-traffic.csv into `folder`; always the same.

    So is early.pcap: what was sent at a point so far away that most packets are on their way at once, and written a
    little out of order.
    """
    random = np.random.default_rng(7)
    flow = random.permutation(np.repeat(np.arange(FLOWS), PACKETS_EACH))
    sent_ns = START_NS + GAP_NS * np.arange(len(flow))
    arrives = random.random(len(flow)) >= LOSS
    delay_ns = DELAY_NS + 20_000 * flow + random.exponential(200_000, len(flow)).astype(np.int64)
    received_ns = sent_ns + delay_ns
    sent = frames(flow)
    back = np.flatnonzero(arrives)[::ANSWERED]
    answered = answers(sent[back])
    answered_ns = received_ns[back] + REPLY_NS
    write_pcap(folder / "in.pcap", [sent, answered], [sent_ns, answered_ns + DELAY_NS])
    write_pcap(folder / "out.pcap", [sent[arrives], answered], [received_ns[arrives], answered_ns])
    write_pcap(folder / "early.pcap", [_swapped(sent)], [_swapped(sent_ns) - FURTHER_NS], in_order=False)
    rows = [
        f"{origin},{k},{origin}-1-0,{k + origin / 10},{k + origin / 10 + 0.02},0.004"
        for k in range(20)
        for origin in (2, 3)
    ]
    (folder / "trace.csv").write_text("\n".join(["origin,seq,path,t0_s,t_sink_s,sum_of_delays_s", *rows]) + "\n")
    links = [f"r{i},r{(i + step) % 8},1" for i in range(8) for step in (1, 7)]
    (folder / "ring.csv").write_text("\n".join(["source,target,weight", *links]) + "\n")
    (folder / "ring-traffic.csv").write_text("from,to,weight\nr0,r3,2\nr5,r1,1\n")


def _swapped(column: NDArray[Any]) -> NDArray[Any]:
    """The first two of every ten rows in each other's place."""
    swapped = column.copy()
    swapped[::10], swapped[1::10] = column[1::10], column[::10]
    return swapped
