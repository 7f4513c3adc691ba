"""`sojourn estimate --heavy`: the flows over a threshold at the sender, each between certain bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.cli.output import Block, Format, TableColumn, write_rows
from sojourn.cli.segments.output import key_columns
from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from sojourn.core.keys import TrafficKey
    from sojourn.epochs.epoch import Epoch
    from sojourn.estimation.heavy_hitters import HeavyCells
    from sojourn.sketches.lds import Lds

__all__ = ["parse_threshold", "print_heavy"]


def _packets(value: int) -> str:
    return f"{value:,}"


TABLE = [
    TableColumn("src_ip", "source", justify="left"),
    TableColumn("src_port", "port", lambda port: str(port) if port else ""),
    TableColumn("dest_ip", "destination", justify="left"),
    TableColumn("dest_port", "port", lambda port: str(port) if port else ""),
    TableColumn("protocol", "proto", justify="left"),
    TableColumn("packets_low", "packets from", _packets),
    TableColumn("packets_high", "to", _packets),
    TableColumn("surely", "over it", lambda surely: "surely" if surely else "maybe", justify="left"),
]


def print_heavy(
    epochs: list[Epoch],
    asked: list[TrafficKey] | None,
    threshold: str,
    *,
    limit: int | None,
    how: Format,
    path: Path | None,
) -> None:
    """Write the heavy flows among those asked for (all reported ones); without any key, what is known of them."""
    from sojourn.estimation.heavy_hitters import find_heavy_cells

    sketch, keys = _recorded(epochs, asked)
    cells = find_heavy_cells(sketch, parse_threshold(sketch, threshold))
    rows = _rows(sketch, keys, cells.threshold, complete=asked is None)
    fields: dict[str, object] = {
        "heavy": {
            "threshold_packets": cells.threshold,
            "recorded_packets": cells.total,
            "most_flows": cells.most_flows,
            "largest_packets": cells.largest,
            "keys": len(keys),
        }
    }
    if how is Format.TABLE:
        print(_summary(cells, rows, keys))
    shown = {name: column[: limit or None] for name, column in rows.items()}
    if how is not Format.TABLE or len(rows["surely"]):
        write_rows([shown], how, path=path, fields=fields, table=TABLE)


def _recorded(epochs: list[Epoch], asked: list[TrafficKey] | None) -> tuple[Lds, dict[int, TrafficKey]]:
    """The flow sketch of all epochs, and the keys to look for by their ids."""
    from sojourn.core.keys import TrafficKey, key_id
    from sojourn.epochs.epoch import merge_epochs
    from sojourn.segments.measurement import FLOWS
    from sojourn.sketches.lds import Lds

    flows = [epoch for epoch in epochs if epoch.stream == FLOWS]
    sketch = merge_epochs(flows) if flows else None
    if not isinstance(sketch, Lds):
        raise UsageError("these epochs do not bound flows' sizes", where="--heavy", action="record with --sketch lds")
    reported = [key for epoch in flows for key in epoch.keys or () if isinstance(key, TrafficKey)]
    keys = {key_id(key): key for key in (reported if asked is None else asked)}
    if sketch.parameters.weights:
        sketch.weights = sketch.parameters.policy.weights_of(list(keys), list(keys.values()))
    return sketch, keys


def parse_threshold(sketch: Lds, text: str) -> int:
    """Packets from ``1000``, ``1%`` or ``0.01``; shares are of what the sketch recorded."""
    from sojourn.estimation.heavy_hitters import heavy_threshold

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


def _rows(sketch: Lds, keys: dict[int, TrafficKey], threshold: int, *, complete: bool) -> Block:
    import numpy as np

    from sojourn.estimation.heavy_hitters import find_heavy_hitters

    found = find_heavy_hitters(sketch, np.array(list(keys), np.uint64), threshold, complete=complete)
    return {
        **key_columns([keys[flow_id] for flow_id in found.flow_id.tolist()]),
        "packets_low": found.low.tolist(),
        "packets_high": found.high.tolist(),
        "surely": found.surely.tolist(),
    }


def _summary(cells: HeavyCells, rows: Block, keys: dict[int, TrafficKey]) -> str:
    text = f"{cells.threshold:,} of {cells.total:,} packets or more: "
    if not keys:
        return (
            f"{text}at most {cells.most_flows:,} flows, none over {cells.largest:,} packets; "
            "names need keys (record --keys, or --flow)"
        )
    surely = sum(map(bool, rows["surely"]))
    return f"{text}{surely:,} flows surely, {len(rows['surely']) - surely:,} more maybe, of {len(keys):,}"
