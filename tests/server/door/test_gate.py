"""What comes before a request is understood: its token, its size, and what a refusal says."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, running_unit

from sojourn.core.errors import UsageError
from sojourn.server.door.limits import Limits
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

MODELS = {
    "/api/v1/query": "viewer",
    "/api/v1/segments/measurements": "alpha",
    "/api/v1/nodes/alpha/tags": "admin",
    "/api/v1/nodes/alpha/streams/disk": "alpha",
    "/api/v1/nodes/alpha/assignments/disk": "admin",
}
METHODS = {"/api/v1/query": "POST", "/api/v1/segments/measurements": "POST"}


def connected(unit: Unit) -> socket.socket:
    host, port = unit.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def head(unit: Unit, path: str, who: str | None, *lines: str) -> bytes:
    token = [f"Authorization: Bearer {unit.tokens[who]}"] if who else []
    first = f"{METHODS.get(path, 'PUT')} {path} HTTP/1.1"
    return "\r\n".join([first, "Host: x", "Content-Type: application/json", *token, *lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, str]:
    """The status and the whole text of the next answer."""
    data = b""
    while not (found := re.search(rb"content-length: (\d+)\r\n.*?\r\n\r\n(.*)", data, re.DOTALL)) or len(
        found[2]
    ) < int(found[1]):
        part = connection.recv(1 << 16)
        if not part:
            break
        data += part
    return int(data.split()[1]), data.decode()


@pytest.mark.parametrize("path", [*MODELS, "/api/v1/epochs"])
@pytest.mark.parametrize(
    "lines", [["Content-Length: 1000"], ["Transfer-Encoding: chunked"]], ids=["announced", "chunked"]
)
def test_without_a_token_the_answer_comes_before_the_body(shared_unit: Unit, path: str, lines: list[str]) -> None:
    with connected(shared_unit) as connection:
        connection.sendall(head(shared_unit, path, None, *lines))
        assert answer(connection)[0] == 401


@pytest.mark.parametrize("path", MODELS)
def test_with_another_role_the_answer_comes_before_the_body(shared_unit: Unit, path: str) -> None:
    other = {"viewer": "alpha", "alpha": "viewer", "admin": "viewer"}[MODELS[path]]
    with connected(shared_unit) as connection:
        connection.sendall(head(shared_unit, path, other, "Content-Length: 1000"))
        status, text = answer(connection)
    assert status == 403
    assert "this needs the role" in text


@pytest.mark.parametrize("path", MODELS)
def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(shared_unit: Unit, path: str) -> None:
    with connected(shared_unit) as connection:
        connection.sendall(head(shared_unit, path, MODELS[path], f"Content-Length: {LIMITS.body_bytes + 1}"))
        status, text = answer(connection)
    assert status == 413
    assert "exceeds" in text


@pytest.mark.parametrize("path", MODELS)
def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large(shared_unit: Unit, path: str) -> None:
    """Its end never comes, so nothing but the limit can end it."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connected(shared_unit) as connection:
        connection.sendall(head(shared_unit, path, MODELS[path], "Transfer-Encoding: chunked"))
        for _ in range(LIMITS.body_bytes // 0x10000 + 1):
            connection.sendall(chunk)
        assert answer(connection)[0] == 413


def test_json_has_a_smaller_limit_than_epochs(tmp_path: Path) -> None:
    limits = replace(LIMITS, body_bytes=60_000, bulk_json_bytes=20_000, json_bytes=5_000)
    sizes = {"/api/v1/query": 5_000, "/api/v1/segments/measurements": 20_000, "/api/v1/epochs": 60_000}
    for unit in running_unit(tmp_path, limits):
        with unit.client("admin") as client:
            for path, most in sizes.items():
                assert client.post(path, content=b" " * most).status_code in (400, 422)
                assert client.post(path, content=b" " * (most + 1)).status_code == 413
            packets = "/api/v1/nodes/alpha/collections/field/packets"
            assert client.post(packets, content=b" " * 20_001).status_code == 413
            cbor = {"Content-Type": "application/cbor"}
            assert client.post(packets, content=b"\xff" * 20_001, headers=cbor).status_code == 400


def test_a_refused_body_leaves_the_connection_usable(shared_unit: Unit) -> None:
    """A client that has begun to send learns why it was refused, not that the connection broke."""
    with shared_unit.client("alpha") as client:
        for _ in range(3):
            response = client.post("/api/v1/epochs", content=b"x" * (8 << 20))
            assert response.status_code == 413
            assert str(LIMITS.body_bytes) in response.json()["detail"]


def test_an_error_answer_is_short_and_repeats_nothing_of_the_body(shared_unit: Unit) -> None:
    secret = "s3cret" * 1000
    bodies = [
        {"metric": secret, "from_ns": secret, "node": [secret]},
        {secret: 1, "metric": "cpu", "from_ns": 0},
        [secret] * 5,
        {"metric": "cpu", "from_ns": 0, "stat": secret},
    ]
    with shared_unit.client("viewer") as client:
        for body in bodies:
            response = client.post("/api/v1/query", json=body)
            assert response.status_code == 422
            assert len(response.content) < 2000
            assert isinstance(response.json()["detail"], str)
            assert response.text.count("s3cret") < 40
        response = client.post("/api/v1/query", content=b'{"metric": ' + secret.encode())
        assert response.status_code == 422
        assert "s3cret" not in response.text
    with shared_unit.client("alpha") as client:
        rows = {"measurements": [{"kind": secret, "x" * 3000: 1}] * 8}
        response = client.post("/api/v1/segments/measurements", json=rows)
        assert response.status_code == 422
        assert len(response.content) < 2000
        assert "s3cret" not in response.text


def test_one_token_cannot_fill_the_memory_with_bodies_that_do_not_end(tmp_path: Path) -> None:
    limits = replace(LIMITS, body_bytes=100_000, token_buffered_bytes=250_000)
    for unit in running_unit(tmp_path, limits):
        waiting = []
        for _ in range(2):
            connection = connected(unit)
            connection.sendall(_epochs(unit, "alpha") + b"x" * 90_000)
            waiting.append(connection)
        # The server says nothing about bytes it has counted, so the next are sent until it refuses.
        with unit.client("alpha") as alpha, unit.client("beta") as beta:
            eventually(lambda: alpha.post("/api/v1/epochs", content=b"x" * 90_000).status_code == 429)
            assert beta.post("/api/v1/epochs", content=b"x" * 90_000).status_code == 400
            for connection in waiting:
                connection.close()
            eventually(lambda: alpha.post("/api/v1/epochs", content=b"x" * 90_000).status_code == 400)


def _epochs(unit: Unit, who: str) -> bytes:
    token = unit.tokens[who]
    return (
        f"POST /api/v1/epochs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 100000\r\n\r\n"
    ).encode()


STRICT = Limits(failures_per_second=0.0001, failure_burst=5, requests_per_second=10_000, burst=10_000)


@pytest.fixture
def strict_unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", STRICT)


def guesses(unit: Unit, count: int, **headers: str) -> list[int]:
    with unit.client(None) as client:
        return [
            client.get("/api/v1/nodes", headers={"Authorization": f"Bearer sojourn_{i:08x}_{i}", **headers}).status_code
            for i in range(count)
        ]


def test_guesses_are_counted_by_address_whatever_is_presented(strict_unit: Unit) -> None:
    assert guesses(strict_unit, 12) == [401] * 5 + [429] * 7
    with strict_unit.client(None) as client:
        response = client.get("/api/v1/nodes")
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1


def test_whoever_claims_to_be_a_proxy_is_not_believed(strict_unit: Unit) -> None:
    with strict_unit.client(None) as client:
        statuses = [
            client.get("/api/v1/nodes", headers={"X-Forwarded-For": f"10.0.0.{i}"}).status_code for i in range(12)
        ]
    assert statuses == [401] * 5 + [429] * 7


def test_a_named_proxy_is_believed(tmp_path: Path) -> None:
    for unit in running_unit(tmp_path, STRICT, forwarded_from=("127.0.0.1",)):
        assert guesses(unit, 7, **{"X-Forwarded-For": "10.0.0.1"}) == [401] * 5 + [429] * 2
        assert guesses(unit, 1, **{"X-Forwarded-For": "10.0.0.2"}) == [401]


def test_valid_tokens_are_not_locked_out_by_others_failures(strict_unit: Unit) -> None:
    guesses(strict_unit, 10)
    with strict_unit.client("viewer") as client:  # never used before
        assert client.get("/api/v1/nodes").status_code == 200
    new = TokenStore(strict_unit.store).create(Role.VIEWER, name="new")[1]
    headers = {"Authorization": f"Bearer {new}"}
    with strict_unit.client(None) as client:
        eventually(lambda: client.get("/api/v1/nodes", headers=headers).status_code == 200)


def test_a_revoked_token_counts_as_a_failure_and_is_refused_at_once(strict_unit: Unit) -> None:
    guesses(strict_unit, 10)
    with strict_unit.client("viewer") as client:
        assert client.get("/api/v1/nodes").status_code == 200
        TokenStore(strict_unit.store).revoke(strict_unit.tokens["viewer"].split("_")[1])
        assert [client.get("/api/v1/nodes").status_code for _ in range(3)] == [401, 429, 429]


def test_failed_sign_ins_and_admins_actions_are_logged_without_tokens(
    strict_unit: Unit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sojourn")
    monkeypatch.setattr(logging.getLogger("sojourn"), "propagate", True)
    guesses(strict_unit, 100)
    with strict_unit.client("admin") as client:
        client.put("/api/v1/nodes/alpha/assignments/disk", json={"configuration": {"metric": "cpu"}})
        client.delete("/api/v1/nodes/alpha/assignments/disk")
        client.put("/api/v1/nodes/alpha/tags", json={"tags": ["east"]})
    admin = strict_unit.tokens["admin"].split("_")[1]
    # Where another test left the logger alone with its handlers, what it logs is captured there and at the root.
    records = {id(record): record for record in caplog.records if record.name == "sojourn.access"}
    lines = [record.getMessage() for record in records.values()]
    failed = [line for line in lines if "sign-in failed from 127.0.0.1" in line]
    assert 1 <= len(failed) <= 3
    actions = [line for line in lines if f"token {admin} (admin 'a') at 127.0.0.1" in line]
    assert [line.split("127.0.0.1 ")[1] for line in actions] == [
        "assigned disk to alpha",
        "withdrew disk from alpha",
        "set the tags of alpha: east",
    ]
    assert not any(token.split("_", 2)[2] in line for token in strict_unit.tokens.values() for line in lines)


def test_health_is_limited_by_address_and_tells_nothing_of_what_is_stored(tmp_path: Path) -> None:
    for unit in running_unit(tmp_path, Limits(requests_per_second=0.001, burst=3)):
        with unit.client(None) as client:
            first = client.get("/health")
            assert set(first.json()) == {"status", "version"}
            assert [client.get("/health").status_code for _ in range(4)] == [200, 200, 429, 429]
        with unit.client("viewer") as client:
            assert client.get("/api/v1/nodes").status_code == 200


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\nb", "x" * 201, ""])
def test_what_would_not_fit_into_a_path_names_nothing(shared_unit: Unit, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a node"):
        TokenStore(shared_unit.store).create(Role.NODE, name="n", node=name)
    with shared_unit.client("admin") as client:
        response = client.put("/api/v1/nodes/alpha/tags", json={"tags": [name]})
        assert response.status_code in (400, 422)
        assert json.loads(response.text)["detail"]


@pytest.mark.parametrize("name", ["%2E", "%2e%2E", "%2E."])
def test_dots_that_a_client_did_not_resolve_name_nothing(shared_unit: Unit, name: str) -> None:
    with connected(shared_unit) as connection:
        body = b'{"tags": []}'
        path = f"/api/v1/nodes/{name}/tags"
        connection.sendall(head(shared_unit, path, "admin", f"Content-Length: {len(body)}") + body)
        assert answer(connection)[0] == 400


def test_a_store_that_does_not_know_its_tokens_any_more_is_said_in_a_line(unit: Unit) -> None:
    with unit.store.transaction(writes=True) as connection:
        connection.exec_driver_sql("DROP TABLE tokens")
    with unit.client("viewer") as client:
        response = client.get("/api/v1/nodes")
    assert response.status_code == 503
    assert "no such table" in response.json()["detail"]
