"""OSPF databases as FRRouting 8.4.4 printed them: what is a link, and what is refused."""

from __future__ import annotations

import copy
import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routed_worlds import SIX_LINKS
from sojourn.core.errors import SojournError, TopologyError, UsageError
from sojourn.mplane.planning import live_topology as live
from sojourn.mplane.planning.live_topology import read_live_topology, read_router_names, topology_of_database
from sojourn.mplane.planning.topology import Topology

PRINTED = Path(__file__).parent / "frr_8_4"


def database(name: str) -> Any:
    return json.loads((PRINTED / f"{name}.json").read_text())


def topology(data: Any, **options: Any) -> Topology:
    return topology_of_database(data["router"], data["network"], where="frr", **options)


def links(found: Topology) -> dict[tuple[str, str], int]:
    ends = zip(found.source.tolist(), found.target.tolist(), found.weight.tolist(), strict=True)
    return {(found.names[u], found.names[v]): weight for u, v, weight in ends}


def lsa(data: Any, router: int) -> Any:
    lsas = data["router"]["routerLinkStates"]["areas"]["0.0.0.0"]
    return next(lsa for lsa in lsas if lsa["advertisingRouter"] == f"10.96.0.{router}")


NAMES = {f"10.96.0.{number}": f"r{number}" for number in range(1, 7)}
SIX = {ends: w for a, b, w in SIX_LINKS for ends in ((a, b), (b, a))}


def test_point_to_point_links_have_the_costs_of_their_routers() -> None:
    found = topology(database("point_to_point"), names=NAMES)
    assert found.names == tuple(NAMES.values())
    assert links(found) == SIX
    assert found.remarks == ()


def test_routers_without_a_name_go_by_their_ids() -> None:
    found = topology(database("point_to_point"), names={"10.96.0.2": "two"})
    assert found.names[:3] == ("10.96.0.1", "two", "10.96.0.3")


def test_a_shared_network_joins_its_routers_each_at_its_own_cost() -> None:
    found = topology(database("shared_network"), names=NAMES)
    # r1 and r4 have a lighter link of their own beside it.
    over = {("r1", "r6"): 20, ("r6", "r1"): 22, ("r4", "r6"): 21, ("r6", "r4"): 22}
    assert links(found) == SIX | over
    assert found.remarks == ("2 parallel links left out, the lightest kept",)


def test_the_right_spelling_of_attached_routers_is_read_too() -> None:
    data = database("shared_network")
    for entry in data["network"]["networkLinkStates"]["areas"]["0.0.0.0"]:
        entry["attachedRouters"] = entry.pop("attchedRouters")
    assert links(topology(data)) == links(topology(database("shared_network")))


def test_a_router_that_the_network_does_not_list_is_not_on_it() -> None:
    data = database("shared_network")
    for entry in data["network"]["networkLinkStates"]["areas"]["0.0.0.0"]:
        del entry["attchedRouters"]["10.96.0.6"]
    assert links(topology(data, names=NAMES)) == SIX


def test_a_link_that_one_side_announces_is_no_link() -> None:
    data = database("point_to_point")
    announced = lsa(data, 2)["routerLinks"]
    gone = next(key for key, link in announced.items() if link.get("neighborRouterId") == "10.96.0.1")
    del announced[gone]
    found = topology(data, names=NAMES)
    assert links(found) == {ends: weight for ends, weight in SIX.items() if set(ends) != {"r1", "r2"}}
    assert found.remarks == ("1 links that only one side announces left out",)


def test_an_lsa_on_its_way_out_counts_no_more() -> None:
    found = topology(database("router_gone"), names=NAMES)
    assert found.names == ("r1", "r2", "r4", "r5", "r6")
    assert links(found) == {ends: weight for ends, weight in SIX.items() if "r3" not in ends}


def test_costs_may_differ_by_direction() -> None:
    data = database("point_to_point")
    for link in lsa(data, 1)["routerLinks"].values():
        if link.get("neighborRouterId") == "10.96.0.2":
            link["tos0Metric"] = 77
    found = links(topology(data, names=NAMES))
    assert (found["r1", "r2"], found["r2", "r1"]) == (77, 10)


def without_links(data: Any) -> Any:
    for entry in data["router"]["routerLinkStates"]["areas"]["0.0.0.0"]:
        entry["numOfLinks"] = 0
        del entry["routerLinks"]
    return data


def test_a_network_without_links_is_one() -> None:
    found = topology(without_links(database("point_to_point")))
    assert (found.links, len(found.names)) == (0, 6)


def set_at(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


AREA = ("router", "routerLinkStates", "areas", "0.0.0.0")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (AREA, [], "the OSPF database is empty; wait"),
        (AREA, {}, "printed in another way: area '0.0.0.0'; read it from FRRouting 8.4"),
        (("router",), {"Router Link States": {}}, "printed in another way: 'routerLinkStates'"),
        (("router",), [], "printed in another way: 'routerLinkStates'"),
        ((*AREA, 0, "advertisingRouter"), "10.96.0.1.5", "advertisingRouter is no router id: '10.96.0.1.5'"),
        ((*AREA, 0, "lsaAge"), True, "lsaAge is 0 to 3600, this is True"),
        ((*AREA, 0, "routerLinks", "link1", "tos0Metric"), 65536, "tos0Metric is 0 to 65535, this is 65536"),
        ((*AREA, 0, "routerLinks", "link1", "tos0Metric"), 0, "the link from 10.96.0.1 to 10.96.0.2 costs 0"),
        ((*AREA, 0, "routerLinks", "link1", "linkType"), "a Tunnel", "another way: the kind of link 'a Tunnel'"),
    ],
)
def test_what_cannot_be_right_is_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    data = database("point_to_point")
    with pytest.raises(TopologyError, match=r"^frr: ") as caught:
        topology(set_at(data, path, value))
    assert said in str(caught.value)


def test_names_must_tell_routers_apart() -> None:
    with pytest.raises(TopologyError, match="two routers have the same name"):
        topology(database("point_to_point"), names=dict.fromkeys(NAMES, "r"))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside some JSON."""
    inside = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    return [path] * bool(path) + [deeper for key, value in inside for deeper in places(value, (*path, key))]


WHOLE = database("shared_network")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(places(WHOLE)), JSON)
def test_whatever_stands_in_a_database_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    data = set_at(copy.deepcopy(WHOLE), path, value)
    with suppress(TopologyError):
        assert topology(data).links >= 0


def pretend_vtysh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A vtysh that does as the script says, for answers that a real one gives on other machines only."""
    program = tmp_path / "vtysh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'ospfd is not running' >&2; exit 1", "no ospfd can be reached; start FRRouting with ospfd"),
        ("echo 'Exiting: failed to connect to any daemons.' >&2; exit 1", "no ospfd can be reached"),
        ("echo '% OSPF is not enabled in vrf default'", "OSPF is not enabled on this router; configure"),
        ("echo 'Unknown command'; exit 0", "the router gave no JSON: 'Unknown command'"),
        ("echo '{}'", "the router gave no JSON: ''"),
        ("echo '{} {}'", "the OSPF database is printed in another way: 'routerLinkStates'"),
        ("echo oops >&2; exit 3", "vtysh failed: oops"),
        ("head -c 3000 /dev/zero | tr '\\0' '['", "the router gave no JSON"),
        ("while :; do echo 0123456789; done", "its OSPF database is more than 100000 bytes"),
        ("exec sleep 60", "the router did not answer within 0.5 s"),
        ("exec >&-; exec sleep 60", "the router did not answer within 0.5 s"),
    ],
)
def test_answers_that_are_no_database_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    pretend_vtysh(tmp_path, monkeypatch, script)
    monkeypatch.setattr(live, "MAX_BYTES", 100_000)
    monkeypatch.setattr(live, "VTYSH_SECONDS", 0.5 if "sleep" in script else 20.0)
    with pytest.raises(TopologyError) as caught:
        read_live_topology("frr:")
    assert str(caught.value).startswith(f"frr: {said}")


def test_without_vtysh_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopologyError, match="there is no vtysh on this machine; install the package frr"):
        read_live_topology("frr:")


def test_a_database_without_links_is_refused_unless_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = without_links(database("point_to_point"))
    (tmp_path / "printed").write_text(json.dumps(data["router"]) + "\n" + json.dumps(data["network"]))
    pretend_vtysh(tmp_path, monkeypatch, f"cat {tmp_path / 'printed'}")
    with pytest.raises(TopologyError, match="its OSPF database has no links; wait"):
        read_live_topology("frr:")
    assert read_live_topology("frr:", needs_links=False).links == 0


@pytest.mark.parametrize("source", ["frr:a b", "frr:../run", "frr:-N", "frr:/nowhere/at/all", "frr:" + "x" * 200])
def test_sources_that_are_no_place_are_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"neither a pathspace nor a directory|no such directory"):
        read_live_topology(source)


def test_names_come_from_a_file_of_two_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "names.csv"
    path.write_text("router_id,name\n10.96.0.1,paris\n10.96.0.2,\n")
    with pytest.raises(TopologyError, match=r"names.csv:3: a router id or a name is missing"):
        read_router_names(path)
    path.write_text("router_id,name\n10.96.0.1,paris\n10.96.0.2,lyon\n")
    assert read_router_names(path) == {"10.96.0.1": "paris", "10.96.0.2": "lyon"}
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SojournError, match="not CSV"):
        read_router_names(path)
    path.write_text("router_id,name\n10.96.0.1,paris\n")
    monkeypatch.setattr(live, "MAX_NAMES_LETTERS", 20)
    with pytest.raises(TopologyError, match="more than 20 letters"):
        read_router_names(path)
