"""The directory of keys in the store: which instances there are, and when each stream saw each of them.

Guarantee: an instance is entered once, by the id of its key; a span only grows. Cost: a row an instance, and one for
each stream that saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from sojourn.epochs.wire import EncodedEpoch
from sojourn.store.database import INSTANCES, SIGHTINGS, insert_missing, widen_spans

Spans = dict[tuple[str, str], tuple[dict[bytes, int], dict[bytes, int]]]  # first and last times of keys, by stream
Names = tuple[dict[bytes, Any], dict[bytes, str]]  # ids of keys, and the texts of those that have to be entered


def spans_of(epochs: Iterable[tuple[EncodedEpoch, Sequence[bytes]]], now_ns: int) -> Spans:
    """The times of epochs for each of their keys; in the order of times, so that the last to be set is right."""
    listed = []
    for epoch, keys in epochs:
        first = now_ns if epoch.first_ns is None else epoch.first_ns
        listed.append((epoch.node, epoch.stream, first, now_ns if epoch.last_ns is None else epoch.last_ns, keys))
    spans: Spans = {}
    for node, stream, first, _last, keys in sorted(listed, key=lambda one: -one[2]):
        spans.setdefault((node, stream), ({}, {}))[0].update(dict.fromkeys(keys, first))
    for node, stream, _first, last, keys in sorted(listed, key=lambda one: one[3]):
        spans[node, stream][1].update(dict.fromkeys(keys, last))
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
