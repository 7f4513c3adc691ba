"""What a node probes: the segments to its m-set, each with the address of its far end, as the topology changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sojourn.core.errors import SojournError, UsageError
from sojourn.mplane.measurements import Segment
from sojourn.mplane.planning.paths import path_segments
from sojourn.mplane.planning.segments import MSets
from sojourn.mplane.planning.topology import Topology
from sojourn.mplane.planning.watch import TopologyWatch
from sojourn.mplane.probing.plan import ProbeTarget


def m_set_segments(sets: MSets, node: str) -> list[Segment]:
    """The links and virtual links from a node to its m-set, nearest first.

    Where several equal-cost ones lead to a router, one stream of probes takes one of them, it is unknown which: the
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


class MSetTargets:
    """A node's m-set as targets, read from a topology that may change; without addresses a router's name is its own."""

    def __init__(
        self,
        node: str,
        read: Callable[[], Topology],
        upgraded: Sequence[str],
        addresses: Mapping[str, str],
        *,
        port: int,
        is_live: bool,
    ) -> None:
        self._node, self._addresses, self._port, self.is_live = node, addresses, port, is_live
        self._watch = TopologyWatch(read, upgraded)

    def read(self) -> list[ProbeTarget]:
        """What is to be probed now."""
        self._watch.poll(time.time_ns())
        sets = self._watch.sets
        assert sets is not None
        addresses = self._addresses or {name: name for name in sets.shortest.topology.names}
        return m_set_targets(sets, self._node, addresses, port=self._port)

    @contextmanager
    def followed(
        self, every_ns: int, report: Callable[[str], None]
    ) -> Iterator[Callable[[], list[ProbeTarget] | None]]:
        """A function that gives the newest targets once, None until they are read again.

        They are read in the background, so that probes leave in time.
        """
        found: list[list[ProbeTarget]] = []
        over = threading.Event()

        def follow() -> None:
            while not over.wait(every_ns / 1e9):
                try:
                    found[:] = [self.read()]
                except SojournError as error:
                    report(f"{error}; the targets stay")

        thread = threading.Thread(target=follow, name="routing", daemon=True)
        thread.start()
        try:
            yield lambda: found.pop() if found else None
        finally:
            over.set()
            thread.join()
