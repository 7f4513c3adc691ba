"""The six routers that tests of the routed lab use, and what a lab leaves in the machine."""

from __future__ import annotations

from pathlib import Path

from sojourn.lab.namespaces import NAMESPACES
from sojourn.lab.routed.network import RoutedLab
from sojourn.lab.routed.state import FOLDER
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

# Between r1 and r6 there are two paths of cost 30; the link across costs too much for both.
SIX_LINKS = (
    ("r1", "r2", 10),
    ("r2", "r3", 10),
    ("r3", "r6", 10),
    ("r1", "r4", 10),
    ("r4", "r5", 10),
    ("r5", "r6", 10),
    ("r2", "r5", 15),
)


def six_routers() -> Topology:
    builder = TopologyBuilder("six routers")
    for number in range(1, 7):
        builder.add_router(f"r{number}", number)
    for line, (source, target, weight) in enumerate(SIX_LINKS, 2):
        builder.add_link(source, target, str(weight), line=line)
    builder.add_missing_directions()
    return builder.finish()


def bring_up(lab: RoutedLab) -> None:
    """Let all links be up again, and routing converge."""
    up = lab.links_up()
    for link in lab.plan.links:
        if frozenset(link.names) not in up:
            lab.link_up(*link.names)
    lab.wait_converged()


def traces(label: str) -> list[str]:
    """Namespaces, files and processes of a lab, by the beginning of its namespaces' names."""
    name = label.removeprefix("sojourn-").removeprefix("lab-")
    namespaces = [path.name for path in NAMESPACES.glob(f"{label}-*")]
    files = [str(path) for path in FOLDER.glob(f"{name}*")]
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"/{name}".encode() in (words := path.read_bytes()):
                processes.append(words.decode(errors="replace"))
        except OSError:
            continue
    return namespaces + files + processes
