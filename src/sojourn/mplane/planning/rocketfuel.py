"""Rocketfuel maps: ``AS.weights.intra``, and the ``AS.latencies.intra`` beside it where there is one.

A line is ``router router value``, one for each direction of a link; latencies are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sojourn.mplane.planning.topology import TopologyBuilder

__all__ = ["read_latencies", "read_rocketfuel"]

_WEIGHTS = ".weights.intra"
_LATENCIES = ".latencies.intra"


def read_rocketfuel(text: str, path: Path, builder: TopologyBuilder) -> Path | None:
    """Hand all links of a weights file to `builder`; the path where their latencies would be."""
    if path.name.endswith(_LATENCIES):
        beside = path.name.removesuffix(_LATENCIES) + _WEIGHTS
        raise builder.error("these are latencies, which are read along with weights", action=f"give {beside}")
    for line, source, target, weight in _values(text, builder):
        builder.add_link(source, target, weight, line=line)
    if not path.name.endswith(_WEIGHTS):
        return None
    return path.with_name(path.name.removesuffix(_WEIGHTS) + _LATENCIES)


def read_latencies(text: str, links: TopologyBuilder, where: str) -> None:
    """Give links their latencies; a link that has no weight is an error of the pair of files."""
    complaints = TopologyBuilder(where)
    for line, source, target, latency in _values(text, complaints):
        complaints.latency_ns(latency, line)
        if not links.set_latency(source, target, latency, line):
            raise complaints.error(f"the link from {source} to {target} has a latency and no weight", line)


def _values(text: str, builder: TopologyBuilder) -> Iterator[tuple[int, str, str, str]]:
    """Line number and the three fields of every line that is not empty."""
    for number, content in enumerate(text.split("\n"), start=1):
        fields = content.split()
        if not fields:
            continue
        if len(fields) != 3:
            what = f"a line is 'router router value', this has {len(fields)} fields"
            raise builder.error(what, number, "see docs/commands/mplane.md for the formats")
        yield number, fields[0], fields[1], fields[2]
