"""How a routed lab and traffic through it are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.cli.output import Format, TableColumn, print_json, write_rows
from sojourn.core.units import format_duration, format_rate

if TYPE_CHECKING:
    from sojourn.lab.routed.network import RoutedLab
    from sojourn.lab.routed.plan import Node
    from sojourn.lab.routed.traffic import TrafficReport

__all__ = ["print_status", "print_traffic"]

_NODE_TABLE = [
    TableColumn("node", "node", justify="left"),
    TableColumn("kind", "kind", justify="left"),
    TableColumn("address", "address", justify="left"),
    TableColumn("namespace", "namespace", justify="left"),
    TableColumn("pids", "processes", justify="left"),
    TableColumn("neighbours", "neighbours", justify="left"),
]


def print_status(lab: RoutedLab, how: Format) -> None:
    """A line per node; as JSON with its links."""
    from sojourn.core.errors import SojournError

    lacking = lab.converged() if lab.state.is_built else "it was begun and not finished"
    try:
        links_up = lab.links_up()
    except SojournError:  # namespaces that someone removed
        links_up = set()
    if how is Format.JSON:
        print_json(
            {
                "name": lab.state.name,
                "converged": lacking is None,
                "lacking": lacking,
                "folder": str(lab.state.folder),
                "routers": [_node(lab, node, links_up) for node in lab.plan.routers],
                "hosts": [{**_node(lab, node, links_up), "router": node.router} for node in lab.plan.hosts],
            }
        )
        return
    columns: dict[str, list[object]] = {
        "node": [node.name for node in lab.plan.nodes],
        "kind": ["router" if node.is_router else "host" for node in lab.plan.nodes],
        "address": [node.address for node in lab.plan.nodes],
        "namespace": [lab.state.namespace(node) for node in lab.plan.nodes],
        "pids": [" ".join(map(str, _pids(lab, node).values())) for node in lab.plan.nodes],
        "neighbours": [_neighbours(lab, node, links_up) for node in lab.plan.nodes],
    }
    write_rows([columns], how, name="nodes", table=_NODE_TABLE)
    if how is Format.TABLE:
        print("converged" if lacking is None else f"not converged: {lacking}")


def _node(lab: RoutedLab, node: Node, links_up: set[frozenset[str]]) -> dict[str, object]:
    links = []
    for end, link in lab.plan.ends_of(node.name):
        other = next(name for name in link.names if name != node.name)
        is_up = frozenset(link.names) in links_up
        links.append(
            {
                "neighbour": other,
                "interface": end.interface,
                "address": end.address,
                "cost": end.cost,
                "is_up": is_up,
            }
        )
    return {
        "name": node.name,
        "namespace": lab.state.namespace(node),
        "address": node.address,
        "pids": _pids(lab, node),
        "links": links,
    }


def _pids(lab: RoutedLab, node: Node) -> dict[str, int]:
    from sojourn.lab.routed.routers import daemon_pids

    return daemon_pids(lab.state.folder / node.label) if node.is_router else {}


def _neighbours(lab: RoutedLab, node: Node, links_up: set[frozenset[str]]) -> str:
    names = [
        (next(name for name in link.names if name != node.name), frozenset(link.names) in links_up)
        for _end, link in lab.plan.ends_of(node.name)
    ]
    return ", ".join(name if is_up else f"{name} (down)" for name, is_up in names)


def print_traffic(source: str, target: str, report: TrafficReport, how: Format) -> None:
    """What was sent and what arrived."""
    columns: dict[str, list[object]] = {
        "from": [source],
        "to": [target],
        "packets": [report.packets],
        "lost": [report.lost],
        "jitter_ns": [report.jitter_ns],
        "rate": [report.rate],
        "seconds": [report.seconds],
    }
    if how is Format.JSON:
        print_json({name: values[0] for name, values in columns.items()})
        return
    table = [
        TableColumn("from", "from", justify="left"),
        TableColumn("to", "to", justify="left"),
        TableColumn("packets", "packets", "{:,}".format),
        TableColumn("lost", "lost", "{:,}".format),
        TableColumn("jitter_ns", "jitter", format_duration),
        TableColumn("rate", "received", format_rate),
    ]
    write_rows([columns], how, name="traffic", table=[c for c in table if columns[c.name] != [None]])
