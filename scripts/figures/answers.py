"""Pictures of answers: from the captures and traces that the tutorials measure."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import sojourn
from scripts.document_data import make_data
from scripts.figures.drawing import BLUE, GREEN, ORANGE, PINK, RED, Scheme, draw

MS = 1e6


@cache
def data() -> Path:
    """A folder with the documents' files; it goes when the program ends."""
    kept = tempfile.TemporaryDirectory(prefix="sojourn-figures-")
    _KEPT.append(kept)
    make_data(Path(kept.name), Path(os.environ["SOJOURN_DATA"]).resolve())
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def delay_over_time() -> None:
    """The bottleneck's queue fills within a second, and drops what finds no room."""
    answer = sojourn.measure(data() / "ingress.pcap.gz", data() / "egress.pcap.gz", interval="100ms")
    rows = [row for row in answer.intervals if row["received"]]
    start = min(row["start_ns"] for row in rows)
    seconds = [(row["start_ns"] - start) / 1e9 for row in rows]

    def paint(axes: Any, scheme: Scheme) -> None:
        delays, losses = axes
        for name, label, colour in (("p50_ns", "median", scheme.blue), ("p99_ns", "99 %", ORANGE)):
            delays.plot(seconds, [row[name] / MS for row in rows], label=label, color=colour)
        delays.set(
            xlabel="seconds", ylabel="delay, ms", ylim=(0, None), title="delay of packets by when they were sent"
        )
        delays.legend()
        losses.bar(seconds, [100 * row["lost"] / row["sent"] for row in rows], width=0.1, color=RED)
        losses.set(xlabel="seconds", ylabel="lost, %", title="and how many were lost")

    draw("delay-over-time", paint, panels=2, height=2.8)


def delay_distribution() -> None:
    """How long packets of both captures take: of all, and of every flow of 500 packets or more."""
    answer = sojourn.measure(data() / "leaf.pcap", data() / "spine.pcap")
    buckets = {name: np.asarray(column) for name, column in answer.buckets().items()}
    flow = np.unique(np.stack([buckets["src_ip"], buckets["src_port"].astype(str)]), axis=1, return_inverse=True)[1]

    def curve(rows: Any) -> tuple[Any, Any]:
        order = np.argsort(buckets["from_ns"][rows])
        packets = buckets["packets"][rows][order].astype(float)
        return buckets["to_ns"][rows][order] / MS, 100 * np.cumsum(packets) / packets.sum()

    def paint(axes: Any, scheme: Scheme) -> None:
        for number in np.unique(flow):
            rows = flow == number
            if buckets["packets"][rows].sum() >= 150:
                axes.plot(*curve(rows), color=ORANGE, linewidth=0.7, alpha=0.7)
        axes.plot([], [], color=ORANGE, label="each flow of 150 packets or more")
        axes.plot(*curve(np.ones(len(flow), bool)), color=scheme.blue, linewidth=2.2, label="all packets")
        axes.set(xlabel="delay, ms", ylabel="packets that took no longer, %", xlim=(0, 35))
        axes.legend(loc="lower right")

    draw("delay-distribution", paint, height=3.2)


def sketch_intervals() -> None:
    """A sketch's means with their intervals beside the truth, flow by flow."""
    answer = sojourn.measure(data() / "leaf.pcap", data() / "spine.pcap", sketch="auto", memory="16KB", truth=True)
    rows = [row for row in answer if row["packets"] >= 100 and row["mean_ns"] is not None]
    rows.sort(key=lambda row: row["true_mean_ns"])
    mean, low, high, truth = (
        np.array([row[name] for row in rows]) / MS for name in ("mean_ns", "low_ns", "high_ns", "true_mean_ns")
    )
    place = np.arange(len(rows))
    grand = answer.aggregate["mean_ns"] / MS

    def paint(axes: Any, scheme: Scheme) -> None:
        axes.vlines(place, low, high, color=scheme.blue, linewidth=2.2, label="the sketch's 95 % interval")
        axes.plot(place, mean, "_", color=scheme.blue, markersize=5)
        axes.plot(place, truth, "o", color=ORANGE, markersize=3.2, label="the truth")
        axes.axhline(grand, color=scheme.ink, linewidth=0.8, linestyle=":", label="mean of all packets")
        axes.set(xlabel="flows of 100 packets or more, by their true mean", ylabel="mean delay, ms", ylim=(0, None))
        axes.legend(loc="upper left")

    draw("sketch-intervals", paint, height=3.4)


def error_by_memory() -> None:
    """What memory buys: the 90th percentile of large flows' errors, sketch by sketch."""
    sizes = (4, 8, 16, 32, 64, 128)
    sketches = {"auto": BLUE, "lds": ORANGE, "sample": GREEN, "colate": PINK}
    errors = {sketch: [_error(sketch, size) for size in sizes] for sketch in sketches}

    def paint(axes: Any, scheme: Scheme) -> None:
        for (sketch, colour), marker in zip(sketches.items(), "os^D", strict=True):
            shown = scheme.blue if colour == BLUE else colour
            axes.plot(sizes, errors[sketch], marker=marker, markersize=4, color=shown, label=sketch)
        axes.set(xscale="log", xlabel="memory at each point, KB", ylabel="error, %", ylim=(0, None))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.legend()

    draw("error-by-memory", paint, height=3.0)


def _error(sketch: str, kilobytes: int) -> float:
    """In per cent, of nine in ten flows of 100 packets or more; a flow without an answer counts as 100 % off."""
    answer = sojourn.measure(
        data() / "leaf.pcap", data() / "spine.pcap", sketch=sketch, memory=f"{kilobytes}KB", truth=True
    )
    off = [
        abs(row["mean_ns"] / row["true_mean_ns"] - 1) if row["mean_ns"] is not None else 1.0
        for row in answer
        if row["packets"] >= 100 and row["true_mean_ns"]
    ]
    return float(100 * np.quantile(off, 0.9))


def round_trips() -> None:
    """Round trips of TCP connections through the bottleneck, from one capture."""
    rows = [row for row in sojourn.rtt(data() / "ingress.pcap.gz", kinds=["timestamps"]) if row["samples"] >= 20]
    rows.sort(key=lambda row: row["p50_ns"])
    place = np.arange(len(rows))

    def paint(axes: Any, scheme: Scheme) -> None:
        for name, marker, colour, label in (
            ("min_rtt", "v", GREEN, "smallest"),
            ("p50_ns", "o", scheme.blue, "median"),
            ("p99_ns", "^", ORANGE, "99 %"),
        ):
            axes.plot(place, [row[name] / MS for row in rows], marker, color=colour, label=label, markersize=4)
        axes.set(xlabel="directions of connections, by their median", ylabel="round trip, ms", yscale="log")
        axes.legend()

    draw("round-trips", paint, height=3.0)


def waiting_nodes() -> None:
    """Where packets of a sensor network wait: the slowest nodes, in queue and at the link."""
    answer = _collection()
    rows = answer.nodes.select(sort="mean", limit=15)
    names = [str(row["node"]) for row in rows]
    mean = np.array([row["mean_ns"] for row in rows]) / MS
    queue = mean * np.array([row["queue_share"] for row in rows])

    def paint(axes: Any, scheme: Scheme) -> None:
        axes.bar(names, mean - queue, color=scheme.blue, label="at the link")
        axes.bar(names, queue, bottom=mean - queue, color=ORANGE, label="in queue")
        axes.set(xlabel="node", ylabel="mean delay of a packet, ms")
        axes.grid(axis="x", visible=False)
        axes.legend()

    draw("waiting-nodes", paint, height=2.8)


def one_packets_way() -> None:
    """One packet, hop by hop: bounds that hold for certain, and where the delay likely lies."""
    answer = _collection()
    columns = {name: np.asarray(column) for name, column in answer.columns().items()}
    packet = columns["origin"].astype(np.int64) << 32 | columns["seq"]
    ids, of, hops = np.unique(packet, return_inverse=True, return_counts=True)
    calm = np.bincount(of, columns["looping"]) == 0
    slowest = np.zeros(len(ids))
    np.maximum.at(slowest, of, columns["delay_ns"])
    rows = of == np.argmax(np.where((hops == 7) & calm & (slowest < 120 * MS), slowest, 0))
    nodes = [str(node) for node in columns["node"][rows]]
    place = np.arange(len(nodes))

    def paint(axes: Any, scheme: Scheme) -> None:
        def part(name: str) -> Any:
            return columns[name][rows] / MS

        axes.hlines(place, part("low_ns"), part("high_ns"), color=scheme.faint, linewidth=7, label="certain bounds")
        axes.hlines(place, part("likely_low_ns"), part("likely_high_ns"), color=scheme.blue, linewidth=3, label="95 %")
        axes.plot(part("delay_ns"), place, "o", color=ORANGE, markersize=5, label="estimate")
        axes.set(xlabel="delay at the node, ms", ylabel="node", yticks=place, yticklabels=nodes)
        axes.invert_yaxis()
        axes.legend(loc="lower right")

    draw("one-packets-way", paint, height=3.0)


@cache
def _collection() -> Any:
    return sojourn.tomography(data() / "n100_center_20s_packets.csv.gz")


def resolvers() -> None:
    """Two resolvers' answers, as `sojourn rtt` summarises them."""
    rows = list(sojourn.rtt(data() / "dns.pcap"))
    marks = ("min_rtt", "p50_ns", "p95_ns", "p99_ns", "max_ns")

    def paint(axes: Any, scheme: Scheme) -> None:
        for row, colour in zip(rows, (scheme.blue, ORANGE), strict=True):
            values = [row[name] / MS for name in marks]
            axes.plot(values, range(len(marks)), marker="o", color=colour, label=row["src_ip"])
        axes.set(xscale="log", xlabel="milliseconds to the answer", yticks=range(len(marks)))
        axes.set_yticklabels(["smallest", "median", "95 %", "99 %", "largest"])
        axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axes.margins(y=0.15)
        axes.legend()

    draw("resolvers", paint, height=2.4)
