"""Two agents with one node's name: the second keeps all that it measures until it is accepted, and all arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from mosquitto_broker import Broker, mostly_http
from sojourn.server.door.limits import Limits
from tally_node import Node, ask, is_listening
from waiting import eventually

LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)


@pytest.fixture
def unit(tmp_path: Path, broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS, broker=broker)


@pytest.fixture
def pair(tmp_path: Path, unit: Unit) -> Iterator[tuple[Node, Node]]:
    nodes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, unit.address, unit.tokens["alpha"]))
    yield nodes[0], nodes[1]
    for node in nodes:
        node.end()


def stored(unit: Unit) -> float:
    return ask(unit, live=False)[0]["value"]


def refusals(unit: Unit) -> float:
    """How often epochs were refused because of the name that they came under."""
    with unit.client("viewer") as client:
        lines = client.get("/metrics").text.splitlines()
    names = (
        'sojourn_requests_total{method="POST",status="409"}',
        'sojourn_messages_total{status="409",what="epochs"}',
    )
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


def test_the_second_agent_keeps_everything_until_the_first_has_gone(unit: Unit, pair: tuple[Node, Node]) -> None:
    first, second = pair
    first.start()
    eventually(lambda: is_listening(unit))
    first.count()
    eventually(lambda: stored(unit) == sum(first.truth.values()))
    second.start()
    eventually(second.spool.exists)
    for _ in range(3):
        first.count()
        second.count()
        eventually(lambda: second.spooled() == sum(second.truth.values()))
        eventually(lambda: stored(unit) == sum(first.truth.values()))
    assert ask(unit)[0]["value"] == sum(first.truth.values()), "the second is not asked, either"
    first.stop()
    eventually(lambda: stored(unit) == sum(first.truth.values()) + sum(second.truth.values()))
    errors = second.stop()
    assert errors.count("another agent sends stream tally under the name alpha") == 1, errors
    assert errors.count("is there again") == 1, errors
    assert "was refused" not in errors
    assert ", 0 waiting" in errors


@mostly_http
def test_a_node_that_is_installed_anew_is_accepted_when_its_name_is_released(
    unit: Unit, pair: tuple[Node, Node]
) -> None:
    first, second = pair
    first.start()
    eventually(lambda: is_listening(unit))
    first.count()
    eventually(lambda: stored(unit) == sum(first.truth.values()))
    second.start()
    second.count()
    eventually(second.spool.exists)
    eventually(lambda: second.spooled() == sum(second.truth.values()))
    with unit.client("admin") as client:
        assert client.post("/api/v1/nodes/alpha/release").json() == {"streams": ["tally"]}
    eventually(lambda: stored(unit) == sum(first.truth.values()) + sum(second.truth.values()))
    # Now it is the first that is refused, which keeps its own in turn.
    refused = refusals(unit)
    first.count()
    eventually(lambda: first.spooled() > 0 and refusals(unit) > refused)
    assert "was refused" not in second.stop()
    eventually(lambda: stored(unit) == sum(first.truth.values()) + sum(second.truth.values()))
    errors = first.stop()
    assert errors.count("another agent sends") == 1
    assert "was refused" not in errors
