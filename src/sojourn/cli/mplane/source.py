"""Where topologies, paths and measurements of segments come from: files, live routers, labs, a query unit."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sojourn.cli.options import CaFileOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.core.errors import UsageError
from sojourn.core.units import split_names

if TYPE_CHECKING:
    from sojourn.mplane.measurements import SegmentMeasurement
    from sojourn.mplane.planning.paths import PathSegments
    from sojourn.mplane.planning.topology import Topology

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
    Path | None, typer.Option("--names", metavar="FILE", help="What live routers are called: a CSV of router_id,name.")
]
# The lab that is meant where none is named, and the environment variable that names another.
DEFAULT_LAB = "default"
LAB_VARIABLE = "SOJOURN_LAB"
_LAB = "lab:"


def read_source(source: str, *, directed: bool | None = None, names: Path | None = None) -> Topology:
    """The topology of a file, or as a live router has it now."""
    from sojourn.mplane.planning.topology import read_topology

    live = live_reader(source, names=names)
    if live is not None:
        if directed is not None:
            raise UsageError("a live topology has its directions", where=source, action="leave --directed out")
        return live(True)
    if names is not None:
        raise UsageError("--names are for live routers", where=source, action="name routers in the file itself")
    return read_topology(Path(source), directed=directed)


def live_reader(source: str, *, names: Path | None = None) -> Callable[[bool], Topology] | None:
    """A function that reads a live topology, given whether it needs links; None where the source is a file."""
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


_JSON_STARTS = b"{ \r\n\t"


@dataclass(frozen=True)
class PathOptions:
    """A path, and where what was measured of its segments comes from: a group of options."""

    source: Annotated[str, typer.Option("--from", metavar="NODE", help="Where the path begins.")]
    target: Annotated[str, typer.Option("--to", metavar="NODE", help="Where it ends.")]
    topology: Annotated[
        str,
        typer.Option(
            "--topology", "-t", metavar="TOPOLOGY", help="A file, or a live router: frr:, frr:/FOLDER, lab:ROUTER."
        ),
    ]
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Measurements: JSON lines of probe -w, or routers' epochs; or --server."
        ),
    ] = None
    upgraded: Annotated[
        list[str] | None, typer.Option(metavar="A,B,…", help="The upgraded routers; may be given again.")
    ] = None
    names: NamesOption = None
    dscp: Annotated[int, typer.Option(min=0, max=63, help="The class of traffic.")] = 0
    directed: DirectedOption = None
    server: Annotated[
        str | None, typer.Option(envvar="SOJOURN_SERVER", metavar="URL", help="Ask a query unit instead of files.")
    ] = None
    token: TokenOption = None
    token_file: TokenFileOption = None
    ca_file: CaFileOption = None

    def read(self) -> PathSegments:
        """The paths from one router to another, and their segments."""
        from sojourn.mplane.planning.paths import path_segments, shortest_paths

        network = read_source(self.topology, directed=self.directed, names=self.names)
        marked = {name for text in self.upgraded or [] for name in split_names(text, network.index)}
        return path_segments(shortest_paths(network), self.source, self.target, marked)

    def reader(self) -> Callable[[], PathSegments]:
        """A function that gives the paths as they are now: a live router is asked each time, a file is read once."""
        return cache(self.read) if live_source(self.topology, names=self.names) is None else self.read

    def measurements(self, since_ns: int, until_ns: int) -> list[SegmentMeasurement]:
        """Measurements of a range of time: those of files, or without any those of a query unit."""
        if self.files:
            found = [one for path in self.files for one in _read_file(path)]
            return [one for one in found if since_ns <= one.start_ns <= until_ns]
        if not self.server:
            raise UsageError("there are no measurements", where="mplane", action="give FILE… or --server URL")
        with UnitAccess(self.server, self.token, self.token_file, self.ca_file).client() as client:
            return client.measurements(max(since_ns, 0), until_ns)


def _read_file(path: Path) -> list[SegmentMeasurement]:
    """JSON lines of measurements, or a sequence of routers' epochs."""
    from sojourn.epochs.wire import read_epochs
    from sojourn.mplane.measurements import read_measurements
    from sojourn.mplane.router.epochs import segment_measurements

    with open(path, "rb") as file:
        first = file.read(1)
        if not first or first in _JSON_STARTS:
            return list(read_measurements(path))
        file.seek(0)
        return segment_measurements(read_epochs(file))


def read_range(text: str, *, where: str) -> tuple[int, int]:
    """Two times from ``TIME..TIME``."""
    from sojourn.core.units import parse_time

    first, dots, last = text.partition("..")
    if not dots:
        raise UsageError(
            f"{text[:60]!r} is not a range of time", where=where, action="write TIME..TIME, such as -10m..-5m"
        )
    begin, end = parse_time(first), parse_time(last)
    if begin >= end:
        raise UsageError("the range ends before it begins", where=where, action="write the earlier time first")
    return begin, end
