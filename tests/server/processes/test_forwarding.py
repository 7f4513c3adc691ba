"""One address for everything: what ingest processes do not answer themselves is answered as if they were not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit

from sojourn.epochs.wire import encode
from sojourn.store.tokens import TokenStore
from waiting import PATIENCE_SECONDS, eventually

BURST, FAILURES = 30, 5


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    """Two ingest processes; its planning process is this one."""
    for running in running_unit(tmp_path_factory.mktemp("data"), workers=2):
        with running.client(None) as client:
            eventually(lambda: client.get("/health/ready").status_code == 200)
        yield running


def client_of(unit: Unit, who: str | None = "admin") -> httpx.Client:
    """A client with a connection of its own; what TLS would take is not loaded for each."""
    return unit.client(who, verify=False)


def test_requests_are_answered_as_by_one_process(unit: Unit) -> None:
    with client_of(unit) as client:
        assert "/api/v1/epochs" in client.get("/openapi.json").json()["paths"]
        assert client.get("/api/v1/nodes").json() == []
        assert client.put("/api/v1/nodes/alpha/tags", json={"tags": ["a"]}).json() == {"tags": ["a"]}
        assert client.get("/api/v1/groups", params={"a b": "ü?&"}).status_code == 200
        assert client.get("/nowhere%2Fat%20all").status_code == 404
        assert client.put("/api/v1/epochs").status_code == 405
        assert client.head("/api/v1/nodes").status_code == 405
        assert client.get("/api/v1/nodes/alpha/requests", params={"wait": 0}).status_code == 204
        sent = client.post("/api/v1/epochs", content=encode(make_epoch(7)))
        assert sent.json()["results"] == [{"node": "alpha", "stream": "disk", "sequence": 7, "status": "stored"}]
        assert client.get("/api/v1/nodes/alpha/streams/disk/epochs/7").content == encode(make_epoch(7))
    with client_of(unit, "beta") as client:
        assert client.post("/api/v1/epochs", content=encode(make_epoch(8))).status_code == 403
        assert client.get("/api/v1/nodes").status_code == 403
    with client_of(unit, "viewer") as client:
        assert client.post("/api/v1/epochs", content=encode(make_epoch(8))).status_code == 403
    with client_of(unit, None) as client:
        assert client.get("/api/v1/nodes").status_code == 401


def test_large_bodies_go_through_in_pieces_and_too_large_ones_are_refused(unit: Unit) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 100

    with client_of(unit, "alpha") as client:
        refused = client.post("/api/v1/nodes/alpha/requests/none", content=pieces())
        assert (refused.status_code, refused.json()["detail"]) == (404, "nobody waits for that answer")
        refused = client.post("/api/v1/nodes/alpha/requests/none", content=b" " * (LIMITS.body_bytes + 1))
        assert refused.status_code == 413
        assert client.post("/api/v1/epochs", content=b" " * (LIMITS.body_bytes + 1)).status_code == 413


def test_a_node_that_waits_anywhere_is_asked_and_what_it_answers_counts(unit: Unit) -> None:
    """A long poll, an answer in parts, and a question that leaves out what has been stored since."""
    announced = {"metric": "disk_io", "unit": "operations", "granularity": "process"}
    open_epochs = [make_epoch(number, node="beta", time_ns=number * 10**9) for number in (1, 2)]

    def answer() -> None:
        with client_of(unit, "beta") as client:
            client.put("/api/v1/nodes/beta/streams/disk", json=announced).raise_for_status()
            asked = client.get("/api/v1/nodes/beta/requests", params={"wait": 20}).json()
            client.post("/api/v1/epochs", content=encode(open_epochs[0])).raise_for_status()
            way = f"/api/v1/nodes/beta/requests/{asked['id']}"
            for more, epoch in (("true", open_epochs[0]), ("false", open_epochs[1])):
                client.post(way, params={"more": more}, content=encode(epoch)).raise_for_status()

    thread = threading.Thread(target=answer)
    thread.start()
    with client_of(unit) as client:
        eventually(lambda: client.get("/api/v1/nodes/beta").json().get("listening"))
        question = {"metric": "disk_io", "node": "beta", "from_ns": 0, "to_ns": 10**12}
        (found,) = client.post("/api/v1/query", json=question).json()
    thread.join(PATIENCE_SECONDS)
    assert (found["value"], found["epochs"]) == (14.0, 2)


def test_a_question_ends_when_its_asker_goes(unit: Unit) -> None:
    """The planning process notices that a connection to an ingest process was closed."""
    with client_of(unit, "alpha") as client, pytest.raises(httpx.ReadTimeout):
        client.get("/api/v1/nodes/alpha/requests", params={"wait": 20}, timeout=1.0)
    with client_of(unit) as client:
        eventually(lambda: not any(one["listening"] for one in client.get("/api/v1/nodes").json()))


def test_a_revoked_token_is_refused_by_all(unit: Unit) -> None:
    tokens = TokenStore(unit.store)
    clients = [client_of(unit, "alpha") for _ in range(6)]
    for number, client in enumerate(clients):
        assert client.post("/api/v1/epochs", content=encode(make_epoch(100 + number))).status_code == 200
    revoked = next(token for token in tokens.all() if token.node == "alpha")
    tokens.revoke(revoked.id)
    for client in clients:
        assert client.post("/api/v1/epochs", content=encode(make_epoch(200))).status_code == 401
        assert client.get("/api/v1/nodes/alpha/assignments").status_code == 401
        client.close()


def test_a_name_is_the_same_everywhere(unit: Unit) -> None:
    first, second = ({"Sojourn-Instance": digit * 16} for digit in "12")
    body = [encode(make_epoch(number, node="gamma")) for number in range(20)]
    with client_of(unit) as client:
        assert client.post("/api/v1/epochs", content=body[0], headers=first).status_code == 200
    for _ in range(6):
        with client_of(unit) as client:
            taken = client.post("/api/v1/epochs", content=body[1], headers=second)
            assert (taken.status_code, "sojourn nodes release gamma" in taken.text) == (409, True)
    with client_of(unit) as client:
        client.post("/api/v1/nodes/gamma/release", headers=first).raise_for_status()
        client.post("/api/v1/epochs", content=body[2], headers=first).raise_for_status()
    for _ in range(6):  # it is back before anybody else came
        with client_of(unit) as client:
            assert client.post("/api/v1/epochs", content=body[3], headers=second).status_code == 409


def test_limits_hold_over_all_processes(tmp_path: Path) -> None:
    """A token's requests, failed sign-ins of an address: a rate for all, whichever process is asked."""
    limits = {"requests_per_second": 0.001, "burst": BURST, "failures_per_second": 0.001, "failure_burst": FAILURES}
    within = type(LIMITS)(**{**vars(LIMITS), **limits})
    for unit in running_unit(tmp_path / "data", within, workers=2):
        with client_of(unit, None) as client:
            eventually(lambda: client.get("/health/live").status_code == 200)
        statuses = []
        for number in range(BURST + 10):
            with client_of(unit, "alpha") as client:
                if number % 2:
                    statuses.append(client.post("/api/v1/epochs", content=encode(make_epoch(number))).status_code)
                else:
                    statuses.append(client.get("/api/v1/nodes/alpha/assignments").status_code)
        assert statuses == [200] * BURST + [429] * 10
        failed = []
        for number in range(FAILURES + 4):
            with client_of(unit, None) as client:
                how, path = ("POST", "/api/v1/epochs") if number % 2 else ("GET", "/api/v1/nodes")
                guess = {"Authorization": f"Bearer guess-{number}"}
                failed.append(client.request(how, path, headers=guess).status_code)
        assert failed == [401] * FAILURES + [429] * 4
        with client_of(unit, "beta") as client:  # who has a valid token is not kept out by a guesser
            assert client.post("/api/v1/epochs", content=encode(make_epoch(node="beta"))).status_code == 200
