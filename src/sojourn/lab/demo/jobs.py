"""The demonstration's questions, one for each main job, and how the query unit's answers read in a line.

Each is asked again and again until it has an answer; none is there before it is true.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sojourn.client.collections import SinkClient
from sojourn.core.errors import SojournError
from sojourn.core.units import NS_PER_SECOND, durations_apart, format_clock, format_duration
from sojourn.lab.demo.networks import PLANNED, write_planned
from sojourn.lab.demo.stages import Piece, Stage
from sojourn.lab.wireless import CollectionRun, WirelessNetwork, run_collection
from sojourn.mplane.planning.paths import SegmentCounter, shortest_paths
from sojourn.mplane.planning.topology import read_topology
from sojourn.mplane.planning.upgrades import Strategy, plan_upgrade
from sojourn.tomography.reading import read_packets

HERE = "this-machine"
# Many processes come and go: arrays for hundreds from the start. With one salt their epochs add up to one.
STREAM = {"epoch": "5s", "buckets": 1024, "per_instance": 3, "salted": False}
STREAMS = {metric: {"metric": metric, **STREAM} for metric in ("cpu", "disk_io")}
# Processes: what the last seconds were, once so much of them is known.
LOOK_BACK_NS, LEAST_COVERED_NS = 10 * NS_PER_SECOND, 2 * NS_PER_SECOND
EPOCH_NS, LEAST_PACKETS = 2 * NS_PER_SECOND, 500
OBJECTIVE, LIMIT_NS, EVERY = "quick", 50_000_000, "5s"
# Slow is what takes several times as long as the whole way did, and so much longer that no busy machine explains it.
SLOWER, LEAST_SLOWER_NS, SETTLED_NS = 3.0, 10_000_000, 5 * NS_PER_SECOND
COLLECTION, SEED = "sink/field", 4
SENSORS = WirelessNetwork(nodes=60, packets_per_node=12)
UPGRADES = 3


@dataclass(frozen=True)
class DemoAnswer:
    """What was asked and the answer, in words and in numbers, and where the dashboard shows it."""

    job: str
    asked: str
    answer: str
    page: str
    command: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "ns"


class Needs(IntEnum):
    """What has to be there before a question is asked, each including those before it."""

    NOTHING = 0
    KERNELS = 1  # compiled: answering takes less memory and time than compiling
    PACKETS = 2


@dataclass(frozen=True)
class Job:
    """A question: its name, how it reads, and how it is asked; None while there is no answer."""

    name: str
    ask: Callable[[], DemoAnswer | None]
    needs: Needs


class Jobs:
    """The questions to a query unit whose nodes watch this machine and a stage."""

    def __init__(self, client: SinkClient, directory: Path, stage: Stage) -> None:
        self._client = client
        self._directory = directory
        self._stage = stage
        self._begun_ns = 0
        self._quiet: DemoAnswer | None = None
        self._sensors: CollectionRun | None = None

    def all(self) -> list[Job]:
        """In the order in which they can be answered."""
        return [
            Job("upgrade", self.upgrade, Needs.NOTHING),
            Job("collection", self.collection, Needs.NOTHING),
            Job("processes", self.processes, Needs.KERNELS),
            Job("delay", self.delay, Needs.PACKETS),
            Job("bottleneck", self.bottleneck, Needs.PACKETS),
            Job("objective", self.objective, Needs.PACKETS),
        ]

    def store_network(self) -> None:
        """Have the query unit know the network that is planned for."""
        self._client.store_topology(PLANNED, self._directory / f"{PLANNED}.csv", directed=False)

    def send_collection(self) -> None:
        """Simulate a network of sensors, keep what its sink saw as trace.csv, and send it to the query unit.

        The last packet came just now.
        """
        run = run_collection(SENSORS, SEED)
        path = self._directory / "trace.csv"
        shift_s = time.time() - float(run.arrival_ns.max()) / 1e9
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            for number, block in enumerate(run.packets()):
                moved = {**block, **{name: np.asarray(block[name]) + shift_s for name in ("t0_s", "t_sink_s")}}
                if number == 0:
                    writer.writerow(moved)
                writer.writerows(zip(*moved.values(), strict=True))
        faults: Counter[str] = Counter()
        self._client.append(COLLECTION, list(read_packets(path, faults)))
        self._client.start_closing(COLLECTION)
        self._sensors = run

    def create_segments(self) -> None:
        """Create the stage's segments, and an objective for all of them."""
        for piece in self._stage.pieces:
            self._client.create_segment(
                piece.name, piece.sender, piece.receiver, epoch_ns=EPOCH_NS, both_directions=piece.both_directions
            )
        require = [f"p99 < {LIMIT_NS // 1_000_000}ms"]
        self._client.create_objective(OBJECTIVE, segment="*", require=require, every=EVERY)

    def are_recorded(self) -> bool:
        """Whether both ends of all segments record; one that cannot is an error."""
        segments = self._client.segments()
        for segment in segments:
            if segment["state"] == "failed":
                raise SojournError(str(segment["reason"]), where=f"segment {segment['name']}")
        return bool(segments) and all(segment["state"] == "running" for segment in segments)

    def traffic_begun(self) -> None:
        """From now on there are packets."""
        self._begun_ns = time.time_ns()

    def processes(self) -> DemoAnswer | None:
        """Which process of this machine uses its processors most."""
        since_ns = time.time_ns() - LOOK_BACK_NS
        found = self._client.query(metric="cpu", node=HERE, instance="*", top=1, from_ns=since_ns)
        best = found[0] if found else None
        if best is None or best["value"] is None or best["low"] is None or best["high"] is None:
            return None
        covered_ns = sum(span["to_ns"] - span["from_ns"] for span in best["covered"])
        if covered_ns < LEAST_COVERED_NS:
            return None
        value, low, high = (100 * number / covered_ns for number in (best["value"], best["low"], best["high"]))
        return DemoAnswer(
            "processes",
            "busiest process of this machine",
            f"{best['instance']}, {value:.0f} % of a processor (95 %: {low:.0f} % … {high:.0f} %)",
            f"/node?name={HERE}",
            f"sojourn query --node {HERE} --metric cpu --top 5 --from -1m",
            *(value, low, high),
            unit="%",
        )

    def upgrade(self) -> DemoAnswer:
        """Which routers of a network to upgrade first."""
        path = self._directory / f"{PLANNED}.csv"
        write_planned(path)
        shortest = shortest_paths(read_topology(path, directed=False))
        steps = list(plan_upgrade(SegmentCounter(shortest), UPGRADES, strategy=Strategy.BEST))
        names = [shortest.topology.names[router] for router in steps[-1].upgraded]
        left = 100 * steps[-1].segments.hops / steps[0].segments.hops
        return DemoAnswer(
            "upgrade",
            f"{UPGRADES} of {shortest.routers} routers to upgrade first",
            f"{', '.join(sorted(names))} leave {left:.1f} % of the probing (exact)",
            f"/network?name={PLANNED}&strategy=best&count={UPGRADES}",
            f"sojourn mplane upgrade {path} --undirected --count {UPGRADES} --strategy best",
            *(left, left, left),
            unit="%",
        )

    def collection(self) -> DemoAnswer | None:
        """Where packets of the sensors' network wait longest."""
        if self._sensors is None:
            return None
        state = self._client.collection(COLLECTION)
        if state["solving"] or state["open"]:
            return None
        table = self._client.node_table(COLLECTION)["nodes"]
        slowest = max(table, key=lambda node: float(node["mean_ns"]))
        node, mean_ns = int(slowest["node"]), float(slowest["mean_ns"])
        truth_ns = _true_mean(self._sensors, node)
        sink, name = COLLECTION.split("/")
        return DemoAnswer(
            "collection",
            f"slowest of {SENSORS.nodes - 1} sensors, from what their sink saw",
            f"node {node}, {format_duration(mean_ns)} a packet, 95 % of them within "
            f"{format_duration(float(slowest['p95_ns']))} (simulated; true mean {format_duration(truth_ns)})",
            f"/collection?node={sink}&name={name}",
            f"sojourn sink nodes {COLLECTION}",
            value=mean_ns,
        )

    def delay(self) -> DemoAnswer | None:
        """How long packets take on the whole way."""
        whole = self._stage.whole
        answer = self._mean_of(whole, self._begun_ns)
        if answer is None:
            return None
        mean, low, high, total = answer
        p99 = total.get("p99_ns")
        tail = "" if p99 is None else f", p99 {format_duration(p99)}"
        self._quiet = DemoAnswer(
            "delay",
            f"delay of packets {whole.where}",
            f"mean {_interval(mean, low, high)}{tail}, {total['lost']:,} of {total['sent']:,} lost",
            _page(whole.name),
            f"sojourn query --segment {whole.name}",
            *(mean, low, high),
        )
        return self._quiet

    def bottleneck(self) -> DemoAnswer | None:
        """What became slow, and by how much: the segment whose mean lies above all others' and what it was."""
        since_ns = self._stage.slow_since_ns
        if since_ns is None or self._quiet is None or time.time_ns() < since_ns + SETTLED_NS:
            return None
        answers = [(piece, self._mean_of(piece, since_ns + EPOCH_NS)) for piece in self._stage.parts]
        known = sorted(((found, piece) for piece, found in answers if found is not None), key=lambda one: -one[0][0])
        before_ns = self._quiet.value or 0.0
        if len(known) < len(answers) or known[0][0][1] < max(SLOWER * before_ns, LEAST_SLOWER_NS):
            return None
        if len(known) > 1 and known[1][0][2] >= known[0][0][1]:
            return None
        (mean, low, high, _total), slow = known[0]
        return DemoAnswer(
            "bottleneck",
            "what became slow",
            f"{slow.where}, at {format_clock(since_ns)}: mean {_interval(mean, low, high)}; "
            f"the whole way took {format_duration(before_ns)} before",
            _page(*(piece.name for piece in self._stage.parts)),
            "sojourn query " + " ".join(f"--segment {piece.name}" for piece in self._stage.parts),
            *(mean, low, high),
        )

    def objective(self) -> DemoAnswer | None:
        """Which objective is violated, on what evidence."""
        found = self._client.violations(objective=OBJECTIVE, only_open=True)
        if not found:
            return None
        first = found[-1]
        evidence = first["latest"] or first["evidence"]
        value, low, high = (evidence.get(name) for name in ("value", "low", "high"))
        if value is None or low is None or high is None:
            return None
        since, statistic = format_clock(int(first["raised_ns"])), str(first["condition"]).split()[0]
        return DemoAnswer(
            "objective",
            f"objective {OBJECTIVE!r} ({first['condition']} on every segment)",
            f"{first['instance']} violates it since {since}: {statistic} {_interval(value, low, high)}",
            "/",
            "sojourn violations --open",
            *(value, low, high),
        )

    def _mean_of(self, piece: Piece, from_ns: int) -> tuple[float, float, float, dict[str, Any]] | None:
        """Mean delay with its interval, and all totals; None while there is too little."""
        total = dict(self._client.query_segment(piece.name, from_ns=from_ns).aggregate)
        mean, low, high = (total.get(name) for name in ("mean_ns", "low_ns", "high_ns"))
        if mean is None or low is None or high is None or total["sent"] < LEAST_PACKETS:
            return None
        return mean, low, high, total


def _interval(mean: float, low: float, high: float) -> str:
    lowest, highest = durations_apart(low, high)
    return f"{format_duration(mean)} (95 %: {lowest} … {highest})"


def _page(*names: str) -> str:
    return "/segment?" + "&".join(f"name={quote(name)}" for name in names)


def _true_mean(run: CollectionRun, node: int) -> float:
    """How long packets really stayed at a node."""
    stays: list[float] = []
    for block in run.hops():
        stayed_s = np.asarray(block["t_departure_s"]) - np.asarray(block["t_arrival_s"])
        stays += stayed_s[np.asarray(block["node"]) == node].tolist()
    return 1e9 * float(np.mean(stays)) if stays else 0.0
