"""A watched topology: changes are reported, numbers stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain_paths import topologies
from routed_worlds import six_routers
from sojourn.core.errors import SojournError, TopologyError, UsageError
from sojourn.mplane.planning.live_topology import Patience, TopologyWatch, renumbered
from sojourn.mplane.planning.paths import m_sets, shortest_paths
from sojourn.mplane.planning.topology import Topology, TopologyBuilder


def without(topology: Topology, *names: str) -> Topology:
    """Links are named "r1 r2", and fail both ways."""
    pairs = [tuple(map(topology.router, name.split())) for name in names]
    return topology.without([(u, v) for a, b in pairs for u, v in ((a, b), (b, a))])


class Network:
    """A topology that a test changes between polls."""

    def __init__(self, now: Topology) -> None:
        self.now = now
        self.answers = True

    def read(self) -> Topology:
        if not self.answers:
            raise TopologyError("no answer", where="frr")
        return self.now


def test_the_first_poll_and_every_change_is_told() -> None:
    network = Network(six_routers())
    watch = TopologyWatch(network.read, ["r2"])
    first = watch.poll(0)
    assert first is not None
    assert first.before is None
    assert len(first.come) == 14
    assert watch.poll(1) is None
    network.now = without(six_routers(), "r1 r2")
    change = watch.poll(2)
    assert change is not None
    assert change.before is first.after
    assert change.gone == (("r1", "r2", 10), ("r2", "r1", 10))
    assert change.come == ()
    network.now = six_routers()
    back = watch.poll(3)
    assert back is not None
    assert back.come == (("r1", "r2", 10), ("r2", "r1", 10))


def test_routers_that_go_keep_their_numbers_and_new_ones_come_last() -> None:
    builder = TopologyBuilder("grown")
    for source, target in (("r0", "r1"), ("r1", "r2"), ("r2", "r3")):
        builder.add_link(source, target, "10", line=1)
    builder.add_missing_directions()
    grown = builder.finish()
    network = Network(six_routers())
    watch = TopologyWatch(network.read, ["r2"])
    watch.poll(0)
    network.now = grown
    change = watch.poll(10)
    assert change is not None
    names = change.after.shortest.topology.names
    assert names == ("r1", "r2", "r3", "r4", "r5", "r6", "r0")
    fresh = m_sets(shortest_paths(renumbered(grown, names)), change.after.upgraded)
    assert all(mine.same_as(other) for mine, other in zip(change.after.sets, fresh.sets, strict=True))
    assert change.before is not None
    assert len(change.before.of(3).target)  # r4, which is gone
    assert not len(change.after.of(3).target)
    assert [names[router] for router in change.after.of(6).target] == ["r1", "r2"]


def test_a_reading_that_fails_leaves_all_as_it_was() -> None:
    network = Network(six_routers())
    watch = TopologyWatch(network.read)
    watch.poll(0)
    sets = watch.sets
    network.answers = False
    with pytest.raises(TopologyError, match="no answer"):
        watch.poll(1)
    assert watch.sets is sets


def test_changes_come_as_they_are_seen_and_failures_in_a_row_are_told_once() -> None:
    network = Network(six_routers())
    told: list[SojournError] = []
    watch = TopologyWatch(network.read)
    seen = []
    # The network changes each time that the reader is told or a change is taken.
    script = iter([without(six_routers(), "r1 r2"), None, six_routers()])

    def go_on(error: SojournError | None = None) -> None:
        told.extend([error] if error else [])
        topology = next(script, six_routers())
        network.answers = topology is not None
        if topology is not None:
            network.now = topology

    for change in watch.changes(Patience(1_000_000, 600 * 10**9), on_error=go_on):
        seen.append((len(change.gone), len(change.come)))
        if len(seen) == 3:
            break
        go_on()
    assert seen == [(0, 14), (2, 0), (0, 2)]
    assert [str(error) for error in told] == ["frr: no answer"]


def test_watching_ends_when_its_time_is_over_and_needs_a_first_answer() -> None:
    network = Network(six_routers())
    assert len(list(TopologyWatch(network.read).changes(Patience(1_000_000, 20_000_000)))) == 1
    network.answers = False
    with pytest.raises(TopologyError, match="no answer"):
        next(TopologyWatch(network.read).changes(Patience(1)))


def test_unknown_m_routers_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no router 'paris'"):
        TopologyWatch(six_routers, ["paris"]).poll(0)


@given(topologies(), st.randoms(use_true_random=False))
def test_renumbering_moves_names_and_nothing_else(topology: Topology, random: object) -> None:
    names = [*topology.names, "one more"]
    random.shuffle(names)  # type: ignore[attr-defined]
    moved = renumbered(topology, tuple(names))

    def links(of: Topology) -> set[tuple[str, str, int, int]]:
        return {
            (of.names[u], of.names[v], w, t)
            for u, v, w, t in zip(
                of.source.tolist(), of.target.tolist(), of.weight.tolist(), of.latency_ns.tolist(), strict=True
            )
        }

    assert links(moved) == links(topology)
    assert moved.source.tolist() == sorted(moved.source.tolist())
