"""Graphs as drawing tools and the Topology Zoo write them: GraphML and GML.

Routers have their labels for names (``label``, ``name``, yEd's ``NodeLabel``), their ids where there is none, and both
where labels repeat. A link's weight is its attribute ``weight``, ``cost`` or ``metric``; where no link has one, all
weigh 1. Its latency in milliseconds is ``latency_ms`` or ``latency``. Of parallel links the lightest stays, as paths
are told apart by their routers; loops are left out. What was done about these is said in the topology's remarks.

GraphML is read as a stream by the standard library's expat; entities, which could grow without bound or name other
files, are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from xml.parsers import expat

from sojourn.core.errors import TopologyError
from sojourn.mplane.planning.topology import TopologyBuilder

__all__ = ["read_gml", "read_graphml"]

_LABELS = ("label", "name", "NodeLabel")
_WEIGHTS = ("weight", "cost", "metric")
_LATENCIES = ("latency_ms", "latency")
_WANTED = {name.lower() for name in (*_LABELS, *_WEIGHTS, *_LATENCIES)}
_MAX_DEPTH = 100
# Of one attribute; text comes in pieces, and joining them must not cost the square of a label's length.
_MAX_CHARACTERS = 4096
_GML_TOKEN = re.compile(r'"[^"]*"|\[|\]|[^\s\[\]"]+|"|\n')


@dataclass
class _Item:
    """A node or an edge while it is read: its line and all its attributes, as texts."""

    line: int
    values: dict[str, str] = field(default_factory=dict)

    def first_of(self, names: tuple[str, ...]) -> str:
        """The first of some attributes that is there and not empty."""
        lower = {name.lower(): value for name, value in self.values.items()}
        return next((lower[n.lower()].strip() for n in names if lower.get(n.lower(), "").strip()), "")


def read_graphml(text: str, builder: TopologyBuilder) -> None:
    """Hand a GraphML file's routers and links to `builder`."""
    reader = _GraphMlReader(builder)
    try:
        reader.parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise builder.error(f"no XML: {expat.ErrorString(error.code)}", error.lineno) from None
    _hand_over(reader.nodes, reader.edges, builder)


class _GraphMlReader:
    """Collects nodes and edges from expat's events."""

    def __init__(self, builder: TopologyBuilder) -> None:
        self.builder = builder
        self.nodes: list[_Item] = []
        self.edges: list[_Item] = []
        self._keys: dict[str, str] = {}
        self._open: list[tuple[str, _Item | None]] = []
        self._field = ""
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse_entity

    def _refuse_entity(self, name: str, *_rest: Any) -> None:
        raise self._error(f"it declares the entity {name[:40]!r}", "remove the declaration")

    def _error(self, what: str, action: str = "") -> TopologyError:
        return self.builder.error(what, self.parser.CurrentLineNumber, action)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(" ")[2]
        if not self._open and tag != "graphml":
            raise self._error(f"it begins with <{tag[:40]}>, GraphML with <graphml>")
        if len(self._open) >= _MAX_DEPTH:
            raise self._error(f"elements inside one another, more than {_MAX_DEPTH} deep")
        item = self._open[-1][1] if self._open else None
        if tag == "hyperedge":
            raise self._error("a hyperedge", "join routers by edges of two ends")
        if tag in ("node", "edge"):
            item = _Item(self.parser.CurrentLineNumber, dict(attributes))
            (self.nodes if tag == "node" else self.edges).append(item)
        elif tag == "key":
            self._keys[attributes.get("id", "")] = attributes.get("attr.name", "")
        name = self._keys.get(attributes.get("key", ""), "") if tag == "data" else ""
        # Attributes of GraphML's own (id, source, target) are none of these, so nothing takes their place.
        self._field = tag if tag == "NodeLabel" else name if name.lower() in _WANTED else ""
        self._open.append((tag, item))

    def _end(self, _name: str) -> None:
        self._open.pop()
        self._field = ""

    def _text(self, text: str) -> None:
        item = self._open[-1][1] if self._open else None
        if item is None or not self._field:
            return
        value = item.values.get(self._field, "") + text
        if len(value) > _MAX_CHARACTERS:
            raise self._error(f"a {self._field} of more than {_MAX_CHARACTERS} characters", "shorten it")
        item.values[self._field] = value


def read_gml(text: str, builder: TopologyBuilder) -> None:
    """Hand a GML file's routers and links to `builder`."""
    nodes: list[_Item] = []
    edges: list[_Item] = []
    # The open brackets: what each belongs to, and the node or edge it is part of.
    stack: list[tuple[str, _Item | None]] = []
    key, line = "", 0
    for line, token in _gml_tokens(text):
        if token == "]":
            if key or not stack:
                raise builder.error("a ']' where a value or nothing is expected", line)
            stack.pop()
        elif not key:
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", token):
                raise builder.error(f"the name of an attribute is expected, not {token[:40]!r}", line)
            key = token
        elif token == "[":
            stack.append((key, _gml_item(key, line, stack, nodes, edges)))
            if len(stack) > _MAX_DEPTH:
                raise builder.error(f"brackets inside one another, more than {_MAX_DEPTH} deep", line)
            key = ""
        else:
            if len(token) > _MAX_CHARACTERS and key.lower() in _WANTED:
                raise builder.error(f"a {key} of more than {_MAX_CHARACTERS} characters", line, "shorten it")
            if stack and stack[-1][1] is not None and stack[-1][0] in ("node", "edge"):
                stack[-1][1].values[key] = unescape(token.strip('"'))
            key = ""
    if stack or key:
        raise builder.error("it ends inside a bracket or before a value", line, "give the whole file")
    _hand_over(nodes, edges, builder)


def _gml_item(
    key: str, line: int, stack: list[tuple[str, _Item | None]], nodes: list[_Item], edges: list[_Item]
) -> _Item | None:
    """A new node or edge, where `key` opens one."""
    if [name for name, _ in stack] != ["graph"] or key not in ("node", "edge"):
        return None
    item = _Item(line)
    (nodes if key == "node" else edges).append(item)
    return item


def _gml_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of brackets, names, numbers and strings; comment lines left out."""
    line = 1
    comment = 0
    for match in _GML_TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
            continue
        if token.startswith("#"):
            comment = line
        if comment != line:
            yield line, token
        line += token.count("\n")


def _hand_over(nodes: list[_Item], edges: list[_Item], builder: TopologyBuilder) -> None:
    names = _names(nodes, builder)
    for item in nodes:
        builder.add_router(names[item.values["id"]], item.line)
    has_weights = any(edge.first_of(_WEIGHTS) for edge in edges)
    parallel, loops = 0, 0
    for edge in edges:
        ends = [edge.values.get(end, "") for end in ("source", "target")]
        for end in ends:
            if end not in names:
                raise builder.error(f"a link to a router {end[:40]!r} that is not in the file", edge.line)
        if ends[0] == ends[1]:
            loops += 1
            continue
        weight = edge.first_of(_WEIGHTS) if has_weights else "1"
        latency = edge.first_of(_LATENCIES)
        source, target = (names[end] for end in ends)
        is_new = builder.add_link(source, target, weight, latency_ms=latency, line=edge.line, is_parallel=True)
        parallel += not is_new
    if not has_weights:
        builder.remarks.append("no link has a weight: all weigh 1")
    if parallel:
        builder.remarks.append(f"{parallel} parallel links left out, the lightest kept")
    if loops:
        builder.remarks.append(f"{loops} links from a router to itself left out")


def _names(nodes: list[_Item], builder: TopologyBuilder) -> dict[str, str]:
    """Routers' names by id."""
    lines: dict[str, int] = {}
    for node in nodes:
        identity = node.values.get("id", "")
        if not identity:
            raise builder.error("a router without an id", node.line)
        if identity in lines:
            what = f"the router with the id {identity[:40]} is in line {lines[identity]} already"
            raise builder.error(what, node.line, "give routers ids of their own")
        lines[identity] = node.line
    labels = {node.values["id"]: node.first_of(_LABELS) for node in nodes}
    uses = Counter(labels.values())
    if shared := sum(count for label, count in uses.items() if label and count > 1):
        builder.remarks.append(f"{shared} routers share a label with others: their ids are part of their names")
    return {
        identity: label if label and uses[label] == 1 else f"{label} {identity}".strip()
        for identity, label in labels.items()
    }
