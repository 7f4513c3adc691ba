"""Tells of violations that were raised or cleared, and of silent nodes, whoever wants to know: a POST of JSON for each.

Guarantee: each raise and each clear is one notification with an id of its own (in the body, and as the header
``Sojourn-Notification``). It is sent until it is answered with 2xx, so at least once: who gets one twice knows it by
its id. After a failure it waits twice as long as before, up to `LONGEST_PAUSE_NS`, and is given up after `GIVEN_UP_NS`,
once it was tried `LEAST_ATTEMPTS` times (the clock may have been set). At most `MOST_WAITING` wait; beyond that the
oldest are given up. Redirects are not followed, and of an answer only its status is looked at. A receiver has
`TIMEOUT_SECONDS` for an answer, however slowly it comes, and is sent one after the other; it keeps others waiting only
while as many as `RECEIVERS` are as slow. Nothing here keeps an evaluation waiting: what has to be told is in the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx

from sojourn import __version__
from sojourn.core.errors import SojournError
from sojourn.server.upkeep import Periodic
from sojourn.store.notifications import Notification, NotificationStore

LOOK_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
FIRST_PAUSE_NS, LONGEST_PAUSE_NS = 1_000_000_000, 300_000_000_000
GIVEN_UP_NS = 86_400_000_000_000
LEAST_ATTEMPTS = 20
MOST_WAITING, AT_ONCE, RECEIVERS = 10_000, 50, 8
_LEASE_NS = 60_000_000_000  # who claims one and ends has it sent again after that
_LOG = logging.getLogger("sojourn.notifications")


def receiver_of(url: str) -> str:
    """Whom a notification goes to, without what may be a secret: paths often are.

    >>> receiver_of("https://hooks.example.net:8443/T0/B1/x?key=y")
    'https://hooks.example.net:8443/…'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


class Notifier(Periodic):
    """Belongs to one query unit."""

    def __init__(self, notifications: NotificationStore) -> None:
        self._notifications = notifications
        self._trusted = httpx.create_ssl_context(trust_env=False)
        self._senders = ThreadPoolExecutor(RECEIVERS, "sojourn-notify")
        self._sending: dict[str, Future[None]] = {}
        super().__init__("sojourn-notify-look", LOOK_SECONDS)

    def stop(self) -> None:
        super().stop()
        self._senders.shutdown(wait=False, cancel_futures=True)

    def work(self) -> None:
        try:
            if given_up := self._notifications.give_up_oldest(MOST_WAITING):
                _LOG.warning("warning: %d notifications were given up, as %d wait", given_up, MOST_WAITING)
            due = self._notifications.due(time.time_ns(), limit=AT_ONCE)
        except SojournError as error:
            self._complain(_LOG, "notifications could not be read", error)
            return
        by_receiver: dict[str, list[Notification]] = {}
        for one in due:
            by_receiver.setdefault(one.url, []).append(one)
        # A receiver that does not answer keeps no other waiting, and is asked once a look.
        self._sending = {url: sending for url, sending in self._sending.items() if not sending.done()}
        for url, waiting in by_receiver.items():
            if url not in self._sending:
                self._sending[url] = self._senders.submit(self._send_all, waiting)

    def _send_all(self, waiting: Sequence[Notification]) -> None:
        try:
            for one in waiting:
                if self._stopping.is_set() or not self._send(one):
                    return
        except Exception as error:
            _LOG.error("error: notifications to %s went wrong, and go on: %r", receiver_of(waiting[0].url), error)

    def _send(self, one: Notification) -> bool:
        """Send a notification that nobody else does; whether the receiver took it."""
        try:
            if not self._notifications.claim(one, time.time_ns() + _LEASE_NS):
                return True
            error = self._posted(one)
            now = time.time_ns()
            if error is None:
                self._notifications.settle(one.id, next_ns=None, delivered_ns=now, error=None)
                return True
            pause = min(FIRST_PAUSE_NS << min(one.attempts, 20), LONGEST_PAUSE_NS)
            # Where a clock was set on, it has not been tried all day.
            is_over = now - one.created_ns > GIVEN_UP_NS and one.attempts >= LEAST_ATTEMPTS
            self._notifications.settle(one.id, next_ns=None if is_over else now + pause, error=error[:300])
            if is_over or one.attempts == 0:
                what = "is given up" if is_over else "will be tried again"
                _LOG.warning("warning: notification %s to %s %s: %s", one.id, receiver_of(one.url), what, error)
        except SojournError as error:
            _LOG.warning("warning: notification %s could not be noted: %s", one.id, error)
        return False

    def _posted(self, one: Notification) -> str | None:
        """None if the receiver took it, else why not."""
        try:
            return asyncio.run(self._answer_to(one))
        except TimeoutError:
            return f"no answer in {TIMEOUT_SECONDS:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return type(error).__name__ if not str(error) else str(error)

    async def _answer_to(self, one: Notification) -> str | None:
        headers = {"User-Agent": f"sojourn/{__version__}", "Content-Type": "application/json"}
        headers["Sojourn-Notification"] = one.id
        how: dict[str, Any] = {"verify": self._trusted, "trust_env": False, "timeout": None}
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            httpx.AsyncClient(**how) as client,
            client.stream("POST", one.url, content=one.body.encode(), headers=headers) as answer,
        ):
            # What follows the status is not read, however long it is.
            return None if answer.is_success else f"answered {answer.status_code}"
