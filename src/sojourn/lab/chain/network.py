"""Three machines in a row, as hosts are: namespaces with offload on, beside a network that is for the fleet alone.

::

    source ── eth0    left ── router ── right ══ near ── wire ── far ══ eth0 ── sink
           10.97.1.2   10.97.1.1  10.97.2.1                       10.97.2.2
       └── fleet ────────────┴── fleet ──────── station (10.98.0.1) ──── fleet ──┘

`three_machines` builds it, and removes it whatever happens. What the router sends passes a `Bottleneck` each way, if
there is one: a capture taps an interface *after* its queue, so the wait shows between `left` and `right`. The wire is
there only with a `Disturbance`; without it `right` and the sink's `eth0` are ends of one cable.

Guarantee: what agents and the query unit send goes over the ports named ``fleet`` and is on no measured interface.
Segmentation and receive offload are on, as on any host; but for the cables of the wire, which carries packets as they
were sent and nothing that was put together. Neighbours know each other from the start, so that no packet that waits
until its next hop is found is overtaken by a later one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sojourn.lab.chain.forwarder import Disturbance, RunningForwarder, forwarder
from sojourn.lab.namespaces import (
    Bottleneck,
    Host,
    cable,
    check_can_build,
    give_address,
    new_host,
    new_label,
    remove_leftovers,
    route_through,
    shape,
    wait_until_up,
)

FLEET_PORT, BRIDGE = "fleet", "bridge"
STATION_ADDRESS = "10.98.0.1"


@dataclass(frozen=True)
class Chain:
    """The machines, the station of the query unit, and what disturbs packets between the router and the sink."""

    source: Host
    router: Host
    sink: Host
    station: Host
    wire: RunningForwarder | None = None

    @property
    def machines(self) -> tuple[Host, Host, Host]:
        return self.source, self.router, self.sink

    def set_bottleneck(self, forward: Bottleneck | None = None, *, back: Bottleneck | None = None) -> None:
        """Packets towards the sink, and those back, pass these token buckets from now on; None changes nothing."""
        for port, bottleneck in (("right", forward), ("left", back)):
            if bottleneck is not None:
                shape(self.router, port, bottleneck)


@contextmanager
def three_machines(
    forward: Bottleneck | None = None,
    *,
    back: Bottleneck | None = None,
    disturbance: Disturbance | None = None,
    seed: int = 1,
) -> Iterator[Chain]:
    """Build the network of the module's picture; remove it and stop its processes at the end."""
    check_can_build()
    remove_leftovers()
    label = new_label()
    with ExitStack() as stack:
        names = ("source", "router", "sink", "station")
        source, router, sink, station = (stack.enter_context(new_host(name, label)) for name in names)
        cable((source, "eth0"), (router, "left"), offload=True)
        wire = None
        if disturbance is None:
            cable((router, "right"), (sink, "eth0"), offload=True)
        else:
            middle = stack.enter_context(new_host("wire", label))
            cable((router, "right"), (middle, "near"), offload=False)
            cable((middle, "far"), (sink, "eth0"), offload=False)
            wire = stack.enter_context(forwarder(middle, ("near", "far"), disturbance, seed=seed))
        for host, port, subnet, last in ((router, "left", 1, 1), (router, "right", 2, 1), (source, "eth0", 1, 2)):
            give_address(host, port, subnet=subnet, last=last)
        give_address(sink, "eth0", subnet=2, last=2)
        route_through(router, source, sink)
        for one, other in (((source, "eth0"), (router, "left")), ((router, "right"), (sink, "eth0"))):
            _introduce(one, other)
            _introduce(other, one)
        _connect_fleet(station, (source, router, sink))
        chain = Chain(source, router, sink, station, wire)
        chain.set_bottleneck(forward, back=back)
        wait_until_up([*chain.machines, station])
        yield chain


def _introduce(one: tuple[Host, str], other: tuple[Host, str]) -> None:
    """A host knows its neighbour's hardware: packets that wait until it is known are overtaken by later ones."""
    (host, port), (neighbour, its_port) = one, other
    shown = json.loads(neighbour.run("ip", "-json", "address", "show", "dev", its_port))[0]
    for address in (each["local"] for each in shown["addr_info"] if each["scope"] == "global"):
        host.run("ip", "neighbour", "replace", address, "lladdr", shown["address"], "dev", port, "nud", "permanent")


def _connect_fleet(station: Host, machines: tuple[Host, ...]) -> None:
    station.address = STATION_ADDRESS
    station.run("ip", "link", "add", BRIDGE, "type", "bridge")
    station.run("ip", "address", "add", f"{STATION_ADDRESS}/24", "dev", BRIDGE)
    station.run("ip", "link", "set", BRIDGE, "up")
    for number, machine in enumerate(machines, 2):
        cable((station, machine.name), (machine, FLEET_PORT), offload=True)
        station.run("ip", "link", "set", machine.name, "master", BRIDGE)
        machine.run("ip", "address", "add", f"10.98.0.{number}/24", "dev", FLEET_PORT)
