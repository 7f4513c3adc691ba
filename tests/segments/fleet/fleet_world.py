"""Two points of a fleet in a simulated world: packets recorded as agents do, a second at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.epochs.epoch import Epoch, KernelClock
from sojourn.lab.two_point import LOST, FlowTruth, TwoPointWorld, flow_truth
from sojourn.segments.fleet.answers import RunAnswer, answer_run
from sojourn.segments.fleet.markers import MarkerCuts
from sojourn.segments.fleet.runs import PlacedEpoch, Run, align
from sojourn.segments.fleet.watch import WINDOW_NS
from sojourn.segments.plan import SegmentPlan
from sojourn.segments.record import KeyReports, PointRecorder

SECOND = 1_000_000_000


class PolledPoint:
    """A point whose packets are recorded a second's at a time, as an agent does."""

    def __init__(
        self,
        batch: PacketBatch,
        plan: SegmentPlan,
        world: TwoPointWorld,
        *,
        node: str = "a",
        epoch_ns: int = 5 * SECOND,
    ) -> None:
        self._batch = batch.select(np.argsort(batch.time_ns, kind="stable"))
        self._current = self._batch
        self._at_ns = int(self._batch.time_ns[0]) if len(batch) else 0
        self.last_ns = int(self._batch.time_ns[-1]) if len(batch) else -1
        keys = KeyReports(lambda rows: [world.keys.get(int(i)) for i in self._current.flow_id[rows]], flows=1000)
        markers = MarkerCuts(epoch_ns, share=plan.markers)
        self.recorder = PointRecorder(node, "point:eth0:out:g1", plan.stream, keys=keys, markers=markers)

    def until(self, time_ns: int, *, clock: KernelClock | None = None) -> list[Epoch]:
        """The epochs that close before a time."""
        epochs: list[Epoch] = []
        while self._at_ns < time_ns:
            until = min(self._at_ns + SECOND, time_ns)
            self._current = self._batch.select(
                slice(*np.searchsorted(self._batch.time_ns, [self._at_ns, until]).tolist())
            )
            epochs += self.recorder.record(self._current)
            self.recorder.note(missed=0, clock=clock)
            epochs += self.recorder.close_before(until)
            self._at_ns = until
        return epochs


def record(
    batch: PacketBatch,
    plan: SegmentPlan,
    world: TwoPointWorld,
    *,
    node: str = "a",
    epoch_ns: int = 5 * SECOND,
    clock: KernelClock | None = None,
) -> list[Epoch]:
    """The epochs of a point that is polled every second."""
    point = PolledPoint(batch, plan, world, node=node, epoch_ns=epoch_ns)
    return [*point.until(point.last_ns + 1, clock=clock), *point.recorder.finish()]


def watched(point: PolledPoint, asked_ns: int) -> tuple[list[Epoch], list[Epoch]]:
    """A point's closed epochs when it was asked at a time and watched for a while, and its looks at the open one."""
    closed = point.until(asked_ns)
    assert point.recorder.watch()
    closed += point.until(asked_ns + WINDOW_NS)
    return closed, point.recorder.looks(asked_ns + WINDOW_NS)


def moved(batch: PacketBatch, by_ns: Int64Array | int) -> PacketBatch:
    """The packets as another clock would have shown them."""
    return replace(batch, time_ns=batch.time_ns + by_ns)


def placed(epochs: Sequence[Epoch]) -> list[PlacedEpoch]:
    """The epochs as `align` wants them."""
    return [PlacedEpoch(e.sequence, e.cut, e.first_ns, e.last_ns, e.recorded) for e in epochs if e.cut is not None]


def answers(sent: Sequence[Epoch], received: Sequence[Epoch]) -> tuple[list[Run], list[RunAnswer]]:
    """The runs of two points, and what each of them says."""
    runs = align(placed(sent), placed(received))
    before, after = ({epoch.sequence: epoch for epoch in end} for end in (sent, received))
    found = []
    for run in runs:
        earlier = [_before(end, by_number) for end, by_number in ((run.sent, before), (run.received, after))]
        ends = [before[one.sequence] for one in run.sent], [after[one.sequence] for one in run.received]
        found.append(answer_run(*ends, before=partial(list, earlier[0]), arrived_before=partial(list, earlier[1])))
    return runs, found


def _before(end: Sequence[PlacedEpoch], by_number: Mapping[int, Epoch]) -> list[Epoch]:
    """The epoch that the first of some follows, if there is one."""
    first = end[0] if end and end[0].cut.continues else None
    earlier = None if first is None else by_number.get(first.sequence - first.cut.sequences)
    return [] if earlier is None else [earlier]


def truth_between(world: TwoPointWorld, first_ns: int, last_ns: int) -> tuple[FlowTruth, Int64Array]:
    """Every flow's fate in a stretch of time, and all delays (`LOST` where a packet did not arrive)."""
    rows = (world.sender.time_ns >= first_ns) & (world.sender.time_ns <= last_ns)
    delay = world.delay_ns[rows]
    return flow_truth(world.sender.flow_id[rows], delay, delay != LOST), delay
