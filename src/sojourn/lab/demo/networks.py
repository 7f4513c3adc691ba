"""The demonstration's networks: one to plan for, and the stage's own, whose segments its agents measure.

What agents measure between two points is also a segment of the stage's network: a link between two routers, or the
inside of one. So the query unit has what `mplane diagnose` compares, interval by interval, and names what changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from sojourn.client.query_unit import Client
from sojourn.lab.demo.stages import Stage
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.segments.result import SegmentResult

CORE, ACCESS = 8, 24
PLANNED, SHOWN = "backbone", "stage"  # the names of both


def write_planned(path: Path) -> None:
    """A core of routers in a ring with chords, and access routers at two of them each, as a CSV file."""
    links = [(f"core{i}", f"core{(i + step) % CORE}", 10) for i in range(CORE) for step in (1, 3)]
    links += [(f"edge{i}", f"core{(i * i + near) % CORE}", 20 + near) for i in range(ACCESS) for near in (0, 1)]
    _write(path, links)


def _write(path: Path, links: Sequence[tuple[str, str, int]]) -> None:
    lines = [f"{source},{target},{weight}\n" for source, target, weight in links]
    path.write_text("source,target,weight\n" + "".join(lines))


class ShownNetwork:
    """The stage's network in the query unit: its routers in a row, and what was measured of the segments."""

    def __init__(self, client: Client, file: Path, stage: Stage, interval_ns: int) -> None:
        self.file = file
        self._client, self._stage, self._interval_ns = client, stage, interval_ns
        self._told: dict[Segment, int] = {}  # until when each segment's intervals have been added
        self._reached_ns = self._longest_ns = 0

    def store(self) -> None:
        """Write it as a CSV file, and store that."""
        _write(self.file, [(one, other, 10) for one, other in pairwise(self._stage.routers)])
        self._client.store_topology(SHOWN, self.file, directed=False)

    def tell(self, begin_ns: int, until_ns: int) -> tuple[int, int]:
        """Add what agents have measured meanwhile and was not added yet, as far as it is there of all segments.

        How far that is, and how long the longest interval is.
        """
        known: dict[Segment, list[SegmentMeasurement]] = {}
        for piece in self._stage.pieces:
            if piece.segment is not None:
                answer = self._client.query_segment(
                    piece.name, from_ns=begin_ns, to_ns=until_ns, interval_ns=self._interval_ns
                )
                known[piece.segment] = list(_measured(piece.segment, answer, self._interval_ns))
        reached_ns = min((some[-1].end_ns if some else 0 for some in known.values()), default=0)
        for segment, some in known.items():
            told_ns = self._told.get(segment, begin_ns)
            if new := [one for one in some if told_ns <= one.start_ns and one.end_ns <= reached_ns]:
                self._client.add_measurements(new)
                self._told[segment] = new[-1].end_ns
                self._longest_ns = max(self._longest_ns, *(one.end_ns - one.start_ns for one in new))
        self._reached_ns = max(self._reached_ns, reached_ns)
        return self._reached_ns, self._longest_ns


def _measured(segment: Segment, result: SegmentResult, interval_ns: int) -> Iterator[SegmentMeasurement]:
    """The intervals of an answer in which something was received, as those of a segment of a network."""
    for part in result.intervals:
        if part["mean_ns"] is None or part["low_ns"] is None or not part["received"]:
            continue
        yield SegmentMeasurement(
            segment=segment,
            dscp=0,
            interval=part["start_ns"] // interval_ns,
            start_ns=part["start_ns"],
            end_ns=part["end_ns"],
            packets=part["received"],
            lost=part["lost"] or 0,
            mean_ns=part["mean_ns"],
            low_ns=part["low_ns"],
            high_ns=part["high_ns"],
            std_ns=part.get("std_ns"),
            method=part["method"],
        )
