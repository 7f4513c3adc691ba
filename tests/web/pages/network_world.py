"""A network whose segments probers measure, and upgraded routers within themselves: one is slow now, one silent."""

from __future__ import annotations

import time
from itertools import permutations
from pathlib import Path

import numpy as np
from tests.segments.fleet.fleet_world import SECOND
from tests.web.pages.dashboard_world import Dashboard

from sojourn.mplane.measurements import Segment, SegmentMeasurement, to_row
from sojourn.mplane.planning.paths import path_segments, shortest_paths
from sojourn.mplane.planning.topology import topology_of

INTERVAL_NS = 10 * SECOND
INTERVALS = 40
SLOW, SILENT = ("r4", "r5"), ("r8", "r9")
UPGRADED = ("r3", "r4")
# A ring of twelve with two chords: most pairs have one shortest path.
LINKS = [(f"r{k}", f"r{(k + 1) % 12}") for k in range(12)] + [("r1", "r6"), ("r3", "r10")]
CSV = "source,target,weight\n" + "".join(f"{a},{b},1\n{b},{a},1\n" for a, b in LINKS)


def store_network(dashboard: Dashboard, name: str = "ring", content: str = CSV, file_name: str = "ring.csv") -> None:
    """Store a topology as an admin."""
    with dashboard.client() as client:
        path = f"/api/v1/topologies/{name}"
        answer = client.put(path, params={"file_name": file_name}, content=content.encode())
        assert answer.is_success, answer.text


def segments_between_all() -> set[Segment]:
    """What upgraded routers cut the paths between all pairs of routers into."""
    shortest = shortest_paths(topology_of(CSV.encode(), Path("ring.csv")))
    pairs = permutations(shortest.topology.names, 2)
    return {segment for a, b in pairs for segment in path_segments(shortest, a, b, UPGRADED).segments}


def network_measurements() -> list[SegmentMeasurement]:
    """The last minutes of all segments, as both ends of links and the upgraded routers would report them."""
    random = np.random.default_rng(17)
    first = (time.time_ns() // INTERVAL_NS - INTERVALS - 1) * INTERVAL_NS
    found = []
    for segment in sorted(segments_between_all(), key=str):
        base = 2e6 + 3e5 * random.random()
        for number in range(INTERVALS):
            late = number >= INTERVALS - 8
            mean = base + random.normal(0, 4e4) + (6e6 if late and segment.hops == SLOW else 0)
            is_void = late and segment.hops == SILENT
            found.append(_measurement(segment, first + number * INTERVAL_NS, mean, void=is_void))
    return found


def measure_network(dashboard: Dashboard) -> None:
    """Have all of it sent."""
    rows = [to_row(one) for one in network_measurements()]
    with dashboard.client() as client:
        for start in range(0, len(rows), 500):
            answer = client.post("/api/v1/segments/measurements", json={"measurements": rows[start : start + 500]})
            assert answer.is_success, answer.text


def _measurement(segment: Segment, start_ns: int, mean: float, *, void: bool) -> SegmentMeasurement:
    return SegmentMeasurement(
        segment=segment,
        dscp=0,
        interval=start_ns // INTERVAL_NS,
        start_ns=start_ns,
        end_ns=start_ns + INTERVAL_NS,
        packets=0 if void else 200,
        mean_ns=None if void else mean,
        low_ns=None if void else mean - 6e4,
        high_ns=None if void else mean + 6e4,
        std_ns=None if void else 4e5,
        method="lda" if segment.kind == "router" else "probes",
        void="no report came" if void else None,
    )


def large_network(routers: int = 400) -> str:
    """A network of so many routers, as CSV: a tree with links across, from a seed."""
    random = np.random.default_rng(4)
    ends = {(int(random.integers(max(0, k - 40), k)), k) for k in range(1, routers)}
    ends |= {tuple(sorted(map(int, random.choice(routers, 2, replace=False)))) for _ in range(routers // 4)}
    lines = [f"n{a},n{b},{1 + (a + b) % 7}\nn{b},n{a},{1 + (a + b) % 7}\n" for a, b in sorted(ends)]
    return "source,target,weight\n" + "".join(lines)


def topology_file(folder: Path) -> Path:
    """The ring as a file."""
    path = folder / "ring.csv"
    path.write_text(CSV)
    return path
