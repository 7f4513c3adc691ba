"""Sessions end when they should, and there are only so many."""

from __future__ import annotations

import pytest

from sojourn.store.tokens import Role, Token
from sojourn.web.pages import sessions
from sojourn.web.pages.sessions import IDLE_SECONDS, Sessions, cookie_of, set_cookie

TOKEN = Token("1f2e3d4c", "wall", Role.VIEWER, None, 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_after_a_while_without_use() -> None:
    clock = Clock()
    kept = Sessions(clock=clock)
    session = kept.open("text", TOKEN)
    for _ in range(3):
        clock.now += IDLE_SECONDS - 1
        assert kept.find(session.key) is session
    clock.now += IDLE_SECONDS + 1
    assert kept.find(session.key) is None
    clock.now -= IDLE_SECONDS
    assert kept.find(session.key) is None


def test_a_session_that_was_ended_is_not_found() -> None:
    kept = Sessions()
    one, other = kept.open("text", TOKEN), kept.open("text", TOKEN)
    kept.end(one)
    kept.end(one)
    assert kept.find(one.key) is None
    assert kept.find(other.key) is other
    assert kept.find("") is None


def test_of_too_many_sessions_the_one_that_is_used_least_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    kept = Sessions()
    first, second = kept.open("a", TOKEN), kept.open("b", TOKEN)
    kept.find(first.key)
    third = kept.open("c", TOKEN)
    assert [kept.find(one.key) for one in (first, second, third)] == [first, None, third]


def test_keys_differ_and_neither_they_nor_tokens_are_shown() -> None:
    kept = Sessions()
    one, other = kept.open("sojourn_1_secret", TOKEN), kept.open("sojourn_1_secret", TOKEN)
    assert one.key != other.key
    assert len(one.key) >= 40
    assert one.key not in repr(one)
    assert "secret" not in repr(one)


@pytest.mark.parametrize("header", ["", "a=b", "sojourn_session", ";;;=", "sojourn_session=", '"'])
def test_what_is_no_cookie_of_ours_is_empty(header: str) -> None:
    assert cookie_of(header) == ""


def test_the_cookie_is_kept_from_scripts_and_other_sites() -> None:
    plain, safe, gone = (
        set_cookie("k", is_secure=False),
        set_cookie("k", is_secure=True),
        set_cookie("", is_secure=True),
    )
    for cookie in (plain, safe, gone):
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert "Path=/" in cookie
    assert "Secure" not in plain
    assert "Secure" in safe
    assert "Max-Age=0" in gone
