"""Topology files: every format gives the same network, and bad ones are reported by file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import SojournError, TopologyError, UsageError
from sojourn.mplane.planning.paths import shortest_paths
from sojourn.mplane.planning.topology import Topology, read_topology

CSV = "source,target,weight,latency_ms\na,b,1.5,4\nb,c,2,\nc,a,0.25,1.5\n"
GRAPHML = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
 <key id="w" for="edge" attr.name="weight"/><key id="l" for="edge" attr.name="latency_ms"/>
 <key id="n" for="node" attr.name="label"/>
 <graph edgedefault="directed">
  <node id="1"><data key="n">a</data></node><node id="2"><data key="n">b</data></node><node id="c"/>
  <edge source="1" target="2"><data key="w">1.5</data><data key="l">4</data></edge>
  <edge source="2" target="c"><data key="w">2</data></edge>
  <edge source="c" target="1"><data key="w">0.25</data><data key="l">1.5</data></edge>
 </graph>
</graphml>
"""
LONG = "a" * 5000
GML = """# a comment [
graph [
  directed 1
  node [ id 1 label "a" graphics [ x 1.0 id 7 ] ]
  node [ id 2 label "b" ] node [ id 3 label "c" ]
  edge [ source 1 target 2 weight 1.5 latency_ms 4 ]
  edge [ source 2 target 3 weight 2 ]
  edge [ source 3 target 1 weight 0.25 latency_ms 1.5 ]
]
"""


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def links(topology: Topology) -> set[tuple[str, str, float, int]]:
    columns = (topology.source, topology.target, topology.weight, topology.latency_ns)
    names = topology.names
    return {
        (names[u], names[v], float(w) / topology.weight_unit, int(ns)) for u, v, w, ns in zip(*columns, strict=True)
    }


@pytest.mark.parametrize(("name", "text"), [("x.csv", CSV), ("x.graphml", GRAPHML), ("x.gml", GML)])
def test_all_formats_give_the_same_network(tmp_path: Path, name: str, text: str) -> None:
    one_way = {("a", "b", 1.5, 4_000_000), ("b", "c", 2.0, -1), ("c", "a", 0.25, 1_500_000)}
    path = write(tmp_path, name, text)
    assert links(read_topology(path, directed=True)) == one_way
    both = one_way | {(v, u, w, ns) for u, v, w, ns in one_way}
    assert links(read_topology(path, directed=False)) == both
    assert links(read_topology(path)) == (one_way if name == "x.csv" else both)


def test_rocketfuel_latencies_are_read_from_the_file_beside(tmp_path: Path) -> None:
    path = write(tmp_path, "7.weights.intra", "Tacoma,+WA1 b 2.5\nb Tacoma,+WA1 3\n")
    assert links(read_topology(path)) == {("Tacoma,+WA1", "b", 2.5, -1), ("b", "Tacoma,+WA1", 3.0, -1)}
    write(tmp_path, "7.latencies.intra", "Tacoma,+WA1 b 7\n")
    assert ("Tacoma,+WA1", "b", 2.5, 7_000_000) in links(read_topology(path))
    write(tmp_path, "7.latencies.intra", "\nTacoma,+WA1 c 7\n")
    with pytest.raises(TopologyError, match=r"7\.latencies\.intra:2: .* a latency and no weight"):
        read_topology(path)


@pytest.mark.parametrize(
    ("number", "routers", "links_"),
    [(1221, 108, 306), (1239, 315, 1944), (1755, 87, 322), (3257, 161, 656), (3967, 79, 294), (6461, 141, 748)],
)
def test_real_maps(shared_data: Path, number: int, routers: int, links_: int) -> None:
    topology = read_topology(shared_data / "topologies" / "rocketfuel" / f"{number}.weights.intra")
    assert (len(topology.names), topology.links) == (routers, links_)
    assert topology.latency_ns.min() > 0


@pytest.mark.parametrize(("name", "routers", "links_"), [("Abilene", 11, 28), ("Cogentco", 197, 486)])
def test_topology_zoo_lists_links_once_and_without_weights(
    shared_data: Path, name: str, routers: int, links_: int
) -> None:
    topology = read_topology(shared_data / "topologies" / f"{name}.graphml")
    assert (len(topology.names), topology.links) == (routers, links_)
    assert np.all(topology.weight == 1)
    assert "no link has a weight: all weigh 1" in topology.remarks
    assert shortest_paths(topology).unreachable_pairs == 0


def test_repeated_labels_parallel_links_and_loops_are_remarked(tmp_path: Path) -> None:
    text = """graph [ node [ id 1 label "x" ] node [ id 2 label "x" ]
    edge [ source 1 target 2 weight 5 ] edge [ source 1 target 2 weight 3 ] edge [ source 1 target 1 weight 3 ] ]"""
    topology = read_topology(write(tmp_path, "x.gml", text))
    assert topology.names == ("x 1", "x 2")
    assert topology.weight.tolist() == [3, 3]
    assert topology.remarks == (
        "2 routers share a label with others: their ids are part of their names",
        "1 parallel links left out, the lightest kept",
        "1 links from a router to itself left out",
    )


HEADER = "source,target,weight\n"
ENTITIES = """<?xml version="1.0"?>
<!DOCTYPE graphml [ <!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"> ]>
<graphml>&b;</graphml>"""
EXTERNAL = """<?xml version="1.0"?>
<!DOCTYPE graphml [
<!ENTITY x SYSTEM "file:///etc/passwd"> ]>
<graphml>&x;</graphml>"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", HEADER, "x.csv: no links"),
        ("x.csv", "", "x.csv:1: the first line does not name the columns"),
        ("x.csv", "a,b,1\n", "x.csv:1: the first line does not name the columns"),
        ("x.csv", HEADER + "a,b,1\nb,a\n", "x.csv:3: 2 fields where the header has 3"),
        ("x.csv", HEADER + "a,b,-1\n", "x.csv:2: a weight is above 0, this is -1"),
        ("x.csv", HEADER + "a,b,0\n", "x.csv:2: a weight is above 0, this is 0"),
        ("x.csv", HEADER + "a,b,\n", "x.csv:2: the link has no weight"),
        ("x.csv", HEADER + "a,b,nan\n", "x.csv:2: the weight 'nan' is not a number"),
        ("x.csv", HEADER + "a,b,1e400\n", "x.csv:2: a weight of 1e400"),
        ("x.csv", HEADER + "a,b,1e-30\n", "x.csv:2: a weight of 1e-30"),
        ("x.csv", HEADER + "a,b,2e18\nb,c,1\n", "x.csv:2: paths of weight"),
        ("x.csv", HEADER + "a,b,1\nb,a,1\na,b,2\n", "x.csv:4: the link from a to b is in line 2 already"),
        ("x.csv", HEADER + "a,a,1\n", "x.csv:2: a link from a to itself"),
        ("x.csv", HEADER + ",b,1\n", "x.csv:2: a router's name has"),
        ("x.csv", HEADER + '"a,b,1\n', "x.csv:2: not CSV"),
        ("x.csv", HEADER.encode() + b"a,b,\xff\n", "x.csv:2: not UTF-8 text"),
        ("x.csv", "source,target,weight,latency_ms\na,b,1,-4\n", "x.csv:2: a latency is 0 ms to"),
        ("1.weights.intra", "a b 1\na b\n", "1.weights.intra:2: a line is 'router router value'"),
        ("1.latencies.intra", "a b 1\n", "give 1.weights.intra"),
        ("x.graphml", "", "x.graphml:1: not XML: no element found"),
        ("x.graphml", "<graphml>\n<node>", "x.graphml:2: not XML"),
        ("x.graphml", "<html/>", "x.graphml: it begins with <html>"),
        ("x.graphml", ENTITIES, "x.graphml: it declares the entity 'a'"),
        ("x.graphml", EXTERNAL, "x.graphml: it declares the entity 'x'"),
        ("x.graphml", "<graphml>" + "<a>" * 20_000, "x.graphml:1: not XML"),
        (
            "x.graphml",
            '<graphml>\n<node id="1"/>\n<node id="1"/></graphml>',
            "x.graphml: more than one router has the id 1",
        ),
        ("x.graphml", '<graphml>\n<edge source="1" target="2"/></graphml>', "x.graphml: a link to a router '1' that"),
        ("x.graphml", GRAPHML.replace(">a<", f">{LONG}<"), "x.graphml: a router's name has 1 to 200"),
        ("x.gml", GML.replace('"a"', f'"{LONG}"'), "x.gml: a router's name has 1 to 200"),
        (
            "x.graphml",
            GRAPHML.replace('<data key="w">2</data>', ""),
            "x.graphml: link from b to c: the link has no weight",
        ),
        ("x.gml", "graph [\nnode [ id 1 ]\n", "x.gml:4: not GML: expected ']', found EOF"),
        ("x.gml", "graph [\n]\n]", "x.gml:3: not GML: expected EOF, found ']'"),
        ("x.gml", "graph [ \n 5 ]", "x.gml:2: not GML: expected ']', found 5"),
        ("x.gml", "a [ " * 20_000, "nested too deeply"),
        ("x.gml", "graph [ node [ label 3 ] ]", "x.gml: not GML: node #0 has no 'id'"),
    ],
)
def test_a_bad_file_is_reported_with_its_line_or_link(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    with pytest.raises(TopologyError) as raised:
        read_topology(write(tmp_path, name, text))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_long_text_that_names_nothing_is_left_out(tmp_path: Path) -> None:
    """Twice what took a minute when its pieces were joined one by one."""
    note = '<key id="d" for="node" attr.name="description"/>'
    text = GRAPHML.replace("<graph ", f"{note}<graph ").replace(
        '<node id="c"/>', f'<node id="c"><data key="d">{LONG * 3_000}</data></node>'
    )
    assert links(read_topology(write(tmp_path, "x.graphml", text))) == links(
        read_topology(write(tmp_path, "y.graphml", GRAPHML))
    )


@pytest.mark.parametrize("name", ["x.gml", "x.graphml"])
def test_a_graph_too_large_for_its_tree_is_refused_before_it_is_parsed(tmp_path: Path, name: str) -> None:
    with pytest.raises(TopologyError, match="more than 16000000 bytes"):
        read_topology(write(tmp_path, name, " " * 16_000_001))


ODD = """<graphml xmlns:y="http://www.yworks.com/xml/graphml"><key id="c" attr.name="Cost" attr.type="int"/>
 <key id="g" yfiles.type="nodegraphics"/>
 <graph edgedefault="undirected">
  <node id="1"><data key="?">x</data><data key="g"><y:ShapeNode><y:NodeLabel> R </y:NodeLabel></y:ShapeNode></data>
  </node>
  <node id="2"><graph><node id="2::3"/></graph></node>
  <edge id="e" source="1" target="2" directed="true"><data key="c">0.10</data></edge>
  <edge id="e" source="1" target="2"><data key="c">0.3</data></edge>
  <edge source="2::3" target="1"><data key="c">7</data></edge>
 </graph></graphml>"""


def test_graphml_without_namespace_with_groups_parallel_links_and_undeclared_keys_is_read(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, "x.graphml", ODD), directed=True)
    assert links(topology) == {("R", "2", 0.1, -1), ("2::3", "R", 7.0, -1)}


def test_gml_need_not_declare_its_parallel_links(tmp_path: Path) -> None:
    text = """Creator "x"
    graph
    [ directed 0 node [ id 4 label "a &amp; b" ] node [ id 5 ] edge [ source 4 target 5 metric 2 ]
    edge [ source 4 target 5 metric 0.10 LinkLabel "10 Gbps" ] edge [ source 5 target 4 metric 3 ] ]"""
    assert links(read_topology(write(tmp_path, "x.gml", text))) == {("a & b", "5", 0.1, -1), ("5", "a & b", 3.0, -1)}


def test_other_endings_are_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known are"):
        read_topology(write(tmp_path, "x.txt", CSV))


@given(
    st.sampled_from(["csv", "gml", "graphml", "weights.intra"]),
    st.one_of(st.binary(max_size=200), st.text('graph[]nodeid1 \n"source,target<>/=#&;.-', max_size=300)),
    st.sampled_from(["", HEADER, "graph [ node [ ", "<graphml><graph>", "a b 1\n"]),
)
def test_garbage_gives_an_error_of_ours_or_a_network(
    tmp_path_factory: pytest.TempPathFactory, ending: str, rest: str | bytes, beginning: str
) -> None:
    content = beginning.encode() + (rest if isinstance(rest, bytes) else rest.encode())
    path = write(tmp_path_factory.mktemp("garbage"), f"x.{ending}", content)
    try:
        links_found = read_topology(path).links
    except SojournError:
        return
    assert links_found > 0


def test_a_hundred_thousand_routers_are_read_and_then_refused(tmp_path: Path) -> None:
    lines = "".join(f"n{number},n{number + 1},1\n" for number in range(100_000))
    topology = read_topology(write(tmp_path, "x.csv", HEADER + lines), directed=False)
    assert topology.links == 200_000
    with pytest.raises(TopologyError, match="plan on parts of at most"):
        shortest_paths(topology)


def test_a_rate_limits_the_links_that_have_one(tmp_path: Path) -> None:
    text = "source,target,weight,rate\na,b,1,10M\nb,c,1,\nc,a,1,500 kbit\n"
    topology = read_topology(write(tmp_path, "x.csv", text))
    assert topology.rates == {(0, 1): 10_000_000, (2, 0): 500_000}
    assert topology.without([(2, 0)]).rates == {(0, 1): 10_000_000}
    assert read_topology(tmp_path / "x.csv", directed=False).rates[1, 0] == 10_000_000


@pytest.mark.parametrize("rate", ["0", "-1M", "fast", "2000G", "1" * 300])
def test_a_bad_rate_is_reported_with_its_line(tmp_path: Path, rate: str) -> None:
    path = write(tmp_path, "x.csv", f"source,target,weight,rate\na,b,1,1M\nb,c,1,{rate}\n")
    with pytest.raises(TopologyError, match=r"x\.csv:3: .* (rate|is not a rate)"):
        read_topology(path)
