"""MessageTracing: an order that no log contradicts, made of logs alone."""

from __future__ import annotations

import numpy as np
import pytest

from collection_worlds import MS, simulated
from sojourn.core.errors import InputError
from sojourn.tomography.comparison import NodeLogs, displacements, logs_of, trace_messages
from sojourn.tomography.trace import MISSING, make_trace


def world() -> tuple[object, np.ndarray]:
    """Packets of nodes 3 and 4 by way of 2, and one of 5 straight to the sink."""
    rows = [
        (3, 0, [3, 2, 0], 0, 40 * MS, MISSING),
        (4, 0, [4, 2, 0], 5 * MS, 60 * MS, MISSING),
        (5, 0, [5, 0], 50 * MS, 55 * MS, MISSING),
    ]
    trace = make_trace(rows)
    return trace, np.array([0, 20, 40, 50, 55, 5, 25, 60]) * MS


def test_logs_hold_what_a_node_generated_received_and_sent_in_its_order() -> None:
    trace, truth = world()
    logs = logs_of(trace, truth)
    written = {int(n): logs.event[logs.start[k] : logs.start[k + 1]].tolist() for k, n in enumerate(logs.node.tolist())}
    # Places: 3:0 is 0 to 2, 5:0 is 3 and 4, 4:0 is 5 to 7.
    assert written == {0: [2, 4, 7], 2: [1, 6, 2, 7], 3: [0, 1], 4: [5, 6], 5: [3, 4]}


def test_events_come_as_late_as_the_logs_allow() -> None:
    trace, truth = world()
    rank = trace_messages(trace, logs_of(trace, truth))
    order = np.argsort(rank).tolist()
    assert set(order[:4]) == {0, 5, 1, 6}
    # 6 stands before 2 in the log of node 2; 3 is before 4 alone, so right before it.
    assert order[4:] == [2, 3, 4, 7]


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_the_order_contradicts_no_log_and_is_better_than_that_of_the_sink_alone(loss: float) -> None:
    trace, truth = simulated(225, 31, 0.05, loss)
    logs = logs_of(trace, truth)
    rank = trace_messages(trace, logs)
    assert sorted(rank.tolist()) == list(range(len(trace.node)))
    for n in range(len(logs.node)):
        assert (np.diff(rank[logs.event[logs.start[n] : logs.start[n + 1]]]) > 0).all()
    found = float(displacements(trace, rank, truth).mean())
    by_sink = displacements(trace, np.repeat(trace.sink_ns, np.diff(trace.start)) + trace.hop, truth).mean()
    assert 0.1 < found < by_sink


def test_times_have_no_say_but_through_the_order_in_each_log() -> None:
    trace, truth = simulated(100, 32)
    rank = trace_messages(trace, logs_of(trace, truth))
    bent = np.rint(np.sqrt(truth.astype(float)) * 1e6).astype(np.int64)
    assert (trace_messages(trace, logs_of(trace, bent)) == rank).all()


def test_events_without_truth_are_in_no_log() -> None:
    trace, truth = world()
    truth[1] = -1
    rank = trace_messages(trace, logs_of(trace, truth))
    assert rank[1] == -1
    assert sorted(rank[rank >= 0].tolist()) == list(range(7))


def test_logs_that_contradict_each_other_leave_their_events_to_the_end() -> None:
    trace, _truth = world()
    logs = NodeLogs(np.array([2, 9]), np.array([0, 2, 4]), np.array([1, 6, 6, 1]))
    rank = trace_messages(trace, logs)
    assert {int(rank[1]), int(rank[6])} == {0, 1}


def test_displacement_is_the_mean_of_how_far_arrivals_stand_off() -> None:
    """The paper's example: (b, a, e, d, c) for (a, b, c, d, e) is 1.2."""
    rows = [(k, 0, [k, 9, 0], k * MS, (k + 50) * MS, MISSING) for k in range(1, 6)]
    trace = make_trace(rows)
    truth = np.concatenate([[k * MS, 1_000 * MS, (k + 50) * MS] for k in range(1, 6)])
    truth[trace.start[:-1] + 1] = np.arange(5) + 1_000 * MS
    rank = truth.copy()
    rank[trace.start[:-1] + 1] = np.array([1, 0, 4, 3, 2]) + 1_000 * MS
    # Generations are in order as well: half of the unknowns' arrivals stand where they should.
    assert displacements(trace, rank, truth).mean() == pytest.approx(0.6)
    with pytest.raises(InputError, match="none of the trace's hops"):
        displacements(trace, rank, np.full(len(truth), -1))
