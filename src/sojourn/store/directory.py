"""The directory of keys in the store: which instances there are, and when each stream saw each of them.

Guarantee: an instance is entered once, by the id of its key; a span only grows. Cost: a row an instance, and one for
each stream that saw it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.database import INSTANCES, SIGHTINGS, insert_missing, widen_spans

Spans = dict[tuple[str, str], tuple[dict[bytes, int], dict[bytes, int]]]  # first and last times of keys, by stream
Names = tuple[dict[bytes, Any], dict[bytes, str]]  # ids of keys, and the texts of those that have to be entered


def spans_of(epochs: Iterable[tuple[EncodedEpoch, tuple[bytes, ...]]], now_ns: int) -> Spans:
    """The times of epochs for each of their keys; in the order of times, so that the last to be set is right."""
    # Most epochs of a stream list the same keys as the one before: each list is gone through once.
    lists: dict[tuple[str, str], dict[tuple[bytes, ...], tuple[int, int]]] = {}
    for epoch, keys in epochs:
        first = now_ns if epoch.first_ns is None else epoch.first_ns
        last = now_ns if epoch.last_ns is None else epoch.last_ns
        known = lists.setdefault((epoch.node, epoch.stream), {})
        before = known.get(keys, (first, last))
        known[keys] = min(first, before[0]), max(last, before[1])
    spans: Spans = {}
    for place, known in lists.items():
        firsts, lasts = spans[place] = {}, {}
        for keys, (first, _) in sorted(known.items(), key=lambda one: -one[1][0]):
            firsts.update(dict.fromkeys(keys, first))
        for keys, (_, last) in sorted(known.items(), key=lambda one: one[1][1]):
            lasts.update(dict.fromkeys(keys, last))
    return spans


def see_keys(connection: Connection, spans: Spans, names: Names) -> dict[bytes, int]:
    """Enter keys in the directory, and when each was seen first and last in its stream; the ids of the new ones.

    Rows go in the order of their keys: two query units that enter the same ones do not wait for each other in a circle.
    """
    ids, texts = names
    new = {key: ids[key] for key in texts}
    insert_missing(connection, INSTANCES, [{"id": new[key], "key": texts[key]} for key in sorted(new)])
    sightings = [
        {"node": node, "stream": stream, "instance": ids[key], "first_ns": firsts[key], "last_ns": lasts[key]}
        for (node, stream), (firsts, lasts) in sorted(spans.items())
        for key in sorted(firsts)
    ]
    widen_spans(connection, SIGHTINGS, sightings)
    return new
