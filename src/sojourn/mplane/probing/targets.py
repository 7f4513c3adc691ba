"""What a node probes: the segments to its m-set, each with the address of its far end."""

from __future__ import annotations

from collections.abc import Mapping

from sojourn.core.errors import UsageError
from sojourn.mplane.measurements import Segment
from sojourn.mplane.planning.msets import MSets
from sojourn.mplane.planning.path_segments import path_segments
from sojourn.mplane.probing.plan import ProbeTarget

__all__ = ["m_set_segments", "m_set_targets"]


def m_set_segments(sets: MSets, node: str) -> list[Segment]:
    """The links and virtual links from a node to its m-set, nearest first.

    Where several equal-cost ones lead to a router, one stream of probes takes one of them and cannot tell which: the
    segment is then named by its ends alone.
    """
    names = sets.shortest.topology.names
    upgraded = {name for name, is_upgraded in zip(names, sets.upgraded, strict=True) if is_upgraded}
    found: list[Segment] = []
    for router in sets.of(sets.shortest.topology.router(node)).target.tolist():
        paths = [hops for hops, _ in path_segments(sets.shortest, node, names[router], upgraded).paths]
        own = [hops for hops in paths if not upgraded.intersection(hops[1:-1])]
        found.append(Segment.between(*own[0]) if len(own) == 1 else Segment.between(node, names[router]))
    return found


def m_set_targets(sets: MSets, node: str, addresses: Mapping[str, str], *, port: int) -> list[ProbeTarget]:
    """A node's segments with the addresses of the routers that they lead to."""
    targets = []
    for segment in m_set_segments(sets, node):
        if segment.hops[-1] not in addresses:
            action = "give it in the file of --names (router_id,name)"
            raise UsageError(f"the address of {segment.hops[-1]} is not known", where="probe", action=action)
        targets.append(ProbeTarget(segment, addresses[segment.hops[-1]], port))
    return targets
