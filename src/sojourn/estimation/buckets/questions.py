"""Questions about streams of bucket arrays: everything, an instance, those that fit a pattern, groups of them.

The same functions answer on a node and in the query unit, so the same epochs give the same answer.

Guarantee: a group's value is the sum of its members' sums, or their means weighted by measurements. Members recorded by
one node share buckets, and the interval takes their errors' covariance from the decoding; nodes record with salts of
their own, so that variances of several nodes add up. Members of a group are those that the epochs' lists of keys name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, pairwise
from typing import Literal, Protocol

from sojourn.core.errors import UsageError
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.keys import FlowKey, ProcessKey, VlanFlowKey, key_id, parse_key, protocol_name
from sojourn.estimation.buckets.queries import (
    NO_LIMIT_BYTES,
    AnyEpoch,
    RangeAnswer,
    RangeQuery,
    RangeSelection,
    answer_total,
    combined,
    joined_spans,
)
from sojourn.sources.source import InstancePatterns

Group = Literal["name", "port", "instance", "pattern", "node"]
MOST_ANSWERS = 10_000
# Of all answers to a question together: a list of many instances names fewer spans of each.
MOST_SPANS = 100_000
MOST_SIMILAR, MOST_COMPARED = 5, 5_000


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about a range: one instance, all that fit a pattern (``*`` and ``?``), or everything added up.

    ``top`` keeps the largest answers. A group is answered as one: processes of one name, flows to one port, an instance
    that several nodes saw, all that fit the pattern, or all of a node that do.
    """

    range: RangeQuery
    instance: str | None = None
    group: Group | None = None
    top: int = 0

    def __post_init__(self) -> None:
        if self.range.from_ns > self.range.to_ns:
            raise UsageError("the range ends before it begins", where="query", action="give from ≤ to")
        if self.instance is not None and self.pattern is None and (self.top or self.group):
            what = "the largest instances" if self.top else "a group"
            raise UsageError(f"{what} or one, not both", where="query", action="leave one out, or give a pattern")
        if self.group and self.pattern and self.range.method == "literal":
            raise UsageError("groups are decoded jointly", where="query", action="leave the method out, or the group")

    @property
    def pattern(self) -> str | None:
        """What instances must fit to be answered one by one or in groups; None if that is not what is asked."""
        if self.instance is None:
            return "*" if self.top or self.group not in (None, "node") else None
        return self.instance if any(sign in self.instance for sign in "*?") else None

    def place(self, node: str, name: str) -> tuple[str | None, str]:
        """The node and the text that an instance is answered under: a group's is the pattern that its members fit."""
        match self.group:
            case None:
                return node, name
            case "instance":
                return None, name
            case "pattern" | "node":
                return node if self.group == "node" else None, str(self.pattern)
        key = parse_key(name)
        if self.group == "name" and isinstance(key, ProcessKey):
            return None, f"{key.name}[*]"
        flow = key.flow if isinstance(key, VlanFlowKey) else key
        if self.group == "port" and isinstance(flow, FlowKey):
            port = f":{flow.dest_port}" if flow.src_port or flow.dest_port else ""
            return None, f"* > *{port} {protocol_name(flow.protocol)}"
        raise UsageError(f"{name} has no {self.group}", where="group", action="group processes by name, flows by port")


class StreamEpochs(Protocol):
    """One stream's epochs, which are read once; whether current ones are among them is known afterwards."""

    @property
    def node(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def live(self) -> bool: ...
    def __iter__(self) -> Iterator[AnyEpoch]: ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """One answer, of which instances it is (none: all of them), whether current epochs are in it, and remarks."""

    range: RangeAnswer
    unit: str
    live: bool
    instance: str | None = None
    node: str | None = None
    members: int | None = None
    notes: tuple[str, ...] = ()

    def fields(self, stat: str) -> dict[str, object]:
        """The answer as plain fields; bounds that are not finite are none."""
        answer = self.range.answer
        number: dict[str, object] = dict.fromkeys(("value", "low", "high"))
        samples, method, reason = 0, "none", None
        if isinstance(answer, Estimate):
            number = {name: x if math.isfinite(x := getattr(answer, name)) else None for name in number}
            samples, method = answer.samples, answer.method
        else:
            reason = answer.reason.value
        return {
            **number,
            "unit": self.unit,
            "samples": samples,
            "method": method,
            "epochs": self.range.epochs,
            "live": self.live,
            "covered": [{"from_ns": low, "to_ns": high} for low, high in self.range.covered],
            "stat": stat,
            "instance": self.instance,
            "reason": reason,
            "notes": list(self.notes),
            "node": self.node,
            "members": self.members,
        }


def answer_streams(
    streams: Sequence[StreamEpochs], question: Question, *, most_bytes: int = NO_LIMIT_BYTES
) -> list[Found]:
    """One answer, or one for each instance or group, the largest value first and those without one last."""
    if question.pattern is not None:
        return _few_spans(_listed(streams, question, most_bytes))
    if question.instance is not None:
        return [_of_instance(streams, question.instance, question.range, most_bytes)]
    if question.group == "node":
        nodes = dict.fromkeys(stream.node for stream in streams)
        each = [_total([one for one in streams if one.node == node], question.range) for node in nodes]
        return _few_spans(_sorted(each))
    return [_total(streams, question.range)]


def _total(streams: Sequence[StreamEpochs], asked: RangeQuery) -> Found:
    parts = [answer_total(stream, asked, unit=stream.unit) for stream in streams]
    return _found(streams, _together(parts, asked))


def _found(
    streams: Sequence[StreamEpochs],
    answer: RangeAnswer,
    instance: str | None = None,
    members: int | None = None,
    notes: Sequence[str] = (),
) -> Found:
    nodes = {stream.node for stream in streams}
    return Found(
        range=answer,
        unit=streams[0].unit,
        live=any(stream.live for stream in streams),
        instance=instance,
        node=nodes.pop() if len(nodes) == 1 else None,
        members=members,
        notes=tuple(notes),
    )


def _of_instance(streams: Sequence[StreamEpochs], instance: str, asked: RangeQuery, most_bytes: int) -> Found:
    # As published an instance is taken for itself: all nodes' buckets are of one kind. Joint decoding knows a node.
    is_literal = asked.method == "literal"
    parts, seen, remarks = list[RangeAnswer](), set[str](), list[str]()
    sources: Sequence[Iterable[AnyEpoch]] = [chain.from_iterable(streams)] if is_literal else streams
    number = key_id(parse_key(instance))
    for epochs in sources:
        selection = RangeSelection(epochs, asked, most_bytes=most_bytes)
        parts += selection.answers([[number]], unit=streams[0].unit)
        seen.update((selection.names or {}).values())
        remarks += selection.remarks
    answer, notes = _together(parts, asked), list(dict.fromkeys(remarks))
    if answer.answer == Unanswered(Reason.UNKNOWN_INSTANCE):
        notes += _similar(seen, instance)
    return _found(streams, answer, instance, 1, notes)


def _similar(names: Iterable[str], asked: str) -> list[str]:
    """A remark on names that an unknown one may have been meant for."""
    text, among = asked.strip("*?"), sorted(names)[:MOST_COMPARED]
    close = [name for name in among if name.startswith(f"{text}[")] or get_close_matches(text, among, MOST_SIMILAR)
    return [f"seen in the range: {', '.join(close[:MOST_SIMILAR])}"] if close else []


def _together(parts: list[RangeAnswer], asked: RangeQuery) -> RangeAnswer:
    """Answers of several streams as one; those without epochs in the range add nothing."""
    known = [part for part in parts if part.epochs]
    if len(known) < 2:
        return known[0] if known else parts[0]
    answers: list[Answer] = [part.answer for part in known if part.answer != Unanswered(Reason.UNKNOWN_INSTANCE)]
    answer = combined(answers, asked.stat) if answers else known[0].answer
    spans = sorted({span for part in known for span in part.covered})
    return RangeAnswer(answer, sum(part.epochs for part in known), tuple(spans))


def _listed(streams: Sequence[StreamEpochs], question: Question, most_bytes: int) -> list[Found]:
    """Instances that fit the pattern, or their groups; if none fits, an answer that says so."""
    patterns, names = InstancePatterns([question.pattern or "*"]), set[str]()
    parts: dict[tuple[str | None, str], list[tuple[StreamEpochs, RangeAnswer, int]]] = {}
    epochs, remarks = 0, list[str]()
    for stream in streams:
        selection = RangeSelection(stream, question.range, most_bytes=most_bytes)
        epochs += selection.count
        remarks += selection.remarks
        groups: dict[tuple[str | None, str], list[int]] = {}
        for number, name in sorted(selection.listed().items()):
            names.add(name)
            if patterns.match(name):
                groups.setdefault(question.place(stream.node, name), []).append(number)
        answers = selection.answers(list(groups.values()), unit=stream.unit)
        for (place, members), answer in zip(groups.items(), answers, strict=True):
            parts.setdefault(place, []).append((stream, answer, len(members)))
    if len(parts) > MOST_ANSWERS and not question.top:
        what = f"{len(parts)} answers, the limit is {MOST_ANSWERS}"
        raise UsageError(what, where="query", action="ask for the top ones, a narrower pattern or groups")
    if not parts:
        reason = Reason.UNKNOWN_INSTANCE if epochs else Reason.NO_EPOCHS_IN_RANGE
        none, text = RangeAnswer(Unanswered(reason), epochs, ()), str(question.pattern)
        return [_found(streams, none, text, 0, _similar(names, text))]
    found = [
        _found(
            [stream for stream, _, _ in several],
            _together([answer for _, answer, _ in several], question.range),
            text,
            sum(count for _, _, count in several),
            tuple(dict.fromkeys(remarks)),
        )
        for (_, text), several in parts.items()
    ]
    if question.top:
        return _sorted([one for one in found if isinstance(one.range.answer, Estimate)])[: question.top]
    return _sorted(found)


def _sorted(found: Iterable[Found]) -> list[Found]:
    """The largest value first, those without one last; equal ones by name."""

    def rank(one: Found) -> tuple[float, str, str]:
        answer = one.range.answer
        return -answer.value if isinstance(answer, Estimate) else math.inf, one.node or "", one.instance or ""

    return sorted(found, key=rank)


def _few_spans(found: list[Found]) -> list[Found]:
    """The answers with so few spans that all together have at most `MOST_SPANS`: the shortest gaps are bridged."""
    most = MOST_SPANS // max(len(found), 1)
    shortened: dict[int, tuple[tuple[int, int], ...]] = {}

    def bridged(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        gaps = sorted((later[0] - earlier[1] for earlier, later in pairwise(spans)), reverse=True)
        # One gap fewer than spans stays open.
        return joined_spans(spans, gap_ns=max(gaps[most - 1], 0))

    for one in found:
        spans = one.range.covered
        if len(spans) > most and id(spans) not in shortened:
            shortened[id(spans)] = bridged(spans)  # the answers from one stream share theirs
    return [
        replace(one, range=replace(one.range, covered=shortened.get(id(one.range.covered), one.range.covered)))
        for one in found
    ]
