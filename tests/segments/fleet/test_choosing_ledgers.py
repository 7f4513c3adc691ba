"""Where points keep ledgers: if a segment asks for it, and as long as memory and loss allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sojourn.core.errors import UsageError
from sojourn.node.agent.configuration import checked_stream
from sojourn.segments.fleet.point import parse_point
from sojourn.segments.fleet.replanning import Seen, first_plan, is_outgrown, planned_again, planned_for, replanned
from sojourn.segments.fleet.segment import AUTO, BEST, FIRST_MEMORY, LEDGER, FleetSegment, groups_of
from sojourn.segments.plan import SegmentPlan
from sojourn.sketches.ledgers.power_sums import threshold_for
from sojourn.sketches.ledgers.receipt import ReceiptParameters

TRAFFIC: dict[str, Any] = {"flows": 200, "packets": 50_000, "loss": 0.01}
STREAM_BYTES = 112 << 20  # what a query unit assigns at most


def plan_of(**changes: Any) -> SegmentPlan:
    return planned_for(Seen(**{**TRAFFIC, **changes}), FIRST_MEMORY, LEDGER)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, LEDGER), ({"loss": 0.12}, AUTO), ({"flows": 10_000}, AUTO), ({"packets": 2_000_000, "flows": 20_000}, AUTO)],
)
def test_a_ledger_is_planned_where_memory_and_loss_allow(changes: dict[str, Any], kind: str) -> None:
    assert plan_of(**changes).name == kind
    assert planned_for(Seen(**{**TRAFFIC, **changes}), FIRST_MEMORY).name == AUTO


@pytest.mark.parametrize("packets", [1000, 50_000, 600_000])
def test_what_is_planned_fits_an_agent(packets: int) -> None:
    plan = plan_of(packets=packets, flows=packets // 20)
    table = parse_point("a:eth0", default="out").table(plan, 5_000_000_000)
    found = checked_stream("point:eth0:out:g1", table, where="test", most_bytes=STREAM_BYTES)
    assert found.plan == plan
    assert plan.ledger >= 2 * packets
    with pytest.raises(UsageError, match="of memory, the limit is"):
        checked_stream("point:eth0:out:g1", table, where="test", most_bytes=plan.ledger * 24)


def test_a_plan_stays_while_loss_is_about_at_the_limit() -> None:
    with_ledger, without = plan_of(loss=0.09), plan_of(loss=0.12)
    for plan in (with_ledger, without):
        for loss in (0.09, 0.1, 0.11):
            seen = Seen(**{**TRAFFIC, "loss": loss})
            following = replanned(plan, seen, memory_bytes=FIRST_MEMORY, sketch=LEDGER)
            assert following is None or following.name == plan.name, loss
    assert is_outgrown(with_ledger, Seen(**{**TRAFFIC, "loss": 0.2}), sketch=LEDGER)
    assert is_outgrown(without, Seen(**{**TRAFFIC, "loss": 0.05}), sketch=LEDGER)


def test_a_plan_goes_over_from_one_sketch_to_the_other() -> None:
    first = first_plan(FIRST_MEMORY, LEDGER)
    assert first.name == LEDGER
    assert planned_again(first, FIRST_MEMORY).name == AUTO
    assert planned_again(first_plan(FIRST_MEMORY), FIRST_MEMORY, LEDGER).name == LEDGER
    assert planned_again(plan_of(loss=0.2), FIRST_MEMORY, LEDGER).name == AUTO


def test_one_segment_that_asks_for_a_ledger_gives_it_to_its_group() -> None:
    ends = [parse_point(text, default="out") for text in ("a:eth0", "b:eth0:in", "c:eth0:in")]
    how: dict[str, Any] = {"memory_bytes": 64_000}
    one = FleetSegment(name="ab", sender=ends[0], receiver=ends[1], **how)
    other = FleetSegment(name="ac", sender=ends[0], receiver=ends[2], sketch=LEDGER, **how)
    assert [group.sketch for group in groups_of([one, other])] == [LEDGER]
    assert [group.sketch for group in groups_of([one])] == [AUTO]
    with pytest.raises(UsageError, match="is no sketch of it"):
        FleetSegment(name="ad", sender=ends[0], receiver=ends[1], sketch="lda", **how)  # type: ignore[arg-type]


MEASURED: dict[str, Any] = {**TRAFFIC, "counted": 500_000, "common_share": 0.99}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, LEDGER),
        ({"counted": 5_000}, AUTO),
        ({"loss": 0.12, "common_share": 0.88}, AUTO),
        ({"common_share": 0.8}, AUTO),  # a fifth of the sender's packets go elsewhere
        ({"flows": 10_000}, AUTO),
        ({"packets": 2_000_000, "flows": 20_000}, AUTO),
    ],
)
def test_the_best_is_a_ledger_once_it_is_measured_that_it_names_all(changes: dict[str, Any], kind: str) -> None:
    first = first_plan(FIRST_MEMORY, BEST)
    assert first.name == AUTO
    seen = Seen(**{**MEASURED, **changes})
    assert planned_for(seen, FIRST_MEMORY, BEST).name == kind
    following = replanned(first, seen, memory_bytes=FIRST_MEMORY, sketch=BEST)
    assert (following or first).name == kind


def test_the_best_goes_back_where_losses_grow_and_stays_where_little_is_known() -> None:
    plan = planned_for(Seen(**MEASURED), FIRST_MEMORY, BEST)
    assert not is_outgrown(plan, Seen(**MEASURED), sketch=BEST)
    assert not is_outgrown(plan, Seen(**{**MEASURED, "counted": 100}), sketch=BEST)
    worse = replanned(plan, Seen(**{**MEASURED, "loss": 0.2, "common_share": 0.8}), sketch=BEST)
    assert worse is not None
    assert worse.name == AUTO
    assert planned_again(plan, 2 * FIRST_MEMORY, BEST).name == LEDGER
    assert planned_again(worse, 2 * FIRST_MEMORY, BEST).name == AUTO


@pytest.mark.parametrize("loss", [0.003, 0.02, 0.08])
def test_sums_are_for_the_loss_that_was_seen(loss: float) -> None:
    """Half as much again is room, and those packets count that go elsewhere."""
    plan = planned_for(Seen(**{**MEASURED, "loss": loss, "common_share": 1 - loss}), FIRST_MEMORY, BEST)
    assert plan.loss == pytest.approx(1.5 * loss)
    receipt = plan.parts["receipt"]
    assert isinstance(receipt, ReceiptParameters)
    assert receipt.threshold > 1.5 * loss * receipt.run
    elsewhere = planned_for(Seen(**{**MEASURED, "loss": loss, "common_share": 0.91}), FIRST_MEMORY, BEST)
    assert elsewhere.loss == pytest.approx(1.5 * 0.09)


@pytest.mark.parametrize("packets", [2_000, 37_000, 100_000, 390_000])
@pytest.mark.parametrize("loss", [0.002, 0.01, 0.05])
def test_groups_are_as_full_as_planned_and_named_in_full(packets: int, loss: float) -> None:
    plan = planned_for(Seen(**{**MEASURED, "packets": packets, "flows": packets // 100, "loss": loss}), 64_000, LEDGER)
    receipt = plan.parts["receipt"]
    assert isinstance(receipt, ReceiptParameters)
    groups, sums = receipt.needed(packets)
    assert groups * receipt.run < 1.01 * plan.packets + groups
    assert receipt.threshold - 1 <= sums <= receipt.threshold
    assert sums >= threshold_for(1.5 * max(loss, 0.01) * plan.packets / groups)


def test_a_segment_that_asks_for_the_best_leaves_others_their_ledger() -> None:
    ends = [parse_point(text, default="out") for text in ("a:eth0", "b:eth0:in", "c:eth0:in")]
    how: dict[str, Any] = {"memory_bytes": 64_000}
    one = FleetSegment(name="ab", sender=ends[0], receiver=ends[1], sketch=BEST, **how)
    other = FleetSegment(name="ac", sender=ends[0], receiver=ends[2], **how)
    assert [group.sketch for group in groups_of([one, other])] == [BEST]
    assert [group.sketch for group in groups_of([one, replace(other, sketch=LEDGER)])] == [LEDGER]
