"""Questions about a segment, answered from stored runs; what a query worker does, without a word of HTTP.

A range is answered from the answers of its runs, and from runs that nodes have not sent yet, if they were asked
(`live`). Clocks are followed at that time, by all packets of either direction between the two nodes. Which flows are on
the segment is told by what was ever seen: one that the receiver's point has never seen is none of this segment's,
unless its opposite direction was seen on the way back: then all of it was lost.

While a new plan takes over, a point records twice: where runs of two plans overlap in time the older ones count up to
the place where the change leaves the smallest gap, which is none where both plans cut at the same marker.

Guarantee: at most `MOST_RUNS` runs are read for an answer. Cost: a millisecond for each run of a hundred flows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from sqlalchemy import URL

from sojourn.core.arrays import UInt64Array
from sojourn.core.errors import InputError, SojournError, UsageError
from sojourn.core.estimates import Estimate
from sojourn.core.keys import FlowKey, TrafficKey, key_id, named_ids, parse_key
from sojourn.core.units import format_duration, format_time, plural
from sojourn.epochs.epoch import Cut
from sojourn.epochs.wire import EncodedEpoch, encoded
from sojourn.estimation.buckets.queries import FOREVER_NS
from sojourn.estimation.posterior.history import History
from sojourn.segments.answer import Interval
from sojourn.segments.fleet.answers import RunAnswer, combine
from sojourn.segments.fleet.clocks import REACH_NS, UNKNOWN, ClockAt
from sojourn.segments.fleet.ledgers.ranges import Around, exactly
from sojourn.segments.fleet.ledgers.runs import read_ledger
from sojourn.segments.fleet.runs import PlacedEpoch, align
from sojourn.segments.fleet.stored import read_answer
from sojourn.segments.result import SegmentResult, sketch_result
from sojourn.server.runs.answering import MOST_PLACES, Reader, answered_run, last_history
from sojourn.server.runs.clocks import MOST_RUNS, SAME, followed_clocks, is_contradicted
from sojourn.server.runs.delay_map import delay_map
from sojourn.store.epochs import EpochStore, read_store
from sojourn.store.runs import KnownPair, Pair, RunStore

# Sampled delays of all runs of an answer, by which percentiles are told; of very many runs each has a part of its own.
MOST_SAMPLED = 1_000_000
# How long before a range the run before it may have ended, where packets stopped to come in between.
BEFORE_NS = 10_000_000_000
# Runs that are answered for a question because nobody has done so before.
MOST_UNANSWERED = 50
NOT_YET = "no run between two common markers is complete in the range"


@dataclass(frozen=True, kw_only=True)
class SegmentWork:
    """A question about a segment with all that a worker needs; ``pairs`` are its streams by plan, the oldest first.

    ``way_back`` are the streams that see what travels the other way, at the sender's node and at the receiver's.
    ``current`` holds the epochs, as bytes, that nodes had not sent when they were asked, by node and stream.
    """

    name: str
    ends: tuple[str, str]
    pairs: tuple[Pair, ...]
    memory_bytes: int
    from_ns: int
    to_ns: int
    interval_ns: int = 0
    flows: tuple[str, ...] = ()
    top: int = 0
    by: str = ""
    totals_only: bool = False
    delay_map: bool = False
    way_back: tuple[tuple[str, str], ...] = ()
    current: Mapping[tuple[str, str], Sequence[bytes]] = field(default_factory=dict)
    most_bytes: int


@dataclass(frozen=True, eq=False)
class Part:
    """A run of the answer: whether it begins where the one before ends, and what either end sent of it at most."""

    follows: bool
    answer: RunAnswer
    size_bytes: int


def answer_segment(url: URL, work: SegmentWork) -> dict[str, Any]:
    """Totals, flows and intervals of a segment in a range of time, as `SegmentResult` gives them."""
    result, drawn = _answered(url, work)
    chosen = result.select(work.by, work.top or None)
    return {**chosen.to_dict(), "notes": list(result.notes), **({"delay_map": drawn} if work.delay_map else {})}


def _answered(url: URL, work: SegmentWork) -> tuple[SegmentResult, dict[str, Any] | None]:
    """The result, and the map of delays if it was asked for."""
    store = read_store(url)
    runs = RunStore(store)
    known = known_pairs(runs, work.pairs)
    parts, around, notes = parts_between(store, runs, known, work)
    if not parts:
        action = "; ".join(notes) or _elsewhere(runs, known) or _waiting(runs, known)
        raise InputError(NOT_YET, where=f"segment {work.name}", action=action)
    clocks = followed_clocks(runs, known, [part.answer for part in parts])
    _refuse_swapped(work, parts, clocks)
    directory = Directory(store, work.current)
    foreign = foreign_flows(directory, work, parts)
    groups = list(_grouped(parts, clocks, work.interval_ns)) if work.interval_ns else []
    answers = [part.answer for part in parts]
    gaps = [row for row, part in enumerate(parts) if row and not part.follows]
    how: dict[str, Any] = {"foreign": foreign, "percentiles_of": _wanted(work)}
    whole = combine(answers, clocks, gaps=gaps, later=around.later, **how)
    whole = exactly(whole, answers, clocks, gaps, around)
    intervals = []
    for rows in groups:
        beside = _around(parts, rows, around)
        found = combine(answers[rows], clocks[rows], later=beside.later, **how)
        intervals.append(exactly(found, answers[rows], clocks[rows], (), beside))
    unnamed = list(_unnamed_notes(whole))
    if work.totals_only:
        whole, *intervals = (replace(one, flows=None) for one in (whole, *intervals))
    keys = _KeysOf(directory, [whole, *intervals])
    if work.flows:
        notes += _unseen_notes(whole, work.flows)
        whole, *intervals = (_only(one, work.flows) for one in (whole, *intervals))
    result = sketch_result("auto", 8 * work.memory_bytes, whole, intervals, keys)
    sent_bits = 8 * sum(part.size_bytes for part in parts)
    drawn = delay_map(answers, clocks, groups or [slice(0, len(answers))]) if work.delay_map else None
    told = replace(
        result,
        sketch={**result.sketch, "bits_per_packet": sent_bits / max(1, whole.totals.sent)},
        clock=clock_fields(clocks),
        direction={"sender": work.ends[0], "receiver": work.ends[1], "other_way": 0},
        covered=covered_spans(parts),
        warnings=[*_warnings(answers, clocks)],
        notes=[*notes, *_foreign_notes(foreign), *unnamed],
        intervals=[{**one, **_clock_of(clocks[rows])} for one, rows in zip(result.intervals, groups, strict=True)],
    )
    return told, drawn


def _wanted(work: SegmentWork) -> UInt64Array | None:
    """The flows whose percentiles anybody wants; None for all."""
    if not work.totals_only and not work.flows:
        return None
    return np.array([key_id(parse_key(text)) for text in work.flows], np.uint64)


def _around(parts: Sequence[Part], rows: slice, whole: Around) -> Around:
    """The runs beside some that follow each other, as far as those follow, too."""
    first, after = rows.start, rows.stop
    earlier = (whole.earlier if not first else parts[first - 1].answer) if parts[first].follows else None
    if after < len(parts):
        return Around(earlier, parts[after].answer if parts[after].follows else None)
    return Around(earlier, whole.later)


def known_pairs(runs: RunStore, pairs: Sequence[Pair]) -> list[KnownPair]:
    """The pairs with how far each is answered; those that nobody has looked at yet have numbers below 0."""
    found = {one.pair: one for one in runs.pairs(pairs)}
    return [
        found.get(pair) or KnownPair(number=-1 - place, pair=pair, sent_until=-1, received_until=-1)
        for place, pair in enumerate(pairs)
    ]


def _elsewhere(runs: RunStore, known: Sequence[KnownPair]) -> str:
    """When the latest run was, if there is one outside the range."""
    latest = [row.end_ns for pair in known for row in runs.latest(pair.number, limit=1)]
    return f"the latest one ends at {format_time(max(latest))}: ask for a longer range" if latest else ""


def _waiting(runs: RunStore, known: Sequence[KnownPair]) -> str:
    """What the two ends have stored that cannot be compared yet."""
    counts = [0, 0]
    for pair in known:
        for end, (place, after) in enumerate(zip(pair.pair.ends, (pair.sent_until, pair.received_until), strict=True)):
            counts[end] += len(runs.placed(*place, after=after, limit=MOST_PLACES))
    if not counts[0] and not counts[1]:
        return "wait for the first epochs; sojourn segment show tells how both ends fare"
    if not counts[0] or not counts[1]:
        return f"the {'sender' if counts[1] else 'receiver'} has sent no epoch yet; see sojourn segment show"
    traffic = "no packet was seen at both ends yet: check that traffic passes both, in these directions"
    return f"{traffic}, and that both nodes go by the same pseudonyms, or none"


def parts_between(
    store: EpochStore, runs: RunStore, known: Sequence[KnownPair], work: SegmentWork
) -> tuple[list[Part], Around, list[str]]:
    """The runs of the range, oldest first, those beside them if they are known, and remarks."""
    until_ns = min(work.to_ns, FOREVER_NS - REACH_NS) + REACH_NS
    since_ns = max(work.from_ns - BEFORE_NS, 0)
    found = runs.between([pair.number for pair in known], since_ns, until_ns, most=MOST_RUNS)
    if len(found) > MOST_RUNS:
        raise UsageError(f"more than {MOST_RUNS} runs lie in the range", where="query", action="ask for a shorter one")
    failed = [row for _, row in found if row.reason is not None]
    unanswered = [row for row in failed if row.start_ns <= work.to_ns and row.end_ns >= work.from_ns]
    notes = [f"{plural(len(unanswered), 'run')} without an answer: {unanswered[0].reason}"] if unanswered else []
    by_pair: dict[int, list[Part]] = {pair.number: [] for pair in known}
    each = MOST_SAMPLED // max(len(found), 1)
    is_broken = dict.fromkeys(by_pair, False)
    for number, row in found:
        if row.reason is None:
            answer = read_answer(row.data, row.clock)
            thinner = replace(answer, sampled=answer.sampled.thinned(each), ledger=read_ledger(row.ledger))
            by_pair[number].append(Part(row.follows and not is_broken[number], thinner, row.size_bytes))
        is_broken[number] = row.reason is not None
    for pair in known:
        # A run that is answered while the question is may be among both, there together with others.
        stored = [_span(part) for part in by_pair[pair.number]]
        current = _current_parts(store, runs, pair, work)
        by_pair[pair.number] += [part for part in current if not _lies_in(_span(part), stored)]
    everything = _chained([by_pair[pair.number] for pair in known])
    before = list(takewhile(lambda part: part.answer.interval.last_ns < work.from_ns, everything))
    everything = everything[len(before) :]
    inside = [part for part in everything if part.answer.interval.first_ns <= work.to_ns]
    after = everything[len(inside)] if len(everything) > len(inside) else None
    later = after.answer if after is not None and after.follows else None
    earlier = before[-1].answer if before and inside and inside[0].follows else None
    return inside, Around(earlier, later), notes


def _span(part: Part) -> tuple[int, int]:
    return part.answer.interval.first_ns, part.answer.interval.last_ns


def _lies_in(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return any(first <= span[0] and span[1] <= last for first, last in others)


def _current_parts(store: EpochStore, runs: RunStore, pair: KnownPair, work: SegmentWork) -> Iterator[Part]:
    """Runs of what nodes have not sent, and of what is stored but not answered yet: the latest ones."""
    ends, readers, told = [], [], []
    for place, after in zip(pair.pair.ends, (pair.sent_until, pair.received_until), strict=True):
        placed = {one.sequence: one for one in runs.placed(*place, after=after, limit=MOST_PLACES)}
        ends.append(placed)
        readers.append(Reader(store, *place, work.most_bytes))
        headers = map(encoded, work.current.get(place, ()))
        told.append([one for one in headers if one.cut and one.sequence > after and one.sequence not in placed])
    for placed, reader, chosen in zip(ends, readers, _ending_alike(told, ends), strict=True):
        for header in chosen:
            frame = header.first_ns, header.last_ns, header.recorded
            placed[header.sequence] = PlacedEpoch(header.sequence, header.cut or Cut(), *frame, len(header.data))
            reader.add(header)
    last = pair.sent_until, pair.received_until
    history = last_history(runs, pair)
    in_order = ([placed[number] for number in sorted(placed)] for placed in ends)
    for run in align(*in_order)[-MOST_UNANSWERED:]:
        follows = run.follows(last)
        try:
            answer = answered_run(run, readers[0], readers[1], history if follows else None)
        except SojournError:
            continue
        yield Part(follows, answer, run.size_bytes)
        last, history = run.end(last), History.of(answer.interval.flows)


def _ending_alike(
    told: Sequence[Sequence[EncodedEpoch]], stored: Sequence[Mapping[int, PlacedEpoch]]
) -> list[list[EncodedEpoch]]:
    """What both ends told, each epoch once: of those that are open, as they were at the latest place that both know."""
    places: list[dict[int, list[int]]] = []
    for headers, placed in zip(told, stored, strict=True):
        known = [(one.cut, one.sequence, one.recorded) for one in headers]
        known += [(one.cut, one.sequence, one.recorded) for one in placed.values()]
        places.append({cut.ends: where for cut, *where in known if cut is not None and cut.ends is not None})
    latest = max(places[0].keys() & places[1].keys(), key=places[0].__getitem__, default=None)
    chosen = []
    for headers in told:
        # Of one number the last counts.
        in_turn = sorted(headers, key=lambda one: (one.cut is not None and one.cut.ends == latest, one.recorded))
        chosen.append(list({one.sequence: one for one in in_turn}.values()))
    return chosen


def _chained(plans: Sequence[list[Part]]) -> list[Part]:
    """The runs of all plans, oldest first, without those that another plan's cover."""
    chain: list[Part] = []
    for parts in sorted(filter(None, plans), key=lambda parts: parts[0].answer.interval.first_ns):
        if not chain:
            chain += parts
            continue
        ends = np.array([part.answer.interval.last_ns for part in chain])
        starts = np.array([part.answer.interval.first_ns for part in parts])
        kept = np.searchsorted(ends, starts)  # of the older runs, those that end before each of the newer ones
        gap = np.where(kept > 0, starts - ends[np.maximum(kept - 1, 0)], starts - starts[0])
        at = int(np.argmin(np.where(starts <= ends[-1], gap, np.maximum(gap, 0) + 1)))
        chain = [*chain[: int(kept[at])], replace(parts[at], follows=False), *parts[at + 1 :]]
    return chain


def _grouped(parts: Sequence[Part], clocks: Sequence[ClockAt], interval_ns: int) -> Iterator[slice]:
    """Runs that follow each other, as many together as an interval needs.

    Those whose delays no clock tells are intervals apart: what is answered of an interval is of all of it. So are those
    between which a clock was set: an interval has one clock.
    """
    start = 0
    for row, part in enumerate(parts):
        is_last = row + 1 == len(parts) or not parts[row + 1].follows
        is_last = is_last or _told_by(clocks[row]) != _told_by(clocks[row + 1])
        length = part.answer.interval.last_ns - parts[start].answer.interval.first_ns
        if is_last or length >= interval_ns:
            yield slice(start, row + 1)
            start = row + 1


def _told_by(clock: ClockAt) -> tuple[bool, int]:
    return clock.tells_delays, clock.set_ns


def _refuse_swapped(work: SegmentWork, parts: Sequence[Part], clocks: Sequence[ClockAt]) -> None:
    """Refuse a segment whose packets pass the receiver before the sender, by whatever clocks."""
    means = [part.answer.interval.totals.delays.mean for part in parts]
    backward = clocks[0].source == SAME and any(isinstance(mean, Estimate) and mean.high < 0 for mean in means)
    if backward or is_contradicted(clocks):
        what = f"packets pass {work.ends[1]} before {work.ends[0]}"
        raise InputError(what, where=f"segment {work.name}", action="create it with --from and --to swapped")


class Directory:
    """Which points have seen which flows, and the flows' keys: as is stored, and as nodes have just told."""

    def __init__(self, store: EpochStore, current: Mapping[tuple[str, str], Sequence[bytes]]) -> None:
        self._store = store
        self._told = {place: _named(epochs) for place, epochs in current.items()}

    def sighted(self, places: Sequence[tuple[str, str]], flows: Sequence[int]) -> set[int]:
        """Those flows that any of some streams, by node and name, has ever reported."""
        told = {flow for place in places for flow in self._told.get(place, ())}
        return self._store.sighted(places, flows) | told.intersection(flows)

    def texts(self, flows: Iterable[int]) -> dict[int, str]:
        """The keys' texts of flows, as far as they are known."""
        asked = set(flows)
        told = {flow: text for names in self._told.values() for flow, text in names.items() if flow in asked}
        return {**told, **self._store.texts(sorted(asked - told.keys()))}


def _named(epochs: Iterable[bytes]) -> dict[int, str]:
    """The flows that epochs list, with their texts; a list that cannot be read tells nothing."""
    names: dict[int, str] = {}
    for data in epochs:
        with suppress(InputError):
            names.update(zip(*named_ids(encoded(data).listed() or ()), strict=True))
    return names


def foreign_flows(directory: Directory, work: SegmentWork, parts: Sequence[Part]) -> UInt64Array:
    """Flows that one of the two points has never seen, and that are not known to be lost."""
    ids = [part.answer.interval.flows.flow_id for part in parts if part.answer.interval.flows is not None]
    every = np.unique(np.concatenate(ids)) if ids else np.empty(0, np.uint64)
    at_sender, at_receiver = (
        directory.sighted([pair.ends[end] for pair in work.pairs], every.tolist()) for end in (0, 1)
    )
    aside = [flow for flow in every.tolist() if flow not in at_sender or flow not in at_receiver]
    lost = {flow for flow in aside if flow in at_sender} if work.way_back else set()
    if lost:
        opposite = {flow: key_id(key.reversed()) for flow, key in _flow_keys(directory, lost).items()}
        seen = [directory.sighted([place], list(opposite.values())) for place in work.way_back]
        lost = {flow for flow, other in opposite.items() if all(other in there for there in seen)}
    return np.array([flow for flow in aside if flow not in lost], np.uint64)


def _flow_keys(directory: Directory, flows: set[int]) -> dict[int, FlowKey]:
    keys = {flow: parse_key(text) for flow, text in directory.texts(flows).items()}
    return {flow: key for flow, key in keys.items() if isinstance(key, FlowKey)}


class _KeysOf:
    """The keys of all flows of an answer, from the directory."""

    def __init__(self, directory: Directory, intervals: Sequence[Interval]) -> None:
        ids = {flow for one in intervals if one.flows is not None for flow in one.flows.flow_id.tolist()}
        self._texts = directory.texts(ids)

    def __call__(self, flow_id: int) -> TrafficKey:
        key = parse_key(self._texts[flow_id])
        assert isinstance(key, TrafficKey)
        return key


def _only(interval: Interval, flows: Sequence[str]) -> Interval:
    """The same with the flows asked for alone."""
    if interval.flows is None:
        return interval
    asked = np.array([key_id(parse_key(text)) for text in flows], np.uint64)
    return replace(interval, flows=interval.flows.at(np.flatnonzero(np.isin(interval.flows.flow_id, asked))))


def covered_spans(parts: Sequence[Part]) -> list[dict[str, int]]:
    """The stretches of time that the answer rests on; runs that follow each other are one."""
    spans: list[dict[str, int]] = []
    for part in parts:
        first, last = part.answer.interval.first_ns, part.answer.interval.last_ns
        if spans and part.follows:
            spans[-1]["to_ns"] = max(last, spans[-1]["to_ns"])
        else:
            spans.append({"from_ns": first, "to_ns": last})
    return spans


def _worst(clocks: Sequence[ClockAt]) -> int | None:
    doubts = [clock.uncertainty_ns for clock in clocks if clock.tells_delays]
    if not doubts or any(doubt is None for doubt in doubts):
        return None
    return round(max(doubt for doubt in doubts if doubt is not None))


def _clock_of(clocks: Sequence[ClockAt]) -> dict[str, int | None]:
    """θ amid an interval, by the runs whose delays are in it, and how far it may be from there during any of these."""
    told = [clock for clock in clocks if clock.tells_delays]
    if not told:
        return {"offset_ns": 0, "uncertainty_ns": None}
    offset = round(told[len(told) // 2].offset_ns)
    bounds = [bound for clock in told for bound in (clock.low_ns, clock.high_ns)]
    known = [abs(bound - offset) for bound in bounds if bound is not None]
    return {"offset_ns": offset, "uncertainty_ns": math.ceil(max(known)) if len(known) == len(bounds) else None}


def clock_fields(clocks: Sequence[ClockAt]) -> dict[str, Any]:
    """What an answer says of its clocks."""
    last = next((clock for clock in reversed(clocks) if clock.tells_delays), clocks[-1])
    return {
        "offset_ns": round(last.offset_ns),
        "skew_ppm": last.skew_ppm,
        "uncertainty_ns": _worst(clocks),
        "corrected": any(clock.offset_ns for clock in clocks),
        "source": last.source,
        "explanation": _explained(last, _worst(clocks)),
    }


def _explained(clock: ClockAt, doubt: int | None) -> str:
    if clock.source == UNKNOWN:
        moved = "; delays are counted from the smallest" if clock.offset_ns else ""
        return f"Offset of the receiver's clock {UNKNOWN}{moved}."
    if clock.source == SAME:
        return "Both points are of one node, and have one clock."
    ahead = format_duration(abs(clock.offset_ns))
    where = "in step with" if not clock.offset_ns else f"{ahead} {'ahead of' if clock.offset_ns > 0 else 'behind'}"
    within = "" if doubt is None else f", ± {format_duration(doubt)}"
    return f"By {clock.source} the receiver's clock is {where} the sender's{within}; this is part of all intervals."


def _warnings(answers: Sequence[RunAnswer], clocks: Sequence[ClockAt]) -> Iterator[str]:
    missed = [sum(answer.missed[end] for answer in answers) for end in (0, 1)]
    for count, end in zip(missed, ("sender", "receiver"), strict=True):
        if count:
            yield (
                f"{plural(count, 'packet')} passed the {end} while its kernel had no room for them: losses and flows "
                "are uncertain by as many; give its agent more processor time"
            )
    if was_set := sum(clock.was_set for clock in clocks):
        yield f"a clock was set during {plural(was_set, 'run')}: their delays are not known, and not part of the answer"
    if unseen := sum(not clock.tells_delays for clock in clocks) - was_set:
        yield (
            f"nothing travelled back within minutes of {plural(unseen, 'run')}, and the kernels' clocks are not both "
            "synchronised: their delays are not known, and not part of the answer"
        )


def _unnamed_notes(whole: Interval) -> Iterator[str]:
    if whole.flows is None:
        yield "no flow is named in what the nodes sent: there are answers about all packets together only"


def _unseen_notes(whole: Interval, flows: Sequence[str]) -> Iterator[str]:
    known = set() if whole.flows is None else set(whole.flows.flow_id.tolist())
    for flow in flows:
        if key_id(parse_key(flow)) not in known:
            yield f"{flow} was not seen on this segment in the range"


def _foreign_notes(foreign: UInt64Array) -> Iterator[str]:
    if len(foreign):
        yield (
            f"{plural(len(foreign), 'flow')} seen at one end only: not on this segment, or wholly lost; left out, and "
            "not counted as lost"
        )
