"""A query unit whose store is a PostgreSQL: epochs, answers, tags and sinks as with a directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from query_unit import Unit, make_epoch, running_unit, undecodable
from sink_packets import CBOR, FIELD, appended, closed, small_world

from postgresql_server import PostgresqlServer
from sojourn.epochs.wire import encode
from sojourn.segments.fleet.replanning import Seen, replanned
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.control.segments import SegmentControl
from sojourn.server.door.limits import Limits
from sojourn.server.sinks.store import SinkStore
from sojourn.store.epochs import open_store
from sojourn.store.segments import Recording
from sojourn.tomography.delays.estimate import WindowSpan
from sojourn.tomography.reading import encode_packets
from waiting import eventually


@pytest.fixture
def unit(postgresql: PostgresqlServer) -> Iterator[Unit]:
    yield from running_unit(postgresql.new_schema())


def test_epochs_are_stored_once_and_answered_without_those_that_cannot_be_decoded(unit: Unit) -> None:
    batch = b"".join(encode(make_epoch(i, time_ns=(i + 1) * 10**9)) for i in range(3)) + undecodable(3)
    announced = {"metric": "disk_io", "unit": "operations", "granularity": "process"}
    with unit.client() as client:
        for status in ("stored", "duplicate"):
            sent = client.post("/api/v1/epochs", content=batch, headers=CBOR)
            assert [result["status"] for result in sent.json()["results"]] == [status] * 4
        assert client.put("/api/v1/nodes/alpha/streams/disk", json=announced).status_code == 200
        assert client.post("/api/v1/nodes/alpha/tags", json={"add": ["east"]}).json() == {"tags": ["east"]}
        question = {"metric": "disk_io", "tag": "east", "from_ns": 0, "to_ns": 10**12, "live": False}
        (total,) = client.post("/api/v1/query", json=question).json()
        assert (total["value"], total["epochs"], len(total["notes"])) == (21.0, 3, 1)
        eventually(lambda: unit.store.totals()["instances"] == 2)
        listed = client.post("/api/v1/query", json={**question, "instance": "p*"}).json()
        assert [answer["instance"] for answer in listed] == ["p[1]", "p[0]"]
        frames = unit.store.frames("alpha", "disk", limit=9)
        assert [frame["set_aside"] is None for frame in frames] == [False, True, True, True]
        assert client.post("/api/v1/query", json={**question, "metric": "\0"}).status_code == 400


def test_packets_of_a_sink_are_solved(unit: Unit) -> None:
    rows = small_world()
    with unit.client() as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        assert closed(client)["solved"] == len(rows)


def test_packets_that_are_set_aside_are_counted(postgresql: PostgresqlServer) -> None:
    rows = small_world()
    store = open_store(postgresql.new_schema())
    sinks = SinkStore(store, Limits())
    sinks.append("alpha", "field", rows)
    (state,) = sinks.collections()
    assert sinks.set_aside(state, WindowSpan(0, 2**62, 0, 2**62), "it took too long", period_ns=1) == len(rows)
    (state,) = sinks.collections()
    assert (state.open, state.set_aside) == (0, len(rows))
    store.close()


class Joined:
    """New recordings fare well at once."""

    def are_joined(self, _first: Recording, _second: Recording) -> bool:
        return True

    def began_ns(self, recording: Recording) -> int | None:
        return recording.since_ns


def test_segments_are_planned_assigned_and_removed(unit: Unit) -> None:
    control = SegmentControl(unit.store, AssignmentStore(unit.store), Limits())
    way = {"name": "way", "from": "alpha:e", "to": "beta:e", "filter": "udp", "memory_bytes": 32_000}
    with unit.client() as client:
        assert client.post("/api/v1/segments", json=way).status_code == 201
        assert client.post("/api/v1/segments", json=way).status_code == 409
        larger = way | {"name": "larger", "to": "gamma:e", "memory_bytes": 64_000, "both_directions": True}
        shown = client.post("/api/v1/segments", json=larger).json()
        assert [one["number"] for one in shown["generations"]] == [3, 2, 1]
        (recorded, _) = sorted(control.groups(), key=lambda one: -len(one.group.points))
        plan = replanned(recorded.generation.plan, Seen(flows=9000, packets=10**6, loss=0.1))
        assert plan is not None
        assert control.replan(recorded, plan, {}) == {"alpha", "beta", "gamma"}
        assert control.finish_taking_over(Joined()) == {"alpha", "beta", "gamma"}
        streams = client.get("/api/v1/nodes/beta/assignments").json()["streams"]
        assert [name[-2:] for name in streams] == ["g4"]
        assert {row["name"] for row in client.get("/api/v1/segments").json()} == {"way", "larger"}
        for name in ("way", "larger"):
            assert client.delete(f"/api/v1/segments/{name}").status_code == 204
        assert client.get("/api/v1/nodes/beta/assignments").json()["streams"] == {}
        assert control.segments.remove_some_before(2**62, limit=100) > 4
