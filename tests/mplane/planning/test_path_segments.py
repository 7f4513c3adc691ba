"""Paths as segments: cut at m-routers, over all equal-cost paths, with the shares of an even split."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import TopologyError, UsageError
from sojourn.mplane.measurements import Segment, SegmentKind
from sojourn.mplane.planning.paths import m_sets, path_segments, pieces, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder
from sojourn.mplane.probing.plan import m_set_segments, m_set_targets


def network(*links: tuple[str, str, int]) -> Topology:
    builder = TopologyBuilder("net")
    for source, target, weight in links:
        builder.add_link(source, target, str(weight), line=1)
    builder.add_missing_directions()
    return builder.finish()


# From s two next hops; the lower one splits again: shares ½, ¼, ¼.
FORK = network(("s", "u", 2), ("u", "t", 2), ("s", "v", 2), ("v", "x", 1), ("x", "t", 1), ("v", "y", 1), ("y", "t", 1))


@pytest.mark.parametrize(
    ("hops", "upgraded", "expected"),
    [
        ("ab", "", ["a>b"]),
        ("abc", "", ["a>b>c"]),
        ("abc", "b", ["a>b", "a>[b]>c", "b>c"]),
        ("abcd", "bc", ["a>b", "a>[b]>c", "b>c", "b>[c]>d", "c>d"]),
        ("abcd", "ad", ["a>b>c>d"]),
        ("axmynb", "mn", ["a>x>m", "x>[m]>y", "m>y>n", "y>[n]>b", "n>b"]),
    ],
)
def test_m_routers_cut_a_path_and_its_ends_do_not(hops: str, upgraded: str, expected: list[str]) -> None:
    assert [str(piece) for piece in pieces(tuple(hops), set(upgraded))] == expected


def test_pieces_join_to_the_whole_path() -> None:
    random = np.random.default_rng(4)
    for _ in range(100):
        hops = tuple(f"r{i}" for i in range(random.integers(2, 12)))
        upgraded = {hop for hop in hops if random.random() < 0.4}
        links = [piece for piece in pieces(hops, upgraded) if piece.kind is not SegmentKind.ROUTER]
        walked = links[0].hops + tuple(hop for piece in links[1:] for hop in piece.hops[1:])
        assert walked == hops
        inside = [piece.hops[1] for piece in pieces(hops, upgraded) if piece.kind is SegmentKind.ROUTER]
        assert inside == [hop for hop in hops[1:-1] if hop in upgraded]


def test_traffic_splits_evenly_at_every_router() -> None:
    found = path_segments(shortest_paths(FORK), "s", "t", {"v"})
    assert {">".join(hops): share for hops, share in found.paths} == {"s>u>t": 0.5, "s>v>x>t": 0.25, "s>v>y>t": 0.25}
    shares = {str(segment): share for segment, share in found.shares.items()}
    assert shares == {
        "s>u>t": 0.5,
        "s>v": 0.5,
        "s>[v]>x": 0.25,
        "v>x>t": 0.25,
        "s>[v]>y": 0.25,
        "v>y>t": 0.25,
    }


def test_every_segment_is_measured_by_some_node() -> None:
    """What m-sets probe, and routers measure inside, is all that paths consist of."""
    upgraded = {"v"}
    shortest = shortest_paths(FORK)
    marks = np.array([name in upgraded for name in FORK.names])
    probed = {segment for name in FORK.names for segment in m_set_segments(m_sets(shortest, marks), name)}
    for source in FORK.names:
        for target in FORK.names:
            if source == target:
                continue
            for segment in path_segments(shortest, source, target, upgraded).segments:
                ends = Segment.between(segment.hops[0], segment.hops[-1])
                assert segment.kind is SegmentKind.ROUTER or segment in probed or ends in probed


def test_targets_need_addresses() -> None:
    sets = m_sets(shortest_paths(FORK), np.zeros(len(FORK.names), dtype=bool))
    addresses = {name: f"10.0.0.{i}" for i, name in enumerate(FORK.names)}
    targets = m_set_targets(sets, "s", addresses, port=5)
    assert {str(t.segment): t.address for t in targets}["s>u"] == addresses["u"]
    with pytest.raises(UsageError, match="is not known"):
        m_set_targets(sets, "s", {}, port=5)


def test_what_is_no_path_is_refused() -> None:
    shortest = shortest_paths(FORK)
    for ends, text in ((("s", "s"), "to itself"), (("s", "nowhere"), "no router")):
        with pytest.raises(UsageError, match=text):
            path_segments(shortest, *ends, set())
    ladder = [(f"a{i}", f"{side}{i}", 1) for i in range(10) for side in "bc"]
    ladder += [(f"{side}{i}", f"a{i + 1}", 1) for i in range(10) for side in "bc"]
    with pytest.raises(TopologyError, match="equal-cost paths"):
        path_segments(shortest_paths(network(*ladder)), "a0", "a10", set())
