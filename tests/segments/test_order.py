"""What is asked of flows in another order is answered the same."""

from __future__ import annotations

import numpy as np

from sojourn.epochs.epoch import merge_epochs
from sojourn.lab.traffic import make_traffic
from sojourn.segments.answer import answer_interval
from sojourn.segments.plan import plan_segment
from sojourn.segments.record import PointRecorder


def test_an_answer_does_not_depend_on_the_order_of_the_list() -> None:
    world = make_traffic(seed=3, flows=400, loss=0.02)
    plan = plan_segment("auto", 24_000, flows=400, loss=0.02, packets=40_000)
    ends = []
    for batch in (world.sender, world.receiver):
        recorder = PointRecorder("point", "segment", plan.stream)
        ends.append(merge_epochs([*recorder.record(batch), *recorder.finish()]))
    flow_id = world.truth.flow_id
    sizes = np.bincount(world.flow, minlength=len(flow_id))
    order = np.random.default_rng(4).permutation(len(flow_id))
    first = answer_interval(*ends, flow_id, sizes=sizes, joint=plan.joint).flows
    second = answer_interval(*ends, flow_id[order], sizes=sizes[order], joint=plan.joint).flows
    assert first is not None
    assert second is not None
    for name in ("mean_ns", "low_ns", "high_ns", "packets", "lost", "percentiles"):
        np.testing.assert_array_equal(getattr(first, name)[order], getattr(second, name), err_msg=name)
