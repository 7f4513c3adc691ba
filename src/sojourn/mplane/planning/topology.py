"""A network as shortest-path routing sees it: routers, directed links, exact weights.

Two paths are of equal cost exactly when their weights, added as written, are equal: weights are decimals in a file and
whole numbers inside, multiples of the smallest decimal (``0.1 + 0.2`` is ``0.3``). Weights are above zero,
so that a shortest path never meets a router twice.

A topology takes 28 bytes per link and the routers' names. What a reader hands over is bounded: `MAX_ROUTERS`,
`MAX_LINKS`, `MAX_NAME`, and every error names the file and the line.

Topologies from files: Rocketfuel maps, GraphML, GML, and CSVs of links.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, TopologyError, UsageError
from sojourn.core.units import parse_rate

MAX_ROUTERS = 200_000
MAX_LINKS = 2_000_000
MAX_NAME = 200
MAX_RATE = 10**12
# Decimals that a weight may have, and how far sums of weights reach.
MAX_DECIMALS = 9
_MAX_DISTANCE = 2**61
# As many digits as decimal arithmetic keeps exactly.
_MAX_DIGITS = 28
_NS_PER_MS = 1_000_000
_MAX_LATENCY_MS = 1_000_000_000
_MOST_LONGITUDE, _MOST_LATITUDE = 180.0, 90.0


class Adjacency(NamedTuple):
    """What kernels walk: the links of router ``i`` are ``first[i] … first[i + 1]``, with their targets and weights."""

    first: NDArray[np.int64]
    target: NDArray[np.int32]
    weight: NDArray[np.int64]


@dataclass(frozen=True)
class Topology:
    """Links sorted by the router they leave: those of router ``i`` are ``first[i] … first[i + 1]``.

    Weights are in units of ``1 / weight_unit``; a latency of −1 ns is not known. ``remarks`` is what a user should
    know of how the file was read. ``rates`` has the bits per second of links (router, router) that the file limits,
    ``places`` the longitude and latitude of routers that it places on the earth.
    """

    names: tuple[str, ...]
    first: NDArray[np.int64]
    target: NDArray[np.int32]
    weight: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    weight_unit: int = 1
    remarks: tuple[str, ...] = ()
    rates: Mapping[tuple[int, int], int] = field(default_factory=dict)
    places: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def links(self) -> int:
        return len(self.target)

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency(self.first, self.target, self.weight)

    @cached_property
    def source(self) -> NDArray[np.int32]:
        """The router that each link leaves."""
        routers = np.arange(len(self.names), dtype=np.int32)
        return np.repeat(routers, np.diff(self.first))

    @cached_property
    def index(self) -> dict[str, int]:
        """Routers' numbers by name."""
        return {name: number for number, name in enumerate(self.names)}

    def router(self, name: str) -> int:
        """The number of the router of that name.

        >>> triangle().router("b")
        1
        """
        try:
            return self.index[name]
        except KeyError:
            near = [other for other in self.names if name and name.lower() in other.lower()][:3]
            action = f"did you mean {' or '.join(near)}?" if near else f"names are such as {self.names[0]}"
            raise UsageError(f"there is no router {name!r}", action=action) from None

    def has_link(self, source: int, target: int) -> bool:
        """Whether a link leads from one router to another."""
        return bool(np.any(self.target[self.first[source] : self.first[source + 1]] == target))

    def has_way_back(self) -> bool:
        """Whether any two routers have a link each way."""
        ends = set(zip(self.source.tolist(), self.target.tolist(), strict=True))
        return any((v, u) in ends for u, v in ends)

    def without(self, links: Sequence[tuple[int, int]]) -> Topology:
        """The topology after links (router, router) have failed; both ways are two links."""
        failed = {(int(u), int(v)) for u, v in links}
        ends = list(zip(self.source.tolist(), self.target.tolist(), strict=True))
        missing = failed.difference(ends)
        if missing:
            u, v = min(missing)
            raise UsageError(f"there is no link from {self.names[u]} to {self.names[v]}")
        stays = np.array([end not in failed for end in ends], dtype=np.bool_)
        degree = np.bincount(self.source[stays], minlength=len(self.names))
        return Topology(
            self.names,
            np.concatenate(([0], np.cumsum(degree))),
            self.target[stays],
            self.weight[stays],
            self.latency_ns[stays],
            self.weight_unit,
            self.remarks,
            {ends: rate for ends, rate in self.rates.items() if ends not in failed},
            self.places,
        )


@dataclass
class _Link:
    weight: Decimal
    latency_ns: int
    line: int
    rate: int = 0


@dataclass
class TopologyBuilder:
    """Collects what a reader finds in the file `where`, and makes errors that name the line."""

    where: str
    remarks: list[str] = field(default_factory=list)
    is_on_disk: bool = False
    _routers: dict[str, int] = field(default_factory=dict)
    _links: dict[tuple[int, int], _Link] = field(default_factory=dict)
    _places: dict[int, tuple[float, float]] = field(default_factory=dict)

    def error(self, what: str, line: int = 0, action: str = "") -> TopologyError:
        """An error in a line, to be raised."""
        return TopologyError(what, where=f"{self.where}:{line}" if line else self.where, action=action)

    def add_router(self, name: str, line: int) -> int:
        """The number of a router, new or known."""
        known = self._routers.get(name)
        if known is not None:
            return known
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise self.error(f"a router's name has 1 to {MAX_NAME} printable characters, this is {name[:40]!r}", line)
        if len(self._routers) >= MAX_ROUTERS:
            raise self.error(f"more than {MAX_ROUTERS} routers", line, "plan on a part of the network")
        self._routers[name] = len(self._routers)
        return self._routers[name]

    def add_link(
        self, source: str, target: str, weight: str, *, latency_ms: str = "", line: int, is_parallel: bool = False
    ) -> bool:
        """One directed link; weight and latency are texts as in the file.

        With `is_parallel` of several links between the same routers the lightest is kept, without an error; False is
        returned then.
        """
        ends = self.add_router(source, line), self.add_router(target, line)
        if ends[0] == ends[1]:
            raise self.error(f"a link from {source} to itself", line, "remove it")
        link = _Link(self._weight(weight, line), self.latency_ns(latency_ms, line), line)
        if ends in self._links and is_parallel:
            self._links[ends] = min(self._links[ends], link, key=lambda either: either.weight)
            return False
        if ends in self._links:
            before = self._links[ends].line
            raise self.error(
                f"the link from {source} to {target} is in line {before} already", line, "keep one of them"
            )
        if len(self._links) >= MAX_LINKS:
            raise self.error(f"more than {MAX_LINKS} links", line, "plan on a part of the network")
        self._links[ends] = link
        return True

    def set_place(self, router: int, longitude: str, latitude: str) -> None:
        """Place a router on the earth; texts that are no degrees place it nowhere."""
        try:
            place = float(longitude[:MAX_NAME]), float(latitude[:MAX_NAME])
        except ValueError:
            return
        if abs(place[0]) <= _MOST_LONGITUDE and abs(place[1]) <= _MOST_LATITUDE:
            self._places[router] = place

    def set_rate(self, source: str, target: str, rate: str, line: int) -> None:
        """Limit a link that was added to so many bits per second, a text such as ``10M``."""
        try:
            value = parse_rate(rate) if len(rate) <= MAX_NAME else 0
        except ParameterError as error:
            raise self.error(error.what, line, error.action) from None
        if not 0 < value <= MAX_RATE:
            raise self.error(f"a rate is above 0 and at most {MAX_RATE} bit/s, this is {rate.strip()[:40]}", line)
        self._links[self._routers[source], self._routers[target]].rate = value

    def set_latency(self, source: str, target: str, latency_ms: str, line: int) -> bool:
        """Give a link its latency; False where there is no such link."""
        ends = self._routers.get(source, -1), self._routers.get(target, -1)
        if ends not in self._links:
            return False
        self._links[ends].latency_ns = self.latency_ns(latency_ms, line)
        return True

    def add_missing_directions(self) -> int:
        """Let links that are listed one way only lead both ways; how many were added."""
        one_way = [((v, u), link) for (u, v), link in self._links.items() if (v, u) not in self._links]
        self._links.update(one_way)
        return len(one_way)

    def latency_ns(self, text: str, line: int) -> int:
        """Milliseconds as written, in ns; −1 for none."""
        if not text.strip():
            return -1
        value = self._decimal(text, "latency", line)
        if not 0 <= value <= _MAX_LATENCY_MS:
            raise self.error(f"a latency is 0 ms to {_MAX_LATENCY_MS} ms, this is {text.strip()}", line)
        return int(value * _NS_PER_MS)

    def finish(self, *, needs_links: bool = True) -> Topology:
        """The topology of all that was added."""
        if not self._links and needs_links:
            raise self.error("no links", action="give a file with at least one link")
        ordered = sorted(self._links.items())
        unit, weights = self._whole_weights([link for _, link in ordered])
        degree = np.bincount(np.array([u for (u, _), _ in ordered], dtype=np.int64), minlength=len(self._routers))
        return Topology(
            names=tuple(self._routers),
            first=np.concatenate(([0], np.cumsum(degree))),
            target=np.array([v for (_, v), _ in ordered], dtype=np.int32),
            weight=weights,
            latency_ns=np.array([link.latency_ns for _, link in ordered], dtype=np.int64),
            weight_unit=unit,
            remarks=tuple(self.remarks),
            rates={ends: link.rate for ends, link in ordered if link.rate},
            places=dict(self._places),
        )

    def _weight(self, text: str, line: int) -> Decimal:
        if not text.strip():
            raise self.error("the link has no weight", line, "give every link a weight above 0")
        value = self._decimal(text, "weight", line)
        if value <= 0:
            raise self.error(f"a weight is above 0, this is {text.strip()}", line, "give every link a weight above 0")
        if value >= _MAX_DISTANCE or len(value.as_tuple().digits) > _MAX_DIGITS or _decimals(value) > MAX_DECIMALS:
            raise self.error(
                f"a weight of {text.strip()[:40]}", line, f"use at most {MAX_DECIMALS} decimals, below 2^61"
            )
        return value

    def _decimal(self, text: str, what: str, line: int) -> Decimal:
        try:
            value = Decimal(text.strip()) if len(text) <= MAX_NAME else None
        except InvalidOperation:
            value = None
        if value is None or not value.is_finite():
            raise self.error(f"the {what} {text.strip()[:40]!r} is not a number", line)
        return value

    def _whole_weights(self, links: Sequence[_Link]) -> tuple[int, NDArray[np.int64]]:
        """The unit that makes all weights whole, and the weights in it; sums along any path fit 61 bits."""
        if not links:
            return 1, np.empty(0, dtype=np.int64)
        decimals = max(_decimals(link.weight) for link in links)
        unit = 10**decimals
        heaviest = max(links, key=lambda link: link.weight)
        if heaviest.weight * unit * len(self._routers) >= _MAX_DISTANCE:
            action = "use fewer decimals or smaller weights"
            raise self.error(f"paths of weight {heaviest.weight} links do not fit 61 bits", heaviest.line, action)
        return unit, np.array([int(link.weight * unit) for link in links], dtype=np.int64)


def _decimals(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def triangle() -> Topology:
    """Three routers a, b, c in a ring of equal weights, for examples."""
    builder = TopologyBuilder("triangle")
    for source, target in ("ab", "bc", "ca"):
        builder.add_link(source, target, "1", line=1)
    builder.add_missing_directions()
    return builder.finish()


FORMATS = "*.weights.intra (Rocketfuel), *.graphml, *.gml, *.csv (source,target,weight[,latency_ms][,rate])"
MAX_BYTES = 64_000_000
MAX_GRAPH_BYTES = 16_000_000
_GRAPHS = (".graphml", ".gml")
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
    _reader_of(path)  # a wrong ending is said first, whatever is there
    return topology_of(_content(path, _most_bytes(path)), path, directed=directed, is_on_disk=True)


def topology_of(content: bytes, path: Path, *, directed: bool | None = None, is_on_disk: bool = False) -> Topology:
    """The same of a file's content; its name tells the format, and errors name it. Only beside one that is on disk
    another is looked for."""
    builder, read = TopologyBuilder(str(path), is_on_disk=is_on_disk), _reader_of(path)
    read(_text_of(content, path), builder)
    if directed is False or (directed is None and path.suffix.lower() in _GRAPHS):
        builder.add_missing_directions()
    return builder.finish()


def _reader_of(path: Path) -> Callable[[str, TopologyBuilder], None]:
    """What reads files with such an ending."""
    readers = {".intra": _read_rocketfuel, ".csv": _read_csv, ".gml": _read_gml, ".graphml": _read_graphml}
    ending = path.suffix.lower()
    if ending not in readers:
        raise UsageError("the file's ending names no known format", where=str(path), action=f"known are {FORMATS}")
    return readers[ending]


def _most_bytes(path: Path) -> int:
    return MAX_GRAPH_BYTES if path.suffix.lower() in _GRAPHS else MAX_BYTES


def _content(path: Path, most_bytes: int) -> bytes:
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TopologyError(f"more than {most_bytes} bytes", where=str(path), action="plan on a part of the network")
    return content


def _text_of(content: bytes, path: Path) -> str:
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
    if not (builder.is_on_disk and path.name.endswith(_ROCKETFUEL_WEIGHTS) and beside.exists()):
        return
    errors = TopologyBuilder(str(beside))
    for line, source, target, latency in _rocketfuel_lines(_text_of(_content(beside, MAX_BYTES), beside), errors):
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
    numbers = [builder.add_router(name, 0) for name in names.values()]
    for number, node in zip(numbers, nodes, strict=True):
        builder.set_place(number, node.get("longitude", ""), node.get("latitude", ""))
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
