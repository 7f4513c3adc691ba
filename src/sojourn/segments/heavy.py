"""Heavy flows in one point's epochs: which have so many packets, surely or maybe, each between certain bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.errors import UsageError
from sojourn.core.keys import TrafficKey, key_columns, key_id
from sojourn.core.results import Columns, Result
from sojourn.core.units import plural
from sojourn.epochs.epoch import merge_epochs
from sojourn.estimation.heavy_hitters import (
    HeavyCells,
    HeavyHitters,
    find_heavy_cells,
    find_heavy_hitters,
    heavy_threshold,
)
from sojourn.segments.answer import parts_of
from sojourn.segments.measure import EpochsSource, epochs_from, flow_keys
from sojourn.segments.planning.layout import FLOWS
from sojourn.sketches.lds import Lds


@dataclass(frozen=True, eq=False, repr=False)
class HeavyResult(Result):
    """The flows that may have as many packets as the threshold says, of those that are known by name."""

    cells: HeavyCells
    found: HeavyHitters
    keys: dict[int, TrafficKey]

    def columns(self) -> Columns:
        return {
            **key_columns([self.keys[flow_id] for flow_id in self.found.flow_id.tolist()]),
            "packets_low": self.found.low.tolist(),
            "packets_high": self.found.high.tolist(),
            "surely": self.found.surely.tolist(),
        }

    def fields(self) -> dict[str, object]:
        return {
            "heavy": {
                "threshold_packets": self.cells.threshold,
                "recorded_packets": self.cells.total,
                "most_flows": self.cells.most_flows,
                "largest_packets": self.cells.largest,
                "keys": len(self.keys),
            }
        }

    @property
    def summary(self) -> str:
        cells, text = self.cells, f"{self.cells.threshold:,} of {plural(self.cells.total, 'packet')} or more: "
        if not self.keys:
            return (
                f"{text}at most {plural(cells.most_flows, 'flow')}, none over {plural(cells.largest, 'packet')}; "
                "names need keys (record --keys, or --flow)"
            )
        surely = int(np.count_nonzero(self.found.surely))
        return f"{text}{plural(surely, 'flow')} surely, {len(self) - surely:,} more maybe, of {len(self.keys):,}"


def find_heavy(epochs: EpochsSource, threshold: str, *, flows: Sequence[str | TrafficKey] | None = None) -> HeavyResult:
    """The heavy flows among those asked for (all reported ones); without any key, what is known of them."""
    recorded = epochs_from(epochs)
    sketch = parts_of(merge_epochs(recorded)).get(FLOWS)
    if not isinstance(sketch, Lds):
        raise UsageError("these epochs do not bound flows' sizes", where="--heavy", action="record with --sketch lds")
    reported = [key for epoch in recorded for key in epoch.keys or () if isinstance(key, TrafficKey)]
    keys = {key_id(key): key for key in (reported if flows is None else flow_keys(flows))}
    if sketch.parameters.weights:
        sketch.weights = sketch.parameters.policy.weights_of(list(keys), list(keys.values()))
    cells = find_heavy_cells(sketch, parse_threshold(sketch, threshold))
    ids = np.array(list(keys), np.uint64)
    return HeavyResult(cells, find_heavy_hitters(sketch, ids, cells.threshold, complete=flows is None), keys)


def parse_threshold(sketch: Lds, text: str) -> int:
    """Packets from ``1000``, ``1%`` or ``0.01``; shares are of what the sketch recorded."""
    if text.isascii() and text.isdigit() and int(text[:20]) > 0:
        return int(text[:20])
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(
            f"{text[:40]!r} is no threshold", where="--heavy", action="write packets (1000) or a share (1%)"
        )
    return heavy_threshold(sketch, share)
