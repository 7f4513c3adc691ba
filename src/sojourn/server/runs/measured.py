"""Questions about segments that MPlane measures, answered in the form of all others.

Probes and LDAs inside routers measure a segment as a whole, in intervals of their own. So there are no flows, and
intervals are pooled (`mplane.router.epochs.summarise`) into stretches of at least the length that was asked for. Clocks
do not matter here: a router has one, and probes take the difference of round trips.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import URL

from sojourn.core.errors import InputError
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.units import plural
from sojourn.estimation.differences import Losses
from sojourn.estimation.lda import LdaAnswer
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.mplane.router.epochs import summarise
from sojourn.segments.answer import Interval, SegmentTotals
from sojourn.segments.result import SegmentResult, sketch_result
from sojourn.store.epochs import read_store
from sojourn.store.measurements import MeasurementStore


def answer_measured(
    url: URL, name: str, span_ns: tuple[int, int], *, interval_ns: int, most_bytes: int
) -> dict[str, Any]:
    """Totals and intervals of a segment by its hops, as `SegmentResult` gives them."""
    found = MeasurementStore(read_store(url)).between(*span_ns, segment=name, most_bytes=most_bytes)
    if not found:
        raise InputError("nothing was measured in the range", where=f"segment {name}", action="ask for another range")
    result = measured_result(found, interval_ns)
    return {**result.to_dict(), "notes": list(result.notes)}


def measured_result(found: Sequence[SegmentMeasurement], interval_ns: int = 0) -> SegmentResult:
    """The result of one segment's measurements in time order, of all classes together."""
    groups = list(_grouped(found, interval_ns)) if interval_ns else []
    result = sketch_result(_method(found), 0, _interval(found), [_interval(group) for group in groups], _no_flow)
    segment = found[0].segment
    void = Counter(one.void for one in found if one.void is not None)
    return replace(
        result,
        sketch={"name": _method(found)},
        direction={"sender": segment.hops[0], "receiver": segment.hops[-1], "other_way": 0},
        covered=_covered(found),
        notes=[f"{plural(count, 'interval')} without an answer: {reason}" for reason, count in sorted(void.items())],
    )


def _no_flow(_flow_id: int) -> Any:
    raise AssertionError("a segment that is measured as a whole has no flows")


def _method(found: Sequence[SegmentMeasurement]) -> str:
    return ", ".join(sorted({one.method for one in found}))


def _interval(found: Sequence[SegmentMeasurement]) -> Interval:
    """Measurements as one stretch of time, whatever their classes."""
    (whole,) = summarise(replace(one, dscp=0) for one in found)
    received, method = whole.packets - whole.lost, _method(found)
    unknown = Unanswered(Reason.NOTHING_RECORDED if not whole.packets else Reason.NO_USABLE_CELLS)
    mean: Answer = unknown
    if whole.mean_ns is not None:
        low = -math.inf if whole.low_ns is None else whole.low_ns
        high = math.inf if whole.high_ns is None else whole.high_ns
        mean = Estimate(whole.mean_ns, low, high, received, method)
    spread = unknown if whole.std_ns is None else Estimate(whole.std_ns, whole.std_ns, whole.std_ns, received, method)
    losses = Losses(whole.lost, whole.lost, whole.lost)
    totals = SegmentTotals(whole.packets, received, LdaAnswer(mean, spread, spread, unknown), losses)
    return Interval(min(one.start_ns for one in found), max(one.end_ns for one in found), totals, None)


def _grouped(found: Sequence[SegmentMeasurement], interval_ns: int) -> Iterator[list[SegmentMeasurement]]:
    """Measurements that begin within an interval of the first of theirs."""
    group: list[SegmentMeasurement] = []
    for one in found:
        if group and one.start_ns - group[0].start_ns >= interval_ns:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _covered(found: Sequence[SegmentMeasurement]) -> list[dict[str, int]]:
    """The stretches of time that have an answer."""
    spans: list[dict[str, int]] = []
    for one in found:
        if one.void is not None:
            continue
        if spans and one.start_ns <= spans[-1]["to_ns"]:
            spans[-1]["to_ns"] = max(one.end_ns, spans[-1]["to_ns"])
        else:
            spans.append({"from_ns": one.start_ns, "to_ns": one.end_ns})
    return spans
