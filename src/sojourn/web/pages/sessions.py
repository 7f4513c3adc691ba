"""Sessions: which browser has signed in with which token.

A session is a random number in a cookie that no script can read; the token itself stays here, in memory. Guarantee: it
ends with its token (whoever uses a session looks the token up), when somebody signs out, after `IDLE_SECONDS` without
use, and with the process. At most `MOST_SESSIONS` are kept; the one that was not used for the longest time goes first.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import cookie_parser

from sojourn.store.tokens import Token

COOKIE = "sojourn_session"
IDLE_SECONDS = 12 * 3600.0
MOST_SESSIONS = 10_000


@dataclass
class Session:
    """A browser that signed in; `text` is the token's, as the interface takes it."""

    key: str = field(repr=False)
    text: str = field(repr=False)
    token: Token
    used: float
    has_ended: bool = False  # its token is valid no more, which its next page says before it goes


class Sessions:
    """All sessions of one query unit; belongs to one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[str, Session] = OrderedDict()

    def open(self, text: str, token: Token) -> Session:
        """A new session of a token that is valid now."""
        session = Session(key=secrets.token_urlsafe(32), text=text, token=token, used=self._clock())
        self._open[session.key] = session
        while len(self._open) > MOST_SESSIONS:
            self._open.popitem(last=False)
        return session

    def find(self, key: str) -> Session | None:
        """The session of a cookie, if it is still open; it is used by this."""
        session = self._open.get(key)
        if session is None:
            return None
        now = self._clock()
        if now - session.used > IDLE_SECONDS:
            self.end(session)
            return None
        session.used = now
        self._open.move_to_end(key)
        return session

    def end(self, session: Session) -> None:
        """Nobody can use it any more."""
        self._open.pop(session.key, None)


def cookie_of(header: str, name: str = COOKIE) -> str:
    """The value of a cookie; empty if there is none. What others have set on this host keeps none from being read.

    >>> cookie_of("a=1; sojourn_session=k3y")
    'k3y'
    """
    return cookie_parser(header).get(name, "")


def set_cookie(key: str, *, is_secure: bool) -> str:
    """The header that has a browser keep a session until it is closed; an empty key has it forget.

    ``Lax`` lets links from elsewhere lead to a page; what changes something, and sockets, check the origin beside it.
    """
    return f"{COOKIE}={key}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if is_secure else ''}" + (
        "" if key else "; Max-Age=0"
    )
