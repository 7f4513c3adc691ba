"""Which packets a segment has lost in a range of time, from what ledgers told of its runs; a query worker's part.

Guarantee: what is listed was sent in runs that ledgers tell of in full, and did not arrive in these, nor in those
beside them. Cost: that of reading the runs of the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import URL

from sojourn.core.arrays import BoolArray, UInt64Array
from sojourn.core.errors import InputError
from sojourn.core.keys import TrafficKey, key_id, parse_key
from sojourn.core.units import plural
from sojourn.segments.fleet.answers import RunAnswer
from sojourn.segments.fleet.ledgers.lost import LostResult
from sojourn.segments.fleet.ledgers.ranges import Around, lost_packets
from sojourn.server.runs.questions import (
    NOT_YET,
    Directory,
    Part,
    SegmentWork,
    covered_spans,
    foreign_flows,
    known_pairs,
    parts_between,
)
from sojourn.store.epochs import read_store
from sojourn.store.runs import RunStore


def answer_lost(url: URL, work: SegmentWork, most: int) -> dict[str, Any]:
    """The packets that were lost, the first `most` of them one by one, as `LostResult` gives them."""
    store = read_store(url)
    runs = RunStore(store)
    parts, around, notes = parts_between(store, runs, known_pairs(runs, work.pairs), work)
    if not parts:
        raise InputError(
            NOT_YET, where=f"segment {work.name}", action="; ".join(notes) or "wait, or ask for another range"
        )
    told = [part for part in parts if _is_told(part.answer)]
    if not told:
        what = "no ledger tells of its packets in the range"
        action = "create it with --sketch ledger; what agents have forgotten, or too much loss, cannot be named"
        raise InputError(what, where=f"segment {work.name}", action=action)
    directory = Directory(store, work.current)
    foreign = foreign_flows(directory, work, parts)
    gaps = [row for row, part in enumerate(parts) if row and not part.follows]
    beside = Around(_as_told(around.earlier), _as_told(around.later))
    answers = [replace(part.answer, ledger=part.answer.ledger if _is_told(part.answer) else None) for part in parts]
    found = lost_packets(answers, gaps, beside)
    found = found.at(np.flatnonzero(_is_asked(found.packets.flow_id, foreign, work)))
    texts = directory.texts(set(found.packets.flow_id[:most].tolist()))
    keys = {flow: key for flow, text in texts.items() if isinstance(key := parse_key(text), TrafficKey)}
    result = LostResult.of(
        work.name,
        found,
        keys,
        most=most,
        covered=covered_spans(_apart(parts, told)),
        untold=covered_spans(_apart(parts, [part for part in parts if not _is_told(part.answer)])),
        sent=sum(_sent(part, foreign, work) for part in told),
    )
    if len(told) < len(parts):
        notes.append(f"{plural(len(parts) - len(told), 'run')} of {len(parts):,} no ledger tells of")
    return {**result.to_dict(), "notes": notes}


def _is_told(answer: RunAnswer) -> bool:
    """Whether all packets that a run lost are named."""
    return answer.ledger is not None and answer.ledger.is_complete


def _as_told(answer: RunAnswer | None) -> RunAnswer | None:
    return answer if answer is not None and _is_told(answer) else None


def _apart(parts: Sequence[Part], chosen: Sequence[Part]) -> list[Part]:
    """Some of the runs, each of which follows the one before only if nothing was left out in between."""
    places = {id(part): place for place, part in enumerate(parts)}
    before = [-1, *(places[id(part)] for part in chosen)]
    return [
        replace(part, follows=part.follows and places[id(part)] == last + 1)
        for part, last in zip(chosen, before, strict=False)
    ]


def _is_asked(flow_id: UInt64Array, foreign: UInt64Array, work: SegmentWork) -> BoolArray:
    """Which packets are of the segment's flows, and of those asked for."""
    asked = ~np.isin(flow_id, foreign)
    if work.flows:
        asked &= np.isin(flow_id, np.array([key_id(parse_key(text)) for text in work.flows], np.uint64))
    return asked


def _sent(part: Part, foreign: UInt64Array, work: SegmentWork) -> int:
    ledger = part.answer.ledger
    return 0 if ledger is None else int(ledger.sent[_is_asked(ledger.flow_id, foreign, work)].sum())
