"""Runs that come to a query unit late: what ledgers have forgotten meanwhile is answered by the sample, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from ledger_nodes import admin_of_ledgers, both
from query_unit import Unit
from tests.segments.fleet.fleet_world import record, truth_between
from tests.segments.fleet.ledgers.test_ledger_ranges import PLAN, world_of

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from sojourn.epochs.wire import encode
from sojourn.lab.two_point import LOST, TwoPointWorld
from sojourn.sketches.ledgers.ledger import BLOCK
from sojourn.store.runs import RunStore
from waiting import eventually


@pytest.fixture
def admin(unit: Unit) -> Iterator[Client]:
    with admin_of_ledgers(unit) as client:
        yield client


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    return world_of(4, loss=0.02)


def settle(unit: Unit, admin: Client, world: TwoPointWorld, *, held: int) -> None:
    """Have both nodes send all at once, as after an hour without a query unit, with ledgers of so many packets."""
    [direction] = admin.segment("ab")["directions"]
    transports = unit.transport("alpha"), unit.transport("beta")
    with both(transports, world, ahead_ns=0, held=held):
        for end, batch in (("from", world.sender), ("to", world.receiver)):
            node, stream = direction[end]["node"], direction[end]["stream"]
            with unit.client(node) as client:
                for epoch in record(batch, PLAN, world, node=node):
                    assert client.post("/api/v1/epochs", content=encode(replace(epoch, stream=stream))).is_success
        runs = RunStore(unit.store)
        eventually(lambda: sum(one.runs for one in runs.totals(0, 2**63 - 1).values()) > 2)
        eventually(lambda: not runs.unnamed(limit=10))


@pytest.mark.parametrize("held", [BLOCK, 1 << 18])
def test_what_is_forgotten_is_counted_and_not_named(unit: Unit, admin: Client, world: TwoPointWorld, held: int) -> None:
    settle(unit, admin, world, held=held)
    result = admin.query_segment("ab", from_ns=0, live=False)
    _, delay = truth_between(world, result.covered[0]["from_ns"], result.covered[-1]["to_ns"])
    low, high = (result.aggregate.get(name, result.aggregate["lost"]) for name in ("lost_low", "lost_high"))
    assert low <= np.count_nonzero(delay == LOST) <= high
    assert len(result.covered) == 1
    methods = {row["method"] for row in result}
    if held == BLOCK:
        assert "ledger" not in methods
        with pytest.raises(ServerError, match="no ledger tells of its packets in the range"):
            admin.lost_packets("ab", 0)
    else:
        assert methods == {"ledger"}
        assert admin.lost_packets("ab", 0).lost >= np.count_nonzero(delay == LOST)
