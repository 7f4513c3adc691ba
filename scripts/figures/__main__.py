"""Make the documentation's pictures: all of them, or those that are named."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from scripts.figures import answers, charts, papers, tables

FIGURES: dict[str, Callable[[], None]] = {
    "charts": charts.make_charts,
    "delay-over-time": answers.delay_over_time,
    "delay-distribution": answers.delay_distribution,
    "sketch-intervals": answers.sketch_intervals,
    "error-by-memory": answers.error_by_memory,
    "round-trips": answers.round_trips,
    "waiting-nodes": answers.waiting_nodes,
    "one-packets-way": answers.one_packets_way,
    "resolvers": answers.resolvers,
    "recording": tables.recording,
    "reading-captures": tables.reading_captures,
    "decoding": tables.decoding,
    "ingest": tables.ingest,
    "tomography-costs": tables.tomography_costs,
    "coverage": tables.coverage,
    **{name: partial(papers.show, name) for name in papers.SHOWN},
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(FIGURES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    if "SOJOURN_DATA" not in os.environ:
        print("SOJOURN_DATA has to name the folder of real captures, traces and maps", file=sys.stderr)
        return 2
    for name in names or FIGURES:
        print(name, flush=True)
        FIGURES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
