"""Plans of points: what they hold, and how they travel to agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import ParameterError, WireError
from sojourn.segments.plan import LEAST_POINT_SLOTS, SegmentPlan, plan_point, plan_segment
from sojourn.segments.planning.layout import FLOWS, SAMPLES, SEGMENT, SPREAD
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.sample import SampleParameters

MEMORIES = (4_000, 16_000, 128_000, 1_000_000)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("flows", [1, 100, 10_000])
@pytest.mark.parametrize(("loss", "packets"), [(0.0, 0), (0.001, 0), (0.01, 100_000), (0.3, 1_000_000)])
def test_a_point_always_has_a_sample_and_the_flow_blind_lda(memory: int, flows: int, loss: float, packets: int) -> None:
    plan = plan_point(memory, flows=flows, loss=loss, packets=packets)
    sample, blind = plan.parts[SAMPLES], plan.parts[SEGMENT]
    assert isinstance(sample, SampleParameters)
    assert isinstance(blind, LdaParameters)
    assert sample.slots >= LEAST_POINT_SLOTS
    assert 8 * memory * 0.9 < plan.memory_bits <= 8 * memory
    assert 16 * sample.memory_bits >= 0.95 * (plan.memory_bits - blind.memory_bits)
    assert list(plan.parts)[-2:] == [SAMPLES, SEGMENT]


def test_a_point_is_laid_out_as_auto_but_for_the_sample_and_cells_that_count() -> None:
    """As many cells of whole flows as make packets and losses exact, where they take a fifth at most."""
    point = plan_point(128_000, flows=1000, loss=0.01, packets=500_000)
    auto = plan_segment("auto", 128_000, flows=1000, loss=0.01, packets=500_000, joint=True)
    assert set(point.parts) == {*auto.parts, SAMPLES, FLOWS, SPREAD}
    whole = point.parts[FLOWS]
    assert isinstance(whole, LdsParameters)
    assert whole.shares == (1.0,)
    assert whole.rows * whole.columns > 1400
    assert point.parts[SEGMENT] == auto.parts[SEGMENT]
    assert point.joint
    crowded = plan_point(128_000, flows=10_000, loss=0.01, packets=500_000)
    assert not any(isinstance(part, LdsParameters) and part.shares == (1.0,) for part in crowded.parts.values())


def test_too_little_memory_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ParameterError, match="100 bytes are too few; give at least") as refused:
        plan_point(100, flows=10, loss=0.0)
    least = int(str(refused.value).split()[-2])
    assert plan_point(least, flows=10, loss=0.0).memory_bits <= 8 * least
    with pytest.raises(ParameterError):
        plan_point(least - 1, flows=10, loss=0.0)


@given(
    st.sampled_from(MEMORIES),
    st.integers(1, 10**6),
    st.floats(0, 1),
    st.integers(0, 10**9),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
)
def test_a_plan_travels_as_text_and_comes_back_equal(
    memory: int, flows: int, loss: float, packets: int, markers: float, salt: int
) -> None:
    plan = plan_point(memory, flows=flows, loss=loss, packets=packets, markers=markers, salt=salt)
    again = SegmentPlan.from_text(plan.to_text())
    assert again == plan
    assert again.to_text() == plan.to_text()
    assert again.stream == plan.stream


GOOD: dict[str, Any] = plan_point(16_000, flows=100, loss=0.01).to_mapping()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "hologram"}, "plans of kind 'hologram' are not known here; upgrade this agent"),
        ({"kind": ["auto"]}, "are not known here"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"markers": 1.5}, "markers is 1.5"),
        ({"markers": float("nan")}, "markers is nan"),
        ({"flows": True}, "flows is True"),
        ({"flows": 2.5}, "flows is 2.5"),
        ({"flows": -1}, "flows is -1"),
        ({"packets": 10**30}, "packets is 1000"),
        ({"loss": "0.1"}, "loss is '0.1'"),
        ({"parts": {}}, "expected parts as"),
        ({"parts": []}, "use 1 to 8 parts"),
        ({"parts": [["segment"]]}, "expected parts as"),
        ({"parts": [["segment", ["bucket_array", {}]]]}, r"expected \[kind, parameters\]"),
        ({"parts": [["segment", ["lda", {"rows": 3}]]]}, "unknown parameter 'rows'"),
        ({"parts": [["Segment!", GOOD["parts"][-1][1]]]}, "letters of its own"),
        ({"parts": [GOOD["parts"][-1], GOOD["parts"][-1]]}, "two parts have one name"),
    ],
)
def test_a_damaged_plan_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WireError, match=words):
        SegmentPlan.from_mapping(GOOD | changes)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_nothing_of_a_plan_may_be_missing(name: str) -> None:
    with pytest.raises(WireError, match=f"{name} is missing"):
        SegmentPlan.from_mapping({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("text", ["", "{", "[" * 16_000, "[]", "7", json.dumps(GOOD) + " " * 20_000, '{"kind": NaN'])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="plan"):
        SegmentPlan.from_text(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=6),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=4))
def test_whatever_a_plan_holds_it_is_a_plan_or_refused(changes: dict[str, Any]) -> None:
    try:
        plan = SegmentPlan.from_text(json.dumps(GOOD | changes))
    except WireError:
        return
    assert SegmentPlan.from_text(plan.to_text()) == plan
