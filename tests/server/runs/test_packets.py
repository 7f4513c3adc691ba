"""Questions about one flow's packets, asked of both nodes' ledgers over the real channel; and why they may not tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from ledger_nodes import admin_of_ledgers, both, chosen
from query_unit import Unit
from tests.segments.fleet.ledgers.test_ledger_ranges import world_of

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from sojourn.lab.two_point import LOST, TwoPointWorld
from sojourn.node.transports.transport import Transport

SECOND = 1_000_000_000


@pytest.fixture
def admin(unit: Unit) -> Iterator[Client]:
    with admin_of_ledgers(unit) as client:
        yield client


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    return world_of(9, loss=0.02)


def ends(unit: Unit) -> tuple[Transport, Transport]:
    return unit.transport("alpha"), unit.transport("beta")


def test_all_packets_of_a_flow_are_told_by_clocks_that_are_apart(
    unit: Unit, admin: Client, world: TwoPointWorld
) -> None:
    text, flow = chosen(world)
    with both(ends(unit), world):
        found = admin.flow_packets("ab", text, last_ns=60 * SECOND)
        few = admin.flow_packets("ab", text, last_ns=60 * SECOND, most=100)
    delay = world.delay_ns[world.sender.flow_id == flow]
    true = delay - delay[delay != LOST].min()
    assert [row["fate"] for row in found] == ["lost" if one == LOST else "arrived" for one in delay.tolist()]
    shown = np.array([row["delay_ns"] for row in found if row["delay_ns"] is not None])
    assert (shown - shown.min()).tolist() == true[delay != LOST].tolist()
    # Nothing leads back, and no kernel tells of its clock: delays are relative, and say so.
    assert found.clock["uncertainty_ns"] is None
    assert found.delays["p50_low_ns"] is None
    assert "relative to the two clocks" in found.summary
    assert len(few) <= 100
    assert len(few) + few.left_out == len(found)
    assert list(few) == list(found)[-len(few) :]
    assert any("ask for a shorter time, or more" in note for note in few.notes)


def test_an_unknown_flow_is_said_to_be_so(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    with both(ends(unit), world):
        found = admin.flow_packets("ab", "10.9.9.9:1 > 10.9.9.8:2 udp")
    assert len(found) == 0
    assert "no packet of 10.9.9.9:1" in found.notes[-1]


def test_who_cannot_be_asked_is_named(unit: Unit, admin: Client, world: TwoPointWorld) -> None:
    text, _ = chosen(world)
    with pytest.raises(ServerError, match="node alpha cannot be asked now"):
        admin.flow_packets("ab", text)
    with (
        both(ends(unit), world, is_old=True),
        pytest.raises(ServerError, match=r"node beta does not tell: .*upgrade it"),
    ):
        admin.flow_packets("ab", text)
    admin.create_segment("plain", "alpha:eth7", "beta:eth8")
    with pytest.raises(ServerError, match="its points keep no ledger now"):
        admin.flow_packets("plain", text)
    for name, flow, reason in (("ab", "nonsense", "is no flow"), ("zz", text, "no segment zz")):
        with pytest.raises(ServerError, match=reason):
            admin.flow_packets(name, flow)
