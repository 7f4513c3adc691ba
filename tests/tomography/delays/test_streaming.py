"""Windows of a growing trace: when they may be solved, what they rest on, and that they answer as the whole does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sink_packets import rows_of

from collection_worlds import MS, simulated
from sojourn.core.errors import WireError
from sojourn.tomography.bounds.constraints import ConstraintOptions, bound, learn_omega
from sojourn.tomography.comparison import evaluate
from sojourn.tomography.delays.estimate import WindowSpan, estimate, next_span, period_of, solve_span
from sojourn.tomography.reading import decode_packets, encode_packets
from sojourn.tomography.trace import MISSING, SUM_LIMIT_NS, CollectionTrace, make_trace

SECOND = 10**9
NUMBERS = st.integers(0, 2**40)


def test_a_span_waits_for_packets_from_a_margin_after_it() -> None:
    span = WindowSpan(0, 20, -10, 30)
    assert next_span(0, 29, 10) is None
    assert next_span(0, 30, 10) == span
    assert next_span(0, 10**6, 10) == span
    assert next_span(0, 10**6, 10, share=0.5) == WindowSpan(0, 10, -5, 15)


def test_closing_waits_for_nothing_and_the_last_span_takes_the_rest() -> None:
    assert next_span(0, 30, 10, is_closing=True) == WindowSpan(0, 20, -10, 30)
    assert next_span(0, 29, 10, is_closing=True) == WindowSpan(0, 30, -10, 40)
    assert next_span(5, 5, 10, is_closing=True) == WindowSpan(5, 6, -5, 16)


def test_a_period_is_told_only_from_packets_that_follow_each_other() -> None:
    rows = [(1, k, [1, 0], k * SECOND, k * SECOND + MS, MISSING) for k in range(6)]
    assert period_of(rows) == SECOND
    assert period_of(rows[:5]) is None
    assert period_of([]) is None
    assert period_of([(k, 0, [k, 0], k, k + MS, MISSING) for k in range(1, 20)]) is None


def answered(trace: CollectionTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Arrivals and bounds of delays of all places by spans, each from the packets that it asks for alone."""
    rows = rows_of(trace)
    period, newest = trace.period_ns, int(trace.t0_ns.max())
    omega = ConstraintOptions(omega_ns=learn_omega(trace))
    begin, may_be_exact, solved, most = int(trace.t0_ns.min()), True, {}, 0
    while len(solved) < len(rows):
        begin = min(row[3] for row in rows if row[3] >= begin)
        span = next_span(begin, newest, period, is_closing=True)
        taken = [row for row in rows if row[4] >= span.since_ns and row[3] < span.until_ns]
        most = max(most, len(taken))
        answer = solve_span(taken, span, omega, may_be_exact=may_be_exact)
        assert not solved.keys() & answer.answers.keys()
        solved |= answer.answers
        may_be_exact = answer.may_be_exact
        begin = span.end_ns
    columns: list[list[np.ndarray]] = [[], [], []]
    for origin, sequence, _path, t0, _at_sink, _sum in rows:
        found = solved[origin, sequence, t0]
        columns[0].append(t0 + np.concatenate([[0], np.cumsum(found.delay_ns)]))
        for column, values in zip(columns[1:], (found.low_ns, found.high_ns), strict=True):
            column.append(np.append(values, 0))
    arrival, low, high = (np.concatenate(column) for column in columns)
    return arrival, low, high, most


@pytest.mark.parametrize(
    ("nodes", "seed", "ack_loss", "loss"), [(100, 81, 0.0, 0.0), (60, 82, 0.1, 0.0), (100, 83, 0.05, 0.1)]
)
def test_stretches_answer_as_the_whole_trace_does(nodes: int, seed: int, ack_loss: float, loss: float) -> None:
    trace, truth = simulated(nodes, seed, ack_loss, loss, packets=12)
    bounds = bound(trace)
    whole = estimate(trace, bounds)
    arrival, low, high, most = answered(trace)
    visit = np.flatnonzero(trace.is_visit)
    ours, theirs = (
        evaluate(trace, bounds, arrival, truth).mae_ms,
        evaluate(trace, bounds, whole.arrival_ns, truth).mae_ms,
    )
    assert ours < 1.05 * theirs
    assert np.abs(np.diff(arrival)[visit] - whole.delay_ns[visit]).mean() < 0.3 * MS
    # Fewer packets prove less: bounds are those of the whole trace or wider, never by much.
    assert (low[visit] <= bounds.least_ns[visit]).all()
    assert (high[visit] >= bounds.most_ns[visit]).all()
    # A window of a small network has too few sums to show that nothing was lost, so that they say less there.
    width = (high - low)[visit].mean()
    assert width < 1.12 * (bounds.most_ns - bounds.least_ns)[visit].mean()
    delay = np.diff(truth)[visit]
    assert ((delay >= low[visit] - 1000) & (delay <= high[visit] + 1000)).all()
    assert most < 0.5 * len(trace)


def test_once_sums_over_count_they_stay_upper_bounds() -> None:
    trace, _truth = simulated(60, 82, 0.1, 0.0, packets=12)
    rows = [row for row in rows_of(trace) if row[3] < 40 * SECOND]
    span = WindowSpan(0, 30 * SECOND, -10 * SECOND, 40 * SECOND)
    assert not solve_span(rows, span).may_be_exact
    clean = [row for row in rows_of(simulated(60, 84)[0]) if row[3] < 40 * SECOND]
    assert solve_span(clean, span).may_be_exact
    assert not solve_span(clean, span, may_be_exact=False).may_be_exact


def test_a_sum_that_reaches_back_before_the_span_is_not_used() -> None:
    """Its members may lie there: taken for all of it, the delays of those in the span would be pulled up."""
    rows = [
        (1, 0, [1, 0], 8 * SECOND, 11 * SECOND, MISSING),
        (1, 1, [1, 0], 12 * SECOND, 12 * SECOND + 5 * MS, 2900 * MS),
        (1, 2, [1, 0], 22 * SECOND, 22 * SECOND + 5 * MS, 5 * MS),
        *[(2, k, [2, 1, 0], (9 + k) * SECOND, (9 + k) * SECOND + 20 * MS, MISSING) for k in range(2, 5)],
    ]
    found = solve_span(rows, WindowSpan(12 * SECOND, 25 * SECOND, 10 * SECOND, 30 * SECOND))
    assert found.conflicts == 0
    assert found.answers[1, 1, 12 * SECOND].delay_ns.tolist() == [5 * MS]


@given(
    st.lists(
        st.tuples(
            NUMBERS, NUMBERS, st.lists(st.integers(0, 2**31), max_size=9), NUMBERS, NUMBERS, st.integers(-1, 65_535)
        ),
        max_size=20,
    )
)
def test_packets_survive_the_wire(packets: list) -> None:
    rows = [(*packet[:5], MISSING if packet[5] < 0 else packet[5] * MS) for packet in packets]
    faults: Counter[str] = Counter()
    assert list(decode_packets(encode_packets(rows), faults)) == rows
    assert not faults


@given(st.binary(max_size=60))
def test_bytes_that_are_no_packets_are_refused_or_counted(data: bytes) -> None:
    faults: Counter[str] = Counter()
    try:
        rows = list(decode_packets(data, faults))
    except WireError:
        return
    assert bool(rows or faults) == bool(data)


def test_a_sum_beyond_two_bytes_says_nothing_on_the_wire_too() -> None:
    (row,) = decode_packets(bytes.fromhex("86010082010001021a00100000"), Counter())
    assert row == (1, 0, [1, 0], 1, 2, SUM_LIMIT_NS)
    assert make_trace([row]).sum_ns.tolist() == [MISSING]
