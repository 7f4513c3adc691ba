"""Round-trip times as rows of text or Parquet: samples as they are completed, summaries at the end.

Names are ePPing's, times integer ns. A flow's part of a row is put together once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from sojourn.cli.output import console
from sojourn.core.errors import UsageError
from sojourn.core.keys import flow_fields
from sojourn.core.units import format_duration

if TYPE_CHECKING:
    from sojourn.capture.flow_table import FlowTable
    from sojourn.capture.rtt_samples import RttSamples
    from sojourn.capture.rtt_summary import FlowRtt

__all__ = [
    "FLOW_NAMES",
    "SAMPLE_NAMES",
    "FlowNames",
    "flow_rows",
    "print_flows",
    "sample_lines",
    "write_parquet",
]

ENDS = ("src_ip", "src_port", "dest_ip", "dest_port", "protocol")
SAMPLE_NAMES = ("timestamp", *ENDS, "rtt", "min_rtt", "kind", "note")
FLOW_NAMES = (
    *ENDS, "kind", "samples", "min_rtt", "mean_rtt", "p50_rtt", "p95_rtt", "p99_rtt", "max_rtt", "std_rtt",
    "delayed_acks", "covering_acks",
)  # fmt: skip
_DURATIONS = ("min_rtt", "mean_rtt", "p50_rtt", "p95_rtt", "p99_rtt", "max_rtt", "std_rtt")


class FlowNames:
    """Addresses, ports and protocol of flow ids, from the flow table of the capture that gave them."""

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._rows: dict[int, int] = {}
        self._fields: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[str, int], str] = {}

    def fields(self, flow_id: int) -> dict[str, Any]:
        """The five names of `ENDS`; null where the flow found no room in the table."""
        if flow_id not in self._fields:
            if flow_id not in self._rows:
                known = len(self._rows)
                new = self._table.ids[known:].tolist()
                self._rows.update(zip(new, range(known, known + len(new)), strict=True))
            row = self._rows.get(flow_id)
            known_fields = flow_fields(self._table.key(row)) if row is not None else {}
            self._fields[flow_id] = {name: known_fields.get(name) for name in ENDS}
        return self._fields[flow_id]

    def text(self, style: str, flow_id: int) -> str:
        """The flow's part of a line of CSV, JSON or plain text."""
        text = self._texts.get((style, flow_id))
        if text is None:
            values = self.fields(flow_id)
            if style == "csv":
                text = csv_line(values)
            elif style == "jsonl":
                text = json.dumps(values)[1:-1]
            else:
                text = f"{values['protocol']} {_end(values, 'src')}+{_end(values, 'dest')}"
            self._texts[style, flow_id] = text
        return text


def csv_line(row: dict[str, Any]) -> str:
    """Addresses, numbers and our own words: nothing here needs quotes."""
    return ",".join("" if value is None else str(value) for value in row.values())


def _end(values: dict[str, Any], which: str) -> str:
    ip, port = values[f"{which}_ip"], values[f"{which}_port"]
    host = f"[{ip}]" if ip and ":" in ip and port else ip or "?"
    return f"{host}:{port}" if port else str(host)


def sample_lines(samples: RttSamples, names: FlowNames, style: str) -> Iterator[str]:
    """One line per sample, without its end."""
    from sojourn.capture.rtt_state import Kind, Note

    kinds = [kind.name.lower() for kind in Kind]
    notes = [note.name.lower().replace("_", "-") if note else "" for note in Note]
    columns = (
        samples.time_ns,
        samples.flow_id,
        samples.rtt_ns,
        samples.min_rtt_ns,
        samples.kind,
        samples.note,
    )
    for time_ns, flow_id, rtt, lowest, kind, note in zip(*(c.tolist() for c in columns), strict=True):
        ends = names.text(style, flow_id)
        if style == "csv":
            yield f"{time_ns},{ends},{rtt},{lowest},{kinds[kind]},{notes[note]}"
        elif style == "jsonl":
            yield (
                f'{{"timestamp": {time_ns}, {ends}, "rtt": {rtt}, "min_rtt": {lowest}, '
                f'"kind": "{kinds[kind]}", "note": "{notes[note]}"}}'
            )
        else:
            second, fraction = divmod(time_ns, 1_000_000_000)
            clock = datetime.fromtimestamp(second, UTC).strftime("%H:%M:%S")
            yield (
                f"{clock}.{fraction:09d} {format_duration(rtt)} {format_duration(lowest)} {ends} "
                f"{kinds[kind]} {notes[note]}".rstrip()
            )


def sample_columns(samples: RttSamples, names: FlowNames) -> dict[str, list[Any]]:
    """Samples as columns for Parquet."""
    from sojourn.capture.rtt_state import Kind, Note

    ends = [names.fields(flow_id) for flow_id in samples.flow_id.tolist()]
    return {
        "timestamp": samples.time_ns.tolist(),
        **{name: [end[name] for end in ends] for name in ENDS},
        "rtt": samples.rtt_ns.tolist(),
        "min_rtt": samples.min_rtt_ns.tolist(),
        "kind": [Kind(k).name.lower() for k in samples.kind.tolist()],
        "note": [Note(n).name.lower().replace("_", "-") if n else "" for n in samples.note.tolist()],
    }


def flow_rows(flows: Iterable[FlowRtt], names: FlowNames) -> list[dict[str, Any]]:
    """Summaries as rows, the flows with most samples first; means and deviations to the nearest ns."""
    from sojourn.capture.rtt_state import Kind

    rows = []
    for flow in sorted(flows, key=lambda f: (-f.samples, f.flow_id, f.kind)):
        values = asdict(flow) | names.fields(flow.flow_id) | {"kind": Kind(flow.kind).name.lower()}
        values["mean_rtt"], values["std_rtt"] = round(flow.mean_rtt), round(flow.std_rtt)
        rows.append({name: values[name] for name in FLOW_NAMES})
    return rows


def print_flows(rows: list[dict[str, Any]], title: str, file: TextIO) -> None:
    """A table for people."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in ("answered by", "to", "protocol", "kind"):
        table.add_column(heading, no_wrap=True)
    for heading in ("samples", *(name.removesuffix("_rtt") for name in _DURATIONS)):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            _end(row, "src"), _end(row, "dest"), str(row["protocol"] or "?"), row["kind"],
            f"{row['samples']:,}", *(format_duration(row[name]) for name in _DURATIONS),
        )  # fmt: skip
    screen = console()
    screen.file = file
    screen.print(table)


def write_parquet(path: str, batches: Iterable[dict[str, list[Any]]], names: tuple[str, ...]) -> None:
    """Columns, batch by batch, into one Parquet file."""
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UsageError(
            "Parquet needs the package pyarrow", where="--format parquet", action="pip install pyarrow"
        ) from None
    text = {"src_ip", "dest_ip", "protocol", "kind", "note"}
    schema = pa.schema([(name, pa.string() if name in text else pa.int64()) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for columns in batches:
            writer.write_table(pa.table({name: columns[name] for name in names}, schema=schema))
