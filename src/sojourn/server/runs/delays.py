"""Delays of many segments in buckets, from the sampled delays of their stored runs; what a query worker does.

Cost: a millisecond for each run of a hundred flows, as each has to be read; clocks are corrected as in `ranking`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import URL

from sojourn.exports.readings import BOUNDS_NS, SegmentDelays
from sojourn.segments.fleet.stored import read_answer
from sojourn.server.runs.ranking import RankedSegment, RankingWork, ranked
from sojourn.store.epochs import read_store
from sojourn.store.runs import RunStore

# Runs of one segment in the longest window, if its epochs are the shortest that there can be.
MOST_RUNS = 4_000


def segment_delays(url: URL, work: RankingWork, most: int) -> tuple[list[tuple[dict[str, Any], SegmentDelays]], int]:
    """The totals of so many segments, the largest first, each with its delays in buckets; and how many are left out."""
    runs = RunStore(read_store(url))
    found = ranked(runs, work)
    return [(one.row, _delays(runs, one, work)) for one in found[:most]], max(0, len(found) - most)


def _delays(runs: RunStore, segment: RankedSegment, work: RankingWork) -> SegmentDelays:
    counts = np.zeros(len(BOUNDS_NS) + 1)
    for _, row in runs.between([segment.pair], work.from_ns, work.to_ns, most=MOST_RUNS)[:MOST_RUNS]:
        offset_ns = segment.offset_ns(row.lead_ns)
        if row.reason is None and offset_ns is not None:
            sampled = read_answer(row.data, row.clock).sampled
            places = np.searchsorted(np.array(BOUNDS_NS, float), sampled.delay_ns - offset_ns)
            counts += np.bincount(places, weights=sampled.weight, minlength=len(counts))
    return SegmentDelays(counts=tuple(counts.tolist()) if counts.any() else ())
