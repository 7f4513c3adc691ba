"""Answers about topologies: what a query worker does, without a word of HTTP.

Upgrade plans are those of `mplane.planning.upgrades`; paths and changes come from the measurements that are stored
(`mplane.station`): what changed is told as a diagnosis of all segments that were measured, taken together, so that a
segment that did not change is marked as changed in one of a hundred looks at the whole network at most.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from sojourn.core.errors import TopologyError
from sojourn.core.units import plural
from sojourn.mplane.measurements import SegmentKind, SegmentMeasurement
from sojourn.mplane.planning.paths import PathSegments, SegmentCounter, ShortestPaths, path_segments, shortest_paths
from sojourn.mplane.planning.topology import Topology, topology_of
from sojourn.mplane.planning.traffic import TrafficCounter, read_traffic
from sojourn.mplane.planning.upgrades import Limits, Strategy, plan_as_dict, plan_upgrade
from sojourn.mplane.station.diagnosis import Diagnosis, DiagnosisPlan, Verdict, diagnose
from sojourn.mplane.station.paths import by_segment, path_state, reached_ns, segment_state
from sojourn.mplane.station.rows import change_row, diagnosis_dict, path_dict, state_row
from sojourn.server.queries.answering import measured_between
from sojourn.store.topologies import TopologyFile

# All shortest paths of so many take a worker's memory and some seconds; a map of more shows nothing.
MOST_ROUTERS, MOST_LINKS = 2_000, 20_000
INTERVALS = 10  # of a path, that its state rests on


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Which measurements an answer rests on."""

    url: URL
    from_ns: int
    to_ns: int
    dscp: int
    most_bytes: int

    def read(self) -> list[SegmentMeasurement]:
        """All of the range, of one class."""
        found = measured_between(self.url, self.from_ns, self.to_ns, None, None, self.most_bytes)
        return [one for one in found if one.dscp == self.dscp]


def read_file(file_name: str, content: bytes, directed: bool | None) -> tuple[TopologyFile, list[str]]:
    """A file that can be planned with, and remarks; an error names what is wrong with it."""
    topology = topology_of(content, Path(file_name), directed=directed)
    routers, links = len(topology.names), topology.links
    if routers > MOST_ROUTERS or links > MOST_LINKS:
        what = f"{routers:,} routers and {links:,} links; a query unit takes {MOST_ROUTERS:,} and {MOST_LINKS:,}"
        raise TopologyError(what, where=file_name, action="plan on a part of it, or with sojourn mplane upgrade")
    file = TopologyFile(file_name=file_name, directed=directed, content=content, routers=routers, links=links)
    return file, list(topology.remarks)


def _topology(file: TopologyFile) -> Topology:
    return topology_of(file.content, Path(file.file_name), directed=file.directed)


def describe(file: TopologyFile) -> dict[str, Any]:
    """Routers and links of a topology."""
    topology = _topology(file)
    weights = (topology.weight / topology.weight_unit).tolist()
    return {
        "file_name": file.file_name,
        "routers": list(topology.names),
        "places": {topology.names[router]: place for router, place in topology.places.items()},
        "links": list(zip(topology.source.tolist(), topology.target.tolist(), weights, strict=True)),
        "remarks": list(topology.remarks),
    }


def plan(
    file: TopologyFile, count: int, strategy: str, exclude: Sequence[str], must: Sequence[str], traffic: str
) -> dict[str, Any]:
    """Steps of an upgrade plan, as `sojourn mplane upgrade` finds them."""
    paths = shortest_paths(_topology(file))
    limits = Limits.named(paths.topology, cannot=exclude, must=must)
    notes = list(paths.topology.remarks) + _unreachable(paths)
    demand = _demand(traffic, paths, notes) if traffic.strip() else None
    most = paths.routers - len(limits.cannot)
    steps = list(
        plan_upgrade(
            SegmentCounter(paths), min(count, most), strategy=Strategy(strategy), limits=limits, traffic=demand
        )
    )
    idle = sum(step.hops == steps[-1].hops for step in steps) - 1
    if idle > 0:
        last = "upgrade saves" if idle == 1 else f"{idle} upgrades save"
        notes.append(f"the last {last} nothing: {len(steps) - 1 - idle} suffice")
    return {**plan_as_dict(paths, strategy, steps, limits), "notes": notes}


def _unreachable(paths: ShortestPaths) -> list[str]:
    lacking = paths.example_of_unreachable()
    if lacking is None:
        return []
    pairs = f"{paths.unreachable_pairs:,} ordered pairs of routers have no path and are left out"
    hint = "" if paths.topology.has_way_back() else "; no link is listed both ways: store it so that each leads both"
    return [f"{pairs}, such as {lacking[0]} to {lacking[1]}{hint}"]


def _demand(traffic: str, paths: ShortestPaths, notes: list[str]) -> TrafficCounter:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traffic"
        path.write_text(traffic, encoding="utf-8")
        try:
            counter = TrafficCounter(paths, read_traffic(path, paths.topology))
        except TopologyError as error:  # the file is ours: what has no name in it is the text
            where = error.where.replace(str(path), "traffic")
            raise TopologyError(error.what, where=where, action=error.action) from None
    if counter.pathless:
        source, target = (paths.topology.names[router] for router in counter.pathless[0])
        pairs = plural(len(counter.pathless), "pair")
        notes.append(f"{pairs} with traffic and no path, such as {source} to {target}, left out")
    return counter


def changes(file: TopologyFile, measured: Measured) -> dict[str, Any]:
    """What was measured of the topology's segments, and how each changed; a diagnosis of all of them together."""
    topology = _topology(file)
    rows = [one for one in measured.read() if all(hop in topology.index for hop in one.segment.hops)]
    if not rows:
        return {"verdict": None, "summary": "", "cause": None, "segments": [], "upgraded": [], "notes": []}
    upgraded = _measuring(rows)
    shares = dict.fromkeys((one.segment for one in rows), 1.0)
    everything = PathSegments("", "", (), shares, frozenset(upgraded))
    # A segment counts by its own change: there is no path whose delay it would be a share of.
    result = diagnose(everything, rows, DiagnosisPlan(dscp=measured.dscp, least_share=0.0))
    found, _ = by_segment(rows, everything, dscp=measured.dscp)
    states = {segment: state_row(segment_state(segment, some)) for segment, some in _latest(found).items()}
    shown = []
    for one in result.segments:
        state = states[one.segment]
        kept = {name: state[name] for name in ("mean_ns", "loss", "packets", "intervals", "void", "reason")}
        is_clear = one.is_silent or (one.delay is not None and one.delay.is_clear)
        loses = one.loss is not None and one.loss.is_clear
        shown.append(
            {**change_row(one), **kept, "hops": list(one.segment.hops), "clear": is_clear, "loss_clear": loses}
        )
    whole = diagnosis_dict(result)
    summary = _of_all(result)
    return {
        **{name: whole[name] for name in ("verdict", "cause", "baseline", "now")},
        "summary": summary,
        "segments": shown,
        "upgraded": sorted(upgraded),
        "notes": [],
    }


def _of_all(result: Diagnosis) -> str:
    """The summary without shares of a path's change: these are no path."""
    return result.summary if result.verdict is not Verdict.CHANGED else result.summary.partition(", ")[0]


def path(
    file: TopologyFile, measured: Measured, source: str, target: str, upgraded: Sequence[str] | None
) -> dict[str, Any]:
    """A path's delay by its segments, as of the latest intervals, and what changed it."""
    shortest, rows = shortest_paths(_topology(file)), measured.read()
    marked = _measuring(rows) & set(shortest.topology.names) if upgraded is None else set(upgraded)
    known = path_segments(shortest, source, target, marked)
    found, whole = by_segment(rows, known, dscp=measured.dscp)
    state = path_dict(path_state(known, _latest(found), whole[-INTERVALS:]))
    diagnosis: dict[str, Any] | None = None
    before: dict[str, float | None] = {}
    if any(found.values()):
        result = diagnose(known, rows, DiagnosisPlan(dscp=measured.dscp))
        diagnosis = diagnosis_dict(result)
        earlier = {segment: result.before.of(some) for segment, some in found.items()}
        before = {row["segment"]: row["mean_ns"] for row in path_dict(path_state(known, earlier, ()))["segments"]}
    for row in state["segments"]:
        row["before_ns"] = before.get(row["segment"])
    return {
        **state,
        "paths": [{"hops": list(hops), "share": share} for hops, share in known.paths],
        "upgraded": sorted(marked),
        "diagnosis": diagnosis,
    }


def _measuring(rows: Sequence[SegmentMeasurement]) -> set[str]:
    """The routers that measure within themselves."""
    return {one.segment.hops[1] for one in rows if one.segment.kind is SegmentKind.ROUTER}


def _latest(found: dict[Any, list[SegmentMeasurement]]) -> dict[Any, list[SegmentMeasurement]]:
    """The last intervals of each segment, as far as all have come."""
    longest = max((one.end_ns - one.start_ns for some in found.values() for one in some), default=0)
    begin = reached_ns(found) - INTERVALS * longest
    return {segment: [one for one in some if one.start_ns >= begin] for segment, some in found.items()}
