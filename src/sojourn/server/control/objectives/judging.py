"""From what was found about a stretch of time to verdicts: which level each test is made at, and what it says.

All tests of one evaluation share the objective's rate of false alarms: its conditions, at all of its places, for all
instances at each (`objectives.judgement`). An evaluation of an objective over N nodes is complete when each of them has
sent its epoch; one node's epoch takes a part 1/N of the rate.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sojourn.core.estimates import Estimate
from sojourn.objectives.condition import Condition
from sojourn.objectives.judgement import State, alarm_of_each, decide
from sojourn.objectives.objective import Objective
from sojourn.server.control.objectives.evaluating import Evaluated, Finding
from sojourn.store.objectives import Change, Judged, Verdict, worst_state

MOST_REASON = 300
_LOG = logging.getLogger("sojourn.objectives")


def judged(objective: Objective, evaluated: Evaluated, *, places: int) -> Judged:
    """The verdicts of a stretch at one of so many places."""
    per_condition = Counter(one.condition for one in evaluated.findings)
    verdicts: list[Verdict] = []
    worst: dict[str, dict[str, Any]] = {}
    for finding in evaluated.findings:
        condition = objective.require[finding.condition]
        tests = max(places, 1) * len(objective.require) * per_condition[finding.condition]
        alarm = alarm_of_each(objective.false_alarms, tests)
        state, estimate = decide(condition, finding.now, finding.before, alarm)
        evidence = _evidence(finding, condition, state, estimate, evaluated)
        verdict = Verdict(
            condition=str(condition),
            node=finding.node,
            instance=finding.instance,
            state=state.value,
            evidence=evidence,
        )
        verdicts.append(verdict)
        _keep_worst(worst, condition, verdict)
    counts = Counter(verdict.state for verdict in verdicts)
    summary = {
        "instances": max(per_condition.values(), default=0),
        **{state.value: counts[state.value] for state in State},
        "reason": evaluated.reason[:MOST_REASON] if evaluated.reason else None,
        "worst": list(worst.values()),
    }
    stretch = evaluated.stretch
    return Judged(
        place=evaluated.place,
        before=stretch.before,
        position=stretch.position,
        from_ns=stretch.from_ns,
        until_ns=stretch.until_ns,
        state=worst_state(verdict.state for verdict in verdicts),
        summary=summary,
        verdicts=tuple(verdicts),
        is_whole=evaluated.reason is None,
    )


def _evidence(
    finding: Finding, condition: Condition, state: State, estimate: Estimate | None, evaluated: Evaluated
) -> dict[str, Any]:
    """What a verdict rests on; bounds that are not finite are none."""
    stretch = evaluated.stretch
    number: dict[str, Any] = dict.fromkeys(("value", "low", "high", "level"))
    if estimate is not None:
        number = {name: x if math.isfinite(x := getattr(estimate, name)) else None for name in number}
    return {
        "state": state.value,
        **number,
        "limit": condition.limit,
        "unit": condition.unit,
        "samples": 0 if estimate is None else estimate.samples,
        "method": finding.method,
        "epochs": stretch.epochs,
        "from_ns": stretch.from_ns,
        "until_ns": stretch.until_ns,
        "reason": finding.reason,
    }


def _keep_worst(worst: dict[str, dict[str, Any]], condition: Condition, verdict: Verdict) -> None:
    """Of each condition the instance whose value is furthest on the bad side."""
    value = verdict.evidence["value"]
    known = worst.get(verdict.condition)
    sign = -1.0 if condition.above else 1.0
    if known is None or known["value"] is None or (value is not None and sign * value > sign * known["value"]):
        names = ("state", "value", "low", "high", "reason")
        shown = {name: verdict.evidence[name] for name in names}
        worst[verdict.condition] = {
            "condition": verdict.condition,
            "node": verdict.node or None,
            "instance": verdict.instance,
            **shown,
        }


def line_of(event: str, objective: Objective, condition: Condition, fields: dict[str, Any]) -> str:
    """A violation in one line, for the log."""
    latest = fields["latest"]
    whose = " at ".join(filter(None, (fields["instance"], fields["node"])))
    shown = ""
    if latest["value"] is not None:
        ends = ["−∞" if latest["low"] is None else condition.amount(latest["low"])]
        ends.append("∞" if latest["high"] is None else condition.amount(latest["high"]))
        shown = f": {condition.stat} {condition.amount(latest['value'])} ({ends[0]} … {ends[1]})"
    by = f", {fields['cleared_by']}" if event == "cleared" else ""
    return f"objective {objective.name} {event} ({condition}){by}: {whose or 'all'}{shown}"


def log_changes(objective: Objective, changes: Iterable[Change]) -> None:
    """Write down what was raised and cleared."""
    conditions = {str(condition): condition for condition in objective.require}
    for change in changes:
        text = line_of(change.event, objective, conditions[change.violation.condition], change.violation.fields())
        (_LOG.warning if change.event == "raised" else _LOG.info)("%s", text)
