"""Answers from the store: what a query worker does, without a word of HTTP.

Epochs are read one after the other and added up where they can be, so that memory does not grow with a range. What
cannot be added up is bounded across streams and nodes (`Work.most_bytes`), and so is each epoch, before it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain

from sqlalchemy import URL

from sojourn.core.errors import UsageError, WireError
from sojourn.core.estimates import Answer, Reason, Unanswered
from sojourn.core.keys import key_id, parse_key
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch, encoded
from sojourn.estimation.buckets.queries import (
    RangeAnswer,
    RangeQuery,
    RangeSelection,
    Stat,
    answer_total,
    combined,
    too_large,
)
from sojourn.mplane.measurements import SegmentMeasurement
from sojourn.store.epochs import EpochStore, StreamRecord, read_store
from sojourn.store.segments import SegmentStore

__all__ = ["Found", "Question", "Work", "answer_question", "known_keys", "measured_segments"]

MOST_ALIKE, MOST_COMPARED = 5, 5_000
MOST_LEFT_OUT = 5
STORES = 4


@dataclass(frozen=True, kw_only=True)
class Question:
    """Whose metric, and the range asked about."""

    metric: str
    node: str | None
    tag: str | None
    instance: str | None
    range: RangeQuery
    live: bool
    top: int = 0
    stat_by_metric: bool = False

    def __post_init__(self) -> None:
        if (self.node is None) == (self.tag is None):
            raise UsageError("a question is about one node or one tag", where="query", action="give node or tag")
        if self.range.from_ns > self.range.to_ns:
            raise UsageError("the range ends before it begins", where="query", action="give from ≤ to")
        if self.top and self.instance is not None:
            raise UsageError("the largest instances or one, not both", where="query", action="leave one out")


@dataclass(frozen=True)
class Found:
    """One answer, whose it is, whether current epochs are in it, and remarks."""

    instance: str | None
    range: RangeAnswer
    unit: str
    live: bool
    notes: tuple[str, ...] = ()
    stat: Stat = "sum"


@dataclass(frozen=True, kw_only=True)
class Work:
    """A question with all that a worker needs to answer it from the store.

    ``current`` holds the epochs, as bytes, that nodes had not sent when they were asked, by node and stream; nodes that
    did not answer are in ``silent``. ``until_ns`` is when they were asked.
    """

    question: Question
    streams: tuple[StreamRecord, ...]
    current: Mapping[tuple[str, str], Sequence[bytes]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    until_ns: int
    most_bytes: int


class _StreamEpochs:
    """A stream's epochs in the range, stored ones and current ones; what is in both counts once. Read them once.

    One that cannot be decoded is left out: stored ones are set aside, with `faults` for the others.
    """

    def __init__(self, store: EpochStore, stream: StreamRecord, work: Work) -> None:
        self._store, self.stream, self._work = store, stream, work
        self.faults: list[str] = []
        self.live = stream.node not in work.silent and work.question.range.to_ns >= work.until_ns

    def __iter__(self) -> Iterator[Epoch]:
        asked, place = self._work.question.range, (self.stream.node, self.stream.name)
        known: set[int] = set()
        for epoch in self._store.each_epoch(*place, asked.from_ns, asked.to_ns, admit=self._admit):
            known.add(epoch.sequence)
            yield epoch
        for header in map(encoded, self._work.current.get(place, ())):
            if header.sequence in known or not header.overlaps(asked.from_ns, asked.to_ns):
                continue
            self._admit(header)
            try:
                epoch = header.decode()
            except WireError as error:
                self.faults.append(f"an epoch of {'/'.join(place)} cannot be decoded and is left out: {error}")
                continue
            self.live = True
            yield epoch

    def _admit(self, epoch: EncodedEpoch) -> None:
        if epoch.decoded_bytes > self._work.most_bytes:
            what = f"an epoch ({epoch.node}/{epoch.stream}, number {epoch.sequence}) of {epoch.decoded_bytes} bytes"
            raise too_large(what, self._work.most_bytes)


@lru_cache(maxsize=STORES)
def _opened(url: URL) -> EpochStore:
    return read_store(url)


def answer_question(url: URL, work: Work) -> list[Found]:
    """One answer, or one for each of the largest instances, from the store at a URL."""
    store, question = _opened(url), work.question
    places = [(stream.node, stream.name) for stream in work.streams]
    store.check_range(places, question.range.from_ns, question.range.to_ns)
    held = [_StreamEpochs(store, stream, work) for stream in work.streams]
    found = _answers(held, work)
    left_out = store.set_aside_in(places, question.range.from_ns, question.range.to_ns)
    left_out += [fault for item in held for fault in item.faults]
    if len(left_out) > MOST_LEFT_OUT:
        left_out[MOST_LEFT_OUT:] = [f"and {len(left_out) - MOST_LEFT_OUT} more epochs"]
    return [replace(one, notes=(*one.notes, *left_out)) for one in found]


def _answers(held: list[_StreamEpochs], work: Work) -> list[Found]:
    question = work.question
    if question.top:
        return _largest(held, work)
    unit = held[0].stream.unit
    if question.instance is None:
        parts = [answer_total(item, question.range, unit=unit) for item in held]
        return [Found(None, _together(parts, question), unit, any(item.live for item in held))]
    answer, notes = _of_instance(held, question.instance, work)
    return [Found(question.instance, answer, unit, any(item.live for item in held), notes)]


def _of_instance(held: list[_StreamEpochs], instance: str, work: Work) -> tuple[RangeAnswer, tuple[str, ...]]:
    # As published an instance is taken for itself: all nodes' buckets are of one kind. Joint decoding knows a node.
    is_literal = work.question.range.method == "literal"
    groups = [chain.from_iterable(held)] if is_literal else held
    ids, unit = [key_id(parse_key(instance))], held[0].stream.unit

    def one_group(epochs: Iterable[Epoch]) -> tuple[RangeAnswer, dict[int, str] | None]:
        selection = RangeSelection(epochs, work.question.range, most_bytes=work.most_bytes)
        return selection.instances(ids, unit=unit)[0], selection.names

    parts = [one_group(epochs) for epochs in groups]
    answer = _together([part for part, _ in parts], work.question)
    notes: tuple[str, ...] = ()
    if not is_literal and any(names is None for _, names in parts):
        notes = ("joint decoding needs the epochs' lists of keys, some have none: answered literally",)
    seen = {name for _, names in parts for name in (names or {}).values()}
    return answer, (*notes, *_alike(seen, instance, answer))


def _alike(names: set[str], instance: str, found: RangeAnswer) -> tuple[str, ...]:
    """Names that an unknown one may stand for."""
    if found.answer != Unanswered(Reason.UNKNOWN_INSTANCE):
        return ()
    begun = [name for name in sorted(names) if name.startswith(f"{instance}[")]
    close = begun or get_close_matches(instance, sorted(names)[:MOST_COMPARED], MOST_ALIKE)
    return (f"seen in the range: {', '.join(close[:MOST_ALIKE])}",) if close else ()


def _together(parts: list[RangeAnswer], question: Question) -> RangeAnswer:
    """Answers of several nodes as one; nodes without epochs in the range add nothing."""
    known = [part for part in parts if part.epochs]
    if not known:
        return parts[0]
    answers: list[Answer] = [
        part.answer for part in known if part.answer != Unanswered(Reason.UNKNOWN_INSTANCE) or len(known) == 1
    ]
    answer = combined(answers, question.range.stat) if answers else known[0].answer
    spans = sorted({span for part in known for span in part.covered})
    return RangeAnswer(answer, sum(part.epochs for part in known), tuple(spans))


def _largest(held: list[_StreamEpochs], work: Work) -> list[Found]:
    """The instances with the largest values, of all streams together."""
    top = work.question.top

    def of_stream(item: _StreamEpochs) -> list[Found]:
        selection, unit = RangeSelection(item, work.question.range, most_bytes=work.most_bytes), item.stream.unit
        return [Found(name, answer, unit, item.live) for name, answer in selection.largest(top, unit=unit)]

    found = [one for item in held for one in of_stream(item)]
    found.sort(key=lambda one: -one.range.answer.value)  # type: ignore[union-attr] # the largest have values
    return found[:top]


def measured_segments(
    url: URL, from_ns: int, to_ns: int, node: str | None, segment: str | None, most_bytes: int
) -> list[SegmentMeasurement]:
    """What was measured of segments, from the store at a URL."""
    return SegmentStore(_opened(url)).between(from_ns, to_ns, node=node, segment=segment, most_bytes=most_bytes)


def known_keys(url: URL, node: str | None, stream: str | None, limit: int) -> list[tuple[int, str]]:
    """Ids and texts of the keys seen, from the store at a URL."""
    return _opened(url).keys(node=node, stream=stream, limit=limit)
