"""The way in to pages, without a browser: who is let in, from where, and what a page may load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from query_unit import running_unit
from tests.web.pages.dashboard_world import Dashboard
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from sojourn.server.app import NO_DASHBOARD
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import open_store
from sojourn.store.tokens import TokenStore
from sojourn.web.pages.front import PAGES
from waiting import PATIENCE_SECONDS

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture
def visitor(empty_dashboard: Dashboard) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=empty_dashboard.url, timeout=PATIENCE_SECONDS) as client:
        yield client


def sign_in(client: httpx.Client, text: str, **form: str) -> httpx.Response:
    return client.post("/sign-in", data={"token": text, **form}, headers={"Origin": str(client.base_url).rstrip("/")})


@pytest.fixture
def viewer(visitor: httpx.Client, empty_dashboard: Dashboard) -> httpx.Client:
    assert sign_in(visitor, empty_dashboard.tokens["viewer"]).status_code == 303
    return visitor


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_every_page_leads_to_signing_in(visitor: httpx.Client, path: str) -> None:
    answer = visitor.get(path, params={"name": "a b"})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=")
    assert not answer.content


def test_files_of_the_site_are_for_those_who_signed_in(visitor: httpx.Client, empty_dashboard: Dashboard) -> None:
    for path in ("/_nicegui/3/static/nicegui.js", SOCKET.replace("websocket", "polling")):
        assert visitor.get(path).status_code == 401
    assert visitor.get("/_sojourn/style.css").status_code == 200
    for path in ("/_sojourn/front.py", "/_sojourn/../front.py", "/_sojourn/%2e%2e/front.py"):
        assert visitor.get(path).status_code in (401, 404)
    sign_in(visitor, empty_dashboard.tokens["viewer"])
    assert visitor.get(SOCKET.replace("websocket", "polling")).status_code == 401  # sockets alone are open


def test_signing_in_leads_to_the_page_that_was_wanted(visitor: httpx.Client, empty_dashboard: Dashboard) -> None:
    answer = sign_in(visitor, f" {empty_dashboard.tokens['viewer']}\n", next="/segment?name=a%20b&from=-5m")
    assert (answer.status_code, answer.headers["location"]) == (303, "/segment?name=a%20b&from=-5m")
    assert "HttpOnly" in answer.headers["set-cookie"]
    page = visitor.get("/")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/api/v1/nodes",
        "javascript:alert(1)",
        "http://[",
        "",
    ],
)
def test_nobody_is_led_elsewhere_by_signing_in(visitor: httpx.Client, empty_dashboard: Dashboard, wanted: str) -> None:
    answer = sign_in(visitor, empty_dashboard.tokens["viewer"], next=wanted)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [
        ("", 401, "no valid token"),
        ("sojourn_1_2", 401, "no valid token"),
        ("<b>", 401, "no valid token"),
        ("ä" * 9, 401, ""),
    ],
)
def test_what_is_no_token_is_refused_without_repeating_it(
    visitor: httpx.Client, text: str, status: int, word: str
) -> None:
    answer = sign_in(visitor, text)
    assert answer.status_code == status
    assert word in answer.text
    assert "<b>" not in answer.text
    assert "set-cookie" not in answer.headers


def test_a_nodes_token_opens_no_page(visitor: httpx.Client, empty_dashboard: Dashboard) -> None:
    answer = sign_in(visitor, empty_dashboard.tokens["alpha"])
    assert answer.status_code == 403
    assert "admin or viewer" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_form_of_another_site_signs_nobody_in(visitor: httpx.Client, empty_dashboard: Dashboard) -> None:
    form = {"token": empty_dashboard.tokens["viewer"]}
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert visitor.post("/sign-in", data=form, headers=headers).status_code == 403
    assert visitor.post("/sign-in", data={"token": "x" * 5000}).status_code == 413


def test_signing_out_ends_the_session(viewer: httpx.Client) -> None:
    cookie = viewer.cookies["sojourn_session"]
    origin = {"Origin": str(viewer.base_url).rstrip("/")}
    assert viewer.post("/sign-out", headers=origin).headers["location"] == "/sign-in"
    assert viewer.get("/", headers={"Cookie": f"sojourn_session={cookie}"}).status_code == 303


def test_a_session_is_no_token_and_a_token_no_session(viewer: httpx.Client, empty_dashboard: Dashboard) -> None:
    assert viewer.get("/api/v1/nodes").status_code == 401
    with empty_dashboard.client("viewer") as client:
        assert client.get("/api/v1/nodes").status_code == 200
        assert client.get("/nodes").status_code == 303


def test_pages_are_only_looked_at(viewer: httpx.Client) -> None:
    assert viewer.post("/nodes").status_code == 405
    assert viewer.delete("/").status_code == 405
    assert viewer.get("/no-such-page").status_code == 401  # a path of the interface's, which wants a token


def test_a_page_loads_from_this_host_alone_and_runs_its_own_scripts(viewer: httpx.Client) -> None:
    first, second = viewer.get("/"), viewer.get("/")
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    scripts = re.search("script-src ([^;]+)", policy)
    assert scripts is not None
    assert "unsafe-inline" not in scripts[1]
    assert not re.search(r"https?:|\*", policy)
    nonces = {
        found
        for page in (first, second)
        for found in re.findall("nonce-([^']+)", page.headers["content-security-policy"])
    }
    assert len(nonces) == 2
    assert first.text.count("<script") == first.text.count("<script nonce=")
    assert not re.search(r"""(?:src|href|url\()=?["'(]?https?://""", first.text)
    plain = viewer.get("/sign-in").headers["content-security-policy"]
    assert plain.endswith("script-src 'self'")


def test_a_browser_does_not_say_where_the_site_lies(viewer: httpx.Client) -> None:
    page = viewer.get("/", headers={"X-Forwarded-Prefix": "/elsewhere"})
    assert "elsewhere" not in page.text


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null", "http://127.0.0.1"])
def test_a_socket_of_another_site_is_refused(viewer: httpx.Client, origin: str | None) -> None:
    cookie = {"Cookie": f"sojourn_session={viewer.cookies['sojourn_session']}"}
    url = f"ws{str(viewer.base_url)[4:].rstrip('/')}{SOCKET}"
    with pytest.raises(InvalidStatus), connect(url, origin=origin, additional_headers=cookie):
        pass


def test_a_socket_needs_a_session_and_ends_with_its_token(viewer: httpx.Client, empty_dashboard: Dashboard) -> None:
    origin = str(viewer.base_url).rstrip("/")
    url = f"ws{origin[4:]}{SOCKET}"
    with pytest.raises(InvalidStatus), connect(url, origin=origin):
        pass
    with pytest.raises(InvalidStatus), connect(url, origin=origin, additional_headers={"Cookie": "sojourn_session=x"}):
        pass
    sign_in(viewer, empty_dashboard.tokens["leaving"])
    cookie = {"Cookie": f"sojourn_session={viewer.cookies['sojourn_session']}"}
    with connect(url, origin=origin, additional_headers=cookie) as socket:
        assert "pingInterval" in str(socket.recv(PATIENCE_SECONDS))
        store = open_store(str(empty_dashboard.directory / "data"))
        TokenStore(store).revoke(empty_dashboard.tokens["leaving"].split("_")[1])
        store.close()
        with pytest.raises(ConnectionClosed):
            _read_all(socket)
    refused = viewer.get("/nodes")
    assert refused.status_code == 401
    assert "was revoked" in refused.text
    assert viewer.get("/nodes").status_code == 303


def _read_all(socket: ClientConnection) -> None:
    while True:
        socket.recv(PATIENCE_SECONDS)


def test_failed_sign_ins_are_counted_as_those_of_other_clients(
    visitor: httpx.Client, empty_dashboard: Dashboard
) -> None:
    statuses = [sign_in(visitor, f"sojourn_1_{number}").status_code for number in range(2 * Limits().failure_burst)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert visitor.get("/api/v1/nodes", headers={"Authorization": "Bearer sojourn_1_2"}).status_code == 429
    assert int(sign_in(visitor, "sojourn_1_2").headers["retry-after"]) >= 1
    # Who has a valid token is not locked out by somebody behind the same address.
    assert sign_in(visitor, empty_dashboard.tokens["viewer"]).status_code == 303


def test_a_query_unit_without_pages_says_how_to_get_them(tmp_path: Path) -> None:
    for unit in running_unit(tmp_path):
        answer = httpx.get(unit.url)
    assert (answer.status_code, answer.text) == (200, NO_DASHBOARD)
    assert "sojourn[web]" in answer.text
    assert answer.text.count("\n") == 1
