"""The kernel's own word for where a packet leaves, kept until routes change."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

import numpy as np
import pytest

from machine import live_marks
from sojourn.capture.decode.ids import Keying
from sojourn.core.arrays import Int64Array
from sojourn.core.errors import LiveCaptureError, UsageError
from sojourn.core.keys import FlowKey, HostPairKey, TrafficKey
from sojourn.lab.namespaces import Network, two_hosts
from sojourn.mplane.router.forwarding import NOWHERE, RouteLookup, keying_of_routes, look_up, parse_facing

live = live_marks("ROUTE LOOKUP IS NOT TESTED: it needs root for network namespaces")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts(router=True) as hosts:
        yield hosts


def host_pair(source: str, destination: str) -> HostPairKey:
    return HostPairKey(ip_address(source), ip_address(destination))


def asked(lookup: RouteLookup, keys: list[TrafficKey], dscp: int = 0) -> list[int]:
    ids = np.array([hash(key) & 0xFFFFFFFF for key in keys], np.uint64)
    return lookup.egress(ids, dscp, lambda rows: [keys[row] for row in rows.tolist()]).tolist()


class TestLive:
    pytestmark = live

    def test_packets_leave_where_the_kernel_says(self, network: Network) -> None:
        assert network.router is not None
        with network.router.entered():
            left, right = (socket.if_nametoindex(name) for name in ("left", "right"))
            with RouteLookup(left) as lookup:
                expected = {
                    host_pair("10.97.1.2", "10.97.2.2"): right,
                    host_pair("10.97.1.2", "10.97.1.77"): left,  # back where it came from: no segment has it
                    host_pair("10.97.1.2", "10.97.2.1"): NOWHERE,  # the router itself
                    host_pair("10.97.1.2", "192.0.2.1"): NOWHERE,  # no route
                    host_pair("10.97.1.2", "224.0.0.5"): NOWHERE,
                    host_pair("fd97:1::2", "fd97:2::2"): right,
                    host_pair("fd97:1::2", "fd97:2::1"): NOWHERE,
                    FlowKey(ip_address("10.97.1.2"), 5, ip_address("10.97.2.2"), 6, 17): right,
                }
                assert asked(lookup, list(expected)) == list(expected.values())

    def test_a_flow_is_asked_for_once_until_routes_change(self, network: Network) -> None:
        router = network.router
        assert router is not None
        key, rows_asked = host_pair("10.97.1.2", "198.51.100.9"), []

        def keys_at(rows: Int64Array) -> list[TrafficKey]:
            rows_asked.append(rows.tolist())
            return [key for _ in rows]

        with router.entered():
            left, right = (socket.if_nametoindex(name) for name in ("left", "right"))
            with RouteLookup(left) as lookup:
                ids = np.array([9, 9, 9], np.uint64)
                assert lookup.egress(ids, 0, keys_at).tolist() == [NOWHERE] * 3
                assert lookup.egress(ids, 0, keys_at).tolist() == [NOWHERE] * 3
                assert rows_asked == [[0]]
                router.run("ip", "route", "add", "203.0.113.0/24", "via", "10.97.2.2")
                assert not lookup.has_changed()  # told, but this flow goes as before
                router.run("ip", "route", "add", "198.51.100.0/24", "via", "10.97.2.2")
                assert lookup.has_changed()
                assert not lookup.has_changed()
                assert lookup.egress(ids, 0, keys_at).tolist() == [right] * 3
                assert rows_asked == [[0]]

    def test_what_a_flow_is_follows_the_multipath_hash(self, network: Network) -> None:
        router = network.router
        assert router is not None
        with router.entered():
            assert keying_of_routes().mode is Keying.HOST_PAIR
        router.run("sysctl", "-q", "net.ipv4.fib_multipath_hash_policy=1")
        with router.entered():
            assert keying_of_routes().mode is Keying.FIVE_TUPLE
        router.run("sysctl", "-q", "net.ipv4.fib_multipath_hash_policy=0")

    def test_multipath_is_told_flow_by_flow(self, network: Network) -> None:
        """Of 40 flows over two equal hops, both are told, and the same each time (1 of 10¹¹ draws has one only)."""
        router = network.router
        assert router is not None
        hops = ("nexthop", "via", "10.97.1.2", "nexthop", "via", "10.97.2.2")
        router.run("ip", "route", "add", "100.64.0.0/24", *hops)
        keys: list[TrafficKey] = [host_pair("10.97.1.2", f"100.64.0.{i}") for i in range(1, 41)]
        with router.entered(), RouteLookup(socket.if_nametoindex("left")) as lookup:
            first = asked(lookup, keys)
            assert len(set(first)) == 2
        with router.entered(), RouteLookup(socket.if_nametoindex("left")) as again:
            assert asked(again, keys) == first

    def test_a_neighbours_address_is_found_in_routes_or_asked_for(self, network: Network) -> None:
        router = network.router
        assert router is not None
        facing = [parse_facing("left=a@10.97.1.2"), parse_facing("right=b")]
        router.run("ip", "neigh", "flush", "all")
        with router.entered():
            router.run("ip", "route", "replace", "198.51.100.0/24", "via", "10.97.2.2")
            found = look_up(facing)
            assert [str(one.peer) for one in found] == ["10.97.1.2", "10.97.2.2"]
            assert found[1].index == socket.if_nametoindex("right")
            for text, said in (("lo=b", "Ethernet"), ("nosuch=b", "no such interface")):
                with pytest.raises(LiveCaptureError, match=said):
                    look_up([facing[0], parse_facing(text)])
            router.run("ip", "route", "flush", "via", "10.97.2.2")
            router.run("ip", "route", "flush", "100.64.0.0/24")
            with pytest.raises(LiveCaptureError, match="right=NEIGHBOUR@ADDRESS"):
                look_up(facing)


@pytest.mark.parametrize("text", ["eth0", "=a", "eth0=", "eth0=a>b", "eth0=a:b", "eth0=a@nowhere", "eth0=a@fd97::1"])
def test_what_is_no_interface_and_neighbour_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="IFACE=NEIGHBOUR"):
        parse_facing(text)


@pytest.mark.parametrize("texts", [["eth0=a"], ["eth0=a", "eth0=b"], ["eth0=a", "eth1=a"]])
def test_segments_need_two_interfaces_to_two_neighbours(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="interface"):
        look_up([parse_facing(text) for text in texts])
