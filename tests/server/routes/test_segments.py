"""Segments over HTTP and by the client: created, listed, shown and removed, and what earlier versions are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from query_unit import Unit, make_epoch

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.node.agent.stream_states import NOT_STARTED
from sojourn.node.transports.transport import RefusedError
from sojourn.server.control.states import StreamStateStore
from sojourn.server.models import StreamState


@pytest.fixture
def admin(unit: Unit) -> Iterator[Client]:
    with Client(unit.url, unit.tokens["admin"]) as client:
        yield client


def listen(unit: Unit, node: str) -> None:
    """A node that has waited for questions a moment ago."""
    with unit.client() as client:
        client.get(f"/api/v1/nodes/{node}/requests", params={"wait": 0})


def report(unit: Unit, node: str, stream: str, state: str, reason: str | None = None) -> None:
    found = StreamState(state=state, since_ns=5, reason=reason)  # type: ignore[arg-type]
    StreamStateStore(unit.store).replace(node, {stream: found})


def test_a_segment_is_created_listed_shown_and_removed(unit: Unit, admin: Client) -> None:
    created = admin.create_segment("ab", "alpha:eth0", "beta:eth1", filter=" udp ", both_directions=True)
    assert created["kind"] == "fleet"
    assert (created["from"], created["to"], created["filter"]) == ("alpha:eth0:out", "beta:eth1:in", "udp")
    assert (created["error"], created["confidence"], created["memory_bytes"]) == (0.05, 0.95, 128_000)
    assert admin.segment("ab") == created
    (row,) = admin.segments()
    assert all(created[name] == value for name, value in row.items())
    ends = [(one["name"], one["from"]["point"], one["to"]["point"]) for one in created["directions"]]
    assert ends == [("ab", "alpha:eth0:out", "beta:eth1:in"), ("ab:reverse", "beta:eth1:out", "alpha:eth0:in")]
    with Client(unit.url, unit.tokens["viewer"]) as viewer:
        assert viewer.segments() == [row]
        with pytest.raises(ServerError, match="needs the role admin"):
            viewer.remove_segment("ab")
    admin.remove_segment("ab")
    assert admin.segments() == []
    with pytest.raises(ServerError, match=r"\(404\): there is no segment ab; sojourn segment list"):
        admin.segment("ab")
    with pytest.raises(ServerError, match=r"\(404\): there is no segment ab"):
        admin.remove_segment("ab")


def test_both_ends_are_shown_as_they_fare(unit: Unit, admin: Client) -> None:
    shown = admin.create_segment("ab", "alpha:eth0", "beta:eth0", memory_bytes=32_000, epoch_ns=5 * 10**9)
    sender, receiver = (shown["directions"][0][end]["stream"] for end in ("from", "to"))

    def ends() -> list[tuple[str, str | None]]:
        found = admin.segment("ab")["directions"][0]
        return [(found[end]["state"], found[end]["reason"]) for end in ("from", "to")]

    assert [state for state, _ in ends()] == ["unreachable", "unreachable"]
    assert "node alpha does not answer, and has never been heard of" in str(ends())
    listen(unit, "alpha")
    listen(unit, "beta")
    assert [state for state, _ in ends()] == ["waiting", "waiting"]
    report(unit, "alpha", sender, "failed", NOT_STARTED)
    listen(unit, "alpha")
    assert ends()[0] == ("waiting", "node alpha is starting it")
    report(unit, "alpha", sender, "running")
    report(unit, "beta", receiver, "failed", "assignment: 'segment' is no sketch; use one of auto, lda")
    listen(unit, "alpha")
    listen(unit, "beta")
    assert ends() == [("running", None), ("failed", "node beta's agent is of an earlier version: upgrade it")]
    assert admin.segments()[0]["state"] == "failed"
    assert "upgrade it" in admin.segments()[0]["reason"]
    report(unit, "beta", receiver, "failed", "interface eth0: no such device")
    listen(unit, "beta")
    assert ends()[1] == ("failed", "interface eth0: no such device")


def test_plan_generations_and_last_epochs_are_shown(unit: Unit, admin: Client) -> None:
    admin.create_segment("ab", "alpha:e", "beta:e", memory_bytes=32_000)
    shown = admin.create_segment("ac", "alpha:e", "gamma:e", memory_bytes=64_000, epoch_ns=5 * 10**9)
    assert [(one["number"], one["current"]) for one in shown["generations"]] == [(2, True), (1, False)]
    plan = shown["generations"][0]["plan"]
    assert (plan["kind"], plan["epoch_ns"], plan["flows"], plan["loss"]) == ("auto", 5 * 10**9, 1000, 0.01)
    assert 60_000 < plan["memory_bytes"] <= 64_000
    stream = shown["directions"][0]["from"]["stream"]
    assert stream == "point:e:out:g2"
    unit.store.add([make_epoch(3, stream=stream), make_epoch(4, stream=stream, time_ns=7 * 10**9)])
    end = admin.segment("ac")["directions"][0]["from"]
    assert (end["last_epoch"]["sequence"], end["last_epoch"]["last_ns"]) == (4, 7 * 10**9)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sender": "alpha"}, r"\(400\): from: 'alpha' names no node and interface"),
        ({"receiver": "beta:in"}, r"\(400\): to: 'beta:in' names no node"),
        ({"name": "a>b"}, "is a name of another kind"),
        ({"filter": "tcp prt 80"}, "filter 'tcp prt 80': can't parse filter expression"),
        ({"memory_bytes": 100}, "100 bytes are too few; give at least"),
        ({"memory_bytes": 32_000, "error": 0.05, "confidence": 0.9}, "a memory, or an error"),
        ({"epoch_ns": 5}, "from 1 s to 1 h"),
        ({"epoch_ns": "soon"}, r"\(422\): body.epoch_ns"),
        ({"colour": "red"}, r"\(422\): body.colour"),
    ],
)
def test_what_cannot_be_created_is_refused_in_words(admin: Client, how: dict[str, Any], words: str) -> None:
    wanted = {"name": "ab", "sender": "alpha:e", "receiver": "beta:e"} | how
    with pytest.raises(ServerError, match=words):
        admin.create_segment(**wanted)
    assert admin.segments() == []


def test_a_name_is_given_once(admin: Client) -> None:
    admin.create_segment("ab", "alpha:e", "beta:e")
    with pytest.raises(RefusedError, match="there is a segment ab already") as refused:
        admin.create_segment("ab", "alpha:e", "gamma:e")
    assert refused.value.status == 409


def probed(start_ns: int, **changes: Any) -> SegmentMeasurement:
    """A second of probes over a virtual link."""
    known: dict[str, Any] = {"packets": 20, "lost": 2, "mean_ns": 5e5, "low_ns": 4e5, "high_ns": 6e5, "std_ns": 1e4}
    return SegmentMeasurement(
        segment=Segment.between("alpha", "x y", "beta"),
        dscp=0,
        interval=1,
        start_ns=start_ns,
        end_ns=start_ns + 10**9,
        method="probes",
        **(known | changes),
    )


def test_what_mplane_measures_is_in_the_same_list(admin: Client) -> None:
    now = time.time_ns()
    admin.add_measurements([probed(now - 10**9)])
    admin.create_segment("ab", "alpha:e", "beta:e")
    fleet, measured = admin.segments()
    assert fleet.keys() == measured.keys()
    assert (measured["name"], measured["kind"], measured["last_ns"]) == ("alpha>x y>beta", "virtual link", now)
    assert (measured["from"], measured["to"], measured["hops"]) == ("alpha", "beta", ["alpha", "x y", "beta"])
    shown = admin.segment("alpha>x y>beta")
    assert shown["measurement"]["mean_ns"] == 5e5
    with pytest.raises(ServerError, match="there is no segment alpha>beta"):
        admin.segment("alpha>beta")


def test_what_mplane_measures_answers_the_same_questions(admin: Client) -> None:
    second, name = 10**9, "alpha>x y>beta"
    rows = [probed(start * second, mean_ns=(1 + start) * 1e5, low_ns=None, high_ns=None) for start in (0, 1, 4)]
    void = {"lost": 0, "mean_ns": None, "low_ns": None, "high_ns": None, "std_ns": None, "void": "start lost"}
    admin.add_measurements([*rows, probed(2 * second, **void)])
    result = admin.query_segment(name, from_ns=0, interval_ns=2 * second)
    assert result.aggregate["sent"] == 60
    assert result.aggregate["lost"] == 6
    assert result.aggregate["mean_ns"] == pytest.approx((1e5 + 2e5 + 5e5) / 3, abs=1)
    assert [(one["start_ns"], one["sent"], one["mean_ns"]) for one in result.intervals] == [
        (0, 40, 150_000),
        (2 * second, 0, None),
        (4 * second, 20, 500_000),
    ]
    assert [tuple(span.values()) for span in result.covered] == [(0, 2 * second), (4 * second, 5 * second)]
    assert list(result.notes) == ["1 interval without an answer: start lost"]
    assert "alpha → beta" in result.summary
    assert len(result) == 0
    with pytest.raises(ServerError, match="as a whole, not by flows"):
        admin.query_segment(name, from_ns=0, top=5)
    with pytest.raises(ServerError, match="nothing was measured in the range"):
        admin.query_segment(name, from_ns=100 * second)


def test_earlier_probers_and_stations_are_told_to_be_upgraded(unit: Unit) -> None:
    with unit.client("alpha") as prober:
        refused = prober.post("/api/v1/segments", json={"measurements": []})
    assert refused.status_code == 400
    assert "this prober is of an earlier version: upgrade it" in refused.json()["detail"]
    with unit.client("viewer") as station:
        refused = station.get("/api/v1/segments", params={"from_ns": 0, "to_ns": 5})
    assert refused.status_code == 400
    assert "this client is of an earlier version: upgrade it" in refused.json()["detail"]


def test_the_nodes_concerned_are_asked_to_look_at_once(unit: Unit, admin: Client) -> None:
    listen(unit, "alpha")
    admin.create_segment("ab", "alpha:e", "beta:e")
    with unit.client("alpha") as node:
        asked = node.get("/api/v1/nodes/alpha/requests", params={"wait": 20}).json()
        assert asked["streams"] == []
        assert node.post(f"/api/v1/nodes/alpha/requests/{asked['id']}", content=b"").status_code == 204
        assert list(node.get("/api/v1/nodes/alpha/assignments").json()["streams"]) == ["point:e:out:g1"]
