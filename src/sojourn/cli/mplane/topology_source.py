"""Where a topology comes from: a file, a router's OSPF, or a router of a lab."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from sojourn.mplane.planning.topology import Topology

__all__ = [
    "DEFAULT_LAB",
    "LAB_VARIABLE",
    "DirectedOption",
    "NamesOption",
    "TopologyArgument",
    "live_reader",
    "live_source",
    "read_source",
    "title_of",
]

TopologyArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help="AS.weights.intra (Rocketfuel), .graphml, .gml or .csv; a live router: frr:, frr:/FOLDER, lab:ROUTER.",
    ),
]
DirectedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--directed/--undirected",
        help="Take links one way as listed, or both ways; by default the first for .intra and .csv.",
        show_default=False,
    ),
]
NamesOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--names", metavar="FILE", help="What live routers are called: a CSV of router_id,name."),
]
# The lab that is meant where none is named, and the environment variable that says otherwise.
DEFAULT_LAB = "default"
LAB_VARIABLE = "SOJOURN_LAB"
_LAB = "lab:"


def read_source(source: str, *, directed: bool | None = None, names: Path | None = None) -> Topology:
    """The topology of a file, or as a live router has it now."""
    from sojourn.mplane.planning.topology_files import read_topology

    live = live_reader(source, names=names)
    if live is not None:
        if directed is not None:
            raise UsageError("a live topology has its directions", where=source, action="leave --directed out")
        return live(True)
    if names is not None:
        raise UsageError("--names are for live routers", where=source, action="name routers in the file itself")
    return read_topology(Path(source), directed=directed)


def live_reader(source: str, *, names: Path | None = None) -> Callable[[bool], Topology] | None:
    """A function that reads a live topology, told whether it needs links; None where the source is a file."""
    from sojourn.mplane.planning.live_topology import read_live_topology

    found = live_source(source, names=names)
    if found is None:
        return None
    place, known = found
    return lambda needs_links: read_live_topology(place, names=known, needs_links=needs_links)


def live_source(source: str, *, names: Path | None = None) -> tuple[str, dict[str, str]] | None:
    """The router that a live source means, and routers' names by their ids; None where the source is a file."""
    from sojourn.mplane.planning.live_topology import is_live, read_router_names

    known: dict[str, str] = {}
    if source.startswith(_LAB):
        source, known = _in_lab(source)
    elif not is_live(source):
        return None
    if names is not None:
        known |= read_router_names(names)
    return source, known


def _in_lab(source: str) -> tuple[str, dict[str, str]]:
    """The sockets of a lab's router, ``lab:[NAME/]ROUTER`` or just ``lab:``, and the names of all by router id."""
    from sojourn.lab.routed.state import read_lab
    from sojourn.mplane.planning.live_topology import SCHEME

    place = source.removeprefix(_LAB)
    name, separator, router = place.partition("/")
    state = read_lab(name if separator else os.environ.get(LAB_VARIABLE) or DEFAULT_LAB)
    wanted = router if separator else place
    node = state.plan.node(wanted) if wanted else state.plan.routers[0]
    if not node.is_router:
        raise UsageError(f"{node.name} is a host", where=source, action="name a router")
    return f"{SCHEME}{state.folder / node.label}", {node.address: node.name for node in state.plan.routers}


def title_of(source: str) -> str:
    """What a plot of the topology is headed with."""
    return Path(source).name or source
