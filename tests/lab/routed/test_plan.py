"""Plans of routed labs: every name, address and interface its own, and within bounds."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_paths import topologies
from sojourn.core.errors import ParameterError, UsageError
from sojourn.lab.routed.plan import LabPlan, plan_lab
from sojourn.mplane.planning.topology import Topology, TopologyBuilder

# Names as files have them: with spaces, commas, slashes, dots, or like the labels that others get.
NAMES = st.text(string.ascii_letters + string.digits + " ,/.-_=:+é", min_size=1, max_size=30).filter(str.strip)
LIKE_LABELS = st.sampled_from([".", "..", "n0", "n1", "n0_", "n2", "to-n1", "-n1", "a" * 12, "a" * 13, "lo"])


@st.composite
def named(draw: st.DrawFn) -> tuple[Topology, dict[str, str]]:
    names = draw(st.lists(NAMES | LIKE_LABELS, min_size=2, max_size=12, unique=True))
    hosts = draw(st.integers(0, len(names) - 2))
    routers = names[hosts:]
    pairs = [(a, b) for i, a in enumerate(routers) for b in routers[:i]]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    builder = TopologyBuilder("drawn")
    for name in routers:
        builder.add_router(name, 1)
    for a, b in chosen:
        builder.add_link(a, b, str(draw(st.integers(1, 65_535))), line=1)
        if draw(st.booleans()):
            builder.add_link(b, a, str(draw(st.integers(1, 65_535))), line=1)
    return builder.finish(), {host: draw(st.sampled_from(routers)) for host in names[:hosts]}


@given(named())
def test_names_addresses_and_interfaces_are_told_apart(world: tuple[Topology, dict[str, str]]) -> None:
    topology, hosts = world
    plan = plan_lab(topology, hosts)
    labels = [node.label for node in plan.nodes]
    assert len(set(labels)) == len(labels)
    assert all("/" not in label and label[0] not in ".-" and " " not in label for label in labels)
    addresses = [node.address for node in plan.routers] + [end.address for link in plan.links for end in link.ends]
    assert len(set(addresses)) == len(addresses)
    interfaces = [(end.node, end.interface) for link in plan.links for end in link.ends]
    assert len(set(interfaces)) == len(interfaces)
    assert all(len(interface) <= 15 for _, interface in interfaces)
    assert LabPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(topologies())
def test_a_link_costs_its_weight_each_way(topology: Topology) -> None:
    plan = plan_lab(topology)
    costs = {
        ends: int(w)
        for ends, w in zip(zip(topology.source, topology.target, strict=True), topology.weight, strict=True)
    }
    for (u, v), cost in costs.items():
        assert plan.end(topology.names[u], topology.names[v]).cost == cost
        back = plan.end(topology.names[v], topology.names[u]).cost
        assert back == costs.get((v, u), cost)


def topology(*links: tuple[str, str, str], latency: str = "", rate: str = "") -> Topology:
    builder = TopologyBuilder("test")
    for source, target, weight in links:
        builder.add_link(source, target, weight, latency_ms=latency, line=1)
        if rate:
            builder.set_rate(source, target, rate, 1)
    return builder.finish()


def test_latencies_and_rates_of_links_hold_both_ways() -> None:
    network = topology(("a", "b", "1"), latency="5", rate="10M")
    for ends in (("a", "b"), ("b", "a")):
        end = plan_lab(network).end(*ends)
        assert (end.latency_ns, end.rate) == (5_000_000, 10_000_000)
        assert plan_lab(network, latencies=False).end(*ends).latency_ns == -1


def test_weights_with_decimals_become_costs_in_the_smallest_unit() -> None:
    plan = plan_lab(topology(("a", "b", "1.5"), ("b", "c", "2")))
    assert (plan.end("a", "b").cost, plan.end("b", "c").cost) == (15, 20)


def test_what_is_too_much_is_refused() -> None:
    ring = [(f"n{i}", f"n{(i + 1) % 65}", "1") for i in range(65)]
    with pytest.raises(ParameterError, match="65 routers are too many; use at most 64"):
        plan_lab(topology(*ring))
    with pytest.raises(ParameterError, match="65 hosts are too many; use at most 64"):
        plan_lab(topology(("a", "b", "1")), {f"h{i}": "a" for i in range(65)})
    with pytest.raises(ParameterError, match=r"a link weighs 65536, an OSPF cost is at most 65535"):
        plan_lab(topology(("a", "b", "65536")))
    with pytest.raises(UsageError, match="there is no router 'c'"):
        plan_lab(topology(("a", "b", "1")), {"h": "c"})
