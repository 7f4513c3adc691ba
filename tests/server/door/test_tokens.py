"""Tokens end, are rotated without locking anybody out, and show some viewers some nodes; who did what is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from query_unit import Unit, make_epoch, running_unit

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError, UsageError
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.transport import RefusedError
from sojourn.store.audit import AuditLog
from sojourn.store.epochs import EpochStore, StreamRecord, open_store
from sojourn.store.tokens import Role, TokenStore, write_token

HOUR = 3_600 * 10**9
QUESTION = {"metric": "disk_io", "from_ns": 0, "to_ns": 10**18, "live": False}


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"))


@pytest.fixture
def store(place: str) -> Iterator[EpochStore]:
    with closing(open_store(place)) as opened:
        yield opened


def test_a_token_that_ends_is_valid_until_then(store: EpochStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenStore(store)
    token, text = tokens.create(Role.NODE, name="n", node="alpha", expires_ns=time.time_ns() + HOUR)
    assert tokens.check(text) == token
    assert len(tokens.valid_digests()) == 1
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 2 * HOUR)
    assert tokens.check(text) is None
    assert tokens.valid_digests() == frozenset()
    assert tokens.look(text) == token


def test_a_rotated_token_is_valid_beside_the_new_one_for_a_while(store: EpochStore) -> None:
    tokens = TokenStore(store)
    old, before = tokens.create(Role.VIEWER, name="grafana", tags=["east", "roof"])
    new, after = tokens.rotate(old.id, grace_ns=HOUR)
    assert (new.role, new.name, new.tags) == (Role.VIEWER, "grafana", ("east", "roof"))
    assert tokens.check(before) is not None
    assert tokens.check(after) == new
    assert tokens.rotate(new.id, grace_ns=0)[0].id != new.id
    assert tokens.check(after) is None
    with pytest.raises(UsageError, match="no valid token"):
        tokens.rotate(new.id, grace_ns=0)
    with pytest.raises(UsageError, match="tags are for viewers"):
        tokens.create(Role.NODE, name="n", node="alpha", tags=["east"])


def test_who_has_a_token_that_ended_is_told_so_and_nobody_else_is(unit: Unit) -> None:
    tokens = TokenStore(unit.store)
    ended = tokens.create(Role.VIEWER, name="v", expires_ns=1)
    revoked = tokens.create(Role.VIEWER, name="v")
    tokens.revoke(revoked[0].id)
    for (token, text), words in ((ended, "expired at 1970-"), (revoked, "was revoked at 20")):
        with pytest.raises(RefusedError, match=rf"\(401\): token {token.id} {words}.*sojourn token rotate"):
            Client(unit.url, text).nodes()
        with pytest.raises(RefusedError, match="a valid token is needed"):
            Client(unit.url, f"{text}x").nodes()


def test_an_agent_goes_on_with_the_token_that_its_file_has_by_then(unit: Unit, tmp_path: Path) -> None:
    tokens = TokenStore(unit.store)
    token, text = tokens.create(Role.NODE, name="gamma", node="gamma")
    write_token(tmp_path / "token", text)
    transport = HttpTransport(unit.url, text, node="gamma", token_file=tmp_path / "token")
    assert transport.assignments() == (0, {})
    _, later = tokens.rotate(token.id, grace_ns=0)
    with pytest.raises(RefusedError, match=f"token {token.id} expired"):
        transport.assignments()
    (tmp_path / "token").unlink()
    with pytest.raises(RefusedError, match=f"token {token.id} expired"):
        transport.assignments()
    write_token(tmp_path / "token", later)
    assert transport.assignments() == (0, {})
    transport.close()


@pytest.fixture(scope="module")
def seen_by_some(unit: Unit) -> str:
    """The token of a viewer who may see the nodes of one tag, and a world with others beside."""
    for name in ("alpha", "beta"):
        unit.store.announce(StreamRecord(name, "disk", "disk_io", "operations", "process"))
        unit.store.add([make_epoch(1, node=name)])
        with unit.client(name) as client:
            packet = {"origin": 1, "seq": 0, "path": [1, 0], "t0_s": 1.0, "t_sink_s": 1.01}
            client.post(f"/api/v1/nodes/{name}/collections/field/packets", json=[packet]).raise_for_status()
    unit.store.set_tags("alpha", ["east"])
    return TokenStore(unit.store).create(Role.VIEWER, name="east", tags=["east"])[1]


def test_a_viewer_of_a_tag_sees_its_nodes_alone_in_lists(unit: Unit, seen_by_some: str) -> None:
    with Client(unit.url, seen_by_some) as client:
        assert [node["name"] for node in client.nodes()] == ["alpha"]
        assert client.node("alpha")["name"] == "alpha"
        assert [(group["tag"], group["nodes"]) for group in client.groups()] == [("east", 1)]
        assert [answer["value"] for answer in client.query(**QUESTION, node="alpha")] == [7]
        assert [answer["value"] for answer in client.query(**QUESTION, tag="east")] == [7]
        for question in ({"node": "beta"}, {"node": ["alpha", "beta"]}):
            with pytest.raises(ServerError, match="for the nodes of east, which beta is not one of"):
                client.query(**QUESTION, **question)
        with pytest.raises(ServerError, match="any node tagged west has no stream"):
            client.query(**QUESTION, tag="west")
        assert client.violations() == []
        assert client.events() == []


# What a viewer of some nodes may ask of a node that is not one of them, and of the whole fleet: 403, whatever it is.
OF_OTHERS = [
    "/api/v1/nodes/beta",
    "/api/v1/nodes/beta/streams",
    "/api/v1/nodes/beta/states",
    "/api/v1/nodes/beta/streams/disk/epochs",
    "/api/v1/nodes/beta/streams/disk/epochs/1",
    "/api/v1/keys",
    "/api/v1/keys?node=beta",
    "/api/v1/nodes/beta/collections/field",
    "/api/v1/nodes/beta/collections/field/packets/1/0",
    "/api/v1/nodes/beta/collections/field/hops",
    "/api/v1/nodes/beta/collections/field/nodes",
    "/api/v1/segments",
    "/api/v1/segments/measurements?from_ns=0&to_ns=1",
    "/api/v1/objectives",
    "/api/v1/audit",
    "/metrics",
    "/metrics/fleet",
    "/api/v1/readings",
    "/api/v1/topologies",
]


@pytest.mark.parametrize("path", OF_OTHERS)
def test_a_viewer_of_a_tag_is_refused_what_is_of_others(unit: Unit, seen_by_some: str, path: str) -> None:
    with unit.client(None) as client:
        headers = {"Authorization": f"Bearer {seen_by_some}"}
        assert client.get(path, headers=headers).status_code == 403
        allowed = client.get(path.replace("beta", "alpha"), headers=headers).status_code
        assert allowed == (200 if "beta" in path else 403)


@pytest.mark.usefixtures("seen_by_some")
def test_nothing_else_is_shown_to_a_viewer_of_a_tag(unit: Unit) -> None:
    """Every way to read is either in the list above, or filtered, or needs no token."""
    with unit.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    reading = {path for path, methods in paths.items() if "get" in methods}
    filtered = {"/api/v1/nodes", "/api/v1/groups", "/api/v1/events", "/api/v1/violations", "/api/v1/collections"}
    names = {"beta": "{node}", "disk": "{stream}", "field": "{collection}", "epochs/1": "epochs/{sequence}"}
    listed = {path.partition("?")[0] for path in OF_OTHERS}
    for name, place in {**names, "packets/1/0": "packets/{origin}/{sequence}"}.items():
        listed = {path.replace(name, place) for path in listed}
    of_nodes = {"/api/v1/nodes/{node}/assignments", "/api/v1/nodes/{node}/requests"}
    of_all = {"/api/v1/segments/{name}", "/api/v1/objectives/{name}", "/api/v1/topologies/{name}"}
    assert reading == listed | filtered | of_nodes | of_all | {"/health", "/health/live", "/health/ready"}


def test_what_admins_do_is_kept_with_who_and_when(unit: Unit) -> None:
    with Client(unit.url, unit.tokens["admin"]) as client:
        before = time.time_ns()
        client.change_tags("alpha", add=["west"])
        client.change_tags("alpha", remove=["west"])
        newest, older = client.audit(from_ns=before)
        assert newest["at_ns"] >= older["at_ns"] >= before
        assert older["what"] == "changed the tags of alpha: east, west"
        assert "(admin 'a')" in older["who"]
        assert older["address"] == "127.0.0.1"
        assert [entry["what"] for entry in client.audit(about="west", from_ns=before)] == [older["what"]]
        assert client.audit(about="100%", from_ns=before) == []
        assert len(client.audit(limit=1)) == 1
        made = client.audit(about="created token")
        assert made[0]["who"].startswith("user ")
        assert made[0]["address"] == "local"
        assert not any(text in str(client.audit()) for text in unit.tokens.values())


def test_old_actions_are_forgotten(store: EpochStore) -> None:
    log = AuditLog(store)
    for moment in (5, 6, 7):
        log.enter("did it", who="somebody", address="there", now_ns=moment)
    assert log.remove_some_before(7, limit=1) == 1
    assert log.remove_some_before(7, limit=5) == 1
    assert [entry.at_ns for entry in log.entries(from_ns=0, to_ns=10, limit=9)] == [7]
