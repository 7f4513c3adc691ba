"""Round-trip times as rows: samples as they are completed, summaries at the end.

Names are ePPing's, times integer ns. A flow's addresses are looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sojourn.cli.output import Block, TableColumn
from sojourn.core.keys import flow_fields
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.capture.flows.table import FlowTable
    from sojourn.rtt.samples import RttSamples
    from sojourn.rtt.summary import FlowRtt

__all__ = ["FlowNames", "flow_block", "sample_block", "sample_lines", "table_columns"]

ENDS = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")
_UNKNOWN = dict.fromkeys(ENDS) | {"src_port": 0, "dest_port": 0}
_DURATIONS = ("min_rtt", "mean_rtt", "p50_rtt", "p95_rtt", "p99_rtt", "max_rtt", "std_rtt")


class FlowNames:
    """Addresses, ports and protocol of flow ids, from the flow table of the capture that gave them."""

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._rows: dict[int, int] = {}
        self._fields: dict[int, dict[str, Any]] = {}

    def fields(self, flow_id: int) -> dict[str, Any]:
        """The five names of `ENDS`; null (a port: 0) where the flow found no room in the table."""
        if flow_id not in self._fields:
            if flow_id not in self._rows:
                known = len(self._rows)
                new = self._table.ids[known:].tolist()
                self._rows.update(zip(new, range(known, known + len(new)), strict=True))
            row = self._rows.get(flow_id)
            named = flow_fields(self._table.key(row)) if row is not None else {}
            self._fields[flow_id] = {name: named.get(name, _UNKNOWN[name]) for name in ENDS}
        return self._fields[flow_id]

    def columns(self, flow_ids: Iterable[int]) -> Block:
        """The names of many flows; ports are numbers even where there are none."""
        import numpy as np

        fields = [self.fields(flow_id) for flow_id in flow_ids]
        columns: dict[str, Any] = {name: [row[name] for row in fields] for name in ENDS}
        return columns | {name: np.array(columns[name], np.int64) for name in ("src_port", "dest_port")}


def _kind_names() -> list[str]:
    from sojourn.rtt.state import Kind

    return [kind.name.lower() for kind in Kind]


def _note_names() -> list[str]:
    from sojourn.rtt.state import Note

    return ["" if note is Note.NONE else note.name.lower().replace("_", "-") for note in Note]


def sample_block(samples: RttSamples, names: FlowNames) -> Block:
    """Samples as columns."""
    kinds, notes = _kind_names(), _note_names()
    return {
        "timestamp": samples.time_ns,
        **names.columns(samples.flow_id.tolist()),
        "rtt": samples.rtt_ns,
        "min_rtt": samples.min_rtt_ns,
        "kind": [kinds[kind] for kind in samples.kind.tolist()],
        "note": [notes[note] for note in samples.note.tolist()],
    }


def sample_lines(samples: RttSamples, names: FlowNames) -> Iterator[str]:
    """Samples as pping writes them: time, RTT, least RTT, flow of the answer; then kind and note."""
    kinds, notes = _kind_names(), _note_names()
    for time_ns, flow_id, rtt, lowest, kind, note in samples.rows():
        second, fraction = divmod(time_ns, 1_000_000_000)
        clock = datetime.fromtimestamp(second, UTC).strftime("%H:%M:%S")
        ends = names.fields(flow_id)
        flow = f"{ends['protocol']} {_end(ends, 'src')}+{_end(ends, 'dest')}"
        times = f"{format_duration(rtt)} {format_duration(lowest)}"
        yield f"{clock}.{fraction:09d} {times} {flow} {kinds[kind]} {notes[note]}".rstrip()


def _end(ends: dict[str, Any], which: str) -> str:
    ip, port = ends[f"{which}_ip"], ends[f"{which}_port"]
    host = f"[{ip}]" if ip and ":" in ip and port else ip or "?"
    return f"{host}:{port}" if port else str(host)


def flow_block(flows: Iterable[FlowRtt], names: FlowNames, limit: int | None) -> Block:
    """Summaries as columns, the flows with most samples first; means and deviations to the nearest ns."""
    kinds = _kind_names()
    ordered = sorted(flows, key=lambda flow: (-flow.samples, flow.flow_id, flow.kind))[: limit or None]

    def column(value: Callable[[FlowRtt], int]) -> list[int]:
        return [value(flow) for flow in ordered]

    return {
        **names.columns(flow.flow_id for flow in ordered),
        "kind": [kinds[flow.kind] for flow in ordered],
        "samples": column(lambda flow: flow.samples),
        "min_rtt": column(lambda flow: flow.min_rtt),
        "mean_rtt": column(lambda flow: round(flow.mean_rtt)),
        "p50_rtt": column(lambda flow: flow.p50_rtt),
        "p95_rtt": column(lambda flow: flow.p95_rtt),
        "p99_rtt": column(lambda flow: flow.p99_rtt),
        "max_rtt": column(lambda flow: flow.max_rtt),
        "std_rtt": column(lambda flow: round(flow.std_rtt)),
        "delayed_acks": column(lambda flow: flow.delayed_acks),
        "covering_acks": column(lambda flow: flow.covering_acks),
    }


def table_columns() -> list[TableColumn]:
    def show_port(port: int) -> str:
        return str(port) if port else ""

    return [
        TableColumn("src_ip", "answered by", justify="left"),
        TableColumn("src_port", "port", show_port),
        TableColumn("dest_ip", "to", justify="left"),
        TableColumn("dest_port", "port", show_port),
        TableColumn("protocol", "protocol", justify="left"),
        TableColumn("kind", "kind", justify="left"),
        TableColumn("samples", "samples", "{:,}".format),
        *(TableColumn(name, name.removesuffix("_rtt"), format_duration) for name in _DURATIONS),
    ]
