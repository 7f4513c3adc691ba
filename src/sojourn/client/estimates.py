"""Estimates of many metrics over a range, step by step: what is exported as a file of them.

Every step is a question to the query unit, for the totals of nodes and for the largest instances. An epoch that steps
cut counts in each by its share of time, so that the steps add up to the range.
Cost: two questions a step and metric, at most `MOST_PER_SECOND`, so that a query unit has time for others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sojourn.client.query_unit import Client, Question
from sojourn.core.errors import InputError, UsageError
from sojourn.core.results import Advance
from sojourn.core.units import format_time, plural
from sojourn.exports.parquet import estimate_rows, steps_between
from sojourn.node.transports.transport import RefusedError

MOST_PER_SECOND = 25
MOST_STEPS = 20_000
MOST_NODES = 100  # of one question


@dataclass(frozen=True, kw_only=True)
class EstimatesAsked:
    """Which estimates are wanted: metrics (none: all) of nodes, or of those with a tag (neither: all)."""

    from_ns: int
    to_ns: int
    every_ns: int
    metrics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    tag: str | None = None
    top: int = 100

    def __post_init__(self) -> None:
        if self.every_ns <= 0:
            raise UsageError("a step has some length", where="--every", action="give one such as 5m")
        if self.from_ns > self.to_ns:
            raise UsageError("the range ends before it begins", where="--to", action="give --from before --to")
        if self.nodes and self.tag is not None:
            raise UsageError("nodes or those with a tag, not both", where="--tag", action="leave one out")
        if (count := (self.to_ns - self.from_ns) // self.every_ns + 1) > MOST_STEPS:
            raise UsageError(f"{count:,} steps exceed {MOST_STEPS:,}", where="--every", action="take longer steps")


def each_step(client: Client, asked: EstimatesAsked, advance: Advance) -> Iterator[list[Mapping[str, object]]]:
    """The rows of each step and metric, in order of time."""
    of_metric = _nodes_by_metric(client, asked)
    steps = steps_between(asked.from_ns, asked.to_ns, asked.every_ns)
    for number, span in enumerate(steps):
        advance(format_time(span[0]), number / len(steps))
        for metric, nodes in of_metric.items():
            for start in range(0, len(nodes), MOST_NODES):
                yield _rows(client, metric, nodes[start : start + MOST_NODES], span, asked.top)


def _nodes_by_metric(client: Client, asked: EstimatesAsked) -> dict[str, list[str]]:
    known = client.nodes(tag=asked.tag)
    names = {node["name"] for node in known}
    if missing := [name for name in asked.nodes if name not in names]:
        raise InputError(f"there is no node {missing[0]}", where="--node", action="sojourn nodes lists them")
    of_metric: dict[str, list[str]] = {}
    for node in known:
        if not asked.nodes or node["name"] in asked.nodes:
            for metric in node["metrics"]:
                of_metric.setdefault(metric, []).append(node["name"])
    if missing := [metric for metric in asked.metrics if metric not in of_metric]:
        has = f"they have {', '.join(sorted(of_metric))}" if of_metric else "they have none"
        raise InputError(f"no node measures {missing[0]}", where="--metric", action=has)
    if not of_metric:
        whose = "no node" if asked.tag is None else f"no node tagged {asked.tag}"
        raise InputError(f"{whose} measures anything yet", where="export", action="sojourn nodes lists them")
    return {metric: of_metric[metric] for metric in asked.metrics or sorted(of_metric)}


def _rows(
    client: Client, metric: str, nodes: Sequence[str], span: tuple[int, int], top: int
) -> list[Mapping[str, object]]:
    question: Question = {
        "metric": metric,
        "node": nodes,
        "from_ns": span[0],
        "to_ns": span[1],
        "cut": "pro-rata",
        "live": False,
    }
    rows: list[Mapping[str, object]] = []
    for more in ({"group": "node"}, {"instance": "*", "top": top}):
        if "top" in more and not top:
            continue
        began = time.monotonic()
        rows += estimate_rows(metric, span, _answers(client, {**question, **more}, nodes))
        time.sleep(max(0.0, 1 / MOST_PER_SECOND - (time.monotonic() - began)))
    return rows


def _answers(client: Client, question: Mapping[str, Any], nodes: Sequence[str]) -> list[Any]:
    """The answers; where the query unit cannot answer, one whose reason says why."""
    try:
        return list(client.query(**question))
    except RefusedError as error:
        if error.status != 400:
            raise
        nothing = dict.fromkeys(("value", "low", "high", "instance", "members", "node"))
        of = nodes[0] if len(nodes) == 1 else plural(len(nodes), "node")
        why = f"{of}: {error.what}"
        return [{**nothing, "unit": "", "samples": 0, "method": "none", "epochs": 0, "stat": "sum", "reason": why}]
