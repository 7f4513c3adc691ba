"""From packets to rows: flows with few sampled packets have percentiles, and say what these rest on."""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np
from bench.auto.trial import recorded
from bench.percentiles import drawn_traffic, true_percentiles

from sojourn.core.estimates import LEVELS
from sojourn.core.keys import FlowKey
from sojourn.segments.answer import answer_interval
from sojourn.segments.plan import plan_segment
from sojourn.segments.result import METHOD_OWN, METHOD_SHARED, sketch_result


def test_flows_that_had_no_percentile_have_one_whose_interval_holds() -> None:
    """1,500 flows of which a fifth of the packets is lost; of 1,000 intervals that hold with 95 %, fewer than 92 % do
    so with a probability below 10⁻⁴, were they independent."""
    traffic = drawn_traffic("log-normal", 0.2, 5)
    truth = traffic.truth
    plan = plan_segment(
        "auto", 256_000, flows=len(truth.flow_id), packets=int(truth.sent.sum()), loss=0.2, salt=5, joint=True
    )
    whole = answer_interval(*recorded(plan, traffic), truth.flow_id, sizes=truth.sent, joint=True, base_ns=plan.base_ns)
    flows = whole.flows
    assert flows is not None
    assert flows.percentiles is not None
    assert flows.shared_shape is not None
    number = list(LEVELS).index("p90")
    rows = flows.shared_shape[:, number] & (truth.received > 0)
    assert rows.sum() > 1_000
    true = true_percentiles(traffic)[rows, number]
    value, low, high = flows.percentiles[rows, number].T
    assert np.mean((low <= true) & (true <= high)) > 0.92
    assert np.median(np.abs(value / true - 1)) < 0.25

    place = {flow_id: row for row, flow_id in enumerate(truth.flow_id.tolist())}
    address = IPv4Address("10.0.0.1")
    result = sketch_result(
        "auto", plan.memory_bits, whole, [], lambda flow_id: FlowKey(address, place[flow_id], address, 1, 17)
    )
    shared = flows.shared_shape.any(axis=1)
    known = ~np.isnan(flows.percentiles[:, :, 0]).all(axis=1)
    for row in result:
        flow = row["src_port"]
        expected = METHOD_SHARED if shared[flow] else METHOD_OWN if known[flow] else None
        assert row["percentile_method"] == expected
