"""Plans that follow the traffic: what groups of points have seen, and new generations where it has outgrown their plan.

A group is looked at once it has recorded `LEAST_EPOCHS` epochs under its generation, and again after as many. Where a
segment asks for an error with a confidence, the memory that this takes is searched for in a process of its own, within
limits of time and memory: nothing here keeps a request waiting. The work of a taking over (`SegmentControl`) ends here,
too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.epochs.encoded import encoded
from sojourn.segments.answer import Interval
from sojourn.segments.fleet.replanning import Seen, is_outgrown, planned_for, sized_memory
from sojourn.segments.fleet.runs import align
from sojourn.segments.fleet.segment import LEDGER
from sojourn.segments.fleet.stored import read_answer
from sojourn.segments.plan import SegmentPlan
from sojourn.server.control.segments import Progress, RecordedGroup, SegmentControl
from sojourn.server.control.states import StreamStateStore
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import KnownPair, RunStore
from sojourn.store.segments import Recording, pair_of

LEAST_EPOCHS = 10
LEAST_COUNTED = 1000  # packets that a loss of one in a thousand shows in
MOST_PLACES = 100  # of a generation that has just begun
# How often a taking over is looked at, and plans are: reading all segments takes 10⁻⁴ s for each.
LOOK_SECONDS, PLAN_SECONDS = 2.0, 10.0
# What searching for a memory may take. Most searches take some seconds, of hundreds of thousands of flows a minute;
# longer on a machine that has other things to do.
SIZING = ProcessLimits(seconds=600.0, processor_seconds=120.0, memory_bytes=1 << 30)
PRELOAD = ("sojourn.segments.planning.search",)
# More than that, an agent with its usual limits does not take.
MOST_SIZED_BYTES = 2_000_000
_LOG = logging.getLogger("sojourn.segments")

Wake = Callable[[set[str]], object]


class Observer(Progress, Protocol):
    """Who knows what was seen of groups' traffic, and how their recordings fare."""

    def seen(self, recorded: RecordedGroup) -> Seen | None:
        """What a group has seen under its generation; None if that is too little to go by."""


@dataclass(frozen=True)
class _Timed:
    """When an epoch was, by its point's clock."""

    sequence: int
    first_ns: int
    last_ns: int

    @classmethod
    def of(cls, frame: Mapping[str, Any]) -> _Timed:
        # Of one that is dated ahead of its arrival times were moved.
        moved_ns = int(frame["shifted_ns"] or 0)
        return cls(int(frame["sequence"]), int(frame["first_ns"]) + moved_ns, int(frame["last_ns"]) + moved_ns)


class StoredTraffic:
    """What stored epochs tell of a group's traffic (packets, flows), and answered runs of its segments (loss, share).

    Flows of which nothing arrived in a run are not on the segment, or wholly lost: they do not count as loss.
    """

    def __init__(self, store: EpochStore) -> None:
        self._store, self._runs, self._states = store, RunStore(store), StreamStateStore(store)

    def seen(self, recorded: RecordedGroup) -> Seen | None:
        generation = recorded.generation
        streams = [(point.node, point.stream(generation.number)) for point in recorded.group.points]
        packets = [self._packets(*stream, generation.epoch_ns) for stream in streams]
        if not any(packets):
            return None
        flows = max(self._flows(*stream, generation.epoch_ns) for stream in streams)
        found = [counts for pair in self._pairs(recorded) if (counts := self._counts(pair)) is not None]
        # Cells of all segments are those of one plan: it has to suit the one that loses most.
        loss = max((one.loss for one in found), default=generation.plan.loss)
        share = min((one.common_share for one in found), default=generation.plan.markers)
        counted = min((round(one.arriving) for one in found), default=0)
        return Seen(flows=flows, packets=max(packets), loss=loss, common_share=share, counted=counted)

    def _packets(self, node: str, stream: str, epoch_ns: int) -> int:
        """A point's packets in an epoch's time."""
        frames = self._store.frames(node, stream, limit=LEAST_EPOCHS)
        timed = [_Timed.of(frame) for frame in reversed(frames) if frame["first_ns"] is not None]
        if not timed:
            return 0
        span_ns = sum(one.last_ns - one.first_ns for one in timed)
        for before, after in pairwise(timed):
            gap_ns = after.first_ns - before.last_ns
            if not 0 <= gap_ns <= epoch_ns:
                gap_ns -= self._set_by(node, stream, before.sequence, after.sequence)
            span_ns += max(gap_ns, 0)
        recorded = sum(int(frame["recorded"] or 0) for frame in frames)
        return round(recorded * epoch_ns / max(span_ns, epoch_ns))

    def _set_by(self, node: str, stream: str, *sequences: int) -> int:
        """By how much a point's clock was set between two epochs; 0 if they do not tell."""
        found = [self._store.epoch_bytes(node, stream, sequence) for sequence in sequences]
        cuts = [None if data is None else encoded(data).cut for data in found]
        before, after = (None if cut is None else cut.clock for cut in cuts)
        if before is None or after is None or before.boot != after.boot:
            return 0
        return 0 if before.lead_ns is None or after.lead_ns is None else after.lead_ns - before.lead_ns

    def _flows(self, node: str, stream: str, epoch_ns: int) -> int:
        """The flows of a point's latest epoch."""
        latest = [frame["last_ns"] for frame in self._store.frames(node, stream, limit=1)]
        return 0 if not latest or latest[0] is None else self._store.active(node, stream, int(latest[0]) - epoch_ns)

    def _pairs(self, recorded: RecordedGroup) -> list[KnownPair]:
        number, members = recorded.generation.number, set(recorded.group.points)
        ends = [pair for one in recorded.group.segments for pair in one.pairs.values() if pair[0] in members]
        return self._runs.pairs([pair_of(*pair, number) for pair in dict.fromkeys(ends)])

    def _counts(self, pair: KnownPair) -> _Counts | None:
        """What the latest runs of a pair add up to; None if that is too little to tell shares from chance."""
        counts = _Counts()
        for row in self._runs.latest(pair.number, limit=LEAST_EPOCHS):
            counts.add(read_answer(row.data, row.clock).interval)
        return counts if counts.sent >= LEAST_COUNTED else None

    def are_joined(self, first: Recording, second: Recording) -> bool:
        """A run is between two common markers: the first of them lies before all that the former still records."""
        ends = [self._runs.placed(one.point.node, one.stream, after=-1, limit=MOST_PLACES) for one in (first, second)]
        return bool(align(*ends))

    def began_ns(self, recording: Recording) -> int | None:
        """As the node's agent has told."""
        state = self._states.of(recording.point.node).get(recording.stream)
        return None if state is None or state.state != "running" else state.since_ns


@dataclass
class _Counts:
    """Packets of some runs: sent in all, and of flows that arrived, sent and lost. Those that arrived without having
    been sent, copies most of all, spoil cells as lost ones do."""

    sent: float = 0.0
    arriving: float = 0.0
    lost: float = 0.0

    def add(self, interval: Interval) -> None:
        totals, flows = interval.totals, interval.flows
        self.sent += totals.sent
        self.lost += totals.losses.extra
        if flows is None:
            self.arriving += totals.sent
            self.lost += max(0, totals.sent - totals.received)
            return
        arrives = flows.lost < flows.packets  # not so where either is unknown
        self.arriving += float(flows.packets[arrives].sum())
        self.lost += float(np.maximum(flows.lost[arrives], 0).sum())

    @property
    def loss(self) -> float:
        return self.lost / self.arriving if self.arriving else 0.0

    @property
    def common_share(self) -> float:
        return min(1.0, (self.arriving - self.lost) / self.sent)


class SegmentPlanner(Periodic):
    """Plans groups again, and ends what has been taken over."""

    def __init__(self, control: SegmentControl, observer: Observer, wake: Wake) -> None:
        self._control, self._observer, self._wake = control, observer, wake
        self._looked: dict[int, int] = {}
        self._suited: dict[int, SegmentPlan] = {}  # of traffic for which plans turned out to be the same
        self._planned = -math.inf
        self._process = LimitedProcess(SIZING, preload=PRELOAD)
        super().__init__("sojourn-segments", LOOK_SECONDS, process=self._process)

    def work(self) -> None:
        try:
            if nodes := self._control.finish_taking_over(self._observer):
                self._wake(nodes)
            if time.monotonic() >= self._planned + PLAN_SECONDS:
                self._planned = time.monotonic()
                self.plan_due()
        except SojournError as error:
            self._complain(_LOG, "segments could not be planned", error)

    def plan_due(self) -> None:
        """Look at all groups that have recorded for long enough."""
        groups = self._control.groups()
        numbers = {one.generation.number for one in groups}
        self._looked = {number: at for number, at in self._looked.items() if number in numbers}
        self._suited = {number: plan for number, plan in self._suited.items() if number in numbers}
        for recorded in groups:
            if self._stopping.is_set():
                return
            if self._is_due(recorded):
                try:
                    self._plan_again(recorded)
                except SojournError as error:
                    _LOG.warning("warning: segments %s could not be planned: %s", _names(recorded), error)

    def _is_due(self, recorded: RecordedGroup) -> bool:
        """Whether a group has recorded for long enough since it was planned, and was looked at.

        While a generation takes over none follows: points would record under one more for each that cannot begin.
        """
        generation, now = recorded.generation, time.time_ns()
        if recorded.is_taking_over:
            return False
        since = self._looked.get(generation.number, generation.since_ns)
        if now - since < LEAST_EPOCHS * generation.epoch_ns:
            return False
        self._looked[generation.number] = now
        return True

    def _plan_again(self, recorded: RecordedGroup) -> None:
        seen, number, current = self._observer.seen(recorded), recorded.generation.number, recorded.generation.plan
        suited = self._suited.get(number, current)
        group = recorded.group
        if seen is None or not is_outgrown(suited, seen, memory_bytes=group.memory_bytes, sketch=group.sketch):
            return
        sizes: dict[str, int] = {}
        plan = planned_for(seen, group.memory_bytes, group.sketch)
        if plan.name != LEDGER:  # which is sized by its traffic
            sizes = self._sizes(recorded, seen)
            plan = planned_for(seen, max(sizes.get(one.name, one.size_bytes) for one in group.segments), group.sketch)
        if not plan.records_otherwise(current):
            self._suited[number] = plan
            return
        flows = f"{plan.flows:,}"
        _LOG.info("segments %s are planned again for %s flows and %.3g lost", _names(recorded), flows, plan.loss)
        self._wake(self._control.replan(recorded, plan, sizes))

    def _sizes(self, recorded: RecordedGroup, seen: Seen) -> dict[str, int]:
        """The memory of segments that ask for an error; one search for each wish."""
        wishes = {one.name: (one.error, one.confidence) for one in recorded.group.segments if one.error is not None}
        found: dict[tuple[float | None, float | None], int] = {}
        for wish in set(wishes.values()):
            try:
                found[wish] = min(MOST_SIZED_BYTES, self._process.call(_sized, seen, *wish))
            except ProcessEndedError as error:
                if self._stopping.is_set():
                    break
                _LOG.warning("warning: the memory of a segment could not be planned: %s", error)
        return {name: found[wish] for name, wish in wishes.items() if wish in found}


def _names(recorded: RecordedGroup) -> str:
    return ", ".join(one.name for one in recorded.group.segments[:5])


def _sized(seen: Seen, error: float, confidence: float) -> int:
    return sized_memory(seen, error=error, confidence=confidence)
