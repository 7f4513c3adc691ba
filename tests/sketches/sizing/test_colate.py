"""COLATE's published sizing: its equations hold, the paper's example comes out, and its faults are as documented."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError
from sojourn.sketches.sizing.colate import (
    FlowSums,
    individual_interval,
    individual_reliability,
    published_interval,
    published_sizing,
    reliability_factor,
)

PAPER_MEMORY = 1 << 23
PAPER_COUNTERS, PAPER_THRESHOLD, PAPER_PER_FLOW = 455_334, 8e10, 20


@given(
    memory=st.integers(1 << 16, 1 << 32),
    most=st.floats(1e5, 1e12),
    ratio=st.floats(0.01, 1.0),
    slack=st.floats(1.01, 50.0),
)
def test_a_solution_satisfies_all_four_equations(memory: int, most: float, ratio: float, slack: float) -> None:
    sums = FlowSums(most * ratio, most)
    k = reliability_factor(0.95)
    interval = slack * k * math.sqrt(sums.least + sums.most) / sums.least
    solved = published_sizing(memory, sums, interval=interval, reliability=0.95)
    n, m, b, total = solved.counters, solved.per_flow, solved.bits, solved.threshold
    assert n * b == pytest.approx(memory)
    assert b == pytest.approx(math.log2(total / n) + 1)
    assert most / m + (total - most) / n == pytest.approx(2**b - 1, rel=1e-6)
    t = sums.least
    variance = (t / m) * (1 - 1 / m) + ((total - t) / n) * (1 - 1 / n)
    assert (interval * t) ** 2 >= k**2 * n**2 * m / (n - m) ** 2 * variance * (1 - 1e-6)
    at_the_end = m <= 1 + 1e-6 or b == 63
    assert at_the_end or solved.interval == pytest.approx(interval, rel=1e-6)


def test_the_paper_s_example_comes_out_with_its_counters_per_flow() -> None:
    most = PAPER_PER_FLOW * (PAPER_THRESHOLD / PAPER_COUNTERS - 1)
    given = published_sizing(
        PAPER_MEMORY, FlowSums(most / 3, most), interval=0.05, reliability=0.95, per_flow=PAPER_PER_FLOW
    )
    assert given.counters == pytest.approx(PAPER_COUNTERS, rel=1e-3)
    assert math.ceil(given.bits) == 19
    assert given.threshold == pytest.approx(PAPER_THRESHOLD, rel=0.02)


def test_whole_numbers_keep_to_the_memory_which_the_paper_s_example_does_not() -> None:
    given = published_sizing(PAPER_MEMORY, FlowSums(1e6, 3.5e6), interval=0.05, reliability=0.95, per_flow=20)
    parameters = given.parameters(resolution_ns=1000)
    assert parameters.bits == 19
    assert parameters.counters * parameters.bits <= PAPER_MEMORY < PAPER_COUNTERS * 19
    assert parameters.per_flow == 20


def test_the_printed_equation_rules_the_paper_s_own_example_out() -> None:
    """Even a flow as large as the largest, with the widest B there is, misses the printed Eq. 22 by far."""
    most = PAPER_PER_FLOW * (PAPER_THRESHOLD / PAPER_COUNTERS - 1)
    values = {"threshold": PAPER_THRESHOLD, "flow_sum": most, "reliability": 0.95}
    assert published_interval(PAPER_COUNTERS, PAPER_PER_FLOW, **values, printed=True) > 10 * 0.05
    assert published_interval(PAPER_COUNTERS, PAPER_PER_FLOW, **values) < 0.05


def test_sixty_four_times_the_memory_buys_no_smaller_interval() -> None:
    sums = FlowSums(1e6, 3.5e6)
    small, large = (
        published_sizing(memory, sums, interval=0.05, reliability=0.95, per_flow=20) for memory in (1 << 20, 1 << 26)
    )
    assert large.interval == pytest.approx(small.interval, rel=1e-3)


def test_a_finer_unit_of_time_meets_any_requirement() -> None:
    """The same flows and memory: what microseconds cannot promise nanoseconds can. The promise is void."""

    def sums(resolution_ns: int) -> FlowSums:
        return FlowSums.of_traffic(100, 10_000, epoch_ns=10**9, resolution_ns=resolution_ns)

    with pytest.raises(ParameterError, match="no interval below"):
        published_sizing(1 << 23, sums(1000), interval=0.001, reliability=0.95)
    assert published_sizing(1 << 23, sums(1), interval=0.001, reliability=0.95).interval <= 0.001


@pytest.mark.parametrize(
    "call",
    [
        lambda: FlowSums(0, 1),
        lambda: FlowSums(2, 1),
        lambda: FlowSums(1, math.inf),
        lambda: FlowSums(math.nan, 1),
        lambda: individual_reliability(1.0),
        lambda: individual_reliability(math.nan),
        lambda: individual_interval(0, 1, 2),
        lambda: individual_interval(0.1, 2, 1),
        lambda: published_sizing(8, FlowSums(1, 2), interval=0.1, reliability=0.9),
        lambda: published_sizing(1 << 20, FlowSums(1, 2), interval=math.nan, reliability=0.9),
    ],
)
def test_what_cannot_be_is_refused(call: object) -> None:
    with pytest.raises(ParameterError):
        call()  # type: ignore[operator]
