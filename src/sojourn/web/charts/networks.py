"""A network drawn: nodes coloured by delay, links by traffic or by how their delay changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.units import plural
from sojourn.web.charts.axes import chart, empty, finite, spreads, tooltip
from sojourn.web.charts.scripts import formatter, of_power
from sojourn.web.charts.tokens import LIGHT, Option

_ROUNDS, _MANY = 50, 500  # of springs; with more nodes a round takes seconds, and there are fewer of them
_UNITS = 1000.0
_WIDER = 1.5
_NAMED = 60  # of more nodes only those that are marked have their name beside them


@dataclass(frozen=True)
class Node:
    """A node: its value (a delay, say) gives its colour, `x` and `y` its place on a map (`y` grows upwards)."""

    name: str
    value: float | None = None
    x: float | None = None
    y: float | None = None
    is_marked: bool = False  # the sink, an upgraded router
    colour: str = ""  # other than by its value


@dataclass(frozen=True)
class Link:
    """A link between two nodes by their numbers; `weight` (0 to 1) is its width, marked ones stand out."""

    source: int
    target: int
    weight: float = 0.0
    is_marked: bool = False
    note: str = ""
    colour: str = ""
    is_broken: bool = False


def placed(nodes: Sequence[Node], links: Sequence[Link]) -> list[Node]:
    """The nodes with a place each, as they are if all have one; else where springs along the links put them.

    They (Fruchterman and Reingold) give the same every time, in 0.1 s for 200 nodes and 0.5 s for 400: whoever draws
    often keeps the places. The longest way through them lies across, as screens are wider than high.
    """
    if all(node.x is not None and node.y is not None for node in nodes):
        return list(nodes)
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from((link.source, link.target) for link in links)
    rounds = _ROUNDS if len(nodes) < _MANY else max(5, _ROUNDS * _MANY**2 // (4 * len(nodes) ** 2))
    springs = networkx.spring_layout(graph, seed=1, iterations=rounds)
    places = _across(np.array([springs[k] for k in range(len(nodes))]))
    return [replace(node, x=float(x), y=float(y)) for node, (x, y) in zip(nodes, places, strict=True)]


def _across(places: FloatArray) -> FloatArray:
    """Places turned so that they spread most from left to right, and at least `_WIDER` times as far as up and down."""
    centred = places - places.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    turned: FloatArray = centred @ directions.T if len(directions) == 2 else centred
    width, height = np.ptp(turned, axis=0)
    if 0 < width < _WIDER * height:
        turned[:, 0] *= _WIDER * height / width
    return turned


def network(
    nodes: Sequence[Node],
    links: Sequence[Link],
    *,
    unit: str = "ns",
    quantity: str = "delay",
    directed: bool = False,
    scale: Sequence[float] = (),
) -> Option:
    """Nodes at their places if all have one, else where `placed` puts them; logarithmic colours for decades.

    Colours span the values, and those of `scale`: of one drawing beside others that shall be compared with it.
    """
    if not nodes:
        return empty("There is no network to show", "Load a topology, or upload a trace.")
    values = [*(node.value for node in nodes), *scale]
    is_log = spreads(values)
    nodes = placed(nodes, links)
    places = _on_screen(nodes)
    series: Option = {
        "type": "graph",
        "name": quantity,
        "layout": "none",
        "preserveAspect": "contain",
        "roam": True,
        "data": [_node(node, len(nodes), is_log=is_log) | place for node, place in zip(nodes, places, strict=True)],
        "links": [_link(link) for link in links],
        "edgeSymbol": ["none", "arrow"] if directed else ["none", "none"],
        "edgeSymbolSize": 6,
        "label": {"show": len(nodes) <= _NAMED, "position": "right", "color": LIGHT.text, "fontSize": 11},
        "labelLayout": {"hideOverlap": True},
        "emphasis": {"focus": "adjacency", "label": {"show": True}},
        "left": 16, "right": 48 if len(nodes) <= _NAMED else 16, "top": 12, "bottom": 52,
    }  # fmt: skip
    described = f"Network of {plural(len(nodes), 'node')} and {plural(len(links), 'link')}"
    option = chart(described, [series], tooltip=tooltip(unit, trigger="item"))
    option.pop("grid")
    known = finite(values)
    if known:
        scaled = [_scaled(value, is_log) for value in known]
        low, high = min(scaled), max(scaled)
        write = of_power(unit) if is_log else formatter(unit)
        option["visualMap"] = {
            "type": "continuous",
            "dimension": 0,
            "seriesIndex": 0,
            "min": low,
            "max": high if high > low else low + 1,
            "calculable": True,
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemWidth": 12,
            "itemHeight": 140,
            "textStyle": {"color": LIGHT.muted},
            "inRange": {"color": list(LIGHT.heat[1:])},
            "outOfRange": {"color": [LIGHT.grid]},
            ":formatter": write,
        }
        option["tooltip"][":valueFormatter"] = write
    return option


def _scaled(value: float, is_log: bool) -> float:
    return math.log10(value) if is_log else float(value)


def _on_screen(nodes: Sequence[Node]) -> list[Option]:
    """Places with y growing downwards, as many units wide as pixels: ECharts puts ends of lines on whole units."""
    x, y = [node.x or 0.0 for node in nodes], [node.y or 0.0 for node in nodes]
    scale = _UNITS / (max(max(x) - min(x), max(y) - min(y)) or 1.0)
    pairs = zip(x, y, strict=True)
    return [{"x": round((a - min(x)) * scale, 1), "y": round((max(y) - b) * scale, 1)} for a, b in pairs]


def _node(node: Node, count: int, *, is_log: bool) -> Option:
    size = 7 if count > _NAMED else 13
    drawn: Option = {
        "name": node.name,
        "value": None if node.value is None or not math.isfinite(node.value) else _scaled(node.value, is_log),
        "symbolSize": size + 6 if node.is_marked else size,
        "symbol": "diamond" if node.is_marked else "circle",
        "itemStyle": {"borderColor": LIGHT.axis, "borderWidth": 1},
    }
    if node.value is None:
        drawn["itemStyle"] |= {"color": node.colour or LIGHT.grey}
        drawn["visualMap"] = False
    if node.is_marked:
        drawn["label"] = {"show": True, "fontWeight": "bold"}
    return drawn


def _link(link: Link) -> Option:
    width = 1.0 + 4.0 * min(max(link.weight, 0.0), 1.0)
    colour = link.colour or (LIGHT.vermillion if link.is_marked else LIGHT.axis)
    stands_out = link.is_marked or bool(link.colour)
    return {
        "source": link.source,
        "target": link.target,
        "value": link.note,
        "lineStyle": {
            "width": width + 1.5 * link.is_marked,
            "color": colour,
            "opacity": 0.9 if stands_out else 0.5,
            "type": "dashed" if link.is_broken else "solid",
        },
        "tooltip": {"show": bool(link.note)},
    }
