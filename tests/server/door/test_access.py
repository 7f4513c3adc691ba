"""Every endpoint × every role: who may, and who must not."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from query_unit import Unit, make_epoch, running_unit

from postgresql_server import PostgresqlServer
from sojourn.core.errors import StoreError, UsageError
from sojourn.epochs.wire import encode
from sojourn.server.door.access import SignIn
from sojourn.server.door.allowances import Allowances
from sojourn.server.door.limits import Limits, RateLimiter
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore

EVERYONE = {"admin", "viewer", "alpha", "beta"}
READERS, OWN_NODE = {"admin", "viewer"}, {"admin", "alpha"}
QUESTION = {"metric": "disk_io", "node": "alpha", "from_ns": 0, "to_ns": 10**18, "live": False}
PACKET = {"origin": 1, "seq": 0, "path": [1, 0], "t0_s": 1.0, "t_sink_s": 1.01, "sum_of_delays_s": None}
FIELD = "/api/v1/nodes/alpha/collections/field"
STREAM = {"metric": "disk_io", "unit": "operations", "granularity": "process"}
STATE = {"state": "failed", "since_ns": 10**18, "reason": "no such interface"}
WAY = {"name": "way", "from": "alpha:eth0", "to": "beta:eth0"}
OBJECTIVE = {"name": "way", "segment": "way", "require": ["mean < 10ms"]}
RING = {"params": {"file_name": "ring.csv"}, "content": b"source,target,weight\na,b,1\nb,c,1\nc,a,1\n"}
SEGMENT = {
    "kind": "link",
    "hops": ["alpha", "beta"],
    "dscp": 0,
    "interval": 7,
    "start_ns": 7 * 10**9,
    "end_ns": 8 * 10**9,
    "packets": 20,
    "lost": 1,
    "mean_ns": 1e6,
    "low_ns": 9e5,
    "high_ns": 1.2e6,
    "std_ns": 1e5,
    "method": "probes",
    "void": None,
}

ENDPOINTS = {
    ("POST", "/api/v1/epochs"): (OWN_NODE, {"content": encode(make_epoch())}),
    ("GET", "/api/v1/nodes/alpha/streams/disk/epochs"): (READERS, {}),
    ("GET", "/api/v1/nodes/alpha/streams/disk/epochs/{sequence}"): (READERS, {}),
    ("GET", "/api/v1/nodes"): (READERS, {}),
    ("GET", "/api/v1/nodes/alpha"): (READERS, {}),
    ("PATCH", "/api/v1/nodes/alpha/settings"): ({"admin"}, {"json": {"silent_after_ns": 10**12}}),
    ("GET", "/api/v1/groups"): (READERS, {}),
    ("GET", "/api/v1/events"): (READERS, {}),
    ("GET", "/api/v1/audit"): ({"admin"}, {}),
    ("PUT", "/api/v1/nodes/alpha/tags"): ({"admin"}, {"json": {"tags": ["east"]}}),
    ("POST", "/api/v1/nodes/alpha/tags"): ({"admin"}, {"json": {"add": ["east"], "remove": []}}),
    ("GET", "/api/v1/nodes/alpha/streams"): (READERS, {}),
    ("PUT", "/api/v1/nodes/alpha/streams/disk"): (OWN_NODE, {"json": STREAM}),
    ("GET", "/api/v1/nodes/alpha/states"): (READERS, {}),
    ("PUT", "/api/v1/nodes/alpha/states"): (OWN_NODE, {"json": {"streams": {"disk": STATE}}}),
    ("POST", "/api/v1/nodes/alpha/release"): (OWN_NODE, {"headers": {"Sojourn-Instance": "0123456789abcdef"}}),
    ("GET", "/api/v1/nodes/alpha/assignments"): (OWN_NODE, {}),
    ("PUT", "/api/v1/nodes/alpha/assignments/disk"): ({"admin"}, {"json": {"configuration": {"metric": "cpu"}}}),
    ("DELETE", "/api/v1/nodes/alpha/assignments/disk"): ({"admin"}, {}),
    ("GET", "/api/v1/nodes/alpha/requests"): (OWN_NODE, {"params": {"wait": 0}}),
    ("POST", "/api/v1/nodes/alpha/requests/{request_id}"): (OWN_NODE, {"content": b""}),
    ("GET", "/api/v1/keys"): (READERS, {}),
    ("POST", "/api/v1/query"): (READERS, {"json": QUESTION}),
    ("GET", "/api/v1/collections"): (READERS, {}),
    ("GET", FIELD): (READERS | OWN_NODE, {}),
    ("POST", f"{FIELD}/packets"): (OWN_NODE, {"json": [PACKET]}),
    ("POST", f"{FIELD}/close"): (OWN_NODE, {}),
    ("GET", f"{FIELD}/packets/{{origin}}/{{sequence}}"): (READERS, {}),
    ("GET", f"{FIELD}/hops"): (READERS, {}),
    ("GET", f"{FIELD}/nodes"): (READERS, {}),
    ("POST", "/api/v1/segments/measurements"): (OWN_NODE, {"json": {"measurements": [SEGMENT]}}),
    ("GET", "/api/v1/segments/measurements"): (READERS, {}),
    ("POST", "/api/v1/segments"): ({"admin"}, {"json": WAY}),
    ("GET", "/api/v1/segments"): (READERS, {}),
    ("GET", "/api/v1/segments/way"): (READERS, {}),
    ("POST", "/api/v1/segments/way/query"): (READERS, {"json": {"from_ns": 0, "live": False}}),
    ("POST", "/api/v1/segments/way/lost"): (READERS, {"json": {"from_ns": 0}}),
    ("POST", "/api/v1/segments/way/packets"): (READERS, {"json": {"flow": "10.0.0.1:1 > 10.0.0.2:2 udp"}}),
    ("POST", "/api/v1/segments/query"): (READERS, {"json": {"from_ns": 0}}),
    ("DELETE", "/api/v1/segments/way"): ({"admin"}, {}),
    ("POST", "/api/v1/objectives"): ({"admin"}, {"json": OBJECTIVE}),
    ("GET", "/api/v1/objectives"): (READERS, {}),
    ("GET", "/api/v1/objectives/way"): (READERS, {}),
    ("POST", "/api/v1/objectives/way/check"): (READERS, {}),
    ("DELETE", "/api/v1/objectives/way"): ({"admin"}, {}),
    ("GET", "/api/v1/violations"): (READERS, {}),
    ("PUT", "/api/v1/topologies/ring"): ({"admin"}, RING),
    ("GET", "/api/v1/topologies"): (READERS, {}),
    ("GET", "/api/v1/topologies/ring"): (READERS, {}),
    ("POST", "/api/v1/topologies/ring/upgrade"): (READERS, {"json": {"count": 1}}),
    ("POST", "/api/v1/topologies/ring/changes"): (READERS, {"json": {"from_ns": 0}}),
    ("POST", "/api/v1/topologies/ring/path"): (READERS, {"json": {"from_ns": 0, "source": "a", "target": "b"}}),
    ("DELETE", "/api/v1/topologies/ring"): ({"admin"}, {}),
    ("GET", "/metrics"): (READERS, {}),
    ("GET", "/metrics/fleet"): (READERS, {}),
    ("GET", "/api/v1/readings"): (READERS, {}),
}


def test_the_table_of_endpoints_is_complete(shared_unit: Unit) -> None:
    described = json.loads(shared_unit.client().get("/openapi.json").text)["paths"]
    stated = {(m.upper(), path) for path, methods in described.items() for m in methods}
    names = {"/alpha": "/{node}", "/disk": "/{stream}", "/field": "/{collection}"}
    names |= {"/way": "/{name}", "/ring": "/{name}"}
    ours = {(m, re.sub("/alpha|/disk|/field|/way|/ring", lambda name: names[name[0]], p)) for m, p in ENDPOINTS}
    assert stated == ours | {("GET", path) for path in ("/health", "/health/live", "/health/ready")}


@pytest.mark.parametrize(("method", "path"), ENDPOINTS, ids=lambda text: text)
def test_only_the_roles_meant_may_use_an_endpoint(shared_unit: Unit, method: str, path: str) -> None:
    allowed, how = ENDPOINTS[method, path]
    path = path.format(sequence=0, request_id="none", origin=1)
    with shared_unit.client("admin") as admin:
        admin.put("/api/v1/nodes/alpha/streams/disk", json=STREAM)
        admin.post("/api/v1/epochs", content=encode(make_epoch()))
        admin.post(f"{FIELD}/packets", json=[PACKET])
        admin.delete("/api/v1/segments/way")
        if (method, path) != ("POST", "/api/v1/segments"):
            admin.post("/api/v1/segments", json=WAY)
        admin.delete("/api/v1/objectives/way")
        if (method, path) != ("POST", "/api/v1/objectives"):
            admin.post("/api/v1/objectives", json=OBJECTIVE)
        admin.put("/api/v1/topologies/ring", **RING)
    for who in EVERYONE:
        with shared_unit.client(who) as client:
            status = client.request(method, path, **how).status_code
        if who in allowed:
            # Nobody waits for an answer, and there is nothing to answer from.
            of_nothing = path.endswith(("way/query", "way/lost", "way/packets"))
            is_empty = (status == 404 and "requests/" in path) or (status == 400 and of_nothing)
            assert status in (200, 201, 204) or is_empty, (who, status)
        else:
            assert status == 403, (who, status)
    with shared_unit.client(None) as client:
        assert client.request(method, path, **how).status_code == 401


@pytest.mark.parametrize("text", ["sojourn", "sojourn_x_y", "Bearer", "ü" * 300, "sojourn_%s_wrong"])
def test_no_other_text_is_a_token(shared_unit: Unit, text: str) -> None:
    text = text.replace("%s", shared_unit.tokens["admin"].split("_")[1])
    with shared_unit.client(None) as client:
        response = client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {text}".encode()})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_node_writes_only_its_own_epochs(shared_unit: Unit) -> None:
    both = encode(make_epoch(50)) + encode(make_epoch(50, node="beta"))
    with shared_unit.client("alpha") as client:
        response = client.post("/api/v1/epochs", content=both)
    assert response.status_code == 403
    assert "not beta" in response.json()["detail"]
    assert shared_unit.store.epoch_bytes("alpha", "disk", 50) is None


def test_only_an_admin_releases_the_name_of_another_agent(shared_unit: Unit) -> None:
    statuses = {}
    for who in EVERYONE:
        with shared_unit.client(who) as client:
            statuses[who] = client.post("/api/v1/nodes/alpha/release").status_code
    assert statuses == {"admin": 200, "viewer": 403, "alpha": 403, "beta": 403}


def test_a_revoked_token_is_refused_at_once(unit: Unit) -> None:
    tokens = TokenStore(unit.store)
    with unit.client("viewer") as client:
        assert client.get("/api/v1/nodes").status_code == 200
        tokens.revoke(unit.tokens["viewer"].split("_")[1])
        assert client.get("/api/v1/nodes").status_code == 401
    with pytest.raises(UsageError, match="no valid token"):
        tokens.revoke("nobody")


def test_secrets_are_not_in_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    token, text = TokenStore(store).create(Role.ADMIN, name="a")
    store.close()
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.id.encode() in held
    assert text.split("_", 2)[2].encode() not in held  # the secret, which may have such a sign itself


def test_a_token_of_a_node_names_it_and_no_other_does(tmp_path: Path) -> None:
    tokens = TokenStore(open_store(tmp_path))
    with pytest.raises(UsageError, match="names its node"):
        tokens.create(Role.NODE, name="n")
    with pytest.raises(UsageError, match="names its node"):
        tokens.create(Role.VIEWER, name="v", node="alpha")


def test_callers_that_ask_too_often_are_told_when_to_come_back(tmp_path: Path) -> None:
    slow = Limits(requests_per_second=0.001, burst=3, failures_per_second=0.001, failure_burst=3)
    for unit in running_unit(tmp_path, slow):
        with unit.client("viewer") as client, unit.client("admin") as other, unit.client(None) as nobody:
            statuses = [client.get("/api/v1/nodes").status_code for _ in range(5)]
            assert statuses == [200, 200, 200, 429, 429]
            assert int(client.get("/api/v1/nodes").headers["retry-after"]) >= 1
            assert other.get("/api/v1/nodes").status_code == 200
            assert [nobody.get("/api/v1/nodes").status_code for _ in range(4)] == [401, 401, 401, 429]


def test_a_rate_is_kept_in_the_long_run_and_memory_is_bounded() -> None:
    now = [0.0]
    limiter = RateLimiter(10, 5, callers=3, clock=lambda: now[0])
    allowed = 0
    for _ in range(1000):
        now[0] += 0.01
        allowed += limiter.wait_seconds("a") == 0
    assert 100 <= allowed <= 106
    for caller in "bcde":
        assert limiter.wait_seconds(caller) == 0
    assert len(limiter._callers) == 3


def test_that_the_database_is_away_is_nobodys_failed_sign_in(postgresql: PostgresqlServer) -> None:
    """Nodes with valid tokens go on trying meanwhile, and are not to be told that they guess."""
    limits = Limits(failure_burst=3, failures_per_second=0.001)
    with closing(open_store(postgresql.new_database())) as store, ThreadPoolExecutor(1) as threads:
        text = TokenStore(store).create(Role.VIEWER, name="v")[1]
        sign_in = SignIn(TokenStore(store), limits, threads, Allowances.own(limits))
        postgresql.stop("immediate")
        try:
            for _ in range(3 * limits.failure_burst):
                with pytest.raises(StoreError):
                    asyncio.run(sign_in.token_of("192.0.2.7", text))
        finally:
            postgresql.start()
        assert asyncio.run(sign_in.token_of("192.0.2.7", text)).name == "v"
