"""Topologies from files: Rocketfuel maps, GraphML, GML, and CSVs of links.

A Rocketfuel map is ``AS.weights.intra`` with a line ``router router weight`` for each direction of a link, and
``AS.latencies.intra`` beside it where there is one, in milliseconds.

GraphML and GML are what drawing tools and the Topology Zoo write. Routers are named by their labels (``label``,
``name``, yEd's ``NodeLabel``), by their ids without one, and by both where labels repeat. A link's weight is its
attribute ``weight``, ``cost`` or ``metric``; if no link has one, all weigh 1. Its latency in milliseconds is
``latency_ms`` or ``latency``. Of parallel links the lightest counts, as paths are distinguished by their routers; loops
are left out. The topology's remarks report what was changed.

GML is parsed by networkx, which is stricter than most files are: an id ``"1"`` is not ``1``, names of attributes have
no dashes, a real number has a point (``1E3`` is none), and a file has one graph.
GraphML is parsed by defusedxml, which refuses entities (they could expand without bound or name other files), and read
from its tree: networkx's GraphML reader refuses files whose keys are not declared or whose links differ in direction,
rounds weights, and accepts links to routers that are not in the file and routers of the same id without a word.

Files are read whole, at most `MAX_BYTES` of UTF-8 (`MAX_GRAPH_BYTES` of a graph, whose tree takes 40 times as much), in
a time proportional to their size. Errors name the file and the line or link.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sojourn.core.errors import TopologyError, UsageError
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

FORMATS = "*.weights.intra (Rocketfuel), *.graphml, *.gml, *.csv (source,target,weight[,latency_ms][,rate])"
MAX_BYTES = 64_000_000
MAX_GRAPH_BYTES = 16_000_000
_COLUMNS = {"source", "target", "weight", "latency_ms", "rate"}
_ROCKETFUEL_WEIGHTS, _ROCKETFUEL_LATENCIES = ".weights.intra", ".latencies.intra"
_LABELS, _WEIGHTS, _LATENCIES = ("label", "name", "nodelabel"), ("weight", "cost", "metric"), ("latency_ms", "latency")

# A router or link of a graph file: its attributes, names in small letters.
_Item = dict[str, str]


def read_topology(path: Path, *, directed: bool | None = None) -> Topology:
    """The topology in a file.

    With `directed` every link leads one way only, as it is listed; without, one that is listed one way leads both. By
    default the first for Rocketfuel and CSV, the second for GraphML and GML, where most files list a link once
    whatever they call it.
    """
    ending = path.suffix.lower()
    readers = {".intra": _read_rocketfuel, ".csv": _read_csv, ".gml": _read_gml, ".graphml": _read_graphml}
    if ending not in readers:
        raise UsageError("the file's ending names no known format", where=str(path), action=f"known are {FORMATS}")
    is_graph = ending in (".graphml", ".gml")
    builder = TopologyBuilder(str(path))
    readers[ending](_read_text(path, MAX_GRAPH_BYTES if is_graph else MAX_BYTES), builder)
    if directed is False or (directed is None and is_graph):
        builder.add_missing_directions()
    return builder.finish()


def _read_text(path: Path, most_bytes: int) -> str:
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TopologyError(f"more than {most_bytes} bytes", where=str(path), action="plan on a part of the network")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TopologyError("not UTF-8 text", where=f"{path}:{line}", action="give a text file") from None


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
            source, target, latency = fields["source"], fields["target"], fields.get("latency_ms", "")
            builder.add_link(source, target, fields["weight"], latency_ms=latency, line=rows.line_num)
            if fields.get("rate"):
                builder.set_rate(source, target, fields["rate"], rows.line_num)
    except csv.Error as error:
        raise builder.error(f"not CSV: {error}", rows.line_num) from None


def _read_rocketfuel(text: str, builder: TopologyBuilder) -> None:
    """All links of a weights file, and the latencies of the file beside it."""
    path = Path(builder.where)
    beside = path.with_name(path.name.removesuffix(_ROCKETFUEL_WEIGHTS) + _ROCKETFUEL_LATENCIES)
    if path.name.endswith(_ROCKETFUEL_LATENCIES):
        weights = path.name.removesuffix(_ROCKETFUEL_LATENCIES) + _ROCKETFUEL_WEIGHTS
        raise builder.error("these are latencies, which are read along with weights", action=f"give {weights}")
    for line, source, target, weight in _rocketfuel_lines(text, builder):
        builder.add_link(source, target, weight, line=line)
    if not path.name.endswith(_ROCKETFUEL_WEIGHTS) or not beside.exists():
        return
    errors = TopologyBuilder(str(beside))
    for line, source, target, latency in _rocketfuel_lines(_read_text(beside, MAX_BYTES), errors):
        errors.latency_ns(latency, line)
        if not builder.set_latency(source, target, latency, line):
            raise errors.error(f"the link from {source} to {target} has a latency and no weight", line)


def _rocketfuel_lines(text: str, builder: TopologyBuilder) -> Iterator[tuple[int, str, str, str]]:
    """Line number and the three fields of every line that is not empty."""
    for number, content in enumerate(text.split("\n"), start=1):
        fields = content.split()
        if fields and len(fields) != 3:
            what = f"a line is 'router router value', this has {len(fields)} fields"
            raise builder.error(what, number, "see docs/commands/mplane.md for the formats")
        if fields:
            yield number, fields[0], fields[1], fields[2]


def _read_graphml(text: str, builder: TopologyBuilder) -> None:
    from xml.etree.ElementTree import Element, ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root = fromstring(text)
    except ParseError as error:
        raise builder.error(f"not XML: {str(error).partition(':')[0]}", error.position[0]) from None
    except DefusedXmlException as error:
        what = f"it declares the entity {getattr(error, 'name', '')[:40]!r}"
        raise builder.error(what, action="remove the declaration") from None
    if (tag := root.tag.rpartition("}")[2]) != "graphml":
        raise builder.error(f"it begins with <{tag[:40]}>, GraphML with <graphml>")
    if root.find(".//{*}hyperedge") is not None:
        raise builder.error("a hyperedge", action="join routers by edges of two ends")
    names = {key.get("id"): key.get("attr.name", "").lower() for key in root.iterfind(".//{*}key")}

    def item(element: Element) -> _Item:
        values = {names.get(data.get("key"), ""): data.text or "" for data in element.iterfind("{*}data")}
        yed = next((label.text or "" for label in element.iterfind("{*}data//{*}NodeLabel")), "")
        # GraphML's own attributes (id, source, target) are not replaced by data of that name.
        return {"nodelabel": yed} | values | {name.lower(): value for name, value in element.items()}

    nodes, edges = ([item(element) for element in root.iterfind(f".//{{*}}{kind}")] for kind in ("node", "edge"))
    _add_graph(nodes, edges, builder)


def _read_gml(text: str, builder: TopologyBuilder) -> None:
    import networkx as nx

    # Few files declare their parallel links, which networkx refuses otherwise; every link counts as it is listed.
    text = re.sub(r"(?m)^([ \t]*graph\s*\[)", r"\1 multigraph 1 directed 1 ", text, count=1)
    try:
        graph = nx.parse_gml(text.split("\n"), label="id")
    except nx.NetworkXError as error:
        what = str(error).partition("\n")[0]
        place = re.search(r"at \((\d+), \d+\)$", what)
        raise builder.error(f"not GML: {what[:200]}", int(place[1]) if place else 0) from None
    except (AttributeError, TypeError, ValueError, RecursionError):
        what = "not GML: a node, edge or number is malformed, or brackets are nested too deeply"
        raise builder.error(what) from None
    nodes = [_gml_item(data) | {"id": str(node)} for node, data in graph.nodes(data=True)]
    edges = [_gml_item(data) | {"source": str(u), "target": str(v)} for u, v, data in graph.edges(data=True)]
    _add_graph(nodes, edges, builder)


def _gml_item(data: Mapping[str, Any]) -> _Item:
    """Attributes as texts; of one that is given more than once the last."""
    last = {name.lower(): value[-1] if isinstance(value, list) and value else value for name, value in data.items()}
    return {name: str(value) for name, value in last.items() if isinstance(value, str | int | float)}


def _add_graph(nodes: list[_Item], edges: list[_Item], builder: TopologyBuilder) -> None:
    names = _router_names(nodes, builder)
    for name in names.values():
        builder.add_router(name, 0)
    has_weights = any(_first_of(edge, _WEIGHTS) for edge in edges)
    parallel = loops = 0
    for edge in edges:
        ends = [edge.get(end, "") for end in ("source", "target")]
        if missing := [end for end in ends if end not in names]:
            raise builder.error(f"a link to a router {missing[0][:40]!r} that is not in the file")
        if ends[0] == ends[1]:
            loops += 1
            continue
        weight = _first_of(edge, _WEIGHTS) if has_weights else "1"
        source, target = (names[end] for end in ends)
        try:
            is_new = builder.add_link(
                source, target, weight, latency_ms=_first_of(edge, _LATENCIES), line=0, is_parallel=True
            )
        except TopologyError as error:
            raise builder.error(f"link from {source} to {target}: {error.what}", action=error.action) from None
        parallel += not is_new
    if not has_weights:
        builder.remarks.append("no link has a weight: all weigh 1")
    if parallel:
        builder.remarks.append(f"{parallel} parallel links left out, the lightest kept")
    if loops:
        builder.remarks.append(f"{loops} links from a router to itself left out")


def _router_names(nodes: list[_Item], builder: TopologyBuilder) -> dict[str, str]:
    """Routers' names by id."""
    labels: dict[str, str] = {}
    for node in nodes:
        identity = node.get("id", "")
        if not identity:
            raise builder.error("a router without an id")
        if identity in labels:
            what = f"more than one router has the id {identity[:40]}"
            raise builder.error(what, action="give routers ids of their own")
        labels[identity] = _first_of(node, _LABELS)
    uses = Counter(labels.values())
    if shared := sum(count for label, count in uses.items() if label and count > 1):
        builder.remarks.append(f"{shared} routers share a label with others: their ids are part of their names")
    return {
        identity: label if label and uses[label] == 1 else f"{label} {identity}".strip()
        for identity, label in labels.items()
    }


def _first_of(item: _Item, names: tuple[str, ...]) -> str:
    """The first of some attributes that is there and not empty."""
    return next((item[name].strip() for name in names if item.get(name, "").strip()), "")
