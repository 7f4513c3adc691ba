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
from sojourn.segments.plan import SegmentPlan
from sojourn.segments.record import KeyReports, PointRecorder

SECOND = 1_000_000_000


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
    current = [batch]
    keys = KeyReports(lambda rows: [world.keys.get(int(i)) for i in current[0].flow_id[rows]], flows=1000)
    recorder = PointRecorder(
        node, "point:eth0:out:g1", plan.stream, keys=keys, markers=MarkerCuts(epoch_ns, share=plan.markers)
    )
    batch = batch.select(np.argsort(batch.time_ns, kind="stable"))
    epochs: list[Epoch] = []
    first, last = (int(batch.time_ns[0]), int(batch.time_ns[-1])) if len(batch) else (0, 0)
    for start in range(first, last + 1, SECOND):
        rows = slice(*np.searchsorted(batch.time_ns, [start, start + SECOND]).tolist())
        current[0] = batch.select(rows)
        epochs += recorder.record(current[0])
        recorder.note(missed=0, clock=clock)
        epochs += recorder.close_before(start + SECOND)
    return [*epochs, *recorder.finish()]


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
