"""Topologies from files: which reader a file's ending asks for, and the CSV of links.

Files are read whole, at most 64 MB of UTF-8, in a time that grows with their size.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from sojourn.core.errors import TopologyError, UsageError
from sojourn.mplane.planning.graph_files import read_gml, read_graphml
from sojourn.mplane.planning.rocketfuel import read_latencies, read_rocketfuel
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

__all__ = ["read_topology"]

FORMATS = "*.weights.intra (Rocketfuel), *.graphml, *.gml, *.csv (source,target,weight[,latency_ms][,rate])"
_MAX_BYTES = 64_000_000
_COLUMNS = {"source", "target", "weight", "latency_ms", "rate"}


def read_topology(path: Path, *, directed: bool | None = None) -> Topology:
    """The topology in a file.

    With `directed` every link leads one way only, as it is listed; without, one that is listed one way leads both. By
    default the first for Rocketfuel and CSV, the second for GraphML and GML, where most files list a link once
    whatever they call it.
    """
    ending = path.suffix.lower()
    if ending not in (".intra", ".graphml", ".gml", ".csv"):
        raise UsageError("the file's ending tells no format", where=str(path), action=f"known are {FORMATS}")
    builder = TopologyBuilder(str(path))
    text = _read_text(path)
    if ending == ".intra":
        latencies = read_rocketfuel(text, path, builder)
        if latencies is not None and latencies.exists():
            read_latencies(_read_text(latencies), builder, str(latencies))
    elif ending == ".csv":
        _read_csv(text, builder)
    elif ending == ".gml":
        read_gml(text, builder)
    else:
        read_graphml(text, builder)
    is_graph = ending in (".graphml", ".gml")
    if directed is False or (directed is None and is_graph):
        builder.add_missing_directions()
    return builder.finish()


def _read_text(path: Path) -> str:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise TopologyError(f"more than {_MAX_BYTES} bytes", where=str(path), action="plan on a part of the network")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TopologyError("no UTF-8 text", where=f"{path}:{line}", action="give a text file") from None


def _read_csv(text: str, builder: TopologyBuilder) -> None:
    """A header naming the columns, then a link per line."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        if not {"source", "target", "weight"} <= set(header) or len(set(header)) != len(header):
            action = "begin with the line source,target,weight or source,target,weight,latency_ms"
            raise builder.error("the first line does not name the columns", 1, action)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise builder.error(f"{len(row)} fields where the header has {len(header)}", rows.line_num)
            fields = {name: value.strip() for name, value in zip(header, row, strict=True) if name in _COLUMNS}
            builder.add_link(
                fields["source"],
                fields["target"],
                fields["weight"],
                latency_ms=fields.get("latency_ms", ""),
                line=rows.line_num,
            )
            if fields.get("rate"):
                builder.set_rate(fields["source"], fields["target"], fields["rate"], rows.line_num)
    except csv.Error as error:
        raise builder.error(f"no CSV: {error}", rows.line_num) from None
