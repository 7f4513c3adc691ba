"""Segments as they are shown: with the state of each end, their plans and generations, and their last epochs.

An end is *unreachable* while its node does not listen for questions, whatever it said last; else its state is what its
agent reported of the stream, and *waiting* until it reports anything.
Cost: a list reads the tables of segments, recordings and states once; one segment, two rows of epochs for each end too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sojourn.core.units import format_time
from sojourn.mplane.measurements import Segment, SegmentMeasurement, to_row
from sojourn.node.agent.stream_states import NOT_STARTED
from sojourn.segments.fleet.point import Point
from sojourn.segments.fleet.segment import FleetSegment
from sojourn.server.control.segments import SegmentControl
from sojourn.server.control.states import StreamStateStore
from sojourn.server.models import (
    EndStatus,
    EpochInfo,
    MeasurementRow,
    SegmentDetail,
    SegmentDirection,
    SegmentGeneration,
    SegmentInfo,
    SegmentPlanInfo,
    SegmentPoint,
    StreamState,
)
from sojourn.store.epochs import EpochStore
from sojourn.store.segments import Generation, Recording

# What agents say of a sketch that they do not know.
_UNKNOWN_SKETCH = "'segment' is no sketch"
MOST_GENERATIONS = 10


class End(NamedTuple):
    """How a point fares."""

    state: EndStatus
    reason: str | None = None
    since_ns: int | None = None


class SegmentViews:
    """What is shown of a store's segments; `is_listening` says whether a node can be asked now."""

    def __init__(
        self,
        store: EpochStore,
        control: SegmentControl,
        states: StreamStateStore,
        is_listening: Callable[[str], bool],
    ) -> None:
        self._store, self._segments, self._states = store, control.segments, states
        self._is_listening = is_listening

    def rows(self) -> list[SegmentInfo]:
        """All segments of the fleet, by name."""
        ends = self._ends({one.point: one for one in self._segments.recorded() if one.is_current})
        return [SegmentInfo(**_fields(segment, ends)) for segment in self._segments.all()]

    def detail(self, segment: FleetSegment) -> SegmentDetail:
        """All about one segment."""
        recordings = self._segments.recordings_of(segment.points)
        current = {one.point: one for one in recordings if one.is_current}
        ends = self._ends(current)
        shown = {point: self._point(one, ends[point]) for point, one in current.items()}
        directions = [
            SegmentDirection.model_validate({"name": name, "from": shown[sender], "to": shown[receiver]})
            for name, (sender, receiver) in segment.pairs.items()
            if sender in shown and receiver in shown  # removed a moment ago
        ]
        generations = _generations(recordings)[:MOST_GENERATIONS]
        fields = _fields(segment, ends)
        last = [end.last_epoch.last_ns for end in shown.values() if end.last_epoch and end.last_epoch.last_ns]
        fields["last_ns"] = min(last) if len(last) == len(shown) and last else None
        return SegmentDetail(**fields, directions=directions, generations=generations)

    def _point(self, recording: Recording, end: End) -> SegmentPoint:
        point, stream = recording.point, recording.stream
        frames = self._store.frames(point.node, stream, limit=1)
        return SegmentPoint(
            point=str(point),
            node=point.node,
            interface=point.interface,
            direction=point.direction,
            stream=stream,
            last_epoch=EpochInfo.model_validate(frames[0]) if frames else None,
            **end._asdict(),
        )

    def _ends(self, current: Mapping[Point, Recording]) -> dict[Point, End]:
        """How points fare under their current generations."""
        heard = {node.name: node.last_seen_ns for node in self._store.nodes()}
        states = self._states.of_points()
        found: dict[Point, End] = {}
        for point, one in current.items():
            if self._is_listening(point.node):
                found[point] = _reported(point, states.get((point.node, one.stream)))
            else:
                since = heard.get(point.node)
                last = "has never been heard of" if since is None else f"was last heard of at {format_time(since)}"
                found[point] = End("unreachable", f"node {point.node} does not answer, and {last}")
        return found


def _reported(point: Point, state: StreamState | None) -> End:
    if state is None:
        return End("waiting", f"node {point.node} has not said yet whether it can be recorded")
    reason = state.reason
    if reason == NOT_STARTED:
        return End("waiting", f"node {point.node} is starting it", state.since_ns)
    if reason is not None and _UNKNOWN_SKETCH in reason:
        reason = f"node {point.node}'s agent is of an earlier version: upgrade it"
    return End(state.state, reason, state.since_ns)


def _fields(segment: FleetSegment, ends: Mapping[Point, End]) -> dict[str, Any]:
    """What a list shows of a segment; its state is that of the end that fares worst."""
    order: Sequence[EndStatus] = ("failed", "unreachable", "waiting", "running")
    found = [ends.get(point, End("waiting")) for point in segment.points]
    worst = min(found, key=lambda end: order.index(end.state))
    plain = ("name", "filter", "epoch_ns", "error", "confidence", "both_directions", "created_ns", "sketch")
    return {
        "kind": "fleet",
        "sender": str(segment.sender),
        "receiver": str(segment.receiver),
        "memory_bytes": segment.size_bytes,
        "state": worst.state,
        "reason": worst.reason,
        **{name: getattr(segment, name) for name in plain},
    }


def _generations(recordings: Sequence[Recording]) -> list[SegmentGeneration]:
    by_number: dict[int, list[Recording]] = {}
    for one in recordings:
        by_number.setdefault(one.generation.number, []).append(one)
    return [
        SegmentGeneration(
            number=number,
            since_ns=min(one.since_ns for one in found),
            until_ns=None if any(one.until_ns is None for one in found) else max(one.until_ns or 0 for one in found),
            current=any(one.is_current for one in found),
            plan=_plan(found[0].generation),
        )
        for number, found in sorted(by_number.items(), reverse=True)
    ]


def _plan(generation: Generation) -> SegmentPlanInfo:
    plan = generation.plan
    return SegmentPlanInfo(
        kind=plan.name,
        memory_bytes=-(-plan.memory_bits // 8),
        epoch_ns=generation.epoch_ns,
        flows=plan.flows,
        loss=plan.loss,
        packets=plan.packets,
        markers=plan.markers,
    )


def measured_row(segment: Segment, last_ns: int) -> SegmentInfo:
    """A segment that MPlane measures, in the same list."""
    return SegmentInfo(**_measured(segment, last_ns))


def measured_detail(segment: Segment, last_ns: int, latest: SegmentMeasurement | None) -> SegmentDetail:
    """All about a segment that MPlane measures."""
    row = None if latest is None else MeasurementRow.model_validate(to_row(latest))
    return SegmentDetail(**_measured(segment, last_ns), measurement=row)


def _measured(segment: Segment, last_ns: int) -> dict[str, Any]:
    return {
        "name": str(segment),
        "kind": segment.kind.value,
        "sender": segment.hops[0],
        "receiver": segment.hops[-1],
        "hops": list(segment.hops),
        "last_ns": last_ns,
    }
