"""Planning for a segment that was surveyed: the memory for a wanted error, and whether the promise was kept.

A survey knows what planning otherwise assumes: how many flows there are, how large each is, what it loses and how its
delays vary (from a sample in long captures). Worlds drawn from that are tried as in `planning`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.errors import ParameterError
from sojourn.core.estimates import FlowDelays
from sojourn.segments.planning.search import MemoryPlan, Wish, plan_memory
from sojourn.segments.planning.world import ExpectedTraffic, SurveyedDelays
from sojourn.segments.survey import Survey

SIZES_TO_PROMISE = (100, 10, 1)
LEAST_FLOWS = 5
MOST_VARIATION = 10.0


def expect_surveyed(survey: Survey) -> ExpectedTraffic:
    """The traffic that a survey has seen: its flows' sizes, losses, means and deviations."""
    match, table = survey.match.flows, survey.sender.flows
    rows = _rows_of(table.ids, match.flow_id)
    heard = (match.received > 0) & (rows >= 0)
    if not heard.any():
        raise ParameterError("no packet was matched", where="plan", action="give --memory instead of --error")
    mean = np.maximum(match.mean_ns[heard], 1.0)
    variation = np.where(match.received[heard] > 1, match.std_ns[heard] / mean, 0.0)
    return ExpectedTraffic(
        np.maximum(table.packets[rows[heard]], 1),
        match.lost[heard] / np.maximum(match.packets[heard], 1),
        len(survey.flow_id),
        (SurveyedDelays(mean, np.minimum(variation, MOST_VARIATION)),),
    )


def promised_size(packets: Int64Array) -> int:
    """From which size on flows are promised an error: 100 packets, or fewer where hardly a flow has as many."""
    return next((size for size in SIZES_TO_PROMISE if np.count_nonzero(packets >= size) >= LEAST_FLOWS), 1)


def plan_surveyed(
    name: str,
    survey: Survey,
    *,
    error: float,
    confidence: float,
    joint: bool,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> tuple[Wish, MemoryPlan]:
    """The smallest plan that keeps the error for the survey's flows; a `ParameterError` where none does."""
    traffic = expect_surveyed(survey)
    wish = Wish(error, confidence, promised_size(traffic.packets))
    chosen = plan_memory(name, traffic, wish, joint=joint, advance=advance)
    if not chosen.prediction.is_kept:
        other = "--memory instead of --error" if name in ("auto", "sample") else "--sketch auto"
        raise ParameterError(
            f"no memory keeps {error:.3g} at {confidence:.3g}: at best {chosen.prediction.share:.0%} of the flows of "
            f"{wish.least_packets} packets or more would be within it",
            where=name,
            action=f"use {other}, or ask for a larger error",
        )
    return wish, chosen


def achieved_share(answers: FlowDelays, survey: Survey, wish: Wish) -> tuple[int, float]:
    """How many flows the promise was made for, and the share of them within the error; needs an exact survey."""
    match = survey.match.flows
    rows = _rows_of(answers.flow_id, match.flow_id)
    table = _rows_of(survey.sender.flows.ids, match.flow_id)
    counted = (match.received > 0) & (rows >= 0) & (survey.sender.flows.packets[table] >= wish.least_packets)
    if not counted.any():
        return 0, float("nan")
    with np.errstate(invalid="ignore"):
        error = np.abs(answers.mean_ns[rows[counted]] - match.mean_ns[counted]) / np.abs(match.mean_ns[counted])
    return int(counted.sum()), float(np.mean(error <= wish.error))


def _rows_of(known: UInt64Array, asked: UInt64Array) -> Int64Array:
    """Where each asked id stands among the known ones, −1 where it does not."""
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    order = np.argsort(known)
    rows = order[np.minimum(np.searchsorted(known[order], asked), len(order) - 1)]
    return np.where(known[rows] == asked, rows, -1)
