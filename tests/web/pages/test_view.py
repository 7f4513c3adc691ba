"""What a page knows of its viewer: the range of time in the viewer's zone, and addresses that say all."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.requests import Request

from sojourn.core.errors import ParameterError
from sojourn.store.tokens import Role, Token
from sojourn.web.pages.sessions import Session
from sojourn.web.pages.view import View, within

HOUR_NS = 3_600_000_000_000


def view_of(
    query: str = "", *, cookie: str = "", tags: tuple[str, ...] | None = None, role: Role = Role.VIEWER
) -> View:
    token = Token("1f2e3d4c", "wall", role, None, 0, tags=tags)
    session = Session(key="k", text="sojourn_1_2", token=token, used=0.0)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/segment",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(b"host", b"unit:8080"), (b"cookie", cookie.encode())],
        "client": ("127.0.0.1", 1),
        "state": {"front": SimpleNamespace(unit=None, takes_uploads=False), "session": session},
    }
    return View(Request(scope))


def test_a_time_without_a_zone_is_the_viewers() -> None:
    query = "from=2026-01-31T10:05&to=2026-01-31T11:05"
    berlin = view_of(query, cookie="sojourn_zone=Europe%2FBerlin").span()
    utc = view_of(query).span()
    assert utc.from_ns - berlin.from_ns == HOUR_NS
    assert (berlin.length_ns, berlin.is_open) == (HOUR_NS, False)
    named = view_of("from=2026-01-31T10:05Z&to=2026-01-31T11:05Z", cookie="sojourn_zone=Europe%2FBerlin").span()
    assert named == utc


def test_the_usual_range_is_the_last_hour_and_goes_on() -> None:
    span = view_of().span()
    assert (span.length_ns // 10**9, span.is_open) == (3600, True)
    today = view_of("from=00:00").span()
    assert today.is_open
    assert today.length_ns <= 24 * HOUR_NS


@pytest.mark.parametrize("query", ["from=nonsense", "from=-1h&to=-2h", "from=<b>", "to=2026-13-01", "from=" + "9" * 40])
def test_what_is_no_range_is_refused(query: str) -> None:
    with pytest.raises(ParameterError):
        view_of(query).span()


@pytest.mark.parametrize("zone", ["", "../../etc/passwd", "%00", "No/Where", "x" * 5000, "Europe%2F"])
def test_an_odd_zone_is_utc(zone: str) -> None:
    assert view_of(cookie=f"sojourn_zone={zone}").time(0) == "1970-01-01 00:00:00"


def test_links_keep_the_range_and_quote_what_they_name() -> None:
    link = view_of("from=-6h&name=other").link("/segment", name="a b&c=<d>", flow=None)
    parts = urlsplit(link)
    assert parts.path == "/segment"
    assert parse_qs(parts.query) == {"name": ["a b&c=<d>"], "from": ["-6h"]}
    assert view_of().link("/nodes") == "/nodes"
    assert view_of().link("/segment", name=["a", "b"]) == "/segment?name=a&name=b"


def test_who_sees_what() -> None:
    some, every, admin = view_of(tags=("east",)), view_of(), view_of(role=Role.ADMIN)
    assert [one.sees_all for one in (some, every, admin)] == [False, True, True]
    assert [one.is_admin for one in (some, every, admin)] == [False, False, True]
    assert every.address == "http://unit:8080"


def test_an_interval_is_told_in_words() -> None:
    assert within({"low_ns": None, "high_ns": 1}) == ""
    assert within({"low_ns": 5, "high_ns": 5}) == "exact"
    assert "…" in within({"low_ns": 1_000_000, "high_ns": 2_000_000})
