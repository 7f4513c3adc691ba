"""Readings of a metric on all nodes of a fleet, from the store; what a query worker does.

Every node's total is read; instances are decoded on the `MOST_DECODED` nodes with the largest totals alone, as that is
what takes time: so an instance that is large on a node that hardly has any other may be missing.

Cost: 40 µs for each epoch in the window, and a decoding for each of those nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import URL

from sojourn.core.errors import SojournError
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.buckets.queries import Stat, combined
from sojourn.estimation.buckets.questions import Found, Question
from sojourn.exports.readings import Amount, ReadingLimits
from sojourn.server.queries.answering import Work, answer_question
from sojourn.store.epochs import StreamRecord

MOST_DECODED = 50


@dataclass(frozen=True, kw_only=True)
class FleetMetric:
    """What was found of a metric: the largest nodes and instances, and how many of each were left out.

    ``failed`` are nodes whose epochs cannot be asked so.
    """

    amounts: tuple[Amount, ...] = ()
    nodes_left_out: int = 0
    instances_left_out: int = 0
    failed: tuple[str, ...] = ()


def read_metric(url: URL, work: Work, limits: ReadingLimits) -> FleetMetric:
    """All nodes together, the largest nodes and the largest instances; `work` asks for the nodes' totals."""
    failed: list[str] = []
    totals = [one for one in _answered(url, work, failed) if isinstance(one.range.answer, Estimate)]
    if not totals:
        return FleetMetric(failed=tuple(failed))
    totals.sort(key=lambda one: -_value(one))
    whole = combined([one.range.answer for one in totals], work.question.range.stat)
    instances: list[Found] = []
    seen = 0
    if limits.top:
        for node in [one.node for one in totals[:MOST_DECODED]]:
            found = _instances(url, work, [stream for stream in work.streams if stream.node == node])
            seen += len(found)
            instances = sorted([*instances, *found], key=lambda one: -_value(one))[: limits.top]
    amounts = [_amount(whole), *(_amount(one.range.answer, one.node) for one in totals[: limits.nodes])]
    amounts += (_amount(one.range.answer, one.node, one.instance) for one in instances)
    return FleetMetric(
        amounts=tuple(amounts),
        nodes_left_out=max(0, len(totals) - limits.nodes),
        instances_left_out=seen - len(instances),
        failed=tuple(failed),
    )


def _answered(url: URL, work: Work, failed: list[str]) -> Iterator[Found]:
    """Every node's total; where one cannot be asked the others are asked without it."""
    try:
        yield from answer_question(url, work)
    except SojournError:
        nodes = dict.fromkeys(stream.node for stream in work.streams)
        if len(nodes) == 1:
            failed += nodes
            return
        for node in nodes:
            yield from _answered(url, _of(work, [one for one in work.streams if one.node == node]), failed)


def _of(work: Work, streams: Sequence[StreamRecord]) -> Work:
    return replace(work, streams=tuple(streams))


def _instances(url: URL, work: Work, streams: Sequence[StreamRecord]) -> list[Found]:
    """The instances of a node that have a value; none where they cannot be told apart."""
    question = Question(range=work.question.range, instance="*")
    try:
        found = answer_question(url, replace(_of(work, streams), question=question))
    except SojournError:
        return []
    return [one for one in found if isinstance(one.range.answer, Estimate)]


def _value(found: Found) -> float:
    answer = found.range.answer
    return answer.value if isinstance(answer, Estimate) else 0.0


def _amount(answer: Answer, node: str | None = None, key: str | None = None) -> Amount:
    assert isinstance(answer, Estimate)
    return Amount(value=answer.value, low=answer.low, high=answer.high, node=node, key=key)


def stat_of(stream: StreamRecord, usual: str) -> Stat:
    """Whether a stream's measurements are added up, or averaged."""
    return "mean" if (stream.values or usual) == "samples" else "sum"
