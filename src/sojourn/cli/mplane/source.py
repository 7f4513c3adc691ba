"""Where the monitoring station's commands take a path and the measurements of its segments from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    from sojourn.cli.fleet.unit_access import UnitAccess
    from sojourn.mplane.measurements import SegmentMeasurement
    from sojourn.mplane.planning.path_segments import PathSegments

__all__ = [
    "FilesArgument",
    "FromOption",
    "ToOption",
    "TopologyOption",
    "UpgradedOption",
    "path_reader",
    "read_path",
    "read_range",
    "read_segments",
]

FilesArgument: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Measurements: JSON lines of probe -w, or routers' epochs; or --server."),
]
FromOption: TypeAlias = Annotated[str, typer.Option("--from", metavar="NODE", help="Where the path begins.")]
ToOption: TypeAlias = Annotated[str, typer.Option("--to", metavar="NODE", help="Where it ends.")]
TopologyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--topology", "-t", metavar="TOPOLOGY", help="A file, or a live router: frr:, frr:/FOLDER, lab:ROUTER."
    ),
]
UpgradedOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="A,B,…", help="The upgraded routers; may be given again.")
]
_JSON_STARTS = b"{ \r\n\t"


def read_path(
    topology: str, source: str, target: str, upgraded: list[str] | None, *, directed: bool | None, names: Path | None
) -> PathSegments:
    """The paths from one router to another, and their segments."""
    from sojourn.cli.mplane.planning import split_names
    from sojourn.cli.mplane.topology_source import read_source
    from sojourn.mplane.planning.path_segments import path_segments
    from sojourn.mplane.planning.paths import shortest_paths

    network = read_source(topology, directed=directed, names=names)
    marked = {name for text in upgraded or [] for name in split_names(text, network.index)}
    return path_segments(shortest_paths(network), source, target, marked)


def path_reader(
    topology: str, source: str, target: str, upgraded: list[str] | None, *, directed: bool | None, names: Path | None
) -> Callable[[], PathSegments]:
    """A function that gives the paths as they are now: a live router is asked each time, a file is read once."""
    from sojourn.cli.mplane.topology_source import live_source

    def read() -> PathSegments:
        return read_path(topology, source, target, upgraded, directed=directed, names=names)

    return read if live_source(topology, names=names) is not None else cache(read)


def read_segments(
    files: list[Path] | None, unit: UnitAccess | None, since_ns: int, until_ns: int
) -> list[SegmentMeasurement]:
    """Measurements of a range of time: those of files, or without any those of a query unit."""
    if not files and unit is None:
        raise UsageError("there are no measurements", where="mplane", action="give FILE… or --server URL")
    if not files and unit is not None:
        with unit.client() as client:
            return client.segments(max(since_ns, 0), until_ns)
    found: list[SegmentMeasurement] = []
    for path in files or []:
        found += _read_file(path)
    return [one for one in found if since_ns <= one.start_ns <= until_ns]


def _read_file(path: Path) -> list[SegmentMeasurement]:
    """JSON lines of measurements, or a sequence of routers' epochs."""
    from sojourn.epochs.wire import read_epochs
    from sojourn.mplane.measurement_rows import read_measurements
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
            f"{text[:60]!r} is no range of time", where=where, action="write TIME..TIME, such as -10m..-5m"
        )
    begin, end = parse_time(first), parse_time(last)
    if begin >= end:
        raise UsageError("the range ends before it begins", where=where, action="write the earlier time first")
    return begin, end
